"""The time of a kind's next listing at an API: after its interval, or earlier on a hint."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class NextListing:
    """The wait between two listings.

    A changed configuration ends it immediately. A hint also ends it, but only after the minimum
    time, and several hints until then count as one. Hints before the start of a listing are
    discarded.
    """

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self._is_hinted = False
        self._hints_count = False

    def begins(self) -> None:
        """Discard earlier hints, because the listing that starts now covers them."""
        self._due.clear()
        self._is_hinted = self._hints_count = False

    def now(self) -> None:
        """End the wait immediately."""
        self._due.set()

    def hint(self) -> None:
        """End the wait after the minimum time."""
        self._is_hinted = True
        if self._hints_count:
            self._due.set()

    async def wait(self, seconds: float, least_seconds: float | None = None) -> None:
        """Wait for some seconds. Hints count after the minimum time, or not at all without one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if least_seconds is not None:
                    await self._until_hints_count(least_seconds)
                await self._due.wait()

    async def _until_hints_count(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._due.wait()
        self._hints_count = True
        if self._is_hinted:
            self._due.set()
