"""An odd object in a listing does not hide others, and does not count as absent."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.kind_definition import KindDefinitionSpec
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.rest.items import SplitError, UndecodableItem, check_structure, split
from infra.providers.rest.protocol import Protocol
from infra.providers.rest.provider import RestProvider
from reconciler.errors import NotDoneError, ProviderError, UnreadableObjectsError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets
from tests.hostile_server import HEAD, hostile_server

SPEC: dict[str, Any] = {
    "apiVersion": "things/v1",
    "provider": "things",
    "fields": {"size": {"type": "Number"}},
    "rest": {
        "uid": "id",
        "metadata": {"at": "labels"},
        "read": {"path": "/things/{name}"},
        "create": {"path": "/things", "conflict": [409], "shows": "."},
        "delete": {"path": "/things/{name}"},
        "list": {
            "path": "/things",
            "items": "items",
            "paging": {"by": "Token", "at": "next", "parameter": "after"},
        },
    },
}
GOOD = b'{"name": "good", "id": "g", "size": 1}'

UNDECODABLE = {
    "a lone surrogate": b'{"name": "odd", "id": "o", "size": 1, "note": "\\ud800"}',
    "a number that is too large": b'{"name": "odd", "id": "o", "size": 1e400}',
    "an integer of 4,400 digits": b'{"id": "o", "size": %s, "name": "odd"}' % (b"1" * 4400),
    "not UTF-8": b'{"name": "odd", "id": "o", "deep": {"note": "\xff"}}',
    "two thousand levels": b'{"name": "odd", "id": "o", "x": %s}' % (b"[" * 2000 + b"]" * 2000),
    "a label": b'{"name": "odd", "id": "o", "labels": {"a": "\\udfff"}}',
}
NAMELESS = {
    "a surrogate in its name": b'{"name": "\\ud800", "id": "o"}',
    "no name": b'{"name": null, "id": "o"}',
    "a name that is not a string": b'{"name": true, "id": "o"}',
    "null": b"null",
    "a string": b'"odd"',
    "a number": b"1e400",
}
WITHOUT_ID = {
    "no id": b'{"name": "odd", "size": 1}',
    "an id that cannot be decoded": b'{"name": "odd", "id": 1e400, "size": 1}',
}


def page_of(*items: bytes, following: str | None = None) -> bytes:
    return b'{"items": [%s], "next": %s}' % (b", ".join(items), json.dumps(following).encode())


@asynccontextmanager
async def serve_pages(*pages: bytes, **rest: Any) -> AsyncGenerator[RestProvider]:
    """Connect to an API that returns some pages, one for each request for the collection."""
    remaining_pages = list(pages)

    def serve(connection: socket.socket, head: bytes) -> None:
        is_read = head.split()[1].startswith(b"/things/")
        body = b"{}" if is_read else remaining_pages.pop(0)
        first = HEAD.replace(b"200 OK", b"404 Not Found") if is_read else HEAD
        connection.sendall(first + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.sendall(body)

    spec = {**SPEC, "rest": {**SPEC["rest"], **rest}}
    protocol = Protocol(msgspec.convert(spec, KindDefinitionSpec))
    with hostile_server(serve) as port:
        config = ProviderConfigSpec("things", f"http://127.0.0.1:{port}")
        provider = RestProvider(protocol, config, Secrets(None), CallPermit())
        yield provider
        await provider.close()


async def list_names_and_unreadable(
    provider: RestProvider,
) -> tuple[list[str], list[tuple[str | None, str | None]]]:
    """Return the names in a listing, and the unreadable objects."""
    names: list[str] = []
    try:
        async for page in provider.pages(Scope(), page_size=10):
            names += [each.name for each in page]
    except UnreadableObjectsError as unreadable:
        return names, list(unreadable.objects)
    pytest.fail("the listing returned all objects")


@pytest.mark.parametrize("case", UNDECODABLE)
async def test_an_object_that_cannot_be_decoded_is_named_and_does_not_hide_others(
    case: str,
) -> None:
    pages = page_of(UNDECODABLE[case], following="2"), page_of(GOOD)
    async with serve_pages(*pages) as provider:
        assert await list_names_and_unreadable(provider) == (["good"], [("odd", "o")])


@pytest.mark.parametrize("case", NAMELESS)
async def test_an_object_without_a_name_does_not_hide_others(case: str) -> None:
    async with serve_pages(page_of(GOOD, NAMELESS[case])) as provider:
        names, unreadable = await list_names_and_unreadable(provider)
    assert names == ["good"]
    assert [name for name, _ in unreadable] == [None]


@pytest.mark.parametrize("case", WITHOUT_ID)
async def test_an_object_without_an_id_does_not_hide_others(case: str) -> None:
    async with serve_pages(page_of(WITHOUT_ID[case], GOOD)) as provider:
        assert await list_names_and_unreadable(provider) == (["good"], [("odd", None)])


async def test_an_odd_object_of_another_kind_is_not_listed() -> None:
    odd = b'{"name": "x-odd", "id": "o", "note": "\\ud800"}'
    name = {"at": "name", "prefix": "y-"}
    good = GOOD.replace(b"good", b"y-good")
    async with serve_pages(page_of(odd, good), name=name) as provider:
        names = [each.name async for page in provider.pages(Scope(), page_size=9) for each in page]
    assert names == ["good"]


async def test_the_name_of_an_odd_object_is_unknown_if_an_expression_computes_it() -> None:
    """Without the members that cannot be decoded, it could compute a different name."""
    create = {
        "path": "/things",
        "shows": ".",
        "conflict": [409],
        "body": {"name": "= name", "labels": "= metadata"},
    }
    name = {"at": "= has(object.note) ? object.note : object.name"}
    odd = UNDECODABLE["a lone surrogate"]
    async with serve_pages(page_of(odd, GOOD), name=name, create=create) as provider:
        assert await list_names_and_unreadable(provider) == (["good"], [(None, None)])


async def test_two_objects_with_the_same_name_do_not_hide_others() -> None:
    other_item = GOOD.replace(b'"g"', b'"h"')
    async with serve_pages(page_of(GOOD, other_item, GOOD.replace(b"good", b"well"))) as provider:
        names, unreadable = await list_names_and_unreadable(provider)
    assert names == ["good", "well"]
    assert unreadable == [("good", None)]


async def test_a_listing_that_shows_an_object_twice_does_not_prove_absence() -> None:
    """It moved to a later page, so another object may have moved to an earlier page."""
    async with serve_pages(page_of(GOOD, following="2"), page_of(GOOD)) as provider:
        assert await list_names_and_unreadable(provider) == (["good"], [(None, None)])


@pytest.mark.parametrize("body", [page_of(GOOD)[:-14], page_of(GOOD, b'{"name": ]'), b"<html>"])
async def test_an_invalid_body_is_not_accepted_as_a_listing(body: bytes) -> None:
    async with serve_pages(body) as provider:
        with pytest.raises(NotDoneError, match="invalid body"):
            _ = [page async for page in provider.pages(Scope(), page_size=10)]


async def test_an_odd_page_whose_token_may_be_within_an_item_is_not_accepted() -> None:
    """Without the item, the listing would end early and look complete."""
    paging = {"by": "Token", "at": "= answer.items[0].id", "parameter": "after"}
    listing = {"path": "/things", "items": "items", "paging": paging}
    async with serve_pages(page_of(UNDECODABLE["a label"]), list=listing) as provider:
        with pytest.raises(NotDoneError, match="invalid body"):
            _ = [page async for page in provider.pages(Scope(), page_size=10)]


async def test_an_odd_object_does_not_hide_the_absence_of_others() -> None:
    """A 404 counts if the collection responds, whatever another client stored in it."""
    for odd in (*UNDECODABLE.values(), *NAMELESS.values()):
        async with serve_pages(page_of(odd)) as provider:
            assert await provider.read("good") is None
        confirm = {**SPEC["rest"]["read"], "confirm": "/things"}
        async with serve_pages(page_of(odd), read=confirm) as provider:
            assert await provider.read("good") is None


async def test_an_odd_object_in_a_read_of_several_does_not_hide_others() -> None:
    read = {"path": "/collection", "items": "items"}
    async with serve_pages(page_of(GOOD, UNDECODABLE["a label"]), read=read) as provider:
        existing = await provider.read("good")
    assert existing is not None
    assert existing.uid == "g"
    for odd in (UNDECODABLE["a label"], NAMELESS["no name"]):
        async with serve_pages(page_of(odd), read=read) as provider:
            with pytest.raises(ProviderError, match="cannot read"):
                await provider.read("odd")


def test_an_unreadable_object_may_be_the_result_of_a_creation() -> None:
    error = UnreadableObjectsError("x", [("a", "1"), ("b", None)])
    assert [error.may_have(name) for name in ("a", "b", "c")] == [True, True, False]
    assert UnreadableObjectsError("x", [(None, None)]).may_have("c")


async def test_a_large_page_with_an_odd_object_does_not_block_the_event_loop() -> None:
    items = [b'{"name": "n%d", "id": "%d", "x": [[1], [2]]}' % (n, n) for n in range(30_000)]
    content = page_of(*items, UNDECODABLE["a lone surrogate"])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counter = asyncio.create_task(count())
    split_result = await split(content, ("items",))
    counter.cancel()
    assert isinstance(split_result.items[-1], UndecodableItem)
    assert len(split_result.items) == len(items) + 1
    assert turns > 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(items=st.lists(JSON), other=JSON, is_ascii=st.booleans(), data=st.data())
async def test_splitting_a_document_equals_decoding_it(
    items: list[Any], other: Any, is_ascii: bool, data: st.DataObject
) -> None:
    document = {"a": other, "items": items, "b": [other]}
    content = json.dumps(document, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    split_result = await split(content, ("items",))
    assert split_result.items == items
    assert split_result.document == {**document, "items": []}
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(SplitError):
        await split(content[:cut], ("items",))
    with pytest.raises(SplitError):
        await check_structure(content[:cut])
    await check_structure(content)
