"""Concurrent calls to one API are limited, shared among namespaces, and evenly spread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from reconciler.roles.worker import call_slots
from reconciler.roles.worker.call_slots import LONG_WAIT_SECONDS, CallSlots
from tests.memory_bus.loop import VirtualLoop

MAX_CALLS = 16
NAMESPACES = 16
CALL_SECONDS = 2.0


@asynccontextmanager
async def hold_slot(
    slots: CallSlots, namespace: str, on_long_wait: Callable[[], None]
) -> AsyncGenerator[None]:
    started_at = await slots.acquire(namespace, 0, on_long_wait)
    try:
        yield
    finally:
        slots.release(namespace, started_at)


def start_times(
    calls: Sequence[tuple[float, str]], seconds: float | Mapping[str, float] = CALL_SECONDS
) -> Mapping[str, Sequence[float]]:
    """Make calls at these times; return the seconds at which those of each namespace started.

    ``seconds``: their duration, or that of each namespace.
    """
    loop = VirtualLoop("call slots")
    slots = CallSlots(MAX_CALLS, loop.time)
    first = loop.time()
    starts: dict[str, list[float]] = {}
    active_calls = 0

    async def call(at: float, namespace: str) -> None:
        nonlocal active_calls
        await asyncio.sleep(at)
        async with hold_slot(slots, namespace, lambda: None):
            starts.setdefault(namespace, []).append(loop.time() - first)
            active_calls += 1
            assert active_calls <= MAX_CALLS
            duration = seconds[namespace] if isinstance(seconds, Mapping) else seconds
            await asyncio.sleep(duration)
            active_calls -= 1

    async def make_calls() -> None:
        await asyncio.gather(*(call(at, namespace) for at, namespace in calls))

    loop.run_until_complete(make_calls())
    return starts


def end_times(calls: int, *, seconds: float) -> Sequence[float]:
    """Make calls of many namespaces together; return the seconds at which each ended."""
    starts = start_times([(0.0, f"ns{each % NAMESPACES}") for each in range(calls)], seconds)
    return [start + seconds for times in starts.values() for start in times]


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


def test_the_only_namespace_may_use_all_slots() -> None:
    assert start_times([(0.0, "only")] * MAX_CALLS)["only"] == [0.0] * MAX_CALLS


def test_one_of_several_namespaces_may_use_most_slots_and_leaves_some_to_others() -> None:
    slow = [(0.0, "slow")] * 10 * MAX_CALLS
    starts = start_times([(0.0, "second"), *slow, (3.0, "second"), (3.0, "third")])
    assert starts["slow"].count(0.0) == MAX_CALLS * 7 // 8 - 1
    assert starts["second"] == [0.0, 3.0]
    assert starts["third"] == [3.0]


def test_a_few_slots_are_shared_by_two_namespaces() -> None:
    loop = VirtualLoop("call slots")
    slots = CallSlots(2, loop.time)
    starts: list[tuple[str, float]] = []

    async def call(namespace: str) -> None:
        async with hold_slot(slots, namespace, lambda: None):
            starts.append((namespace, loop.time() - started_at))
            await asyncio.sleep(CALL_SECONDS)

    async def make_calls() -> None:
        await asyncio.gather(call("two"), call("one"), call("one"), call("two"))

    started_at = loop.time()
    loop.run_until_complete(make_calls())
    assert starts[:2] == [("two", 0.0), ("one", 0.0)]


def test_a_free_slot_goes_to_the_namespace_with_the_fewest_running_calls() -> None:
    flood = [(0.0, "flood")] * 10 * MAX_CALLS
    starts = start_times([*flood, *[(1.0, "late")] * (MAX_CALLS // 2)])
    # the calls of the other namespace start in the next round, before 146 that came earlier
    assert max(starts["late"]) <= 2 * CALL_SECONDS
    assert max(starts["flood"]) > 10 * CALL_SECONDS


def test_hanging_calls_of_one_namespace_do_not_delay_the_fast_calls_of_another() -> None:
    hanging = [(0.0, "hanging")] * 5 * MAX_CALLS
    fast = [(number / 10, "fast") for number in range(100)]
    starts = start_times([fast[0], *hanging, *fast[1:]], {"hanging": 10.0, "fast": 0.05})
    delays = [start - at for start, (at, _) in zip(sorted(starts["fast"]), fast, strict=True)]
    assert max(delays) < 0.2


def test_a_long_queue_is_fetched_as_its_calls_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, nothing would be fetched until the last call of the queue has started."""
    monkeypatch.setattr(call_slots, "MAX_WAITING_CALLS", 100)
    loop = VirtualLoop("call slots")
    slots, started_at = CallSlots(MAX_CALLS, loop.time), loop.time()
    starts: dict[str, float] = {}

    async def fetch_calls(namespaces: Sequence[str]) -> None:
        credit = asyncio.Semaphore(2 * MAX_CALLS)

        async def call(namespace: str) -> None:
            has_freed = False

            def free() -> None:
                nonlocal has_freed
                if not has_freed:
                    has_freed = True
                    credit.release()

            async with hold_slot(slots, namespace, free):
                starts[namespace] = loop.time() - started_at
                await asyncio.sleep(CALL_SECONDS)
            free()

        async with asyncio.TaskGroup() as tasks:
            for namespace in namespaces:
                await credit.acquire()
                tasks.create_task(call(namespace))

    loop.run_until_complete(fetch_calls(["quick", *["flood"] * 400, "quick"]))
    # 100 calls may wait, so 300 have started: 14 every two seconds.
    assert 300 / 7 - 5 < starts["quick"] < 300 / 7 + 2
    assert starts["flood"] > 55


def test_a_canceled_call_returns_its_slot_or_its_place_in_the_queue() -> None:
    loop = VirtualLoop("call slots")
    slots = CallSlots(1, loop.time)
    long_waits: list[str] = []

    async def hold(namespace: str, seconds: float) -> None:
        async with hold_slot(slots, namespace, lambda: long_waits.append(namespace)):
            await asyncio.sleep(seconds)

    async def cancel_calls() -> None:
        first = asyncio.create_task(hold("one", 1.0))
        waiting = asyncio.create_task(hold("two", 1.0))
        granted = asyncio.create_task(hold("three", 1.0))
        await asyncio.sleep(2 * LONG_WAIT_SECONDS)
        waiting.cancel()
        first.cancel()  # grants the slot to the third call, which is canceled before it starts
        await asyncio.wait([first])
        granted.cancel()
        await asyncio.wait([waiting, granted])
        await asyncio.wait_for(hold("four", 0.0), LONG_WAIT_SECONDS)

    loop.run_until_complete(cancel_calls())
    assert long_waits == ["two", "three"]


def test_slow_calls_of_a_namespace_do_not_space_the_quick_calls_of_another() -> None:
    slow = [(0.0, f"slow{each % 2}") for each in range(10 * MAX_CALLS)]
    quick = [(100.0 + 0.01 * each, "quick") for each in range(40)]
    seconds = {"slow0": 20.0, "slow1": 20.0, "quick": 0.1}
    starts = start_times([*slow, *quick], seconds)["quick"]
    delays = [start - at for start, (at, _) in zip(starts, quick, strict=True)]
    assert max(delays) < 2.5, "one free slot serves 10 quick calls per second"
