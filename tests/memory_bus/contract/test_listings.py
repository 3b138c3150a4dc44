"""Listings of other observers: their parts in order, from now on."""

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


async def started(bus: Bus) -> Reading[ListingDelivery]:
    """Return a reading that gets what comes from now on."""
    parts: Reading[ListingDelivery] = bus.reading(bus.listing_reader())
    assert not await parts.within(0.3)
    return parts


async def test_parts_come_in_order_and_those_of_before_do_not(bus: Bus) -> None:
    await bus.publish_listing(SUBJECT, part(bus, "before"))
    parts = await started(bus)
    for name in ("a", "b"):
        await bus.publish_listing(SUBJECT, part(bus, name))
    deliveries = await parts.until(2)
    assert [each.position for each in deliveries] == [2, 3]
    assert {each.subject for each in deliveries} == {SUBJECT}
    assert all(isinstance(each.part, ListingBegan) for each in deliveries)
    assert abs((bus.now() - deliveries[0].stored_at).total_seconds()) < 60


async def test_a_part_that_cannot_be_read_comes_without_its_content(bus: Bus) -> None:
    parts = await started(bus)
    await bus.publish_listing(SUBJECT, b"rubbish")
    [received_delivery] = await parts.until(1)
    assert (received_delivery.part, received_delivery.payload) == (None, b"rubbish")


async def test_each_reader_gets_every_part(bus: Bus) -> None:
    both = [await started(bus), await started(bus)]
    await bus.publish_listing(SUBJECT, part(bus, "a"))
    deliveries = await asyncio.gather(*(each.until(1) for each in both))
    assert [[each.position for each in some] for some in deliveries] == [[1], [1]]
