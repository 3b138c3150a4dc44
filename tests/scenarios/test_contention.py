"""Two parties overwrite each other's changes to a field: scenario 42, on the real bus and API."""

from __future__ import annotations

import asyncio
import contextlib

from events.log import REPEATED_DRIFT, ActionDecided, OutcomeRecorded, RetryScheduled
from events.provider_config import Retry
from tests.scenarios.harness import World, api_config, every

RESYNC = 1.0


async def test_42_contention_is_reported_and_the_loop_slows_down(bare_world: World) -> None:
    """The other party never gives up; the waits grow, and repairs fall behind its changes."""
    world = bare_world
    await world.start_reconciler()
    retry = Retry(initial_seconds=0.2)
    await world.configure(api_config(world.human.url, resync=RESYNC, retry=retry))
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged")

    async def overwrite_forever() -> None:
        while True:
            if (await world.human.get("foo"))["color"] != "Blue":
                await world.human.update("foo", color="Blue")
                overwrites.append(1)
            await asyncio.sleep(0.05)

    overwrites: list[int] = []
    other_task = asyncio.create_task(overwrite_forever())
    outcome = await world.until_outcome("foo", "Degraded", reason=REPEATED_DRIFT)
    assert "another client has overwritten color 3 times since" in outcome.message
    await world.until(lambda: _has_delayed(world, 3), "three delayed repairs")
    other_task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await other_task
    facts = await world.facts("foo")
    waits = [
        each.delay_seconds for each in every(RetryScheduled, facts) if each.reason == REPEATED_DRIFT
    ]
    assert waits[0] < waits[-1] <= RESYNC
    repairs = [each for each in every(ActionDecided, facts) if each.action.operation == "Update"]
    assert len(repairs) <= len(overwrites)
    await world.until_outcome("foo", "Converged")
    assert sum(each.reason == REPEATED_DRIFT for each in every(OutcomeRecorded, facts)) >= 3


async def _has_delayed(world: World, count: int) -> bool:
    facts = await world.facts("foo")
    return sum(each.reason == REPEATED_DRIFT for each in every(RetryScheduled, facts)) >= count
