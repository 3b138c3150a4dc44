"""Scenario 21: the policy forbids writes, and the status reports what they would change."""

from __future__ import annotations

from events.log import DriftDetected
from tests.scenarios.harness import World, only


async def test_21_create_only_creates_once_and_then_only_reports(world: World):
    await world.declare("foo", color="Purple", policy={"mode": "CreateOnly"})
    await world.until_outcome("foo", "Converged")

    await world.human.update("foo", color="Green")

    drifted = await world.until_outcome("foo", "Drifted", reason="CreateOnly")
    assert (
        'drift not corrected (spec.policy.mode CreateOnly): color: "Green" (declared "Purple")'
        in drifted.message
    )
    assert only(DriftDetected, await world.facts("foo")).differences[0].observed == "Green"

    await world.human.delete("foo")

    async def is_reported_missing() -> bool:
        status = await world.status("foo")
        return status is not None and "not recreated" in status.message

    await world.until(is_reported_missing, "the status reports it as missing")
    await world.until_observed_again()
    assert await world.human.effects("foo") == ["POST", "human PUT", "human DELETE"]


async def test_21_a_paused_resource_waits_and_is_corrected_when_the_pause_ends(world: World):
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=1)
    await world.declare("foo", color="Purple", policy={"paused": True})
    await world.until_outcome("foo", "Paused", generation=2)

    await world.human.update("foo", color="Green")

    async def drift_is_recorded() -> bool:
        status = await world.status("foo")
        return status is not None and status.drifts == 1

    await world.until(drift_is_recorded, "the drift is recorded")
    await world.until_observed_again()
    assert await world.human.effects("foo") == ["POST", "human PUT"]

    await world.declare("foo", color="Purple")

    await world.until_outcome("foo", "Converged", generation=3)
    assert (await world.human.get("foo"))["color"] == "Purple"
