import asyncio

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream import follow as follow_module
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import NotFoundOnBusError
from infra.jetstream.follow import follow
from infra.jetstream.topology import delete_consumer, ensure_stream
from tests.jetstream.conftest import Connect
from tests.jetstream.helpers import collect, message, until


async def consumers_of(nc: Client, stream: str) -> list[str]:
    answer = await api_request(nc, f"CONSUMER.NAMES.{stream}", None)
    return answer["consumers"] or []


async def test_history_then_news_in_order(nc: Client, stream: str) -> None:
    await append(nc, [message(f"{stream}.{i}", b"%d" % i) for i in range(1_000)])
    async with follow(nc, stream) as follower:
        replayed = [one.seq async for batch in follower.replay() for one in batch]
        assert replayed == list(range(1, 1_001))
        assert follower.position == 1_000
        await append(nc, [message(f"{stream}.new")])
        assert [one.subject for one in await collect(follower, 1)] == [f"{stream}.new"]
        assert follower.position == 1_001


async def test_it_is_caught_up_at_once_where_nothing_matches(nc: Client, stream: str) -> None:
    async with follow(nc, stream) as follower:
        assert follower.caught_up.is_set()
        assert follower.position == 0
    await append(nc, [message(f"{stream}.a")] * 3)
    async with follow(nc, stream, filters=[f"{stream}.b.>", f"{stream}.c"]) as follower:
        assert follower.caught_up.is_set()
        assert follower.position == 3
        assert [batch async for batch in follower.replay()] == []
        await append(nc, [message(f"{stream}.a"), message(f"{stream}.c")])
        assert [one.seq for one in await collect(follower, 1)] == [5]


async def test_filters_and_a_start(nc: Client, stream: str) -> None:
    await append(nc, [message(f"{stream}.{'abc'[i % 3]}.{i}") for i in range(30)])
    wanted = [f"{stream}.a.>", f"{stream}.b.>"]
    async with follow(nc, stream, filters=wanted, start_seq=10) as follower:
        assert not follower.caught_up.is_set()
        found = [one.seq async for batch in follower.replay() for one in batch]
    assert found == [seq for seq in range(10, 31) if seq % 3 != 0]
    assert follower.position == 30


async def test_it_goes_on_after_the_server_was_killed(
    own_server: EmbeddedServer, connected: Connect
) -> None:
    writer, reader = await connected(own_server), await connected(own_server)
    await ensure_stream(writer, {"name": "S", "subjects": ["s.>"], "allow_atomic": True})
    await append(writer, [message("s.a", b"%d" % i) for i in range(500)])
    async with follow(reader, "S") as follower:
        found = await collect(follower, 500)
        await own_server.kill()
        await own_server.start(own_server.data_dir, port=own_server.port)
        await until(lambda: _connected(writer))
        await append(writer, [message("s.a", b"%d" % i) for i in range(500, 900)])
        found += await collect(follower, 400)
    assert [one.seq for one in found] == list(range(1, 901))


async def _connected(nc: Client) -> bool:
    await asyncio.sleep(0)
    return nc.is_connected


async def test_it_replaces_a_consumer_that_vanished(
    nc: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(follow_module, "_MISSED_AFTER_SECONDS", 0.6)
    await append(nc, [message(f"{stream}.a")] * 2)
    async with follow(nc, stream) as follower:
        await collect(follower, 2)
        [consumer] = await consumers_of(nc, stream)
        await delete_consumer(nc, stream, consumer)
        await append(nc, [message(f"{stream}.a")] * 2)
        assert [one.seq for one in await collect(follower, 2)] == [3, 4]


async def test_it_leaves_nothing_behind_for_long(
    nc: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_INACTIVE_SECONDS", 1)
    await append(nc, [message(f"{stream}.a")])
    async with follow(nc, stream) as follower:
        await collect(follower, 1)

    async def no_consumer() -> bool:
        return not await consumers_of(nc, stream)

    await until(no_consumer)


async def test_slow_readers_hold_the_server_back(nc: Client, stream: str) -> None:
    """While nothing is taken, what waits is bounded by the server's flow control."""
    payload = b"x" * 100_000
    for _ in range(10):
        await append(nc, [message(f"{stream}.a", payload) for _ in range(60)])
    async with follow(nc, stream) as follower:
        received = -1

        async def nothing_more_comes() -> bool:
            nonlocal received
            before, received = received, nc.stats["in_bytes"]
            await nc.flush()
            return received == before

        await until(nothing_more_comes)
        first = await anext(follower)
        assert len(first) < 600
        assert len(await collect(follower, 600 - len(first))) == 600 - len(first)


async def test_no_such_stream(nc: Client, unique: str) -> None:
    with pytest.raises(NotFoundOnBusError):
        async with follow(nc, unique):
            pass
