"""One reader of the log for all parts of a process, so that each event is decoded once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, get_args

import structlog

from events.integrity import LogDamage
from events.log import LogEvent, ResourceEvent
from reconciler.ports import DamageListener, EventLog

MAX_TRACKED_RESOURCES = 50_000
"""Number of resources (up to twice as many) whose events are checked for gaps.

Each takes about 300 bytes. The scrubber checks all resources periodically.
"""

_EVENT_TYPES: Final[tuple[type[ResourceEvent], ...]] = get_args(ResourceEvent)

_logger = structlog.get_logger(__name__)

Subscriber = Callable[[int, LogEvent], object]
"""Receives each event and its position, in order. Must not block."""

Backpressure = Callable[[], Awaitable[None]]
"""Awaited before more events are read, so that the memory of subscribers stays bounded."""


class LogFeed:
    """Follows the log, and passes each event to its subscribers."""

    def __init__(self, log: EventLog, *, after: int = 0) -> None:
        self._log = log
        self._after = after
        self._subscribers = {each: list[Subscriber]() for each in _EVENT_TYPES}
        self._damage_listeners: list[DamageListener] = []
        self._pending_damage: list[LogDamage] = []
        self._backpressures: list[Backpressure] = []
        self.caught_up = asyncio.Event()
        self.position = after
        self._progress = asyncio.Event()

    def subscribe(
        self, subscriber: Subscriber, event_types: Iterable[type[ResourceEvent]] = _EVENT_TYPES
    ) -> None:
        """Pass the events of these types, by default every event, to `subscriber`."""
        for each in event_types:
            self._subscribers[each].append(subscriber)

    def subscribe_to_damage(self, listener: DamageListener) -> None:
        """Report damage in the log to `listener`. Call it before ``run``.

        Damage and events are reported in the order of their positions.
        """
        self._damage_listeners.append(listener)

    def add_backpressure(self, wait_for_room: Backpressure) -> None:
        """Await `wait_for_room` before reading more. Call it before ``run``."""
        self._backpressures.append(wait_for_room)

    def _record_damage(self, damage: LogDamage) -> None:
        _logger.error("the log is damaged", where=str(damage), problem=damage.problem)
        self._pending_damage.append(damage)

    def _report_damage(self, end_position: float = math.inf) -> None:
        """Report pending damage before ``end_position``."""
        while self._pending_damage and self._pending_damage[0].position < end_position:
            damage = self._pending_damage.pop(0)
            for listener in self._damage_listeners:
                listener(damage)

    async def run(self) -> None:
        """Follow the log until canceled."""
        async with self._log.follow(
            self._after, on_damage=self._record_damage, max_resources=MAX_TRACKED_RESOURCES
        ) as feed:
            while True:
                self._report_damage()
                if feed.caught_up:
                    self.caught_up.set()
                # A batch is checked before it is returned, so its damage is known before its
                # events.
                for position, event in await feed.next_events():
                    if self._pending_damage:
                        self._report_damage(position)
                    for subscriber in self._subscribers[type(event.data)]:
                        subscriber(position, event)
                self._report_damage()
                self.position = max(self.position, feed.position)
                self._progress.set()
                for wait_for_room in self._backpressures:
                    await wait_for_room()

    async def catch_up(self, seconds: float) -> None:
        """Wait until all subscribers have caught up with the log; raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            target = await self._log.last_position()
            while self.position < target:
                self._progress.clear()
                await self._progress.wait()
