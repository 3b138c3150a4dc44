"""A permit to call that a test gives."""

from __future__ import annotations

import asyncio


class Permit:
    """Gives leave to call when it is told to; ``waits``: who waited, and whether before others."""

    may_send_now = False

    def __init__(self, *, interval_seconds: float = 0.0) -> None:
        self.interval_seconds = interval_seconds
        self.waits: list[bool] = []
        self.is_requested, self.is_granted = asyncio.Event(), asyncio.Event()

    async def wait(self, *, has_priority: bool = False) -> None:
        self.waits.append(has_priority)
        self.is_requested.set()
        await self.is_granted.wait()
