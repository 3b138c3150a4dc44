"""A log feed reports damage in order, between the events, and selects events by type."""

from __future__ import annotations

import asyncio

from events.log import LogEvent, SpecWithdrawn
from events.names import ResourceKey
from reconciler.ports import ResourceAppend
from reconciler.roles.runtime.log_feed import LogFeed
from tests.bus.histories import event, events
from tests.memory_bus.faults import DamageLog
from tests.memory_bus.log import LogStream, MemoryLog
from tests.memory_bus.loop import VirtualLoop
from tests.memory_bus.network import Network

SOUND = ResourceKey("default", "Shape", "sound")
DAMAGED = ResourceKey("default", "Shape", "damaged")


def test_events_before_damage_are_reported_before_it() -> None:
    """A projector that counted the damage first would drop the rows of the events before it."""
    loop = VirtualLoop("feed")
    stream = LogStream(loop.time, may_be_damaged=True)
    for key in (SOUND, DAMAGED):
        stream.append([ResourceAppend(key, events(key, 1, 2), 0)])
    stream.append([ResourceAppend(SOUND, events(SOUND, 3, 3), 2)])
    assert stream.recorded is not None
    assert (
        stream.recorded.damage(DAMAGED, DamageLog(at=0.0, shape="damaged", how="flip", index=1))
        == 4
    )
    reported: list[tuple[str, int]] = []
    feed = LogFeed(MemoryLog(stream, Network(loop, "feed")))
    feed.subscribe(lambda position, _event: reported.append(("event", position)))
    feed.subscribe_to_damage(lambda damage: reported.append(("damage", damage.position)))

    async def follow() -> None:
        run = asyncio.ensure_future(feed.run())
        await feed.catch_up(10)
        run.cancel()

    loop.run_until_complete(follow())
    assert reported == [("event", 1), ("event", 2), ("event", 3), ("damage", 4), ("event", 5)]
    loop.close()


def test_a_subscriber_receives_the_events_of_its_types() -> None:
    loop = VirtualLoop("feed")
    stream = LogStream(loop.time)
    withdrawn = event(SOUND, 2, SpecWithdrawn(1))
    history = [event(SOUND, 1), withdrawn, event(SOUND, 3)]
    stream.append([ResourceAppend(SOUND, history, 0)])
    feed = LogFeed(MemoryLog(stream, Network(loop, "feed")))
    selected: list[LogEvent] = []
    everything: list[LogEvent] = []
    feed.subscribe(lambda _position, event: selected.append(event), {SpecWithdrawn})
    feed.subscribe(lambda _position, event: everything.append(event))

    async def follow() -> None:
        run = asyncio.ensure_future(feed.run())
        await feed.catch_up(10)
        run.cancel()

    loop.run_until_complete(follow())
    assert everything == history
    assert selected == [withdrawn]
    loop.close()
