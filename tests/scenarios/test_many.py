"""Scenarios 22 and 23: a thousand converged resources cost nothing but listings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.sdk import DeclarationRefusedError
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import Human, World, api_config, manifest, shape

COUNT = 1_000
READY_SECONDS = 60.0  # generous; the benchmarks measure, this test detects a gross regression


@pytest.fixture
async def world_of_1000(tmp_path: Path) -> AsyncIterator[World]:
    """A thousand converged resources in a separate API."""
    api = FaultyApi()
    human = Human(await api.start(tmp_path / "api"))
    async with World(tmp_path / "nats", human).open() as world:
        await _declare_all(world)
        yield world
    await human.close()
    await api.stop()


async def _declare_all(world: World) -> None:
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, resync=0.3))
    keys = [shape(f"foo-{number}") for number in range(COUNT)]
    replies = await world.client.declare_many([manifest(key.name) for key in keys])
    assert not any(isinstance(reply, DeclarationRefusedError) for reply in replies)
    await world.client.wait_for_many(dict.fromkeys(keys, 1), timeout_seconds=60)
    await world.until_observed_again()
    assert await world.human.effects() == ["POST"] * COUNT


async def test_22_a_restart_writes_nothing_reads_no_resource_and_is_ready_in_seconds(
    world_of_1000: World,
):
    await check_quiet_restart(world_of_1000)
    await world_of_1000.stop_reconciler()
    await world_of_1000.erase_caches()
    await check_quiet_restart(world_of_1000)


async def check_quiet_restart(world: World) -> None:
    await world.stop_reconciler()
    await world.human.reset_counts()
    position = await world.log_position()

    started = time.monotonic()
    await world.start_reconciler()
    assert time.monotonic() - started < READY_SECONDS

    await world.until_observed_again()
    assert await world.log_position() == position
    assert await world.human.effects() == ["POST"] * COUNT
    listings = listings_of(world)
    assert count_reads(await world.human.requests()) <= listings + 1


async def test_23_ten_resyncs_without_a_change_are_ten_listings_and_nothing_else(
    world_of_1000: World,
):
    world = world_of_1000
    await world.human.reset_counts()
    position, position_before = await world.log_position(), listings_of(world)

    await world.until_observed_again(times=10)

    assert await world.log_position() == position
    assert await world.human.effects() == ["POST"] * COUNT
    new_listings = listings_of(world) - position_before
    assert new_listings >= 10
    assert count_reads(await world.human.requests()) <= new_listings + 1


def listings_of(world: World) -> int:
    assert world.parts.observer is not None
    return world.parts.observer.listings


def count_reads(requests: dict[str, Any]) -> int:
    """Return the number of successful reads: each listing is one page, the rest read one object."""
    assert list(requests) == ["GET"]
    assert list(requests["GET"]) == ["200"]
    return requests["GET"]["200"]
