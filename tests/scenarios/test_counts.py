"""What a resource costs: stored messages, their bytes, and API calls, the same on any machine.

Times differ between machines, so the benchmarks measure them. The number of writes of a row depends
on times, too: several events of a resource may share one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import pytest

from events.provider_config import DeletionGuard
from infra.bus.streams import INTAKE, LOG
from infra.jetstream.reads import read_subject
from tests.scenarios.harness import World, api_config, manifest

COUNT: Final = 20
LOST: Final = 10
NAMES: Final = [f"shape-{number:02}" for number in range(COUNT)]
HOUR: Final = 3_600.0
GUARD: Final = DeletionGuard(max_count=COUNT, max_percent=100)
BYTES_MAY_DIFFER: Final = 0.03
"""Share by which the bytes may differ: ids, times and ports vary in length."""


@dataclass(frozen=True)
class Stored:
    """Numbers of messages about shapes, and the bytes of their payloads."""

    intake: int
    log: int
    size: int

    def since(self, earlier: Stored) -> Stored:
        return Stored(
            self.intake - earlier.intake, self.log - earlier.log, self.size - earlier.size
        )


async def read_stored(world: World) -> Stored:
    await world.until_settled()
    intake = await read_subject(world.nc, INTAKE, "in.*.*.default.Shape.*")
    log = await read_subject(world.nc, LOG, "log.default.Shape.>")
    return Stored(len(intake), len(log), sum(len(each.payload) for each in (*intake, *log)))


async def configure(world: World, resync: float) -> None:
    """Declare a configuration whose only listing is the one that its change causes."""
    await world.configure(api_config(world.human.url, resync=resync, deletion_guard=GUARD))
    await world.until_settled()


async def until_all_exist(world: World) -> None:
    async def do_all_exist() -> bool:
        return len(await world.human.list_all()) == COUNT

    await world.until(do_all_exist, "all resources to exist")


@pytest.fixture
async def converged_world(bare_world: World) -> World:
    await bare_world.start_reconciler()
    await configure(bare_world, HOUR)
    await bare_world.human.reset_counts()
    await bare_world.declare_all([manifest(name) for name in NAMES])
    await until_all_exist(bare_world)
    return bare_world


async def test_a_creation_is_two_messages_four_events_and_one_call(converged_world: World) -> None:
    stored = await read_stored(converged_world)

    assert (stored.intake, stored.log) == (2 * COUNT, 4 * COUNT)
    assert stored.size / COUNT == pytest.approx(3_269, rel=BYTES_MAY_DIFFER)
    assert (await converged_world.human.requests())["POST"] == {"201": COUNT}


async def test_a_repair_is_two_messages_six_events_and_one_call(converged_world: World) -> None:
    world = converged_world
    before = await read_stored(world)
    await asyncio.gather(*(world.human.delete(name) for name in NAMES[:LOST]))
    await world.human.reset_counts()

    await configure(world, HOUR - 1)
    await until_all_exist(world)

    stored = (await read_stored(world)).since(before)
    assert (stored.intake, stored.log) == (2 * LOST, 6 * LOST)
    assert stored.size / LOST == pytest.approx(4_385, rel=BYTES_MAY_DIFFER)
    assert (await world.human.requests())["POST"] == {"201": LOST}


async def test_a_deletion_is_two_messages_four_events_and_two_calls(converged_world: World) -> None:
    world = converged_world
    before = await read_stored(world)
    await world.human.reset_counts()

    await asyncio.gather(*(world.withdraw(name) for name in NAMES))
    for name in NAMES:
        await world.until_outcome(name, "Deleted")

    stored = (await read_stored(world)).since(before)
    assert (stored.intake, stored.log) == (2 * COUNT, 4 * COUNT)
    assert stored.size / COUNT == pytest.approx(2_556, rel=BYTES_MAY_DIFFER)
    # The read before a deletion protects objects of others, and newer data (invariant 16).
    assert await world.human.requests() == {"GET": {"200": COUNT}, "DELETE": {"204": COUNT}}
