import asyncio
import time

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.deliveries import ack, in_progress, nak, terminate
from infra.jetstream.errors import NotFoundOnBusError
from infra.jetstream.publish import publish
from infra.jetstream.pull import PullGroup, PullReader
from infra.jetstream.topology import delete_consumer, delete_stream, ensure_consumer, ensure_stream
from tests.jetstream.conftest import Connect
from tests.jetstream.helpers import message, pull, until

SECOND = 1_000_000_000


async def create_consumer(nc: Client, stream: str, name: str, **config: object) -> None:
    consumer_config = {"durable_name": name, "ack_policy": "explicit", **config}
    await ensure_consumer(nc, stream, consumer_config)


async def create_pinned(nc: Client, stream: str, names: list[str], seconds: float) -> None:
    for name in names:
        await create_consumer(
            nc,
            stream,
            name,
            filter_subject=f"{stream}.{name}.>",
            priority_policy="pinned_client",
            priority_groups=["g"],
            priority_timeout=int(seconds * SECOND),
        )


async def count_unacknowledged(nc: Client, stream: str, consumer: str) -> int:
    info = await api_request(nc, f"CONSUMER.INFO.{stream}.{consumer}", None)
    return int(info["num_ack_pending"]) + int(info["num_pending"])


async def test_all_available_messages_are_read_in_batches(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c")
    await append(nc, [message(f"{stream}.{i}", b"%d" % i) for i in range(250)])
    reader = PullReader(nc, stream, "c", max_batch=100)
    deliveries = await pull(reader, 250)
    assert [delivery.seq for delivery in deliveries] == list(range(1, 251))
    assert deliveries[7].payload == b"7"
    assert (deliveries[7].delivered, deliveries[7].consumer) == (1, "c")
    assert abs(deliveries[7].time_ns / SECOND - time.time()) < 60
    await ack(nc, deliveries)

    async def is_acknowledged() -> bool:
        return await count_unacknowledged(nc, stream, "c") == 0

    await until(is_acknowledged)
    await reader.close()


async def test_several_consumers_are_read_through_one_queue(nc: Client, stream: str) -> None:
    names = [f"p{i}" for i in range(8)]
    await create_pinned(nc, stream, names, seconds=3)
    await append(nc, [message(f"{stream}.p{i % 8}.{i}") for i in range(1_000)])
    group = PullGroup(nc, stream, names, group="g", max_batch=50)
    deliveries = await pull(group, 1_000)
    assert sorted(delivery.seq for delivery in deliveries) == list(range(1, 1_001))
    for name in names:
        sequences_of_one = [delivery.seq for delivery in deliveries if delivery.consumer == name]
        assert sequences_of_one == sorted(sequences_of_one)
    await ack(nc, deliveries)
    await publish(nc, f"{stream}.p3.new", b"")
    [new] = await group.next_batch()
    assert new.subject == f"{stream}.p3.new"
    await group.close()


async def test_the_number_of_prefetched_messages_is_bounded(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c", max_ack_pending=1_000)
    await append(nc, [message(f"{stream}.{i}") for i in range(500)])
    reader = PullReader(nc, stream, "c", max_batch=20)
    count = len(await reader.next_batch())
    await nc.flush()
    info = await api_request(nc, f"CONSUMER.INFO.{stream}.c", None)
    assert int(info["num_ack_pending"]) <= count + 20
    await reader.close()


async def test_the_waiting_reader_takes_over(
    nats_server: EmbeddedServer, connect_client: Connect, nc: Client, stream: str
) -> None:
    """The pinned reader disappears; after `priority_timeout` the server pins the waiting one."""
    await create_pinned(nc, stream, ["p0", "p1"], seconds=1)
    first_nc = await connect_client(nats_server)
    first = PullGroup(first_nc, stream, ["p0", "p1"], group="g")
    second = PullGroup(nc, stream, ["p0", "p1"], group="g")
    await append(nc, [message(f"{stream}.p{i % 2}.{i}") for i in range(20)])
    deliveries = await pull(first, 20)
    await ack(first_nc, deliveries)
    await first_nc.flush()
    await first_nc.close()
    await append(nc, [message(f"{stream}.p{i % 2}.{i}") for i in range(20)])
    deliveries = await pull(second, 20)
    assert sorted(delivery.seq for delivery in deliveries) == list(range(21, 41))
    assert {delivery.delivered for delivery in deliveries} == {1}
    await second.close()


async def test_a_reader_that_closes_hands_over_immediately(
    nats_server: EmbeddedServer, connect_client: Connect, nc: Client, stream: str
) -> None:
    await create_pinned(nc, stream, ["p0"], seconds=300)  # longer than a test may take
    first_nc = await connect_client(nats_server)
    first = PullGroup(first_nc, stream, ["p0"], group="g", max_batch=10)
    await append(nc, [message(f"{stream}.p0.{i}") for i in range(10)])
    await ack(first_nc, await pull(first, 10))
    await first.close()
    await append(nc, [message(f"{stream}.p0.{i}") for i in range(10)])
    second = PullGroup(nc, stream, ["p0"], group="g")
    assert len(await pull(second, 10)) == 10
    await second.close()


async def test_a_closed_reader_returns_its_unprocessed_messages(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c", ack_wait=60 * SECOND)
    await append(nc, [message(f"{stream}.{i}") for i in range(10)])
    reader = PullReader(nc, stream, "c", max_batch=4)
    handed_out = await reader.next_batch()
    await nc.flush()
    await reader.close()
    other_reader = PullReader(nc, stream, "c")
    rest = await pull(other_reader, 10 - len(handed_out))
    everything = sorted(delivery.seq for delivery in [*handed_out, *rest])
    assert everything == list(range(1, 11))
    await other_reader.close()
    await other_reader.close()
    assert vars(nc)["_subs"].keys() <= {1}  # only the client's own subscription for requests


async def test_a_nak_is_redelivered_and_a_termination_is_not(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c", ack_wait=60 * SECOND)
    await append(nc, [message(f"{stream}.{i}") for i in range(3)])
    reader = PullReader(nc, stream, "c")
    first, second, third = await pull(reader, 3)
    await terminate(nc, first, "not valid")
    await nak(nc, second, 0.3)
    started_at = time.monotonic()
    await nak(nc, third)
    [redelivered] = await reader.next_batch()
    assert (redelivered.seq, redelivered.delivered) == (3, 2)
    [redelivered] = await reader.next_batch()
    assert (redelivered.seq, redelivered.delivered) == (2, 2)
    assert time.monotonic() - started_at >= 0.25
    await reader.close()


async def test_in_progress_extends_the_lease_of_a_message(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c", ack_wait=int(0.8 * SECOND))
    await append(nc, [message(f"{stream}.kept"), message(f"{stream}.dropped")])
    reader = PullReader(nc, stream, "c")
    kept_delivery, dropped = await pull(reader, 2)
    positions: list[int] = []
    while dropped.seq not in positions:  # extend this one until the other one is redelivered
        await in_progress(nc, [kept_delivery])
        info = await api_request(nc, f"CONSUMER.INFO.{stream}.c", None)
        if info["num_redelivered"]:
            positions += [delivery.seq for delivery in await reader.next_batch()]
    assert positions == [dropped.seq]
    await reader.close()


async def test_a_group_continues_after_the_server_was_killed(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    nc = await connect_client(own_server)
    await ensure_stream(nc, {"name": "S", "subjects": ["S.>"], "allow_atomic": True})
    await create_pinned(nc, "S", ["p0", "p1"], seconds=2)
    group = PullGroup(nc, "S", ["p0", "p1"], group="g")
    await append(nc, [message(f"S.p{i % 2}.{i}") for i in range(10)])
    await ack(nc, await pull(group, 10))
    await nc.flush()
    await own_server.kill()
    await own_server.start(own_server.data_dir, port=own_server.port)
    writer = await connect_client(own_server)
    await append(writer, [message(f"S.p{i % 2}.{i}") for i in range(10)])
    sequences: set[int] = set()
    while not sequences >= set(range(11, 21)):  # lost acks cause redeliveries
        sequences |= {delivery.seq for delivery in await pull(group, 1)}
    await group.close()


async def test_a_deleted_consumer_is_an_error(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c")
    with pytest.raises(NotFoundOnBusError):
        await PullReader(nc, stream, "none").next_batch()
    reader = PullReader(nc, stream, "c")
    await append(nc, [message(f"{stream}.a")])
    await reader.next_batch()
    await delete_consumer(nc, stream, "c")
    with pytest.raises(NotFoundOnBusError, match="deleted"):
        await reader.next_batch()
    await reader.close()


async def test_a_deleted_stream_is_an_error(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c")
    reader = PullReader(nc, stream, "c", expires_seconds=1)
    await append(nc, [message(f"{stream}.a")])
    await reader.next_batch()
    await delete_stream(nc, stream)
    with pytest.raises(NotFoundOnBusError):
        await reader.next_batch()
    await reader.close()


async def test_a_canceled_wait_does_not_lose_messages(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c", ack_wait=60 * SECOND)
    reader = PullReader(nc, stream, "c")
    for number in range(1, 20):
        pending = asyncio.ensure_future(reader.next_batch())
        await asyncio.sleep(0.001 * (number % 4))
        await publish(nc, f"{stream}.a", b"")
        pending.cancel()
        results = await asyncio.gather(pending, return_exceptions=True)
        deliveries = results[0] if isinstance(results[0], list) else await reader.next_batch()
        assert [delivery.seq for delivery in deliveries] == [number]
    await reader.close()


async def test_a_returned_message_occupies_a_slot_until_it_is_done(nc: Client, stream: str) -> None:
    await create_consumer(nc, stream, "c")
    await append(nc, [message(f"{stream}.{i}") for i in range(50)])
    group = PullGroup(nc, stream, ["c"], keep_slots=True, max_batch=4)
    first = await pull(group, 4)
    info = await api_request(nc, f"CONSUMER.INFO.{stream}.c", None)
    assert (info["num_ack_pending"], info["num_waiting"]) == (4, 0), "no request is open"
    group.free_slot(first[0])
    assert [delivery.seq for delivery in await group.next_batch()] == [5]
    group.set_slots("c", 6)
    assert [delivery.seq for delivery in await pull(group, 2)] == [6, 7]
    await group.close()


async def test_an_added_consumer_is_read_although_another_one_is_full(
    nc: Client, stream: str
) -> None:
    for name in ("slow", "fast"):
        await create_consumer(nc, stream, name, filter_subject=f"{stream}.{name}")
    await append(nc, [message(f"{stream}.slow") for _ in range(20)])
    group = PullGroup(nc, stream, ["slow"], keep_slots=True, max_batch=2)
    await pull(group, 2)
    pending = asyncio.ensure_future(group.next_batch())
    await asyncio.sleep(0)
    group.set_slots("fast", 2)
    await publish(nc, f"{stream}.fast", b"")
    async with asyncio.timeout(20):
        [new] = await pending
    assert (new.consumer, new.seq) == ("fast", 21)
    await group.close()


async def test_a_consumer_that_was_recreated_between_requests_is_an_error(
    nc: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would deliver old messages again from the beginning."""
    monkeypatch.setattr("infra.jetstream.pull._SILENT_SECONDS", 0.0)
    await create_consumer(nc, stream, "c")
    await append(nc, [message(f"{stream}.{i}") for i in range(3)])
    group = PullGroup(nc, stream, ["c"], keep_slots=True, max_batch=1)
    [first] = await group.next_batch()
    await delete_consumer(nc, stream, "c")
    await create_consumer(nc, stream, "c")
    group.free_slot(first)
    with pytest.raises(NotFoundOnBusError, match="recreated"):
        await group.next_batch()
    await group.close()


async def test_a_consumer_that_was_recreated_while_the_connection_was_lost_is_an_error(
    nc: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No open request reports its end, because the server dropped them with the connection."""
    monkeypatch.setattr("infra.jetstream.pull._SILENT_SECONDS", 3600.0)
    await create_consumer(nc, stream, "c")
    await append(nc, [message(f"{stream}.{i}") for i in range(3)])
    group = PullGroup(nc, stream, ["c"], keep_slots=True, max_batch=1)
    [first] = await group.next_batch()
    await delete_consumer(nc, stream, "c")
    await create_consumer(nc, stream, "c")
    nc.stats["reconnects"] += 1
    group.free_slot(first)
    with pytest.raises(NotFoundOnBusError, match="recreated"):
        await group.next_batch()
    await group.close()
