"""The intake: ids, redelivery, one reader per partition, and a full stream."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from events.intake import TimerFired, Withdrawn
from events.names import ResourceKey
from infra.jetstream.errors import StreamFullError
from reconciler.ports import IntakeDelivery, IntakeMessageOut, NotStoredError
from tests.bus.histories import new_key
from tests.memory_bus.contract.buses import Bus, Reading


def message(key: ResourceKey | None = None) -> IntakeMessageOut:
    return IntakeMessageOut("desired", key or new_key(), Withdrawn(), uuid.uuid4().hex)


def reading(bus: Bus) -> Reading[IntakeDelivery]:
    return bus.reading(bus.intake_reader())


async def test_messages_of_a_resource_arrive_in_order_with_their_metadata(
    bus: Bus,
) -> None:
    key, intake = new_key(), reading(bus)
    messages = [message(key), IntakeMessageOut("timer", key, TimerFired("Sweep"), "the timer's")]
    await bus.writer.publish(messages)
    first, second = deliveries = await intake.wait_for(2)
    assert [each.message_id for each in deliveries] == [each.message_id for each in messages]
    assert [each.subject.split(".", 2)[2] for each in deliveries] == [
        f"desired.{key.tokens}",
        f"timer.{key.tokens}",
    ]
    assert first.subject.split(".")[1] == second.subject.split(".")[1], "one partition"
    assert first.position < second.position == await bus.writer.last_position()
    assert [each.delivered for each in deliveries] == [1, 1]
    assert first.stored_at is not None
    assert abs((bus.now() - first.stored_at).total_seconds()) < 60


async def test_no_message_is_dropped_because_of_the_id_of_another(bus: Bus) -> None:
    messages = [message() for _ in range(60)]
    await bus.writer.publish(messages[:20])
    await bus.writer.publish(messages)
    await bus.writer.publish([message()._replace(message_id=messages[0].message_id)])
    assert await bus.writer.last_position() == 20 + 60 + 1


async def test_only_an_inbox_receives_a_reply(bus: Bus) -> None:
    intake = reading(bus)
    expected = {"_INBOX.abc": "_INBOX.abc", "rec.desired.a.b.c": None, "_INBOX.>": None}
    for reply in expected:
        await bus.publish(f"rec.desired.{new_key().tokens}", b"{}", reply_to=reply)
    deliveries = await intake.wait_for(len(expected))
    assert {delivery.reply_to for delivery in deliveries} == {"_INBOX.abc", None}
    assert sum(delivery.reply_to is None for delivery in deliveries) == 2


async def test_a_message_without_a_partition_is_also_delivered(bus: Bus) -> None:
    intake = reading(bus)
    await bus.publish("rec.nothing.hostile", b"rubbish")
    [received_delivery] = await intake.wait_for(1)
    assert (received_delivery.subject, received_delivery.payload) == (
        "rec.nothing.hostile",
        b"rubbish",
    )
    await intake.reader.ack([received_delivery])
    assert not await intake.next_within(bus.lease_seconds + 0.5)


async def test_an_unacknowledged_message_is_redelivered(bus: Bus) -> None:
    intake = reading(bus)
    await bus.writer.publish([message()])
    [received_delivery] = await intake.wait_for(1)
    [again] = await intake.wait_for(1)
    assert (again.position, again.delivered) == (received_delivery.position, 2)
    await intake.reader.ack([again])
    assert not await intake.next_within(bus.lease_seconds + 0.5)


async def test_a_delayed_retry_is_not_delivered_early(bus: Bus) -> None:
    intake = reading(bus)
    await bus.writer.publish([message(), message()])
    deliveries = await intake.wait_for(2)
    await intake.reader.ack(deliveries[1:])
    await intake.reader.retry_later(deliveries[:1], 0.7)
    assert not await intake.next_within(0.4)
    [again] = await intake.wait_for(1)
    assert again.position == deliveries[0].position


async def test_a_message_is_still_delivered_a_ninth_time(bus: Bus) -> None:
    intake = reading(bus)
    await bus.writer.publish([message()])
    for time in range(1, 12):
        [received_delivery] = await intake.wait_for(1)
        assert received_delivery.delivered == time
        await intake.reader.retry_later([received_delivery], 0.0)


async def test_a_partition_is_read_by_one_reader_until_it_closes(bus: Bus) -> None:
    key, first, second = new_key(), reading(bus), reading(bus)
    await bus.writer.publish([message(key)])
    deliveries = await first.wait_for(1)
    await first.reader.ack(deliveries)
    assert not await second.next_within(0.1)
    for _ in range(5):
        await bus.writer.publish([message(key)])
        more = await first.wait_for(1)
        await first.reader.ack(more)
    assert not await second.next_within(0.1)
    first.close()
    await first.reader.close()
    await bus.writer.publish([message(key)])
    assert len(await second.wait_for(1)) == 1


async def test_a_reader_detects_that_another_reader_received_its_partition(bus: Bus) -> None:
    key, first, second = new_key(), reading(bus), reading(bus)
    await bus.writer.publish([message(key)])
    deliveries = await first.wait_for(1)
    assert await first.reader.was_sole_reader(deliveries)
    await first.reader.close()
    await bus.writer.publish([message(key)])
    newer = await second.wait_for(1)
    assert not await first.reader.was_sole_reader(deliveries)
    assert await second.reader.was_sole_reader(newer)


async def test_newer_declarations_of_the_same_resource_can_be_read(bus: Bus) -> None:
    key, other_key, intake = new_key(), new_key(), reading(bus)
    await bus.writer.publish([message(key)])
    await bus.writer.publish([message(other_key)])
    await bus.writer.publish([IntakeMessageOut("timer", key, TimerFired("Sweep"), "t")])
    await bus.writer.publish([message(key)])
    deliveries = {each.position: each for each in await intake.wait_for(4)}
    newer = await intake.reader.newer_declarations([deliveries[1], deliveries[2], deliveries[4]])
    assert [[each.position for each in stored] for stored in newer] == [[4], [], []]


async def test_all_declarations_of_a_resource_can_be_read_unless_all_are_known(bus: Bus) -> None:
    key, other_key, intake = new_key(), new_key(), bus.intake_reader()
    await bus.writer.publish([message(key)])
    await bus.writer.publish([message(other_key)])
    await bus.writer.publish([message(key)])
    declared = await intake.declarations_of({key: {3}, other_key: {2}})
    assert {each: [found.position for found in stored] for each, stored in declared.items()} == {
        key: [1, 3]
    }
    assert not await intake.declarations_of({key: {1, 3}, other_key: {2}})
    await intake.close()


async def test_a_full_intake_stores_what_it_can_and_names_the_rest(bus: Bus) -> None:
    await bus.writer.publish([message()])
    await bus.set_remaining_capacity("INTAKE", 2)
    messages = [message() for _ in range(4)]
    with pytest.raises(NotStoredError) as raised:
        await bus.writer.publish(messages)
    assert isinstance(raised.value.__cause__, StreamFullError)
    assert raised.value.missing == [2, 3]
    assert await bus.writer.last_position() == 3
    await bus.set_remaining_capacity("INTAKE", None)
    await bus.writer.publish([messages[index] for index in raised.value.missing])
    assert await bus.writer.last_position() == 5


async def test_a_waiting_reader_receives_messages_published_meanwhile(bus: Bus) -> None:
    intake = reading(bus)
    waiting = asyncio.ensure_future(intake.wait_for(1))
    assert not (await asyncio.wait([waiting], timeout=0.2))[0]
    await bus.writer.publish([message()])
    assert len(await waiting) == 1
