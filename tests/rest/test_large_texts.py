"""Megabytes of text from an API cost no more than the part that is used."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from events.kind_definition import KindDefinitionSpec
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.caddy.admin import build_caddy_error
from infra.providers.docker.engine import build_engine_error
from infra.providers.http import HttpApi
from infra.providers.responses import Response, describe_problem
from infra.providers.rest.protocol import MAX_RULE_CHARACTERS, Protocol
from infra.providers.rest.provider import MAX_MARK_CHARACTERS, RestProvider, WatchingRestProvider
from reconciler.errors import NotDoneError, RefusedError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import listing
from reconciler.provider.listing import MAX_TOKEN_CHARACTERS
from reconciler.provider.secrets import Secrets
from tests.hostile_server import HEAD, MIB, hostile_server
from tests.rest.test_assigned_ids import SPEC

BODIES = {
    "characters that grow in lower case": "İ".encode() * (4 * MIB),
    "invalid UTF-8": b"\xff" * (8 * MIB),
    "a problem full of escapes": b'{"detail": "' + b"\\u0130" * (2 * MIB) + b'"}',
}


def protocol(**changes: Any) -> Protocol:
    rest = {**SPEC["rest"], **changes}
    return Protocol(msgspec.convert({**SPEC, "rest": rest}, KindDefinitionSpec))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the minimum CPU time of several runs."""
    seconds: list[float] = []
    for _ in range(3):
        started_at = time.process_time()
        work()
        seconds.append(time.process_time() - started_at)
    return min(seconds)


@pytest.mark.parametrize("case", BODIES)
@pytest.mark.parametrize("status", [400, 422])
def test_a_large_refusal_costs_a_fraction_of_a_full_search(case: str, status: int) -> None:
    content = BODIES[case]
    rules = [{"status": [422], "means": "Refused", "text": "absent"}]
    existing_protocol = protocol(errors=rules)
    response = Response("POST", "https://api.example", status, {}, content)
    full_seconds = cpu_seconds(lambda: content.decode(errors="replace").lower())
    for each in (
        lambda: existing_protocol.rule_for(status, content),
        lambda: describe_problem(response),
        lambda: build_engine_error(response),
        lambda: build_caddy_error(response),
    ):
        assert cpu_seconds(each) < full_seconds / 8


def test_a_rule_searches_the_beginning_of_a_response() -> None:
    existing_protocol = protocol(errors=[{"status": [400], "means": "Refused", "text": "Taken"}])
    words = b"is taken"
    beginning = b"x" * (MAX_RULE_CHARACTERS - len(words))
    assert existing_protocol.rule_for(400, beginning + words) is not None
    assert existing_protocol.rule_for(400, beginning + b"x" + words) is None
    assert existing_protocol.rule_for(409, words) is None


class Pages:
    """An API that returns computed bodies, and records the size of each request."""

    def __init__(self, body: Callable[[int], object]) -> None:
        self.requests: list[int] = []
        self._body = body

    def __call__(self, connection: socket.socket, head: bytes) -> None:
        self.requests.append(len(head))
        body = msgspec.json.encode(self._body(len(self.requests)))
        connection.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.sendall(body)


def at(port: int) -> ProviderConfigSpec:
    return ProviderConfigSpec("memos", f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("excess", [0, 1])
async def test_a_page_token_has_a_maximum_length(excess: int) -> None:
    def body(number: int) -> object:
        token = f"{number:04}".ljust(MAX_TOKEN_CHARACTERS + excess, "/")
        return {"items": [], "next": token if number < 3 else None}

    pages = Pages(body)
    paging = {"by": "Token", "at": "next", "parameter": "after"}
    by_token = protocol(list={"path": "/notes", "items": "items", "paging": paging})
    with hostile_server(pages) as port:
        provider = RestProvider(by_token, at(port), Secrets(None), CallPermit())
        if excess:
            with pytest.raises(NotDoneError, match=f"at most {MAX_TOKEN_CHARACTERS}"):
                await listing(provider, Scope())
        else:
            assert await listing(provider, Scope()) == []
        await provider.close()
    assert len(pages.requests) == (1 if excess else 3)


async def test_a_request_with_a_path_of_a_megabyte_is_not_encoded() -> None:
    pages = Pages(lambda _: {})
    with hostile_server(pages) as port:
        api = HttpApi(at(port), CallPermit(), secret=None)
        for path, query in (("/" + "x" * MIB, []), ("/x", [("a", "/" * MIB)])):
            with pytest.raises(RefusedError, match="at most 65536 are allowed"):
                await api.call("GET", path, query=query)
        await api.close()
    assert pages.requests == []


@pytest.mark.parametrize("mark", ["x" * (MAX_MARK_CHARACTERS + 1), ["x" * MAX_MARK_CHARACTERS]])
async def test_a_change_cursor_has_a_maximum_length(mark: object) -> None:
    changing = protocol(changes={"path": "/mark", "at": "mark"})
    with hostile_server(Pages(lambda _: {"mark": mark})) as port:
        provider = WatchingRestProvider(changing, at(port), Secrets(None), CallPermit())
        with pytest.raises(NotDoneError, match="change cursor has"):
            await provider.changes(None)
        await provider.close()
