"""Scenario 21: the policy forbids writes, and the status reports what they would change."""

from __future__ import annotations

from tests.scenarios.harness import World


async def test_21_observe_only_reports_and_writes_nothing(world: World):
    await world.declare("foo", color="Purple", policy={"mode": "ObserveOnly"})
    missing = await world.until_outcome("foo", "Drifted", reason="ObserveOnly")
    assert "not created" in missing.message

    await world.human.create("foo", color="Green")

    async def reports_the_color() -> bool:
        status = await world.status("foo")
        return status is not None and 'color: "Green" (declared "Purple")' in status.message

    await world.until(reports_the_color, "the status shows what would be changed")
    await world.until_observed_again()
    assert await world.human.effects("foo") == ["human POST"]
