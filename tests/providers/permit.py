"""A permit to call that a test gives."""

from __future__ import annotations

import asyncio


class Permit:
    """Gives leave to call when it is told to; ``waits``: who waited, and whether before others."""

    is_free = False

    def __init__(self, *, pace_seconds: float = 0.0) -> None:
        self.pace_seconds = pace_seconds
        self.waits: list[bool] = []
        self.is_requested, self.is_granted = asyncio.Event(), asyncio.Event()

    async def wait(self, *, goes_first: bool = False) -> None:
        self.waits.append(goes_first)
        self.is_requested.set()
        await self.is_granted.wait()
