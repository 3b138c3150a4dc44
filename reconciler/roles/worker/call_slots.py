"""Share the concurrent calls to one API among namespaces, and space those that had to wait."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

_MAX_CALLS_PER_FREE_SLOT: Final = 7
"""Limit on a namespace's running calls, per slot that remains free when it starts another one.

One namespace can therefore use 7/8 of the slots, and the last slot is for a namespace without
running calls. Otherwise, slow calls of one namespace would delay others for a whole timeout.
"""

LONG_WAIT_SECONDS: Final = 0.1

MAX_WAITING_CALLS: Final = 3_000
MAX_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Limits on the waiting calls, beyond which no other call may be added to them.

They are above the number of actions that three deciders start at an API (`MAX_ACTIONS`), so that a
call of a namespace with a free slot is never behind them.
"""

# Fraction of the gap that keeps every slot busy. Below 1, so that spacing never costs throughput.
_GAP_FACTOR: Final = 0.8
_MIN_GAP_SECONDS: Final = 0.002  # below it, calls end at different times anyway
_NEWEST_WEIGHT: Final = 1 / 8  # weight of the newest call in a namespace's typical duration


class CallSlots:
    """Limits concurrent calls, shares them among namespaces, and spaces those that had to wait.

    A free slot goes to the waiting namespace with the fewest running calls. Until a second
    namespace makes a call, the first one may use all slots. Calls of equal duration that start
    together would repeatedly end together. Bursts of results and further calls would then delay
    declarations for other APIs. The delay is less than the typical duration of the namespace's own
    calls, so that slow calls of one namespace do not delay quick calls of another.

    ``limit``: maximum number of concurrent calls. ``clock`` returns seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._free_slots = limit
        self._first_namespace = ""
        self._is_shared = False
        self._running = Counter[str]()  # by namespace
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by namespace
        self._waiting_calls = self._waiting_bytes = 0
        self._postponed: deque[Callable[[], None]] = deque()
        self._typical_seconds: dict[str, float] = {}  # by namespace
        self._next_start = 0.0

    async def acquire(self, namespace: str, size: int, on_long_wait: Callable[[], None]) -> float:
        """Wait for a slot. Return the time at which the call starts, which ``release`` requires.

        ``size``: bytes of the call's action. ``on_long_wait`` is called after
        ``LONG_WAIT_SECONDS``, or later, once the waiting calls are within their limits.
        """
        self._first_namespace = self._first_namespace or namespace
        self._is_shared = self._is_shared or namespace != self._first_namespace
        if self._may_start(namespace):
            self._occupy(namespace)
            return self._clock()
        await self._wait_for_slot(namespace, size, on_long_wait)
        try:
            await self._wait_for_gap(namespace)
        except BaseException:
            self._free(namespace)
            raise
        return self._clock()

    def release(self, namespace: str, started_at: float) -> None:
        """End a call, and start others that wait."""
        seconds = self._clock() - started_at
        typical = self._typical_seconds.get(namespace, seconds)
        self._typical_seconds[namespace] = typical + _NEWEST_WEIGHT * (seconds - typical)
        self._free(namespace)
        if namespace not in self._running and namespace not in self._waiting:
            del self._typical_seconds[namespace]

    def _may_start(self, namespace: str) -> bool:
        remaining_slots = self._free_slots - 1
        if not self._is_shared:
            return remaining_slots >= 0
        return self._running[namespace] <= _MAX_CALLS_PER_FREE_SLOT * remaining_slots

    def _occupy(self, namespace: str) -> None:
        self._free_slots -= 1
        self._running[namespace] += 1

    def _free(self, namespace: str) -> None:
        self._free_slots += 1
        self._running[namespace] -= 1
        if not self._running[namespace]:
            del self._running[namespace]
        while self._waiting:
            chosen = min(self._waiting, key=self._running.__getitem__)
            if not self._may_start(chosen):
                return  # then the others may not start either
            queue = self._waiting[chosen]
            call = queue.popleft()
            if not queue:
                del self._waiting[chosen]
            if not call.cancelled():
                self._occupy(chosen)
                call.set_result(None)

    async def _wait_for_slot(
        self, namespace: str, size: int, on_long_wait: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        call = loop.create_future()
        self._waiting.setdefault(namespace, deque()).append(call)
        self._waiting_calls += 1
        self._waiting_bytes += size
        timer = loop.call_later(LONG_WAIT_SECONDS, self._postpone, on_long_wait)
        try:
            await call
        except asyncio.CancelledError:
            if not call.cancelled():  # the slot was already occupied
                self._free(namespace)
            raise
        finally:
            timer.cancel()
            self._waiting_calls -= 1
            self._waiting_bytes -= size
            self._call_postponed()

    def _postpone(self, callback: Callable[[], None]) -> None:
        self._postponed.append(callback)
        self._call_postponed()

    def _call_postponed(self) -> None:
        is_within_limits = (
            self._waiting_calls <= MAX_WAITING_CALLS and self._waiting_bytes <= MAX_WAITING_BYTES
        )
        # Only one callback for each call that starts, so that later calls stay within the limits.
        if self._postponed and is_within_limits:
            self._postponed.popleft()()

    async def _wait_for_gap(self, namespace: str) -> None:
        max_delay = _GAP_FACTOR * self._typical_seconds.get(namespace, 0.0)
        gap = max_delay / self.limit
        if gap < _MIN_GAP_SECONDS:
            return
        now = self._clock()
        start = max(now, min(self._next_start, now + max_delay))
        self._next_start = max(self._next_start, start) + gap
        await asyncio.sleep(start - now)
