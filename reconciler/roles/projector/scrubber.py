"""The scrubber: verifies the whole log periodically, to find damage before events are needed.

Readers process each event only once, and a disk may lose it much later. File systems scrub for the
same reason. A periodic pass uses a small share of one processor. If the log has new gaps, a pass
uses half a processor, because the rows of damaged resources are wrong until the pass finds them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from reconciler.ports import DamageListener, EventLog

FIRST_DELAY_SECONDS: Final = 20.0
CHECK_SECONDS: Final = 15.0
INTERVAL_SECONDS: Final = 6 * 3_600.0
_SHARE: Final = 0.1  # fraction of the time
_URGENT_SHARE: Final = 0.5

_logger = structlog.get_logger(__name__)


class Scrubber:
    """Verifies every event's version and digest periodically, and when the log has new gaps."""

    def __init__(
        self,
        log: EventLog,
        on_damage: DamageListener,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._on_damage = on_damage
        self._clock = clock
        self._gaps = 0  # number at the last pass; initially 0, so that existing gaps trigger one
        self._next_pass = clock() + FIRST_DELAY_SECONDS

    async def run(self) -> None:
        """Scrub until canceled."""
        while True:
            try:
                await self.scrub_if_due()
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                _logger.warning("failed to verify the log; retrying later", reason=str(error))
            await asyncio.sleep(CHECK_SECONDS)

    async def scrub_if_due(self) -> None:
        """Scrub if the log has lost events since the last pass, or if the interval has elapsed."""
        gaps = await self._log.missing_events()
        has_new_gaps = gaps > self._gaps
        if has_new_gaps or self._clock() >= self._next_pass:
            await self.scrub(share=_URGENT_SHARE if has_new_gaps else _SHARE)
            self._gaps, self._next_pass = gaps, self._clock() + INTERVAL_SECONDS

    async def scrub(self, *, share: float = _SHARE) -> int:
        """Verify the whole log once. Return the number of valid events."""
        valid_events = 0
        async with self._log.follow(0, on_damage=self._on_damage) as feed:
            while not feed.caught_up:
                started_at = self._clock()
                valid_events += len(await feed.next_events())
                await asyncio.sleep((self._clock() - started_at) * (1 / share - 1))
        _logger.debug("verified the log", events=valid_events)
        return valid_events
