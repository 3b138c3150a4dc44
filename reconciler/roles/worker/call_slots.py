"""Limit the concurrent calls of one API, and space those that had to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

# Below the gap that keeps every slot busy, so that spacing never costs throughput.
_PACE: Final = 0.8
_LEAST_GAP_SECONDS: Final = 0.002  # below it, calls end at different times anyway
_WEIGHT: Final = 1 / 8  # of the newest call in the typical duration


class CallSlots:
    """Limits concurrent calls, and spaces those that had to wait.

    Calls of equal duration that start together also end together, again and again. Their results
    and the following calls would come in bursts, which delay declarations for other APIs.

    ``most``: number of concurrent calls. ``clock``: returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most = most
        self._clock = clock
        self._free = asyncio.Semaphore(most)
        self._typical_seconds = 0.0
        self._next_start = 0.0

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it until the context ends."""
        has_to_wait = self._free.locked()
        async with self._free:
            if has_to_wait:
                await self._keep_pace()
            began = self._clock()
            try:
                yield
            finally:
                took = self._clock() - began
                self._typical_seconds += _WEIGHT * (took - self._typical_seconds)

    async def _keep_pace(self) -> None:
        gap = _PACE * self._typical_seconds / self.most
        if gap < _LEAST_GAP_SECONDS:
            return
        now = self._clock()
        start = max(now, self._next_start)
        self._next_start = start + gap
        await asyncio.sleep(start - now)
