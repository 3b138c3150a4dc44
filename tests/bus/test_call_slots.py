"""Concurrent calls to one API are limited, and evenly spread while more calls wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from reconciler.roles.worker.call_slots import CallSlots
from tests.memory_bus.loop import VirtualLoop

MAX_CALLS = 16
CALL_SECONDS = 2.0


def end_times(calls: int, *, seconds: float) -> Sequence[float]:
    """Make calls of equal duration; return the seconds at which each ended."""
    loop = VirtualLoop("call slots")
    slots = CallSlots(MAX_CALLS, loop.time)
    started_at = loop.time()
    ends: list[float] = []
    active_calls = 0

    async def call() -> None:
        nonlocal active_calls
        async with slots.slot():
            active_calls += 1
            assert active_calls <= MAX_CALLS
            await asyncio.sleep(seconds)
            active_calls -= 1
        ends.append(loop.time() - started_at)

    async def make_calls() -> None:
        await asyncio.gather(*(call() for _ in range(calls)))

    loop.run_until_complete(make_calls())
    return ends


def max_ends_within(ends: Sequence[float], seconds: float) -> int:
    return max(sum(start <= end < start + seconds for end in ends) for start in ends)


def test_calls_that_wait_for_a_slow_api_do_not_end_together() -> None:
    ends = end_times(20 * MAX_CALLS, seconds=CALL_SECONDS)
    later = [end for end in ends if end > 2 * CALL_SECONDS]
    assert max_ends_within(later, CALL_SECONDS / MAX_CALLS) <= 2


def test_spacing_calls_costs_no_throughput() -> None:
    rounds = 20
    ends = end_times(rounds * MAX_CALLS, seconds=CALL_SECONDS)
    assert max(ends) <= (rounds + 1) * CALL_SECONDS


def test_a_call_with_a_free_slot_begins_immediately() -> None:
    assert set(end_times(MAX_CALLS, seconds=CALL_SECONDS)) == {CALL_SECONDS}


def test_calls_to_a_fast_api_are_not_spaced() -> None:
    ends = end_times(10 * MAX_CALLS, seconds=0.01)
    assert max(ends) < 0.11
