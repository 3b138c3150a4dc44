"""The time of a kind's next listing at an API: after the interval, or earlier on a hint."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class NextListing:
    """The wait between listings.

    A changed configuration ends it immediately. A hint also ends it, but only after the minimum
    time, and several hints before that count as one. Hints before the start of a listing are
    discarded. Time that the listing spent on its publication is part of the wait. Otherwise a
    namespace with many large changes would delay the next listing for all others.
    """

    def __init__(self) -> None:
        self._is_due = asyncio.Event()
        self._is_hinted = False
        self._accepts_hints = False
        self._published_seconds = 0.0

    def start(self) -> None:
        """Discard earlier hints, because the listing that starts now covers them."""
        self._is_due.clear()
        self._is_hinted = self._accepts_hints = False
        self._published_seconds = 0.0

    def record_publication(self, seconds: float) -> None:
        """Record for how long the listing published its observations."""
        self._published_seconds = seconds

    def end_wait(self) -> None:
        """End the wait immediately."""
        self._is_due.set()

    def hint(self) -> None:
        """End the wait after the minimum time."""
        self._is_hinted = True
        if self._accepts_hints:
            self._is_due.set()

    async def wait(self, seconds: float, min_seconds: float) -> None:
        """Wait at most ``seconds``. Hints count after the minimum time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds - self._published_seconds)):
                await self._wait_for_hints(min_seconds)
                await self._is_due.wait()

    async def _wait_for_hints(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()
        self._accepts_hints = True
        if self._is_hinted:
            self._is_due.set()
