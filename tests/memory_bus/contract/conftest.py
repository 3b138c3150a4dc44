"""Every test in this folder runs twice: in memory, in virtual time, and on JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from infra.bus import streams
from tests.memory_bus.contract.buses import Bus, MemoryContractBus, on_jetstream
from tests.memory_bus.loop import VirtualLoop

LEASE_SECONDS = 1.0
"""The lease on JetStream, instead of ten real seconds."""


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test in this folder on both loops."""
    return {"memory": lambda: VirtualLoop("contract"), "jetstream": asyncio.new_event_loop}


@pytest.fixture
def bus_url(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty bus; None for the bus in memory, which does not need a server."""
    is_in_memory = "memory" in request.node.callspec.id.split("-")
    return None if is_in_memory else request.getfixturevalue("fresh_bus_url")


@pytest.fixture
async def bus(bus_url: str | None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    """An empty bus."""
    if bus_url is None:
        bus = MemoryContractBus("contract")
        yield bus
        await bus.close()
    else:
        monkeypatch.setattr(streams, "_LEASE", int(LEASE_SECONDS * 1_000_000_000))
        async with on_jetstream(bus_url, LEASE_SECONDS) as bus:
            yield bus
