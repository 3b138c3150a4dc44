"""Listings of other observers: a reader receives new parts in order."""

from __future__ import annotations

import asyncio

from events.envelope import encode_listing_part
from events.intake import ListingBegan
from events.subjects import listing
from reconciler.ports import ListingDelivery
from tests.memory_bus.contract.buses import Bus, Reading

SUBJECT = listing("default", "Shape", "one")


def part(bus: Bus, name: str) -> bytes:
    return encode_listing_part(
        name, "team-b", ListingBegan("default", "Shape", as_of=0), time=bus.now()
    )


async def start_reading(bus: Bus) -> Reading[ListingDelivery]:
    """Return a reader's messages, from now on."""
    parts: Reading[ListingDelivery] = bus.reading(bus.listing_reader())
    assert not await parts.next_within(0.3)
    return parts


async def test_new_parts_arrive_in_order_and_earlier_parts_do_not(bus: Bus) -> None:
    await bus.publish_listing(SUBJECT, part(bus, "before"))
    parts = await start_reading(bus)
    for name in ("a", "b"):
        await bus.publish_listing(SUBJECT, part(bus, name))
    deliveries = await parts.wait_for(2)
    assert [each.position for each in deliveries] == [2, 3]
    assert {each.subject for each in deliveries} == {SUBJECT}
    assert all(isinstance(each.part, ListingBegan) for each in deliveries)
    assert abs((bus.now() - deliveries[0].stored_at).total_seconds()) < 60


async def test_an_unreadable_part_arrives_without_its_content(bus: Bus) -> None:
    parts = await start_reading(bus)
    await bus.publish_listing(SUBJECT, b"rubbish")
    [received_delivery] = await parts.wait_for(1)
    assert (received_delivery.part, received_delivery.payload) == (None, b"rubbish")


async def test_each_reader_receives_every_part(bus: Bus) -> None:
    readers = [await start_reading(bus), await start_reading(bus)]
    await bus.publish_listing(SUBJECT, part(bus, "a"))
    deliveries = await asyncio.gather(*(each.wait_for(1) for each in readers))
    assert [[each.position for each in deliveries_] for deliveries_ in deliveries] == [[1], [1]]
