"""A call permit that the test grants."""

from __future__ import annotations

import asyncio


class ClosedGate:
    """A call gate at which each request waits, for a subclass to act before the request."""

    may_send_now = False
    interval_seconds = 0.0

    def record_status(self, status: int) -> None:
        """Ignore that the API responded."""


class Permit(ClosedGate):
    """Allows calls once the test grants them; ``waits`` has the priority of each waiting call."""

    def __init__(self, *, interval_seconds: float = 0.0) -> None:
        self.interval_seconds = interval_seconds
        self.waits: list[bool] = []
        self.is_requested, self.is_granted = asyncio.Event(), asyncio.Event()

    async def wait(self, *, has_priority: bool = False) -> None:
        self.waits.append(has_priority)
        self.is_requested.set()
        await self.is_granted.wait()
