"""Decided actions: leases, capacity, and the queue of each configuration."""

from __future__ import annotations

from events.log import Action, ActionDecided, LogEvent, event_id
from events.names import ResourceKey
from reconciler.ports import ActionDelivery, ResourceAppend
from tests.bus.histories import event, events, new_key
from tests.memory_bus.contract.buses import Bus, Reading


def action_decided(key: ResourceKey, config: str) -> LogEvent:
    action = Action(event_id(key, 1), "key", "Create", 1, config, key.name, ())
    return event(key, 1, ActionDecided(action))


async def decide(bus: Bus, count: int, config: str = "default") -> list[str]:
    """Decide this many actions, each of a new resource; return the ids of their events."""
    ids: list[str] = []
    for _ in range(count):
        key = new_key()
        await bus.log.append([ResourceAppend(key, [action_decided(key, config)], 0)])
        ids.append(action_decided(key, config).id)
    return ids


def reading(bus: Bus) -> Reading[ActionDelivery]:
    return bus.reading(bus.action_reader())


async def test_only_actions_are_delivered_and_in_order(bus: Bus) -> None:
    actions, other_key = reading(bus), new_key()
    await bus.log.append([ResourceAppend(other_key, events(other_key, 1, 2), 0)])
    ids = await decide(bus, 5)
    await actions.reader.add_queue("default", 10)
    deliveries = await actions.wait_for(5)
    assert [each.event.id for each in deliveries] == ids
    assert [each.position for each in deliveries] == [3, 4, 5, 6, 7]
    await actions.reader.ack(deliveries)
    assert not await actions.next_within(bus.lease_seconds + 0.5)


async def test_only_actions_of_the_requested_configurations_are_delivered(bus: Bus) -> None:
    actions = reading(bus)
    await actions.reader.add_queue("one", 10)
    await decide(bus, 1, "other")
    ids = await decide(bus, 1, "one")
    [received_delivery] = await actions.wait_for(1)
    assert [received_delivery.event.id] == ids
    assert not await actions.other_positions([received_delivery])
    await actions.reader.add_queue("other", 10)
    assert await actions.wait_for(1, excluding=[received_delivery])


async def test_each_action_is_delivered_to_one_worker(bus: Bus) -> None:
    first, second = reading(bus), reading(bus)
    await first.reader.add_queue("default", 10)
    await second.reader.add_queue("default", 10)
    await decide(bus, 4)
    deliveries: list[ActionDelivery] = []
    while len(deliveries) < 4:
        deliveries += await first.next_within(0.05)
        deliveries += await second.next_within(0.05)
    assert len({each.position for each in deliveries}) == 4
    assert {each.delivered for each in deliveries} == {1}


async def test_a_worker_receives_no_more_actions_than_its_capacity(bus: Bus) -> None:
    actions = reading(bus)
    await actions.reader.add_queue("default", 2)
    ids = await decide(bus, 4)
    deliveries = await actions.wait_for(2)
    assert not await actions.other_positions(deliveries)
    actions.reader.free_slot(deliveries[0])
    more = await actions.wait_for(1, excluding=deliveries)
    await actions.reader.ack(deliveries[1:])
    more += await actions.wait_for(1, excluding=[*deliveries, *more])
    assert [each.event.id for each in (*deliveries, *more)] == ids


async def test_an_action_is_redelivered_when_its_lease_ends_unless_it_is_extended(bus: Bus) -> None:
    actions = reading(bus)
    await actions.reader.add_queue("default", 10)
    await decide(bus, 2)
    kept_delivery, lost_delivery = await actions.wait_for(2)
    again: list[ActionDelivery] = []
    while not again:
        await actions.reader.extend_leases([kept_delivery])
        again = await actions.next_within(0.4 * bus.lease_seconds)
    assert [(each.position, each.delivered) for each in again] == [(lost_delivery.position, 2)]


async def test_the_actions_of_a_closed_worker_are_redelivered_immediately(bus: Bus) -> None:
    first, second = reading(bus), reading(bus)
    await first.reader.add_queue("default", 10)
    ids = await decide(bus, 1)
    await first.wait_for(1)
    await second.reader.add_queue("default", 10)
    assert not await second.next_within(0.2)
    first.close()
    await first.reader.close()
    deliveries = await second.next_within(0.4 * bus.lease_seconds)
    assert [(each.event.id, each.delivered) for each in deliveries] == [(ids[0], 2)]
