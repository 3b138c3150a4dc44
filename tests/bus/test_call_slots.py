"""Calls of one API: never more at once than allowed, and evenly spread while more of them wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from reconciler.roles.worker.call_slots import CallSlots
from tests.memory_bus.loop import VirtualLoop

MOST = 16
SECONDS_A_CALL = 2.0


def ends_of(calls: int, *, seconds: float) -> Sequence[float]:
    """Make calls, all of one duration; return when each ended, in seconds."""
    loop = VirtualLoop("call slots")
    slots = CallSlots(MOST, loop.time)
    began = loop.time()
    ends: list[float] = []
    at_once = 0

    async def call() -> None:
        nonlocal at_once
        async with slots.slot():
            at_once += 1
            assert at_once <= MOST
            await asyncio.sleep(seconds)
            at_once -= 1
        ends.append(loop.time() - began)

    async def all_of_them() -> None:
        await asyncio.gather(*(call() for _ in range(calls)))

    loop.run_until_complete(all_of_them())
    return ends


def most_within(ends: Sequence[float], seconds: float) -> int:
    return max(sum(start <= end < start + seconds for end in ends) for start in ends)


def test_calls_that_wait_for_a_slow_api_do_not_end_together() -> None:
    ends = ends_of(20 * MOST, seconds=SECONDS_A_CALL)
    later = [end for end in ends if end > 2 * SECONDS_A_CALL]
    assert most_within(later, SECONDS_A_CALL / MOST) <= 2


def test_the_pace_costs_no_throughput() -> None:
    rounds = 20
    ends = ends_of(rounds * MOST, seconds=SECONDS_A_CALL)
    assert max(ends) <= (rounds + 1) * SECONDS_A_CALL


def test_a_call_that_need_not_wait_for_a_slot_begins_at_once() -> None:
    assert set(ends_of(MOST, seconds=SECONDS_A_CALL)) == {SECONDS_A_CALL}


def test_calls_of_a_fast_api_are_not_spaced() -> None:
    ends = ends_of(10 * MOST, seconds=0.01)
    assert max(ends) < 0.11
