"""Outcomes as the client hands them out: one at a time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import Self

import msgspec

from events.log import Condition, OutcomeName, OutcomeRecorded
from events.names import ShapeKey
from reconciler.client.port import OutcomeFeed
from reconciler.ports import StoredEvent


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """How a generation of a shape stands.

    ``position`` is its place in the outcome stream, to go on from with ``after`` (0 where that has
    it no more: it keeps 30 days). ``version`` counts the shape's events, 0 for a rejected
    declaration, of which the log has none. ``actor`` is the source of the message that led to it.
    """

    position: int
    key: ShapeKey
    outcome: OutcomeName
    generation: int
    reason: str
    message: str
    conditions: tuple[Condition, ...]
    at: datetime
    event_id: str
    version: int = 0
    actor: str = ""


def as_outcome(stored: StoredEvent) -> Outcome | None:
    """Read an event as an outcome; None for an event that is none."""
    event = stored.event
    data = event.data
    if not isinstance(data, OutcomeRecorded):
        return None
    return Outcome(
        position=stored.position,
        key=event.key,
        outcome=data.outcome,
        generation=data.generation,
        reason=data.reason,
        message=data.message,
        conditions=data.conditions,
        at=event.time,
        event_id=event.id,
        version=event.shapeversion,
        actor=event.actor,
    )


class OutcomeStream:
    """Outcomes without an end: ``async with`` it, then ``async for outcome in`` it.

    When the ``async with`` is entered, the subscription exists: no later outcome is missed. Without
    it the subscription is made by the first step of the loop, and lives as long as the client.

    A durable stream remembers an outcome as dealt with when the loop asks for the next one, or at
    ``ack()``; what was not within two minutes is handed out again, here or to another process of
    the same durable name (at least once, always in order).
    """

    def __init__(self, open_feed: Callable[[], AbstractAsyncContextManager[OutcomeFeed]]) -> None:
        self._open_feed = open_feed
        self._opened: AbstractAsyncContextManager[OutcomeFeed] | None = None
        self._feed: OutcomeFeed | None = None
        self._waiting: deque[StoredEvent] = deque()
        self._unacknowledged = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a subscription."""
        return self._opened is not None

    async def __aenter__(self) -> Self:
        """Subscribe; raises the ``BusError`` of the failure."""
        await self._subscribed()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        """Wait for the next outcome; the one before counts as dealt with."""
        feed = await self._subscribed()
        await self.ack()
        while True:
            while not self._waiting:
                self._waiting.extend(await feed.next_outcomes())
            outcome = as_outcome(self._waiting[0])
            self._unacknowledged = self._waiting.popleft().position
            if outcome is not None:
                return outcome
            await self.ack()

    async def ack(self) -> None:
        """Have a durable stream remember the last outcome as dealt with, before leaving a loop."""
        if self._feed is not None and self._unacknowledged:
            await self._feed.done(self._unacknowledged)
            self._unacknowledged = 0

    async def aclose(self) -> None:
        """End the subscription; what a durable stream has not acknowledged comes again."""
        if self._opened is None:
            return
        opened, self._opened, self._feed = self._opened, None, None
        self._waiting.clear()
        self._unacknowledged = 0
        await opened.__aexit__(None, None, None)

    async def _subscribed(self) -> OutcomeFeed:
        if self._feed is None:
            opened = self._open_feed()
            self._feed = await opened.__aenter__()
            self._opened = opened
        return self._feed
