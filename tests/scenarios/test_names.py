"""Scenario 46: a tenant cannot take the name of an object that another one has lost."""

from __future__ import annotations

import pytest

from events.log import OutcomeRecorded
from events.manifest import EXTERNAL_NAME_ANNOTATION, Manifest, Metadata
from events.names import ResourceKey
from reconciler.wiring import ROLES
from tests.scenarios.harness import World

RIVALS = [ResourceKey("rival", "Shape", f"rival-{number}") for number in range(20)]


def rival_manifest(key: ResourceKey) -> Manifest:
    metadata = Metadata(key.name, key.namespace, {}, {EXTERNAL_NAME_ANNOTATION: "foo"})
    return Manifest("shapes/v1", "Shape", metadata, {"type": "Circle", "color": "Black"})


async def declare_rivals(world: World, reason: str) -> None:
    await world.declare_all([rival_manifest(each) for each in RIVALS])
    for key in RIVALS:

        async def is_refused(key: ResourceKey = key) -> OutcomeRecorded | None:
            return next((each for each in await world.outcomes(key) if each.reason == reason), None)

        outcome = await world.until(is_refused, f"{key} is refused")
        assert outcome.outcome == "Conflict"
        assert "default" not in outcome.message


@pytest.mark.parametrize("together", [True, False], ids=["one process", "a process of its own"])
async def test_46_a_lost_object_is_created_again_by_its_owner(world: World, together: bool):
    """The rivals are declared before the loss, and while the object is missing."""
    worker = World.on_bus_of(world)
    if not together:
        await world.stop_reconciler()
        await world.start_reconciler([each for each in ROLES if each != "worker"])
        await worker.start_reconciler(["worker"])
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged")
    await declare_rivals(world, "OwnedByAnother")
    assert (await world.human.requests()).get("POST", {}).get("409", 0) == 0

    for _ in range(3):
        await world.human.delete("foo")
        await world.declare_all([rival_manifest(each) for each in RIVALS])

        async def is_back() -> bool:
            found = await world.human.find("foo")
            return found is not None and found["color"] == "Red"

        await world.until(is_back, "the owner creates its object again")
    await world.until_outcome("foo", "Converged")

    await world.withdraw("foo")

    async def is_taken() -> bool:
        found = await world.human.find("foo")
        return found is not None and found["color"] == "Black"

    await world.until(is_taken, "a rival creates an object with the free name")
    await worker.stop_reconciler()
