"""Slots for concurrent calls to external systems, shared so that slow ones delay few namespaces.

A Git server may delay each read by a minute, for any number of sources and namespaces. A session
that a tenant keeps open may delay each statement on its database by seconds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

_HALF_LIFE_SECONDS: Final = 300.0  # for the time that a namespace has used


class SlotLimits(NamedTuple):
    """Limits on concurrent calls.

    ``per_namespace``: limit on the calls of a namespace. The last free slot is for a namespace
    without a running call. ``unproven``: limit on the calls of sources whose last call did not end
    within ``quick_seconds``.
    """

    total: int
    per_namespace: int
    unproven: int
    quick_seconds: float


@dataclass(eq=False, slots=True)
class Turn:
    """A call that waits for a slot or has one."""

    source: str
    namespace: str
    number: int
    granted: asyncio.Future[None]
    clock: Callable[[], float]
    is_unproven: bool = False
    waited_seconds: float = 0.0

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Exclude time in which the call waits for other calls, such as for a rate limit.

        Other namespaces may have caused this wait, so it is not time that the namespace has used.
        """
        began = self.clock()
        try:
            yield
        finally:
            self.waited_seconds += self.clock() - began


class FairSlots:
    """Grants a free slot to the namespace with the fewest calls and the least time used."""

    def __init__(self, limits: SlotLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._numbers = itertools.count()
        self._waiting: list[Turn] = []
        self._running: list[Turn] = []
        self._quick: dict[str, str] = {}  # namespaces of sources whose last call was quick
        self._used: dict[str, tuple[float, float]] = {}  # used seconds, and when they were counted

    @asynccontextmanager
    async def turn(self, source: str, namespace: str) -> AsyncGenerator[Turn]:
        """Wait for a slot, and hold it until the context ends."""
        granted = asyncio.get_running_loop().create_future()
        turn = Turn(source, namespace, next(self._numbers), granted, self._clock)
        self._waiting.append(turn)
        self._grant()
        began = None
        try:
            await granted
            began = self._clock()
            yield turn
        finally:
            self._end(turn, began)

    def keep(self, sources: Collection[str], namespaces: Collection[str]) -> None:
        """Discard all other sources and namespaces."""
        self._quick = {name: each for name, each in self._quick.items() if name in sources}
        self._used = {name: used for name, used in self._used.items() if name in namespaces}

    def _end(self, turn: Turn, began: float | None) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
            return
        self._running.remove(turn)
        if began is not None:
            now = self._clock()
            seconds = now - began - turn.waited_seconds
            self._used[turn.namespace] = self._used_seconds(turn.namespace) + seconds, now
            if seconds <= self._limits.quick_seconds:
                self._quick[turn.source] = turn.namespace
            else:  # the other sources of the namespace are probably as slow
                self._quick = {
                    source: each for source, each in self._quick.items() if each != turn.namespace
                }
        self._grant()

    def _grant(self) -> None:
        limits = self._limits
        while len(self._running) < limits.total:
            calls = Counter(each.namespace for each in self._running)
            is_last_slot = len(self._running) == limits.total - 1
            has_unproven_slot = sum(each.is_unproven for each in self._running) < limits.unproven
            eligible = [
                each
                for each in self._waiting
                if calls[each.namespace] < (1 if is_last_slot else limits.per_namespace)
                and (has_unproven_slot or each.source in self._quick)
            ]
            if not eligible:
                return
            turn = min(
                eligible,
                key=lambda each: (
                    calls[each.namespace],
                    self._used_seconds(each.namespace),
                    each.number,
                ),
            )
            self._waiting.remove(turn)
            self._running.append(turn)
            turn.is_unproven = turn.source not in self._quick
            if not turn.granted.done():  # otherwise its task was canceled, and ends the turn
                turn.granted.set_result(None)

    def _used_seconds(self, namespace: str) -> float:
        """Return the time that a namespace has used; older use counts less."""
        seconds, at = self._used.get(namespace, (0.0, 0.0))
        return seconds * 0.5 ** ((self._clock() - at) / _HALF_LIFE_SECONDS)
