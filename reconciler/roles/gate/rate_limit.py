"""One rate limit for all processes: the generic cell rate algorithm, stored on the bus.

The algorithm comes from ATM traffic management (ITU-T I.371). It stores one time per limit, the
*theoretical arrival time* of the next call. A process advances it by the number of waiting calls in
one compare-and-set, and makes each call at its own slot, never earlier. Unused slots are lost, so
the limit is never exceeded.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable

import structlog

from reconciler.ports import RateConflictError, RateStore

RESERVATION_SECONDS = 0.25
"""Time that a process reserves per write. A longer time saves writes, but a crash loses more."""

MAX_RESERVED_SLOTS = 256
MAX_LEAD_SECONDS = 1.0
"""Limit on how far ahead a process reserves, or the time of two calls if that is longer."""

MAX_PLAUSIBLE_SECONDS = 10.0
"""Limit on a plausible reservation, or the time of sixteen calls if that is longer.

A later time comes from an inaccurate clock. It is reduced to this limit, so that no process waits
longer.
"""

MAX_SLOT_DELAY_SECONDS = 0.25
"""Delay after which a slot is lost. Used together with later slots, it would exceed the burst."""

_MAX_PLAUSIBLE_CALLS = 16
_RETRY_SECONDS = 0.5
_CONFLICT_SECONDS = 0.005
_logger = structlog.get_logger(__name__)


def slots(
    arrival: float, now: float, count: int, interval: float, burst: int
) -> tuple[float, list[float]]:
    """Return the arrival time after the next ``count`` calls, and their times (pure).

    ``arrival``: current theoretical arrival time. ``interval``: seconds between two calls.
    """
    tolerance = (burst - 1) * interval
    start = max(arrival, now)
    times = [max(now, start + number * interval - tolerance) for number in range(count)]
    return start + count * interval, times


class RateLimiter:
    """Permits this process's share of the calls to one API."""

    def __init__(
        self,
        store: RateStore,
        name: str,
        *,
        per_second: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.per_second = per_second
        self.burst = burst
        self._store = store
        self._clock = clock
        self._jitter = jitter
        self._revision: int | None = None
        self._arrival = 0.0
        self._next_slot = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._server_task: asyncio.Task[None] | None = None

    @property
    def interval(self) -> float:
        """Seconds between two calls at a constant rate."""
        return 1.0 / self.per_second

    def expected_wait(self, calls_ahead: int) -> float:
        """Return the expected wait in seconds of a call behind ``calls_ahead`` waiting calls."""
        return max(0.0, self._next_slot - self._clock()) + calls_ahead * self.interval

    async def take(self, *, has_priority: bool = False) -> None:
        """Wait for a slot, at the front or end of the queue, even while the bus is unreachable."""
        waiter = asyncio.get_running_loop().create_future()
        if has_priority:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        if self._server_task is None or self._server_task.done():
            self._server_task = asyncio.create_task(self._serve())
        await waiter

    async def close(self) -> None:
        """Permit no more calls."""
        if self._server_task is not None:
            self._server_task.cancel()

    async def _serve(self) -> None:
        while self._waiters:
            try:
                for slot in await self._reserve(self._slots_to_reserve()):
                    wait = slot - self._clock()
                    if wait > 0:
                        await asyncio.sleep(wait)
                    if self._clock() - slot <= MAX_SLOT_DELAY_SECONDS:
                        self._release_waiter()
            except RateConflictError:
                self._revision = None
                await asyncio.sleep(self._jitter() * _CONFLICT_SECONDS)
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                self._revision = None
                _logger.warning(
                    "failed to reserve calls under a rate limit; retrying",
                    limit=self.name,
                    error=str(error),
                )
                await asyncio.sleep(_RETRY_SECONDS)

    def _slots_to_reserve(self) -> int:
        share = max(1, int(RESERVATION_SECONDS * self.per_second))
        return min(len(self._waiters), share, MAX_RESERVED_SLOTS)

    def _release_waiter(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _reserve(self, count: int) -> list[float]:
        """Reserve slots and return their local times, or wait and return an empty list."""
        if self._revision is None:
            self._arrival, self._revision = await self._store.load(self.name)
        now = await self._store.now()
        offset = self._clock() - now
        interval, burst = self.interval, self.burst
        arrival, times = slots(self._plausible_arrival(now), now, count, interval, burst)
        excess_seconds = times[0] - now - max(MAX_LEAD_SECONDS, 2 * interval)
        if excess_seconds > 0:
            self._next_slot = times[0] + offset
            self._revision = None
            await asyncio.sleep(excess_seconds)
            return []
        self._revision = await self._store.save(self.name, arrival, self._revision)
        self._arrival = arrival
        self._next_slot = arrival - (burst - 1) * interval + offset
        return [each + offset for each in times]

    def _plausible_arrival(self, now: float) -> float:
        """Return the arrival time, reduced to the latest that a correct clock could have stored."""
        max_lead = (
            max(MAX_PLAUSIBLE_SECONDS, _MAX_PLAUSIBLE_CALLS * self.interval)
            + (self.burst - 1) * self.interval
        )
        if self._arrival <= now + max_lead:
            return self._arrival
        _logger.warning(
            "a rate limit's reservations are too far in the future; check the clocks of all "
            "processes",
            limit=self.name,
        )
        return now + max_lead
