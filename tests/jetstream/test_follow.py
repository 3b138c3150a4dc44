import asyncio

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream import follow as follow_module
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusRefusedError, NotFoundOnBusError
from infra.jetstream.follow import follow, follow_with_consumers
from infra.jetstream.publish import publish
from infra.jetstream.topology import delete_consumer, ensure_consumer, ensure_stream
from tests.jetstream.conftest import Connect
from tests.jetstream.helpers import collect, message, until


async def list_consumers(nc: Client, stream: str) -> list[str]:
    response = await api_request(nc, f"CONSUMER.NAMES.{stream}", None)
    return response["consumers"] or []


async def test_old_and_new_messages_are_followed_in_order(nc: Client, stream: str) -> None:
    await append(nc, [message(f"{stream}.{i}", b"%d" % i) for i in range(1_000)])
    async with follow(nc, stream) as follower:
        replayed = [item.seq async for batch in follower.replay() for item in batch]
        assert replayed == list(range(1, 1_001))
        assert follower.position == 1_000
        await append(nc, [message(f"{stream}.new")])
        assert [item.subject for item in await collect(follower, 1)] == [f"{stream}.new"]
        assert follower.position == 1_001


async def test_a_follower_without_matches_is_caught_up_immediately(nc: Client, stream: str) -> None:
    async with follow(nc, stream) as follower:
        assert follower.caught_up.is_set()
        assert follower.position == 0
    await append(nc, [message(f"{stream}.a")] * 3)
    async with follow(nc, stream, filters=[f"{stream}.b.>", f"{stream}.c"]) as follower:
        assert follower.caught_up.is_set()
        assert follower.position == 3
        assert [batch async for batch in follower.replay()] == []
        await append(nc, [message(f"{stream}.a"), message(f"{stream}.c")])
        assert [item.seq for item in await collect(follower, 1)] == [5]


async def test_a_follower_applies_filters_and_a_start(nc: Client, stream: str) -> None:
    await append(nc, [message(f"{stream}.{'abc'[i % 3]}.{i}") for i in range(30)])
    expected = [f"{stream}.a.>", f"{stream}.b.>"]
    async with follow(nc, stream, filters=expected, start_seq=10) as follower:
        assert not follower.caught_up.is_set()
        sequences = [item.seq async for batch in follower.replay() for item in batch]
    assert sequences == [seq for seq in range(10, 31) if seq % 3 != 0]
    assert follower.position == 30


async def test_a_follower_continues_after_the_server_was_killed(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    writer, reader = await connect_client(own_server), await connect_client(own_server)
    await ensure_stream(writer, {"name": "S", "subjects": ["s.>"], "allow_atomic": True})
    await append(writer, [message("s.a", b"%d" % i) for i in range(500)])
    async with follow(reader, "S") as follower:
        messages = await collect(follower, 500)
        await own_server.kill()
        await own_server.start(own_server.data_dir, port=own_server.port)
        await until(lambda: _connected(writer))
        await append(writer, [message("s.a", b"%d" % i) for i in range(500, 900)])
        messages += await collect(follower, 400)
    assert [item.seq for item in messages] == list(range(1, 901))


async def _connected(nc: Client) -> bool:
    await asyncio.sleep(0)
    return nc.is_connected


async def test_a_follower_replaces_its_deleted_consumer(
    nc: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(follow_module, "_SILENT_AFTER_SECONDS", 0.6)
    await append(nc, [message(f"{stream}.a")] * 2)
    async with follow(nc, stream) as follower:
        await collect(follower, 2)
        [consumer] = await list_consumers(nc, stream)
        await delete_consumer(nc, stream, consumer)
        await append(nc, [message(f"{stream}.a")] * 2)
        assert [item.seq for item in await collect(follower, 2)] == [3, 4]


async def test_the_server_removes_the_consumer_of_a_closed_follower(
    nc: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_INACTIVE_SECONDS", 1)
    await append(nc, [message(f"{stream}.a")])
    async with follow(nc, stream) as follower:
        await collect(follower, 1)

    async def has_no_consumer() -> bool:
        return not await list_consumers(nc, stream)

    await until(has_no_consumer)


async def test_slow_readers_hold_the_server_back(nc: Client, stream: str) -> None:
    """While nothing is read, the server's flow control limits the buffered messages."""
    payload = b"x" * 100_000
    for _ in range(10):
        await append(nc, [message(f"{stream}.a", payload) for _ in range(60)])
    async with follow(nc, stream) as follower:
        received = -1

        async def has_stopped() -> bool:
            nonlocal received
            before, received = received, nc.stats["in_bytes"]
            await nc.flush()
            return received == before

        await until(has_stopped)
        first = await anext(follower)
        assert len(first) < 600
        assert len(await collect(follower, 600 - len(first))) == 600 - len(first)


async def test_following_an_unknown_stream_is_an_error(nc: Client, unique: str) -> None:
    with pytest.raises(NotFoundOnBusError):
        async with follow(nc, unique):
            pass


async def _create_pull_consumers(nc: Client, stream: str, *names: str) -> None:
    for name in names:
        config = {
            "durable_name": name,
            "filter_subject": f"{stream}.mine",
            "deliver_policy": "all",
            "ack_policy": "none",
        }
        await ensure_consumer(nc, stream, config)


async def test_a_follower_of_given_consumers_continues_when_another_takes_its_consumer(
    nc: Client, stream: str
) -> None:
    await _create_pull_consumers(nc, stream, "one", "two")
    own_subject = f"{stream}.mine"
    for number in range(1_200):  # more than one request returns
        await publish(nc, own_subject, str(number).encode())
    async with follow_with_consumers(
        nc, stream, names=["one", "two"], subject_filter=own_subject, start_seq=1
    ) as iterator:
        payloads = [each.payload async for batch in iterator.replay() for each in batch]
        assert payloads == [str(number).encode() for number in range(1_200)]
        for name in ("one", "two"):
            await api_request(nc, f"CONSUMER.RESET.{stream}.{name}", {"seq": 1})
        await publish(nc, own_subject, b"new")
        assert [each.payload for each in await collect(iterator, 1)] == [b"new"]


async def test_followers_of_given_consumers_use_one_each_and_start_with_new_messages(
    nc: Client, stream: str
) -> None:
    await _create_pull_consumers(nc, stream, "one", "two")
    names, own_subject = ["one", "two"], f"{stream}.mine"
    await publish(nc, own_subject, b"old")
    async with (
        follow_with_consumers(nc, stream, names=names, subject_filter=own_subject) as first,
        follow_with_consumers(nc, stream, names=names, subject_filter=own_subject) as second,
    ):
        with pytest.raises(BusRefusedError, match="in use"):
            async with follow_with_consumers(nc, stream, names=names, subject_filter=own_subject):
                pass
        await publish(nc, own_subject, b"new")
        for each in (first, second):
            assert [message.payload for message in await collect(each, 1)] == [b"new"]
