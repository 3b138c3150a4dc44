"""Fault 29: a slow but healthy API has a long queue, which does not delay other APIs.

``benchmarks.fairness`` measures the latencies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.provider_config import Limits
from infra.bus.streams import worker_consumers
from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from reconciler.roles.worker.call_slots import MAX_WAITING_CALLS
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import Human, World, api_config, manifest

SLOW = 4_400
"""More than a consumer delivers at a time (4,096), and than the decider starts at a time."""

FAST = 20
CONCURRENCY = 16
SECONDS_PER_CALL = 2.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Run a world whose human uses the slow API; ``default`` is a fast one."""
    fast, slow = FaultyApi(), FaultyApi()
    human = Human(await slow.start(tmp_path / "slow", latency_ms=1000 * SECONDS_PER_CALL))
    async with World(tmp_path / "nats", human).open() as world:
        await world.start_reconciler()
        await world.configure(api_config(await fast.start(tmp_path / "fast"), resync=3600))
        limits = Limits(concurrency=CONCURRENCY)
        await world.configure(api_config(human.url, resync=3600, limits=limits), name="slow")
        yield world
    await human.close()
    await fast.stop()
    await slow.stop()


async def test_29_scenario_32_another_api_converges_while_the_slow_one_has_a_long_queue(
    world: World,
) -> None:
    slow = [manifest(f"slow-{number}", config="slow") for number in range(SLOW)]
    await world.declare_all(slow)
    long = MAX_ACTIONS - 100
    await world.until(lambda: _has_waiting(world, long), "the slow API's queue is long")

    for number in range(FAST):
        await world.declare(f"fast-{number}")
        await world.until_outcome(f"fast-{number}", "Converged")

    # With a single queue, the fast API's calls would need some of its 4,096 slots.
    assert len(await world.human.journal()) < SLOW - 4_096
    leased = [each["num_ack_pending"] for each in await worker_consumers(world.nc)]
    assert 0 < sum(leased) <= 2 * CONCURRENCY + MAX_WAITING_CALLS


async def _has_waiting(world: World, actions: int) -> bool:
    consumers = await worker_consumers(world.nc)
    return sum(each["num_pending"] + each["num_ack_pending"] for each in consumers) >= actions
