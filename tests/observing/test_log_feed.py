"""A log feed reports damage in order, between the events."""

from __future__ import annotations

import asyncio

from events.names import ResourceKey
from reconciler.ports import ResourceAppend
from reconciler.roles.runtime.log_feed import LogFeed
from tests.bus.histories import events
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
