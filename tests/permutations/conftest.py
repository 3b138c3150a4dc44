"""Every test in this folder runs on a virtual loop, in an in-memory world."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.memory_bus.loop import VirtualLoop
from tests.permutations.world import MemoryWorld, date_now, memory_api
from tests.scenarios.harness import api_config


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test in this folder in virtual time."""
    return {"memory": lambda: VirtualLoop("permutations")}


@pytest.fixture
async def virtual_loop(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VirtualLoop]:
    """The running loop; every clock that the code reads shows its time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    monkeypatch.setattr(time, "monotonic", loop.time)
    monkeypatch.setattr(time, "time", lambda: date_now(loop).timestamp())
    yield loop
    assert loop.failures == []


@pytest.fixture
async def bare_world(virtual_loop: VirtualLoop, tmp_path: Path) -> AsyncIterator[MemoryWorld]:
    """A bus and an empty API; no reconciler runs, and no API is configured."""
    with memory_api(virtual_loop, tmp_path / "api") as human:
        async with MemoryWorld(virtual_loop, human).open() as world:
            yield world
        await human.close()


@pytest.fixture
def empty_api_url(virtual_loop: VirtualLoop, tmp_path: Path) -> Iterator[str]:
    """Another, empty API."""
    with memory_api(virtual_loop, tmp_path / "other-api") as human:
        yield human.url


@pytest.fixture
async def world(bare_world: MemoryWorld) -> MemoryWorld:
    """A reconciler that manages a shared API."""
    await bare_world.start_reconciler()
    await bare_world.configure(api_config(bare_world.human.url))
    return bare_world


@pytest.fixture
async def exclusive_world(bare_world: MemoryWorld) -> MemoryWorld:
    """A reconciler that owns all objects in the API; its guard allows two deletions."""
    await bare_world.start_reconciler()
    await bare_world.configure(api_config(bare_world.human.url, exclusive=True))
    await bare_world.until_scope_is_listed()
    return bare_world
