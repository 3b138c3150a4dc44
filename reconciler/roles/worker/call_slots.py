"""The calls that one API may have at once, spread over time while more of them wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

_PACE: Final = 0.8  # of the gap that would keep every slot busy: the pace never costs throughput
_LEAST_GAP_SECONDS: Final = 0.002  # below, calls end spread out by themselves
_WEIGHT: Final = 1 / 8  # of the newest call in the typical duration


class CallSlots:
    """Bounds the calls at once, and spaces those that had to wait.

    Calls of one duration that begin together end together, for ever: their results, and the calls
    that follow, come in bursts, and what is declared of other APIs waits behind each of them.

    ``most``: calls at once. ``clock``: seconds, of this process.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most = most
        self._clock = clock
        self._free = asyncio.Semaphore(most)
        self._typical_seconds = 0.0
        self._next_start = 0.0

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Wait for a slot, and have it until the context ends."""
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
