"""Searches for secrets take turns, so that a hostile API cannot exceed its share of a process.

Searching a 256 KiB object takes up to 0.4 s of CPU, and an API may list thousands of them.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from reconciler.secrecy import Search, Secrecy

TURN_BYTES: Final = 512 * 1024
"""Cost of a turn: bytes of plain text that are searched in about 10 ms."""

PAUSE_SECONDS: Final = 0.01
"""Pause between turns: it leaves other work half of the time, rather than a single step."""

_T = TypeVar("_T")


class SearchTurns:
    """Runs a process's searches for all APIs in turns, with a pause after each turn."""

    def __init__(self, secrecy: Secrecy) -> None:
        self.secrecy = secrecy
        self._lock = asyncio.Lock()  # the longest waiter is next
        self._cost = 0
        self._waiting = 0

    async def complete(self, search: Search[_T]) -> _T:
        """Return the result of a search."""
        try:
            if not self._waiting:  # the common case: this turn has time left
                self._take_turn(search)
            self._waiting += 1
            try:
                while True:
                    async with self._lock:
                        if self._cost > TURN_BYTES:
                            await asyncio.sleep(PAUSE_SECONDS)
                            self._cost = 0
                        self._take_turn(search)
            finally:
                self._waiting -= 1
        except StopIteration as done:
            return done.value

    def _take_turn(self, search: Search[object]) -> None:
        """Search until this turn is over; raises ``StopIteration`` with the result at the end."""
        while self._cost <= TURN_BYTES:
            self._cost += next(search)
