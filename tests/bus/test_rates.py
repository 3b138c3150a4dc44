"""All processes share one call rate, which is stored on the real bus."""

from __future__ import annotations

import asyncio
import time
import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from events.subjects import rate
from infra.bus.rates import JetStreamRates
from infra.jetstream.publish import publish
from reconciler.roles.gate.rate_limit import (
    MAX_PLAUSIBLE_SECONDS,
    MAX_SLOT_DELAY_SECONDS,
    RateLimiter,
    slots,
)


class Process:
    """One process with a rate limiter, and the times at which it let calls through."""

    def __init__(self, bus: Client, name: str, *, per_second: float, burst: int) -> None:
        self.limiter = RateLimiter(JetStreamRates(bus), name, per_second=per_second, burst=burst)
        self.times: list[float] = []
        self.called = asyncio.Event()

    async def calls(self, count: int) -> None:
        await asyncio.gather(*(self._call() for _ in range(count)))

    async def _call(self) -> None:
        await self.limiter.take()
        self.times.append(time.time())
        self.called.set()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex[:12]


async def test_processes_share_one_rate_and_one_burst(bus: Client, name: str) -> None:
    rate_, burst = 200.0, 10
    processes = [Process(bus, name, per_second=rate_, burst=burst) for _ in range(3)]
    started_at = time.time()
    await asyncio.gather(*(process.calls(60) for process in processes))
    times = sorted(call_time for process in processes for call_time in process.times)
    assert len(times) == 180
    for number, time_ in enumerate(times, start=1):
        assert number <= rate_ * (time_ - started_at) + burst, f"call {number} came too early"
    assert all(process.times for process in processes)


async def test_a_restart_does_not_allow_a_new_burst(bus: Client, name: str) -> None:
    await Process(bus, name, per_second=20, burst=10).calls(10)
    started_at = time.time()
    restarted = Process(bus, name, per_second=20, burst=10)
    await restarted.calls(5)
    assert (
        restarted.times[-1] - started_at >= 3 / 20
    )  # one or two slots may have become free by then


async def test_many_calls_cost_few_round_trips(
    bus: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[float] = []
    original_save = JetStreamRates.save

    async def save_and_count(store: JetStreamRates, name: str, time: float, revision: int) -> int:
        saves.append(time)
        return await original_save(store, name, time, revision)

    monkeypatch.setattr(JetStreamRates, "save", save_and_count)
    await Process(bus, name, per_second=1000, burst=1).calls(500)
    assert len(saves) <= 10


async def test_a_priority_call_waits_for_one_slot(bus: Client, name: str) -> None:
    process = Process(bus, name, per_second=50, burst=1)
    calls = asyncio.create_task(process.calls(20))
    await asyncio.wait_for(process.called.wait(), 60)
    await process.limiter.take(has_priority=True)
    assert len(process.times) < 20
    await calls


async def test_missed_slots_are_lost(bus: Client, name: str) -> None:
    process = Process(bus, name, per_second=400, burst=1)
    calls = asyncio.create_task(process.calls(100))
    await asyncio.wait_for(process.called.wait(), 60)
    stalled = time.time()
    time.sleep(2 * MAX_SLOT_DELAY_SECONDS)  # noqa: ASYNC251 - like a paused process
    await calls
    after = [each for each in process.times if each >= stalled + 2 * MAX_SLOT_DELAY_SECONDS]
    assert len([each for each in after if each < after[0] + 0.01]) <= 20


async def test_a_previously_wrong_clock_does_not_block_callers_for_long(
    bus: Client, name: str
) -> None:
    store = JetStreamRates(bus)
    await store.save(name, await store.now() + 1e9, 0)
    process = Process(bus, name, per_second=100, burst=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.calls(1), 0.5)
    assert 0 < process.limiter.expected_wait(0) <= MAX_PLAUSIBLE_SECONDS
    await process.limiter.close()


async def test_an_invalid_stored_time_is_overwritten(bus: Client, name: str) -> None:
    await publish(bus, rate(name), b"not ours")
    await Process(bus, name, per_second=100, burst=1).calls(2)


async def test_the_time_is_the_servers(bus: Client) -> None:
    store = JetStreamRates(bus)
    started_at = time.time()
    assert started_at - 0.1 <= await store.now() <= time.time() + 0.1
    times = [await store.now() for _ in range(3)]
    assert all(earlier < later for earlier, later in pairwise(times))


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 20)), min_size=1, max_size=30),
    st.floats(0.001, 1.0),
    st.integers(1, 20),
)
def test_no_time_span_has_more_calls_than_rate_and_burst_allow(
    steps: list[tuple[float, int]], interval: float, burst: int
) -> None:
    now, arrival = 1_000.0, 0.0
    times: list[float] = []
    for pause, count in steps:
        now += pause
        arrival, slot_times = slots(arrival, now, count, interval, burst)
        assert all(each >= now for each in slot_times)
        times += slot_times
    times.sort()
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            max_calls = (times[last] - begin) / interval + burst
            assert last - first + 1 <= max_calls + 1e-6
