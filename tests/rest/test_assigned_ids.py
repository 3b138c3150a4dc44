"""An API that assigns ids, with each paging style, and listings that change during a read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from events.external import ExternalObject
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.responses import Response
from infra.providers.rest.engine import RestFactory
from infra.providers.rest.paging import MAX_REPEATED_READS, PageContent, Pages
from reconciler.errors import NotDoneError, RefusedError, UnreadableObjectsError
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import ProviderContract, listing
from reconciler.provider.http_faults import HttpFaultContract
from reconciler.provider.kind import Kind
from reconciler.provider.listing import follow_pages
from reconciler.provider.secrets import Secrets
from tests.hostile_server import HEAD, hostile_server, measure_event_loop, send
from tests.rest.kinds import kind_from
from tests.rest.notes_api import NotesApi

PAGINGS: dict[str, Fields] = {
    "Link": {"by": "Link", "size": "size"},
    "Page": {"by": "Page", "parameter": "page", "size": "size"},
    "Offset": {"by": "Offset", "parameter": "offset", "size": "size"},
}
SPEC: dict[str, Any] = {
    "apiVersion": "memos/v1",
    "provider": "memos",
    "fields": {
        "text": {},
        "remark": {"optional": True},
        "config": {
            "type": "Object",
            "fields": {
                "pinned": {"type": "Boolean", "default": False},
                "tags": {"type": "List", "items": {"normalize": ["Lower"]}, "maximum": 3},
                "options": {"type": "Map", "items": {"type": "Integer"}, "default": {}},
            },
        },
    },
    "rest": {
        "name": {"at": "title"},
        "uid": "id",
        "version": "rev",
        "condition": "Body",
        "read": {"path": "/notes/{uid}"},
        "create": {"path": "/notes", "shows": "note"},
        "update": {
            "path": "/notes/{uid}",
            "body": {
                "title": "= name",
                "text": "= object.text",
                "remark": "= object.remark",
                "config": "= object.config",
                "rev": "= int(version)",
            },
            "shows": ".",
        },
        "delete": {"path": "/notes/{uid}"},
        "list": {"path": "/notes"},
    },
}


def memo(paging: str) -> Kind:
    rest = {**SPEC["rest"], "list": {"path": "/notes", "paging": PAGINGS[paging]}}
    return kind_from({"metadata": {"name": "Memo"}, "spec": {**SPEC, "rest": rest}})


class _NotesContract(ProviderContract, HttpFaultContract):
    fields: ClassVar[Fields] = {"text": "one", "config": {"tags": ["A"], "options": {"a": 1}}}
    other_fields: ClassVar[Fields] = {"text": "two", "config": {"tags": [], "pinned": True}}
    never_refused = "the API accepts everything"

    @pytest.fixture
    def api(self) -> NotesApi:
        return NotesApi()

    @pytest_asyncio.fixture
    async def notes_url(self, api: NotesApi) -> AsyncIterator[str]:
        async with api.serving() as url:
            yield url

    @pytest.fixture
    def endpoint(self, notes_url: str) -> str:
        return notes_url


class TestByLink(_NotesContract):
    kind = memo("Link")


class TestByPage(_NotesContract):
    kind = memo("Page")


class TestByOffset(_NotesContract):
    kind = memo("Offset")


async def connect_provider(kind: Kind, url: str) -> Provider:
    assert kind.connect is not None
    return kind.connect(ProviderConfigSpec("memos", url), Secrets(None), CallPermit())


@pytest.mark.parametrize("uid", ["../notes-of-others/1", "..%2Fx", "..\\x", "/", ""])
async def test_an_id_that_may_decode_to_another_path_is_not_sent(uid: str):
    api = NotesApi()
    async with api.serving() as url:
        provider = await connect_provider(memo("Link"), url)
        with pytest.raises(RefusedError, match="is not a valid id"):
            await provider.read("note", uid)
        await provider.close()
    assert memo("Link").name_problem("..\\secrets") is not None


@pytest.mark.parametrize("paging", ["Page", "Offset"])
@pytest.mark.parametrize("at_page", [2, 3])
async def test_a_listing_during_a_deletion_proves_nothing(paging: str, at_page: int):
    api = NotesApi()
    for number in range(9):
        api.add({"title": f"note-{number}", "text": "x"})

    def delete_one(page: int) -> None:
        if page == at_page:
            del api.notes[1]

    api.before_page = delete_one
    async with api.serving() as url:
        provider = await connect_provider(memo(paging), url)
        objects, error = await list_all(provider)
        assert error is not None
        assert "the listing changed while its pages were read" in str(error)
        assert error.may_have("note-5"), "it may be on none of the pages"
        assert not error.proves_failure
        names = [each.name for each in objects]
        assert len(names) == len({*names}) >= 7, "objects that exist are shown"
        assert len(await listing(provider, Scope(), page_size=3)) == 8
        await provider.close()


async def list_all(
    provider: Provider,
) -> tuple[list[ExternalObject], UnreadableObjectsError | None]:
    """Return the listed objects, and the error that says what they do not prove."""
    objects: list[ExternalObject] = []
    try:
        async for page in provider.pages(Scope(), page_size=3):
            objects += page
    except UnreadableObjectsError as error:
        return objects, error
    return objects, None


@pytest.mark.parametrize("paging", ["Page", "Offset"])
async def test_a_listing_is_complete_if_a_shift_is_reversed(paging: str):
    """A tenant creates and deletes an object all the time."""
    api = NotesApi()
    for number in range(9):
        api.add({"title": f"note-{number}", "text": "x"})
    (first, note), pages = next(iter(api.notes.items())), list[int]()

    def toggle(page: int) -> None:
        pages.append(page)
        if page == 2:
            del api.notes[first]
        elif page == 5:
            api.notes = {first: note, **api.notes}

    api.before_page = toggle
    async with api.serving() as url:
        provider = await connect_provider(memo(paging), url)
        objects, error = await list_all(provider)
        await provider.close()
    assert error is None
    assert sorted(each.name for each in objects) == [f"note-{number}" for number in range(9)]


async def test_an_object_that_is_added_while_the_end_is_read_does_not_fail_the_listing():
    api = NotesApi()
    for number in range(9):
        api.add({"title": f"note-{number}", "text": "x"})

    def add_one(page: int) -> None:
        if page == 6:
            api.add({"title": "note-9", "text": "x"})

    api.before_page = add_one
    async with api.serving() as url:
        provider = await connect_provider(memo("Offset"), url)
        assert len(await listing(provider, Scope(), page_size=3)) == 10
        await provider.close()


async def test_a_changed_listing_ends_although_objects_are_added_whenever_its_end_is_read():
    items, requests = [*range(100)], 0

    async def fetch(path: str | None, query: Sequence[tuple[str, str]]) -> PageContent:
        nonlocal requests
        requests += 1
        offset = int(dict(query)["offset"])
        if path is not None or offset >= len(items) > 0:
            items.insert(0, -requests)
        elif requests <= 2 * MAX_REPEATED_READS:
            items.pop(0)
        page = items[offset : offset + 3]
        return PageContent(Response("GET", "http://test/notes", 200), page, page)

    async def convert(_items: Sequence[Any]) -> Sequence[ExternalObject]:
        return ()

    factory, changes = memo("Offset").connect, list[str]()
    assert isinstance(factory, RestFactory)
    pages = Pages(factory.protocol, fetch, convert, 3, lambda: changes.append("changed"))
    async for _ in follow_pages(pages.fetch):
        assert requests < 200
    assert changes == ["changed"]


@pytest.mark.parametrize("paging", ["Page", "Offset"])
async def test_a_listing_that_always_changes_ends_with_few_repeated_reads(paging: str):
    api = NotesApi()
    for number in range(90):
        api.add({"title": f"note-{number}", "text": "x"})
    pages: list[int] = []

    def delete_one(page: int) -> None:
        pages.append(page)
        del api.notes[next(iter(api.notes))]

    api.before_page = delete_one
    async with api.serving() as url:
        provider = await connect_provider(memo(paging), url)
        objects, error = await list_all(provider)
        await provider.close()
    assert error is not None
    assert objects
    assert len(pages) <= 45 + 3 * MAX_REPEATED_READS


async def test_pages_of_one_object_are_refused_if_they_cannot_overlap():
    api = NotesApi()
    api.max_page_size = 1
    for number in range(3):
        api.add({"title": f"note-{number}", "text": "x"})
    async with api.serving() as url:
        provider = await connect_provider(memo("Offset"), url)
        with pytest.raises(NotDoneError, match="a page has one object"):
            await listing(provider, Scope(), page_size=3)
        await provider.close()


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (
            "http://elsewhere.example/other?size=2&offset=2",
            "the next page is at a different path, '/other'",
        ),
        ("http://[/notes?size=2", "its Link header is invalid: Invalid IPv6 URL"),
    ],
)
async def test_a_link_that_leads_elsewhere_is_not_followed(link: str, message: str):
    api = NotesApi()
    for number in range(3):
        api.add({"title": f"note-{number}", "text": "x"})
    api.next_page = link
    async with api.serving() as url:
        provider = await connect_provider(memo("Link"), url)
        with pytest.raises(NotDoneError, match=message):
            await listing(provider, Scope(), page_size=2)
        await provider.close()


async def test_a_link_with_many_brackets_does_not_block_the_event_loop():
    api = NotesApi()
    for number in range(3):
        api.add({"title": f"note-{number}", "text": "x"})
    api.next_page = "<" * 7500
    async with api.serving() as url:
        provider = await connect_provider(memo("Link"), url)
        async with measure_event_loop() as loop:
            with pytest.raises(NotDoneError, match="with an invalid body"):
                await listing(provider, Scope(), page_size=2)
        await provider.close()
    assert loop.blocked_seconds < 0.2  # before the fix: 0.6 s, and 33 s for 60,000 brackets


async def test_a_page_with_many_objects_does_not_block_the_event_loop():
    """An API may ignore the requested page size."""
    note = {"id": "1", "rev": 1, "text": "x", "config": {"tags": ["a", "b"], "options": {"a": 1}}}
    notes = [{**note, "title": f"note-{number}"} for number in range(10_000)]
    body = json.dumps(notes).encode()
    rest = {**SPEC["rest"], "ready": "= object.text.startsWith('x') && object.rev > 0"}
    kind = kind_from({"metadata": {"name": "Memo"}, "spec": {**SPEC, "rest": rest}})
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    with hostile_server(send(HEAD, length, body)) as port:
        provider = await connect_provider(kind, f"http://127.0.0.1:{port}")
        async with measure_event_loop() as loop:
            assert len(await listing(provider, Scope())) == len(notes)
            await asyncio.sleep(0)
        await provider.close()
    assert loop.blocked_seconds < 0.3  # before the fix: 0.7 s, and up to 60 s for 32 MiB
