"""Scenario 32: a tenant floods the intake, and another tenant's resources converge as usual."""

from __future__ import annotations

from events.names import ResourceKey
from events.subjects import intake
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish_in_batches
from tests.scenarios.harness import World, manifest

TIMEOUT_SECONDS = 300.0
SUBJECTS = 30
MESSAGES_PER_SUBJECT = 500
NAMES = [f"n{number}" for number in range(20)]


async def test_scenario_32_a_flood_from_one_tenant_does_not_delay_another_for_long(
    world: World,
) -> None:
    """The flood of scenario 32: 15,500 unusable messages, 500 of them in no partition."""
    hostile = [ResourceKey("hostile", "Shape", f"x{number}") for number in range(SUBJECTS)]
    subjects = [*(intake("desired", key) for key in hostile), "rec.nothing.hostile"]
    unusable = [
        OutgoingMessage(subject, b"not JSON") for subject in subjects * MESSAGES_PER_SUBJECT
    ]
    results = await publish_in_batches(world.nc, unusable)
    assert not [each for each in results if isinstance(each, Exception)]

    await world.declare_all([manifest(name) for name in NAMES])
    for name in NAMES:
        outcome = await world.client.wait_for(
            f"default/Shape/{name}", generation=1, timeout_seconds=TIMEOUT_SECONDS
        )
        assert outcome.outcome == "Converged"

    async def are_all_rejected() -> bool:
        return len(await world.dead_letters()) == len(unusable)

    await world.until(are_all_rejected, "each message has a dead letter", seconds=TIMEOUT_SECONDS)
    assert await world.human.effects() == ["POST"] * len(NAMES)
