"""Limit the concurrent calls to one API, and space those that had to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

# Fraction of the gap that keeps every slot busy. Below 1, so that spacing never costs throughput.
_GAP_FACTOR: Final = 0.8
_MIN_GAP_SECONDS: Final = 0.002  # below it, calls end at different times anyway
_NEWEST_WEIGHT: Final = 1 / 8  # weight of the newest call in the typical duration


class CallSlots:
    """Limits concurrent calls, and spaces those that had to wait.

    Calls of equal duration that start together would repeatedly end together. Bursts of results and
    further calls would then delay declarations for other APIs.

    ``limit``: maximum number of concurrent calls. ``clock`` returns seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._free_slots = asyncio.Semaphore(limit)
        self._typical_seconds = 0.0
        self._next_start = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it until the context ends."""
        must_wait = self._free_slots.locked()
        async with self._free_slots:
            if must_wait:
                await self._wait_for_gap()
            started_at = self._clock()
            try:
                yield
            finally:
                seconds = self._clock() - started_at
                self._typical_seconds += _NEWEST_WEIGHT * (seconds - self._typical_seconds)

    async def _wait_for_gap(self) -> None:
        gap = _GAP_FACTOR * self._typical_seconds / self.limit
        if gap < _MIN_GAP_SECONDS:
            return
        now = self._clock()
        start = max(now, self._next_start)
        self._next_start = start + gap
        await asyncio.sleep(start - now)
