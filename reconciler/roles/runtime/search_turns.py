"""Searches for secrets take turns, so that a hostile API takes no more than its share of a process.

A search of an object of 256 KiB takes up to 0.4 s of CPU, and an API may list thousands of them.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from reconciler.secrecy import Search, Secrecy

SEARCHED_AT_ONCE: Final = 512 * 1024
"""Cost of a turn: bytes of plain text that are searched in about 10 ms."""

PAUSE_SECONDS: Final = 0.01
"""Between two turns: other work of the process has half of the time, and not only one step."""

_T = TypeVar("_T")


class SearchTurns:
    """Runs the searches of all APIs of a process alternately, with a pause after each turn."""

    def __init__(self, secrecy: Secrecy) -> None:
        self.secrecy = secrecy
        self._lock = asyncio.Lock()  # who waits longest is next
        self._cost = 0

    async def complete(self, search: Search[_T]) -> _T:
        """Return the result of a search."""
        while True:
            async with self._lock:
                if self._cost > SEARCHED_AT_ONCE:
                    await asyncio.sleep(PAUSE_SECONDS)
                    self._cost = 0
                try:
                    while self._cost <= SEARCHED_AT_ONCE:
                        self._cost += next(search)
                except StopIteration as done:
                    return done.value
