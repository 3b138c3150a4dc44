"""An API that sends too much causes an error that names the limit, and uses little memory."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import ListingBegan
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.providers import connections
from infra.providers.connections import MAX_BODY_BYTES
from infra.providers.http import HttpApi
from infra.providers.responses import Response, decode_body, describe_problem
from reconciler.errors import NotDoneError, UnknownResultError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets
from reconciler.roles.observer import listing
from reconciler.roles.observer.listing import ListingAssembler, ListingRefusedError
from reconciler.roles.runtime import secret_guard
from reconciler.roles.runtime.secret_guard import GuardedProvider, guard_provider
from shapes_api.kinds.shapes import ShapesProvider
from tests.hostile_server import (
    HEAD,
    MIB,
    gzip_of_zeros,
    hostile_server,
    measure_event_loop,
    measure_memory,
    measure_resident_memory,
    send,
)
from tests.hostile_server import (
    Responder as Serve,
)

ENOUGH_BYTES = 3 * MAX_BODY_BYTES
"""The chunks of a body, the body itself, and what the event loop has read ahead."""

ENOUGH_SECONDS = 1.5
"""Much more than a slice takes, even on a busy machine; without limits it was 7.7 s."""


@asynccontextmanager
async def connect_api(
    serve: Serve, *, timeout_seconds: float = 30, concurrency: int = 4
) -> AsyncGenerator[HttpApi]:
    with hostile_server(serve) as port:
        limits = Limits(concurrency=concurrency, request_timeout_seconds=timeout_seconds)
        api = HttpApi(
            ProviderConfigSpec("test", f"http://127.0.0.1:{port}", limits=limits),
            CallPermit(),
            secret=None,
        )
        try:
            yield api
        finally:
            await api.close()


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

ENDLESS = {
    "1 GiB with a length": (
        send(HEAD + b"Content-Length: %d\r\n\r\n" % 2**30, repeat=bytes(MIB), times=1024),
        "longer than 32 MiB",
    ),
    "1 GiB without a length": (send(HEAD + b"\r\n", repeat=bytes(MIB), times=1024), "32 MiB"),
    "2 GiB in 2 MiB of gzip": (
        send(
            HEAD + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n", gzip_of_zeros(2048 * MIB)
        ),
        "longer than 32 MiB",
    ),
    "chunks of a byte": (
        send(CHUNKED, repeat=b"1\r\nx\r\n" * 100_000, times=200),
        "more than 250000 chunks",
    ),
    "chunks of two bytes": (
        send(CHUNKED, repeat=b"2\r\nxy\r\n" * 100_000, times=200),
        "more than 250000 chunks",
    ),
    "an endless header": (
        send(HEAD + b"X: ", repeat=b"x" * MIB, times=64),
        "headers are longer than 64 KiB",
    ),
    "an endless status line": (
        send(b"HTTP/1.1 200 ", repeat=b"x" * MIB, times=64),
        "headers are longer than 64 KiB",
    ),
    "one header many times": (send(HEAD, b"a:b\r\n" * 32_000, b"\r\n"), "longer than 64 KiB"),
    "endless trailers": (
        send(CHUNKED + b"1\r\nx\r\n0\r\nX: ", repeat=b"x" * MIB, times=64),
        "headers are longer than 64 KiB",
    ),
    "endless hints": (
        send(repeat=b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 10_000, times=1000),
        "headers are longer than 64 KiB",
    ),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_a_response_that_is_too_large_is_an_error_that_names_the_limit(case: str) -> None:
    serve, error_text = ENDLESS[case]
    async with connect_api(serve) as api:
        with measure_memory() as memory, pytest.raises(UnknownResultError, match=error_text):
            await api.call("PUT", "/x")
        async with measure_event_loop() as loop:
            with pytest.raises(UnknownResultError, match=error_text):
                await api.call("PUT", "/x")
    assert memory.peak_bytes < ENOUGH_BYTES
    assert loop.blocked_seconds < ENOUGH_SECONDS


FAILURES = {
    "endless headers": (send(HEAD, repeat=b"a:b\r\n", times=20_000), None, True),
    "a large body": (send(HEAD + b"\r\n", repeat=bytes(MIB), times=64), 200, False),
    "a large refusal": (
        send(b"HTTP/1.1 422 No\r\n\r\n", repeat=bytes(MIB), times=64),
        422,
        False,
    ),
    "a large server error": (
        send(b"HTTP/1.1 503 No\r\n\r\n", repeat=bytes(MIB), times=64),
        503,
        True,
    ),
    "no HTTP": (send(b"SSH-2.0\r\n"), None, True),
    "a body that is cut": (send(HEAD + b"Content-Length: 9\r\n\r\n1"), 200, False),
    "a body that is not gzip": (
        send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n1"),
        200,
        False,
    ),
    "too many values": (
        send(HEAD + b"Content-Length: %d\r\n\r\n" % (8 * MIB), b"[" * (8 * MIB)),
        200,
        False,
    ),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_only_an_error_before_the_status_or_a_bad_status_suggests_that_the_api_is_down(
    case: str,
) -> None:
    """A tenant can cause the others, such as with many objects in one listing."""
    serve, status, proves_failure = FAILURES[case]
    async with connect_api(serve) as api:
        with pytest.raises(NotDoneError) as raised:
            await api.call("GET", "/x")
    assert (raised.value.status, raised.value.proves_failure) == (status, proves_failure)


async def test_a_response_just_below_the_limit_is_read() -> None:
    content = msgspec.json.encode(["x" * 1000] * (MAX_BODY_BYTES // 1004))
    packed = gzip.compress(content, 1)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with connect_api(send(head, packed)) as api:
        assert (await api.call("GET", "/x")).content == content


async def test_too_many_large_responses_at_the_same_time_are_an_error() -> None:
    """Each response on its own is below the limit."""
    release, body = threading.Event(), bytes(24 * MIB)

    def serve(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (24 * MIB + 1))
        connection.sendall(body)
        release.wait(60)

    async with connect_api(serve, concurrency=12) as api:
        calls = [asyncio.create_task(api.call("GET", "/x")) for _ in range(12)]
        with measure_memory() as memory:
            completed, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        release.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert memory.peak_bytes < connections.MAX_HELD_BYTES + ENOUGH_BYTES
        assert completed
        error_text = "responses of this API exceed 128 MiB in total"
        assert any(error_text in str(result) for result in results)


async def test_the_memory_of_completed_responses_is_released() -> None:
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (24 * MIB)
    async with connect_api(send(head, bytes(24 * MIB))) as api:
        for _ in range(8):
            assert len((await api.call("GET", "/x")).content) == 24 * MIB


async def test_the_timeout_applies_while_a_response_is_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_SLICE_BYTES", 32)
    packed = gzip.compress(bytes(16 * MIB))
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with connect_api(send(head, packed), timeout_seconds=0.2) as api:
        with pytest.raises(NotDoneError, match=r"no response within 0\.2 s"):
            await api.call("GET", "/x")


@pytest.mark.parametrize("value", [b"[]", b'{"a":0}', b"1"])
async def test_json_with_many_small_values_is_refused_before_it_is_decoded(value: bytes) -> None:
    body = b"[" + (value + b",") * (24 * MIB // len(value + b",")) + b"1]"
    head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    async with connect_api(send(head, body)) as api:
        with measure_memory() as memory, pytest.raises(NotDoneError, match="128 MiB of memory"):
            await api.call("GET", "/x")
    assert memory.peak_bytes < 2 * ENOUGH_BYTES


def test_json_that_is_nested_too_deeply_is_an_api_error() -> None:
    nested_json = b'{"x":' + b"[" * 100_000
    response = Response("GET", "http://api/x", 500, {}, nested_json)
    with pytest.raises(NotDoneError, match="nested too deeply"):
        decode_body(response, msgspec.json.Decoder())
    assert describe_problem(response).startswith('{"x":[[')


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "deflate", "zstd", "x" * 1000])
async def test_a_body_with_another_encoding_is_an_error(encoding: str) -> None:
    """A nested gzip bomb is not decompressed even once."""
    body = gzip.compress(gzip_of_zeros(512 * MIB))
    head = HEAD + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
    async with connect_api(send(head % (encoding.encode(), len(body)), body)) as api:
        with measure_memory() as memory, pytest.raises(NotDoneError) as raised:
            await api.call("GET", "/x")
    error_text = f"encoded as '{encoding[:40]}', but only a single gzip encoding is supported"
    assert error_text in str(raised.value)
    assert memory.peak_bytes < ENOUGH_BYTES


@pytest.mark.parametrize("first", [CHUNKED, HEAD + b"\r\n", HEAD, b"HTTP/1.1 200 "])
async def test_a_response_that_never_ends_fails_at_the_timeout(first: bytes) -> None:
    finished = threading.Event()

    def serve(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(first)
        while not finished.wait(0.02):
            connection.sendall(b"1\r\nx\r\n" if first is CHUNKED else b"2")

    async with connect_api(serve, timeout_seconds=0.5) as api:
        with pytest.raises(NotDoneError, match=r"no response within 0\.5 s") as raised:
            await asyncio.wait_for(api.call("GET", "/x"), 10)
    finished.set()
    has_headers = first.endswith(b"\r\n\r\n")
    assert raised.value.status == (200 if has_headers else None)
    assert raised.value.proves_failure is not has_headers


async def test_compressed_bodies_count_until_they_are_decompressed() -> None:
    """Each body on its own is below the limit, and takes a long time to decompress to nothing."""
    empty_block = b"\0\0\0\xff\xff"  # a block without bytes
    body = b"\x1f\x8b\x08" + bytes(7) + empty_block * (24 * MIB // len(empty_block))
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with connect_api(send(head, body), concurrency=24) as api:
        calls = [asyncio.create_task(api.call("GET", "/x")) for _ in range(24)]
        with measure_resident_memory() as memory:
            results = await asyncio.gather(*calls, return_exceptions=True)
    assert any("exceed 128 MiB in total" in str(result) for result in results)
    assert memory.peak_bytes < 2 * connections.MAX_HELD_BYTES + ENOUGH_BYTES


async def test_other_apis_of_the_process_continue_while_one_sends_too_much() -> None:
    """A healthy API's call takes no longer than processing a slice of the other API's responses."""
    bomb, _ = ENDLESS["2 GiB in 2 MiB of gzip"]
    head = HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\n"
    async with connect_api(bomb) as hostile_api, connect_api(send(head, b"[]")) as api:
        attack = asyncio.gather(
            *(hostile_api.call("GET", "/x") for _ in range(4)), return_exceptions=True
        )
        slowest = 0.0
        while not attack.done():
            started_at = asyncio.get_running_loop().time()
            assert (await api.call("GET", "/x")).content == b"[]"
            slowest = max(slowest, asyncio.get_running_loop().time() - started_at)
        expected_texts = ("it is longer than", "exceed 128 MiB in total")
        assert all(any(text in str(error) for text in expected_texts) for error in await attack)
    assert slowest < ENOUGH_SECONDS


# --- many responses


def endless_listing(page: bytes) -> Serve:
    """Return an API whose listing never ends, because its two tokens lead to each other."""

    def serve(connection: socket.socket, head: bytes) -> None:
        next_token = b"b" if b"continue=a" in head else b"a"
        body = b'{"continue":"%b","items":%b}' % (next_token, page)
        connection.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.sendall(body)

    return serve


@asynccontextmanager
async def connect_provider(serve: Serve) -> AsyncGenerator[GuardedProvider]:
    with hostile_server(serve) as port:
        config = ProviderConfigSpec("shapes", f"http://127.0.0.1:{port}")
        provider = guard_provider(ShapesProvider(config, Secrets(), CallPermit()), Secrets())
        try:
            yield provider
        finally:
            await provider.close()


async def count_listed(provider: GuardedProvider) -> int:
    count = 0
    async for page in provider.pages(Scope(), page_size=1000):
        count += len(page)
    return count


SHAPE = b'{"name":"a","uid":"1","type":"Square","color":"Red","size":1,"labels":{}}'


async def test_a_listing_has_a_limited_number_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_guard, "MAX_PAGES", 100)
    async with connect_provider(endless_listing(b"[" + SHAPE + b"]")) as provider:
        with pytest.raises(NotDoneError, match="more than 100 pages"):
            await count_listed(provider)


async def test_the_memory_of_a_listing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_guard, "MAX_LISTING_BYTES", 16 * MIB)
    objects = b"[" + b",".join([SHAPE] * 1000) + b"]"
    async with connect_provider(endless_listing(objects)) as provider:
        for _ in range(2):  # the second listing starts at zero
            with pytest.raises(NotDoneError, match="of this listing exceed the limit of 16 MiB"):
                await count_listed(provider)


async def test_the_memory_of_concurrent_calls_of_one_api_is_limited() -> None:
    """Each call on its own is below the limit, and holds one response while it waits for
    another."""
    release = threading.Event()
    junk = b"[" + b"1," * (MIB // 2) + b"1]"

    def serve(connection: socket.socket, head: bytes) -> None:
        is_first = b"GET /shapes/" in head
        if not is_first:
            release.wait(60)
        status = b"404 Not Found" if is_first else b"200 OK"
        body = b'{"title":"gone","junk":' + junk + b"}" if is_first else b'{"items":[]}'
        connection.sendall(
            b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        )
        connection.sendall(body)

    async with connect_provider(serve) as provider:
        calls = [asyncio.create_task(provider.read(f"a{result}")) for result in range(16)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        release.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        error_text = "calls of this API exceed the limit of 256 MiB of memory"
        assert any(error_text in str(result) for result in results)
        assert await provider.read("b") is None  # their memory is released


def test_a_listing_has_a_limited_number_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LISTED_OBJECTS", 3)
    assembler = ListingAssembler(ListingBegan("default", "Shape", 1), None)
    assembler.add([ExternalObject(name, {}) for name in "abc"])
    with pytest.raises(ListingRefusedError, match="more than 3 objects"):
        assembler.add([ExternalObject("d", {})])
