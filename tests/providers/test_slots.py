"""Servers that hang, in any number of namespaces, leave slots for the sources of other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from infra.providers.git.heads import READ_LIMITS
from infra.providers.slots import FairSlots


class Reads:
    """Reads that hold their slots until they are ended."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slots = FairSlots(READ_LIMITS, lambda: self.now)
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *sources: str) -> None:
        """Start reads of sources, named ``namespace/name``."""
        for source in sources:
            self._ends[source] = asyncio.Event()
            self._tasks[source] = asyncio.create_task(self._read(source))
        await self._settle()

    async def end(self, *sources: str, after: float) -> None:
        """End reads after this many seconds."""
        self.now += after
        for source in sources:
            self._ends[source].set()
        await self._settle()

    async def prove(self, *sources: str) -> None:
        """Start and quickly end a read of each source."""
        for source in sources:
            await self.start(source)
            await self.end(source, after=0.1)

    def cancel(self, *sources: str) -> None:
        for source in sources:
            self._tasks[source].cancel()

    async def _read(self, source: str) -> None:
        async with self.slots.turn(source, source.partition("/")[0]):
            self.running.append(source)
            try:
                await self._ends[source].wait()
            finally:
                self.running.remove(source)

    @staticmethod
    async def _settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
def reads() -> Iterator[Reads]:
    reads = Reads()
    yield reads
    reads.cancel(*reads._tasks)  # pyright: ignore[reportPrivateUsage]


HOSTILE = [f"{namespace}/{number}" for namespace in ("m1", "m2", "m3") for number in range(4)]


async def test_a_namespace_is_limited_to_its_share_of_the_slots(reads: Reads) -> None:
    sources = [f"shop/{number}" for number in range(5)]
    await reads.prove(*sources)
    await reads.start(*sources)
    assert reads.running == sources[: READ_LIMITS.per_namespace]


async def test_unproven_sources_leave_slots_for_quick_ones(reads: Reads) -> None:
    await reads.prove("shop/a", "shop/b")
    await reads.start(*HOSTILE)
    assert len(reads.running) == READ_LIMITS.unproven
    await reads.start("shop/a", "shop/b")
    assert len(reads.running) == READ_LIMITS.total
    assert reads.running[-1] == "shop/a"


async def test_a_source_that_was_slow_once_is_unproven(reads: Reads) -> None:
    await reads.prove(*HOSTILE)
    await reads.start(*HOSTILE)
    slow = list(reads.running)
    assert len(slow) == READ_LIMITS.total
    await reads.end(*slow, after=READ_LIMITS.quick_seconds + 1)
    for number in range(3):
        slow = list(reads.running)
        await reads.end(*slow, after=READ_LIMITS.quick_seconds + 1)
        await reads.start(*slow)
        assert len(reads.running) <= READ_LIMITS.total, number
    assert len(reads.running) == READ_LIMITS.unproven


async def test_quick_sources_of_two_namespaces_leave_a_slot(reads: Reads) -> None:
    hostile = HOSTILE[:8]
    await reads.prove(*hostile, "shop/a")
    await reads.start(*hostile)
    assert len(reads.running) == READ_LIMITS.total - 1
    await reads.start("shop/a")
    assert reads.running[-1] == "shop/a"


async def test_a_slow_read_makes_all_sources_of_its_namespace_unproven(reads: Reads) -> None:
    await reads.prove(*HOSTILE, "shop/a", "shop/b")
    await reads.start(HOSTILE[0])
    await reads.end(HOSTILE[0], after=READ_LIMITS.quick_seconds + 1)
    await reads.start(*[each for each in HOSTILE if each.startswith(("m1/", "m2/"))])
    assert sum(each.startswith("m1/") for each in reads.running) >= 1
    await reads.start("m3/0", "shop/a")
    assert len(reads.running) == READ_LIMITS.total


async def test_a_new_source_of_another_namespace_is_served_next(reads: Reads) -> None:
    await reads.start(*HOSTILE)
    await reads.end(*list(reads.running), after=60)
    await reads.start("shop/new")
    first, *others = reads.running
    await reads.end(first, after=60)
    assert reads.running == [*others, "shop/new"]


async def test_a_canceled_read_frees_its_slot_or_its_place_in_the_queue(reads: Reads) -> None:
    await reads.start(*HOSTILE)
    running = list(reads.running)
    waiting = [each for each in HOSTILE if each not in running]
    reads.cancel(*waiting[:-1])
    await asyncio.sleep(0)
    reads.cancel(*running)
    for _ in range(10):
        await asyncio.sleep(0)
    assert reads.running == waiting[-1:]


async def test_waits_for_other_calls_count_neither_as_use_nor_as_slowness() -> None:
    now = 0.0
    slots = FairSlots(READ_LIMITS, lambda: now)

    async def call(namespace: str, *, waited: float, used: float) -> None:
        nonlocal now
        async with slots.turn(namespace, namespace) as turn:
            with turn.waiting():
                now += waited
            now += used

    await call("waiting", waited=60.0, used=0.2)
    await call("working", waited=0.0, used=0.3)
    running: list[str] = []
    end = asyncio.Event()

    async def hold(source: str, namespace: str) -> None:
        async with slots.turn(source, namespace):
            running.append(namespace)
            await end.wait()

    tasks = [asyncio.create_task(hold(f"new{each}", "new")) for each in range(2)]
    tasks += [asyncio.create_task(hold(f"m{each}", f"m{each}")) for each in range(20)]
    await asyncio.sleep(0)
    assert len(running) == READ_LIMITS.unproven
    tasks += [asyncio.create_task(hold(each, each)) for each in ("waiting", "working")]
    await asyncio.sleep(0)
    assert running[-1] == "waiting", "it was quick, and has used less time"
    end.set()
    await asyncio.gather(*tasks)
