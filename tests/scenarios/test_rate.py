"""One rate limit for all workers of an API, checked against the API's journal."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from events.provider_config import Limits
from reconciler.wiring import Role
from tests.scenarios.harness import World, api_config, manifest
from tests.scenarios.processes import workers

ROLES_WITHOUT_WORKER: tuple[Role, ...] = ("decider", "observer", "projector")


async def _has_listed(world: World) -> bool:
    assert world.parts.observer is not None
    return world.parts.observer.listings > 0


async def measure_creations(
    world: World, folder: Path, *, processes: int, per_second: float, burst: int, shapes: int
) -> tuple[float, list[float]]:
    """Return when resources were declared and when the API created each, in Unix seconds."""
    await world.start_reconciler(ROLES_WITHOUT_WORKER)
    limits = Limits(requests_per_second=per_second, burst=burst)
    async with workers(world, folder, processes):
        await world.configure(api_config(world.human.url, resync=3600, limits=limits))
        await world.until(lambda: _has_listed(world), "the only listing is complete")
        declared = time.time()
        await world.declare_all([manifest(f"s{number}") for number in range(shapes)])

        async def are_all_created() -> bool:
            return len(await world.human.journal()) == shapes

        await world.until(are_all_created, "all are created", seconds=60)
    times = [each["time"] for each in await world.human.journal()]
    return declared, [datetime.fromisoformat(each).timestamp() for each in times]


async def test_all_workers_together_respect_the_rate_limit_of_their_api(
    bare_world: World, tmp_path: Path
) -> None:
    rate, burst, shapes = 40.0, 5, 120
    declared, times = await measure_creations(
        bare_world, tmp_path / "logs", processes=2, per_second=rate, burst=burst, shapes=shapes
    )
    for number, at in enumerate(times, start=1):
        assert number <= rate * (at - declared) + burst, f"call {number} came too early"
    expected_seconds = (shapes - burst) / rate
    assert times[-1] - declared < 3 * expected_seconds + 5, "far slower than allowed"
