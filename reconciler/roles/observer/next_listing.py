"""When a kind at an API is listed again: after its interval, or earlier if there is a reason."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class NextListing:
    """The wait between two listings.

    A changed configuration ends it at once. A hint ends it, too, but not before the least time is
    over; as many hints as come until then are one. What came before a listing begins is done with.
    """

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self._is_hinted = False
        self._hints_count = False

    def begins(self) -> None:
        """Forget what came before: the listing that begins now will show it."""
        self._due.clear()
        self._is_hinted = self._hints_count = False

    def now(self) -> None:
        """End the wait at once."""
        self._due.set()

    def hint(self) -> None:
        """End the wait as soon as a hint may."""
        self._is_hinted = True
        if self._hints_count:
            self._due.set()

    async def wait(self, seconds: float, least_seconds: float | None = None) -> None:
        """Wait so long; hints count after the least time, or not at all without one."""
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
