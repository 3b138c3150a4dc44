"""The scrubber: verifies the whole log periodically, to find damage before it is needed.

Readers of the log process each event once, and a disk may lose it much later. File systems scrub
for the same reason. It uses a small share of one processor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from reconciler.ports import DamageListener, EventLog

FIRST_AFTER_SECONDS: Final = 60.0
EVERY_SECONDS: Final = 6 * 3_600.0
_SHARE: Final = 0.1  # of the time

_logger = structlog.get_logger(__name__)


class Scrubber:
    """Verifies versions and digests of every event periodically."""

    def __init__(
        self,
        log: EventLog,
        damaged: DamageListener,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._damaged = damaged
        self._clock = clock

    async def run(self) -> None:
        """Scrub until canceled."""
        await asyncio.sleep(FIRST_AFTER_SECONDS)
        while True:
            try:
                await self.scrub()
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                _logger.warning("verifying the log failed; retrying later", why=str(error))
            await asyncio.sleep(EVERY_SECONDS)

    async def scrub(self, *, share: float = _SHARE) -> int:
        """Verify the whole log once. Return the number of valid events."""
        sound = 0
        async with self._log.follow(0, damaged=self._damaged) as feed:
            while not feed.caught_up:
                began = self._clock()
                sound += len(await feed.next_events())
                await asyncio.sleep((self._clock() - began) * (1 / share - 1))
        _logger.debug("verified the log", events=sound)
        return sound
