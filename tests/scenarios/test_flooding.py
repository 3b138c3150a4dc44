"""Scenario 32: a tenant floods, another one declares, and converges as if the first were not."""

from __future__ import annotations

from events.names import ResourceKey
from events.subjects import intake
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish_in_batches
from tests.scenarios.harness import World, manifest

TIMEOUT_SECONDS = 300.0
SUBJECTS = 30
A_SUBJECT = 500
NAMES = [f"n{number}" for number in range(20)]


async def test_scenario_32_a_tenant_that_floods_the_intake_delays_no_other_for_long(
    world: World,
) -> None:
    """Of scenario 32 the rubbish: 15,000 messages over all partitions, some fit none."""
    hostile = [ResourceKey("hostile", "Shape", f"x{number}") for number in range(SUBJECTS)]
    subjects = [*(intake("desired", key) for key in hostile), "rec.nothing.hostile"]
    rubbish = [OutgoingMessage(subject, b"not JSON") for subject in subjects * A_SUBJECT]
    results = await publish_in_batches(world.nc, rubbish)
    assert not [each for each in results if isinstance(each, Exception)]

    await world.declare_all([manifest(name) for name in NAMES])
    for name in NAMES:
        outcome = await world.client.wait_for(
            f"default/Shape/{name}", generation=1, timeout_seconds=TIMEOUT_SECONDS
        )
        assert outcome.outcome == "Converged"

    async def are_all_rejected() -> bool:
        return len(await world.dead_letters()) == len(rubbish)

    await world.until(are_all_rejected, "each has its dead letter", seconds=TIMEOUT_SECONDS)
    assert await world.human.effects() == ["POST"] * len(NAMES)
