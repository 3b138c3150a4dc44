"""A feed of the real log: when it may be said that all is known."""

import asyncio

import pytest

from infra.bus.event_log import JetStreamLog
from reconciler.ports import ResourceAppend
from reconciler.roles.log_feed import LogFeed
from tests.bus.histories import events, new_key


async def test_who_catches_up_has_seen_what_was_stored_before(log: JetStreamLog) -> None:
    feed = LogFeed(log, after=await log.last_position())
    seen: list[str] = []
    feed.subscribe(lambda _position, event: seen.append(event.id))
    running = asyncio.create_task(feed.run())
    try:
        for number in range(5):
            key = new_key()
            history = events(key, 1, 1 + number)
            await log.append([ResourceAppend(key, history, 0)])
            await feed.catch_up(10)
            assert seen[-len(history) :] == [each.id for each in history]
        await feed.catch_up(10)  # nothing more has come
    finally:
        running.cancel()


async def test_a_feed_that_stands_still_does_not_catch_up(log: JetStreamLog) -> None:
    feed = LogFeed(log, after=await log.last_position())
    key = new_key()
    await log.append([ResourceAppend(key, events(key, 1, 1), 0)])
    with pytest.raises(TimeoutError):
        await feed.catch_up(0.05)
