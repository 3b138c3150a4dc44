"""Readers receive messages with any subjects and headers, and the messages after them."""

from collections.abc import Awaitable, Callable

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect
from infra.jetstream.errors import BusUnavailableError, StreamFullError
from infra.jetstream.follow import follow
from infra.jetstream.publish import publish
from infra.jetstream.pull import PullReader
from infra.jetstream.reads import read_subject, stream_state
from infra.jetstream.topology import ensure_consumer, ensure_stream
from infra.jetstream.wire import ApiError, to_bus_error
from tests.jetstream.raw import publish_raw

SUBJECTS = {
    "not UTF-8": b"a\xffb",
    "a form feed": b"a\x0cb",
    "a vertical tab": b"a\x0bb",
    "NUL": b"a\x00b",
    "a group separator": b"a\x1db",
    "a line separator": "a\u2028b".encode(),
    "a wildcard": b"*",
    "long": b"x" * 2_900,
}
HEADERS = {
    "not UTF-8": b"NATS/1.0\r\nName: \xff\xfe\r\n\r\n",
    "an invalid status": b"NATS/1.0 \xff\xff\xff \xff\r\n\r\n",
    "a server status": b"NATS/1.0 404 No Messages\r\n\r\n",
    "a heartbeat": b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    "without a colon": b"NATS/1.0\r\nnothing\r\n\r\n",
    "only the version line": b"NATS/1.0\r\n\r\n",
}


async def read_by_pull(nc: Client, stream: str) -> list[bytes]:
    await ensure_consumer(nc, stream, {"durable_name": "reader", "ack_policy": "explicit"})
    reader = PullReader(nc, stream, "reader")
    payloads: list[bytes] = []
    while payloads[-1:] != [b"last"]:
        payloads += [each.payload for each in await reader.next_batch()]
    await reader.close()
    return payloads


async def read_by_following(nc: Client, stream: str) -> list[bytes]:
    async with follow(nc, stream) as follower:
        payloads: list[bytes] = []
        while payloads[-1:] != [b"last"]:
            payloads += [each.payload for each in await anext(follower)]
    return payloads


async def read_directly(nc: Client, stream: str) -> list[bytes]:
    return [each.payload for each in await read_subject(nc, stream, f"{stream}.>")]


@pytest.mark.parametrize("read", [read_by_pull, read_by_following, read_directly])
async def test_messages_with_any_bytes_are_read_on_one_connection(
    nats_server: EmbeddedServer, unique: str, read: Callable[[Client, str], Awaitable[list[bytes]]]
) -> None:
    nc = await connect(nats_server.url, name="test")
    config = {"name": unique, "subjects": [f"{unique}.>"], "allow_direct": True}
    await ensure_stream(nc, {**config, "retention": "limits", "storage": "memory"})
    prefix = f"{unique}.".encode()
    for name, token in SUBJECTS.items():
        await publish_raw(nats_server.port, prefix + token, name.encode())
    for name, headers in HEADERS.items():
        await publish_raw(nats_server.port, prefix + b"h", name.encode(), headers=headers)
    await publish(nc, f"{unique}.last", b"last")
    assert (await stream_state(nc, unique)).messages == len(SUBJECTS) + len(HEADERS) + 1

    payloads = await read(nc, unique)

    assert payloads == [*map(str.encode, SUBJECTS), *map(str.encode, HEADERS), b"last"]
    assert nc.stats["reconnects"] == 0
    await nc.close()


async def test_a_subscription_continues_after_any_header(
    nats_server: EmbeddedServer, nc: Client, unique: str
) -> None:
    subscription = await nc.subscribe(unique)  # pyright: ignore[reportUnknownMemberType]
    await nc.flush()
    for name, headers in HEADERS.items():
        await publish_raw(nats_server.port, unique.encode(), name.encode(), headers=headers)
    payloads = [(await subscription.next_msg(timeout=60)).data for _ in HEADERS]
    assert payloads == [*map(str.encode, HEADERS)]


def test_a_full_account_is_reported_like_a_full_stream() -> None:
    error = to_bus_error(ApiError(400, 10002, "resource limits exceeded for account"), "publish")
    assert isinstance(error, StreamFullError)


def test_a_server_with_too_many_waiting_messages_is_temporarily_unavailable() -> None:
    """A flood by one client fills the queue of a stream that all clients share."""
    error = to_bus_error(ApiError(429, 10167, "too many requests"), "publish")
    assert isinstance(error, BusUnavailableError)
