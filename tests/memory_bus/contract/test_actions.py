"""Decided actions: leases, room, and the queue of each configuration."""

from __future__ import annotations

from events.log import Action, ActionDecided, LogEvent, event_id
from events.names import ResourceKey
from reconciler.ports import ActionDelivery, ResourceAppend
from tests.bus.histories import event, events, new_key
from tests.memory_bus.contract.buses import Bus, Reading


def decided(key: ResourceKey, config: str) -> LogEvent:
    action = Action(event_id(key, 1), "key", "Create", 1, config, key.name, ())
    return event(key, 1, ActionDecided(action))


async def decide(bus: Bus, count: int, config: str = "default") -> list[str]:
    """Decide so many actions, each of a resource of its own; return their events' ids."""
    ids: list[str] = []
    for _ in range(count):
        key = new_key()
        await bus.log.append([ResourceAppend(key, [decided(key, config)], 0)])
        ids.append(decided(key, config).id)
    return ids


def reading(bus: Bus) -> Reading[ActionDelivery]:
    return bus.reading(bus.action_reader())


async def test_actions_come_in_order_and_other_events_do_not(bus: Bus) -> None:
    actions, other_key = reading(bus), new_key()
    await bus.log.append([ResourceAppend(other_key, events(other_key, 1, 2), 0)])
    ids = await decide(bus, 5)
    await actions.reader.take_from("default", 10)
    deliveries = await actions.until(5)
    assert [each.event.id for each in deliveries] == ids
    assert [each.position for each in deliveries] == [3, 4, 5, 6, 7]
    await actions.reader.ack(deliveries)
    assert not await actions.within(bus.lease_seconds + 0.5)


async def test_only_the_configurations_that_are_asked_for_are_read(bus: Bus) -> None:
    actions = reading(bus)
    await actions.reader.take_from("one", 10)
    await decide(bus, 1, "other")
    ids = await decide(bus, 1, "one")
    [received_delivery] = await actions.until(1)
    assert [received_delivery.event.id] == ids
    assert not await actions.anything_but([received_delivery])
    await actions.reader.take_from("other", 10)
    assert await actions.until(1, but=[received_delivery])


async def test_an_action_is_one_worker_s(bus: Bus) -> None:
    first, second = reading(bus), reading(bus)
    await first.reader.take_from("default", 10)
    await second.reader.take_from("default", 10)
    await decide(bus, 4)
    deliveries: list[ActionDelivery] = []
    while len(deliveries) < 4:
        deliveries += await first.within(0.05)
        deliveries += await second.within(0.05)
    assert len({each.position for each in deliveries}) == 4
    assert {each.delivered for each in deliveries} == {1}


async def test_a_worker_gets_no_more_than_it_has_room_for(bus: Bus) -> None:
    actions = reading(bus)
    await actions.reader.take_from("default", 2)
    ids = await decide(bus, 4)
    deliveries = await actions.until(2)
    assert not await actions.anything_but(deliveries)
    actions.reader.free_slot(deliveries[0])
    more = await actions.until(1, but=deliveries)
    await actions.reader.ack(deliveries[1:])
    more += await actions.until(1, but=[*deliveries, *more])
    assert [each.event.id for each in (*deliveries, *more)] == ids


async def test_an_action_comes_again_when_its_lease_ends_unless_it_is_extended(bus: Bus) -> None:
    actions = reading(bus)
    await actions.reader.take_from("default", 10)
    await decide(bus, 2)
    kept_delivery, lost_delivery = await actions.until(2)
    again: list[ActionDelivery] = []
    while not again:
        await actions.reader.extend_leases([kept_delivery])
        again = await actions.within(0.4 * bus.lease_seconds)
    assert [(each.position, each.delivered) for each in again] == [(lost_delivery.position, 2)]


async def test_what_a_worker_has_when_it_closes_goes_to_another_at_once(bus: Bus) -> None:
    first, second = reading(bus), reading(bus)
    await first.reader.take_from("default", 10)
    ids = await decide(bus, 1)
    await first.until(1)
    await second.reader.take_from("default", 10)
    assert not await second.within(0.2)
    first.close()
    await first.reader.close()
    deliveries = await second.within(0.4 * bus.lease_seconds)
    assert [(each.event.id, each.delivered) for each in deliveries] == [(ids[0], 2)]
