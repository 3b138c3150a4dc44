"""Rate limits: each has one time, in bus time, written by compare-and-set."""

from __future__ import annotations

import asyncio

import pytest

from reconciler.ports import RateConflictError
from tests.memory_bus.contract.buses import Bus


async def test_an_unused_limit_is_at_zero(bus: Bus) -> None:
    assert await bus.rates().load("new") == (0.0, 0)


async def test_one_of_two_writers_wins(bus: Bus) -> None:
    store, other_store = bus.rates(), bus.rates()
    revision = await store.save("limit", 1.5, 0)
    assert await other_store.load("limit") == (1.5, revision)
    with pytest.raises(RateConflictError):
        await other_store.save("limit", 2.5, 0)
    assert await store.load("limit") == (1.5, revision)
    assert await other_store.save("limit", 2.5, revision) > revision
    with pytest.raises(RateConflictError):
        await store.save("limit", 3.5, revision)


async def test_each_limit_has_its_own_time(bus: Bus) -> None:
    store = bus.rates()
    await store.save("one", 1.0, 0)
    revision = await store.save("two", 2.0, 0)
    assert await store.load("two") == (2.0, revision)
    assert (await store.load("one"))[0] == 1.0


async def test_the_time_of_the_bus_is_shared_and_advances(bus: Bus) -> None:
    store, other_store = bus.rates(), bus.rates()
    before = await store.now()
    await asyncio.sleep(0.1)
    after = await other_store.now()
    assert 0.05 < after - before < 5
