"""Waiting for a change: what the long polls of the records API hang on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

MAX_WAIT_SECONDS = 30.0
"""So long a call for changes is held at most."""


class ChangeBell:
    """Wakes all who wait for a change of a zone."""

    def __init__(self) -> None:
        self._rings: dict[str, asyncio.Event] = {}

    def ring(self, zone: str) -> None:
        """Wake whoever waits by now."""
        ring = self._rings.pop(zone, None)
        if ring is not None:
            ring.set()

    async def wait(self, zone: str, seconds: float) -> None:
        """Wait for a change from now on, or until the time is over."""
        ring = self._rings.setdefault(zone, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ring.wait()
