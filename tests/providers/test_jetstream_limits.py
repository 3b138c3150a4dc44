"""A JetStream server that sends too much causes an error that names the limit."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from http import HTTPStatus

import pytest
from nats.aio.client import Client

from events.external import ExternalObject
from events.manifest import InvalidManifestError
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.embedded import EmbeddedServer
from infra.jetstream import connection
from infra.jetstream.connection import api_request, close
from infra.jetstream.connection import connect as connect_to_bus
from infra.jetstream.errors import BusError
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.errors import (
    NotDoneError,
    ProviderError,
    RefusedError,
    UnreadableObjectsError,
)
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action, listing
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets
from tests.hostile_server import MIB, measure_event_loop, measure_resident_memory, raw_server
from tests.providers.connect import Connect

ENOUGH_BYTES = 200 * MIB
ENOUGH_SECONDS = 1.5
INFO = (
    b'INFO {"server_id":"x","server_name":"x","version":"2.15.0","proto":1,"headers":true,'
    b'"jetstream":true,"max_payload":1048576}\r\n'
)
Reply = Callable[[socket.socket, bytes], None]
"""Replies to a request; the second argument is its inbox and subscription."""


def server_that_replies(reply: Reply) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.sendall(INFO)
        number = b"1"
        for words in lines(connection):
            match words[0]:
                case b"PING":
                    connection.sendall(b"PONG\r\n")
                case b"SUB":
                    number = words[-1]
                case b"PUB" if words[1].startswith(b"$JS.API."):
                    reply(connection, words[2] + b" " + number)
                case _:
                    pass

    return serve


def lines(connection: socket.socket) -> Iterator[list[bytes]]:
    partial_line = b""
    while chunk := connection.recv(65_536):
        *complete_lines, partial_line = (partial_line + chunk).split(b"\r\n")
        yield from (line.split(b" ") for line in complete_lines if line)


def message(content: bytes) -> Reply:
    return lambda connection, to: connection.sendall(
        b"MSG %b %d\r\n%b\r\n" % (to, len(content), content)
    )


def endless_reply(head: bytes) -> Reply:
    def reply(connection: socket.socket, to: bytes) -> None:
        connection.sendall(head.replace(b"TO", to))
        for _ in range(1024):
            connection.sendall(bytes(MIB))

    return reply


HOSTILE: dict[str, tuple[Reply, str]] = {
    "a message of 1 GiB": (
        endless_reply(b"MSG TO 1073741824\r\n"),
        "a message of 1073741824 bytes, more than the limit of 64 MiB",
    ),
    "an endless line": (endless_reply(b"INFO "), "a line of more than 1024 KiB"),
    "a response with many values": (
        message(b'{"streams":[' + b"[]," * (4 * MIB) + b"[]]}"),
        "the response is 12582928 bytes long, more than the limit of 8 MiB",
    ),
    "an endlessly nested response": (
        message(b'{"x":' + b"[" * 200_000),
        "STREAM.LIST: invalid response",
    ),
    "a response that is not JSON": (message(b"{"), "STREAM.LIST: invalid response"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_response_that_is_too_large_is_an_error_that_names_the_limit(case: str) -> None:
    reply, error_text = HOSTILE[case]
    with raw_server(server_that_replies(reply)) as port:
        config = ProviderConfigSpec(
            "jetstream", f"nats://127.0.0.1:{port}", limits=Limits(request_timeout_seconds=3)
        )
        assert STREAM.connect is not None
        provider = STREAM.connect(config, Secrets(), CallPermit())
        async with measure_event_loop() as loop:
            with measure_resident_memory() as memory, pytest.raises(ProviderError) as raised:
                async for _ in provider.pages(Scope(), page_size=100):
                    pass
        await provider.close()
    assert error_text in raised.value.message
    assert memory.peak_bytes < ENOUGH_BYTES
    assert loop.blocked_seconds < ENOUGH_SECONDS


# --- streams with many subjects


@pytest.mark.parametrize(
    ("subjects", "error_text"),
    [
        ([f"a.{number}" for number in range(33)], "32"),
        ([f"a.{number}.{'x' * 200}" for number in range(21)], "at most 4096 characters in total"),
        ([".".join("a" * 17)], "up to 16 tokens"),
    ],
)
@pytest.mark.parametrize("kind", [STREAM, CONSUMER], ids=["Stream", "Consumer"])
def test_the_subjects_of_an_object_are_limited(
    kind: Kind, subjects: list[str], error_text: str
) -> None:
    """For each new subject, the server checks the subjects of all streams, and blocks meanwhile."""
    with pytest.raises(InvalidManifestError, match=error_text):
        kind.check_fields({"subjects" if kind is STREAM else "filterSubjects": subjects})


async def test_streams_are_written_one_at_a_time() -> None:
    refusal = b'{"error":{"code":400,"err_code":1,"description":"refused"}}'
    pending: list[bytes] = []

    def reply(server: socket.socket, to: bytes) -> None:
        time.sleep(0.2)
        with suppress(BlockingIOError):
            pending.append(server.recv(65_536, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        message(refusal)(server, to)

    with raw_server(server_that_replies(reply)) as port:
        config = ProviderConfigSpec("jetstream", f"nats://127.0.0.1:{port}")
        assert STREAM.connect is not None
        provider = STREAM.connect(config, Secrets(), CallPermit())
        fields = STREAM.check_fields({"subjects": ["a"]})
        writes = [provider.create(action("Create", f"S{number}", fields)) for number in range(4)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        await provider.close()
    assert [type(result) for result in results] == [RefusedError] * 4
    assert not any(b"STREAM.CREATE" in result for result in pending)


# --- listings of large objects


LARGE = {"large": "<" * 130_000}
"""Metadata whose characters take six bytes each in the server's JSON."""


async def append_pages(provider: Provider, scope: Scope, objects: list[ExternalObject]) -> None:
    async for page in provider.pages(scope, page_size=9):
        objects += page


@pytest.fixture
async def nc(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await connect_to_bus(nats_server.url, name="test")
    yield client
    await close(client)


async def test_large_consumers_do_not_hide_other_consumers(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    stream, large_count = f"S{unique}", 12
    create = {"name": stream, "subjects": [f"{unique}.>"], "storage": "memory"}
    await api_request(nc, f"STREAM.CREATE.{stream}", create)
    for number in range(large_count):
        name = f"large{number:02}"
        config = {"durable_name": name, "mem_storage": True, "metadata": LARGE}
        body = {"stream_name": stream, "config": config}
        await api_request(nc, f"CONSUMER.CREATE.{stream}.{name}", body)
    provider = connect(CONSUMER, nats_server.url)
    small_creation = action("Create", f"{stream}/small", CONSUMER.check_fields({}))
    await provider.create(small_creation)
    objects = await listing(provider, Scope(prefix=f"{stream}/"))
    await api_request(nc, f"STREAM.DELETE.{stream}", None)

    assert [each.name for each in objects][-1] == f"{stream}/small"
    assert len(objects) == large_count + 1


async def test_large_streams_do_not_hide_other_streams(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    names = [f"{unique}{number:02}" for number in range(12)]
    for name in names:
        config = {"name": name, "subjects": [f"{name}.>"], "metadata": LARGE}
        await api_request(nc, f"STREAM.CREATE.{name}", {**config, "storage": "memory"})
    provider = connect(STREAM, nats_server.url)
    objects = await listing(provider, Scope(prefix=unique))
    for name in names:
        await api_request(nc, f"STREAM.DELETE.{name}", None)

    assert [each.name for each in objects] == names


async def test_an_object_that_is_too_large_by_itself_is_named_and_does_not_hide_others(
    nats_server: EmbeddedServer,
    nc: Client,
    connect: Connect,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_RESPONSE_BYTES", 8_000)
    for name, size in ((f"{unique}large", 10_000), (f"{unique}small", 1)):
        metadata = {"large": "x" * size}
        config = {"name": name, "subjects": [f"{name}.>"], "metadata": metadata}
        with suppress(BusError):  # the response is too large
            await api_request(nc, f"STREAM.CREATE.{name}", {**config, "storage": "memory"})
        body = {"stream_name": name, "config": {"durable_name": "c", "mem_storage": True}}
        await api_request(nc, f"CONSUMER.CREATE.{name}.c", body)
    for kind, suffix in ((STREAM, ""), (CONSUMER, "/c")):
        objects: list[ExternalObject] = []
        with pytest.raises(UnreadableObjectsError) as unreadable:
            await append_pages(connect(kind, nats_server.url), Scope(prefix=unique), objects)
        assert [each.name for each in objects] == [f"{unique}small{suffix}"]
        assert next(iter(unreadable.value.objects))[0] == f"{unique}large{suffix}"
        assert unreadable.value.status == HTTPStatus.CONFLICT, "not an API failure"
    for name in ("large", "small"):
        await api_request(nc, f"STREAM.DELETE.{unique}{name}", None)


async def test_a_start_time_at_the_end_of_the_calendar_does_not_hide_other_consumers(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    """The server keeps the UTC offset of a time, and another client may choose any offset."""
    create = {"name": unique, "subjects": [f"{unique}.>"], "storage": "memory"}
    await api_request(nc, f"STREAM.CREATE.{unique}", create)
    for name, start in (("a", "0001-01-01T00:00:01+14:00"), ("b", "2020-01-01T00:00:00Z")):
        config = {
            "durable_name": name,
            "ack_policy": "explicit",
            "deliver_policy": "by_start_time",
            "opt_start_time": start,
        }
        body = {"stream_name": unique, "config": config}
        await api_request(nc, f"CONSUMER.CREATE.{unique}.{name}", body)
    provider = connect(CONSUMER, nats_server.url)
    objects = await listing(provider, Scope(prefix=f"{unique}/"))
    existing = await provider.read(f"{unique}/a")
    await api_request(nc, f"STREAM.DELETE.{unique}", None)

    assert [each.fields["startTime"] for each in objects] == [
        "0001-01-01T00:00:01+14:00",
        "2020-01-01T00:00:00Z",
    ]
    assert existing == objects[0]


async def test_a_provider_that_is_closed_while_connecting_leaves_no_connection(
    nats_server: EmbeddedServer, connect: Connect
) -> None:
    """It would try to reconnect after the end of its server."""
    before = asyncio.all_tasks()
    provider = connect(STREAM, f"nats://127.0.0.1:{nats_server.port}")
    reading = asyncio.create_task(provider.read("missing"))
    await asyncio.sleep(0)
    await provider.close()
    with pytest.raises(NotDoneError, match="was closed"):
        await reading
    assert asyncio.all_tasks() == before
