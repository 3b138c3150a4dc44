"""A subscription that uses a push consumer instead of polling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from eventsourcing.persistence import (
    ApplicationRecorder,
    InterfaceError,
    Notification,
    Subscription,
)

from infra.eventstore.bus import Bus
from infra.eventstore.layout import EventLayout
from infra.jetstream.follow import follow

_MAX_QUEUED_BATCHES: Final = 8  # number of batches to read ahead before the follower waits


class JetStreamSubscription(Subscription[ApplicationRecorder]):
    """An iterator over the notifications of a log, including future ones.

    A task on the event loop follows the stream, and the iterating thread fetches whole batches.
    """

    def __init__(
        self,
        recorder: ApplicationRecorder,
        bus: Bus,
        layout: EventLayout,
        gt: int | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        super().__init__(recorder, gt=gt, topics=topics)
        self._bus = bus
        self._layout = layout
        self._batches: asyncio.Queue[list[Notification]] = asyncio.Queue(_MAX_QUEUED_BATCHES)
        self._ready: list[Notification] = []
        self._next_index = 0
        self._follower: asyncio.Task[None] | None = None
        self._start = self._bus.submit(self._begin())

    def __next__(self) -> Notification:
        """Wait for the next notification, and return it.

        Raises:
            StopIteration: the subscription was stopped.
            OperationalError: the stream can no longer be followed.
        """
        while self._next_index == len(self._ready) and not self._has_been_stopped:
            batch = self._bus.call(self._next_batch())
            if batch is None:
                raise StopIteration
            self._ready, self._next_index = batch, 0
        if self._has_been_stopped:
            raise StopIteration
        self._next_index += 1
        return self._ready[self._next_index - 1]

    def stop(self) -> None:
        """End the iteration from any thread. Repeated calls are allowed."""
        super().stop()
        with contextlib.suppress(InterfaceError):  # closing the bus has already ended it
            self._bus.submit(self._end())

    async def _begin(self) -> None:
        self._follower = asyncio.create_task(self._follow())

    async def _end(self) -> None:
        if self._follower is not None:
            self._follower.cancel()

    async def _follow(self) -> None:
        layout = self._layout
        start = (self._last_notification_id or 0) + 1
        async with follow(
            self._bus.nc, layout.stream, filters=[layout.events_filter], start_seq=start
        ) as batches:
            async for batch in batches:
                notifications = [layout.decode(message) for message in batch]
                if self._topics:
                    notifications = [
                        event for event in notifications if event.topic in self._topics
                    ]
                if notifications:
                    await self._batches.put(notifications)

    async def _next_batch(self) -> list[Notification] | None:
        """Wait for the next batch. Return None if the follower has ended without an error."""
        follower = self._follower
        # `_begin` has already run, because the loop preserves the order of calls.
        assert follower is not None
        next_batch = asyncio.ensure_future(self._batches.get())
        try:
            await asyncio.wait({next_batch, follower}, return_when=asyncio.FIRST_COMPLETED)
            if next_batch.done():
                return next_batch.result()
        finally:
            next_batch.cancel()
        if not follower.cancelled():
            follower.result()
        return None
