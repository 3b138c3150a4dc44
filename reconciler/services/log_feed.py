"""One reading of the log for all parts of a process: each event is decoded once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from events.log import LogEvent
from reconciler.ports import ShapeLog

Subscriber = Callable[[int, LogEvent], object]
"""Called with each event's position and the event, in order; must not block."""


class LogFeed:
    """Follows the log and shows every event to each subscriber."""

    def __init__(self, log: ShapeLog, *, after: int = 0) -> None:
        self._log = log
        self._after = after
        self._subscribers: list[Subscriber] = []
        self.caught_up = asyncio.Event()
        self.position = after

    def subscribe(self, subscriber: Subscriber) -> None:
        """Show every event from now on; subscribe before ``run``."""
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Follow for ever."""
        async with self._log.follow(self._after) as feed:
            while True:
                if feed.caught_up:
                    self.caught_up.set()
                for position, event in await feed.next_events():
                    for subscriber in self._subscribers:
                        subscriber(position, event)
                self.position = max(self.position, feed.position)
