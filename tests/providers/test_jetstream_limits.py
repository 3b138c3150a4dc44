"""A JetStream server that sends too much costs one error, which names the limit."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.providers.jetstream.stream import STREAM
from reconciler.errors import ProviderError
from reconciler.provider.secrets import Secrets
from tests.hostile_server import MIB, measured_loop, measured_resident, raw_server

ENOUGH_BYTES = 200 * MIB
ENOUGH_SECONDS = 1.5
INFO = (
    b'INFO {"server_id":"x","server_name":"x","version":"2.15.0","proto":1,"headers":true,'
    b'"jetstream":true,"max_payload":1048576}\r\n'
)
Reply = Callable[[socket.socket, bytes], None]
"""Answers a request, whose inbox and subscription are the second argument."""


def server_of(reply: Reply) -> Callable[[socket.socket], None]:
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
    waiting = b""
    while piece := connection.recv(65_536):
        *whole, waiting = (waiting + piece).split(b"\r\n")
        yield from (line.split(b" ") for line in whole if line)


def message(content: bytes) -> Reply:
    return lambda connection, to: connection.sendall(
        b"MSG %b %d\r\n%b\r\n" % (to, len(content), content)
    )


def endless(head: bytes) -> Reply:
    def reply(connection: socket.socket, to: bytes) -> None:
        connection.sendall(head.replace(b"TO", to))
        for _ in range(1024):
            connection.sendall(bytes(MIB))

    return reply


HOSTILE: dict[str, tuple[Reply, str]] = {
    "a message of 1 GiB": (
        endless(b"MSG TO 1073741824\r\n"),
        "a message of 1073741824 bytes, more than the limit of 64 MiB",
    ),
    "a line without an end": (endless(b"INFO "), "a line of more than 1024 KiB"),
    "an answer of many values": (
        message(b'{"streams":[' + b"[]," * (4 * MIB) + b"[]]}"),
        "the response has 12582928 bytes, more than the limit of 8 MiB",
    ),
    "an answer nested without an end": (
        message(b'{"x":' + b"[" * 200_000),
        "STREAM.LIST: invalid response",
    ),
    "an answer that is no JSON": (message(b"{"), "STREAM.LIST: invalid response"),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_an_answer_that_is_too_large_is_an_error_that_names_the_limit(what: str) -> None:
    reply, words = HOSTILE[what]
    with raw_server(server_of(reply)) as port:
        config = ProviderConfigSpec(
            "jetstream", f"nats://127.0.0.1:{port}", limits=Limits(request_timeout_seconds=3)
        )
        assert STREAM.connect is not None
        provider = STREAM.connect(config, Secrets())
        async with measured_loop() as loop:
            with measured_resident() as memory, pytest.raises(ProviderError) as raised:
                async for _ in provider.pages(Scope(), page_size=100):
                    pass
        await provider.close()
    assert words in raised.value.message
    assert memory.peak_bytes < ENOUGH_BYTES
    assert loop.blocked_seconds < ENOUGH_SECONDS
