"""Scenarios 5, 6, 7, 8, 19 and 20: ownership of objects, and its record in the log."""

from __future__ import annotations

from events.intake import Approved
from events.log import (
    OwnershipClaimed,
)
from events.provider_config import config_key
from tests.scenarios.harness import World, api_config, every, only, shape

BILLING = config_key("default")


async def test_6_in_an_exclusive_scope_an_undeclared_object_is_deleted(exclusive_world: World):
    world = exclusive_world
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    await world.human.create("bar")

    await world.until(lambda: is_deleted(world, "bar"), "bar is deleted")
    await world.until_observed_again()
    assert await world.human.effects("bar") == ["human POST", "DELETE"]
    assert await world.human.effects("foo") == ["POST"]
    assert only(OwnershipClaimed, await world.facts("bar")).reason == "ExclusiveScope"


async def test_6_the_deletion_of_an_unmanaged_object_is_reported_on_the_outcome_stream(
    exclusive_world: World,
):
    world = exclusive_world
    await world.human.create("bar")
    await world.until(lambda: is_deleted(world, "bar"), "bar is deleted")
    await world.until_observed_again()

    outcomes = [(each.outcome, each.reason) for each in await world.outcomes(shape("bar"))]
    assert outcomes == [("Degraded", "AwaitingRead"), ("Deleted", "Gone")]


async def test_6_an_unowned_object_is_deleted_when_its_scope_becomes_exclusive(world: World):
    await world.human.create("bar")
    await world.until_outcome("bar", "Unowned")

    await world.configure(api_config(world.human.url, exclusive=True))
    held = await world.until_outcome(BILLING, "Held", reason="ExclusiveScope")
    assert "1 of 1 Shape object ('bar')" in held.message
    await world.until_outcome("bar", "Held", reason="ExclusiveScope")
    await world.until_observed_again()
    assert await world.human.effects("bar") == ["human POST"]

    await world.publish(BILLING, Approved("ExclusiveScope"), "approval")

    await world.until_outcome("bar", "Deleted")
    assert await world.human.effects("bar") == ["human POST", "DELETE"]
    outcomes = [each.outcome for each in await world.outcomes(shape("bar"))]
    assert outcomes == ["Unowned", "Held", "Degraded", "Deleted"]


async def test_6_an_object_is_left_alone_when_its_new_scope_is_shared_again(world: World):
    await world.human.create("bar")
    await world.configure(api_config(world.human.url, exclusive=True))
    await world.until_outcome("bar", "Held", reason="ExclusiveScope")

    await world.configure(api_config(world.human.url))

    await world.until_outcome("bar", "Unowned")
    await world.until_outcome(BILLING, "Converged")
    assert await world.human.effects() == ["human POST"]


async def test_6_declaring_the_objects_of_a_new_scope_ends_its_hold(world: World):
    await world.human.create("bar")
    await world.configure(api_config(world.human.url, exclusive=True))
    await world.until_outcome(BILLING, "Held", reason="ExclusiveScope")

    await world.declare("bar")

    await world.until_outcome(BILLING, "Converged")
    await world.until_outcome("bar", "Converged")


async def test_6_a_held_object_is_left_alone_when_its_scope_becomes_shared(
    exclusive_world: World,
):
    world = exclusive_world
    await world.stop_reconciler()
    for name in ("bar-1", "bar-2", "bar-3"):
        await world.human.create(name)
    await world.start_reconciler()
    await world.until_outcome("bar-1", "Held", reason="DeletionGuard")

    await world.configure(api_config(world.human.url))

    await world.until_outcome("bar-1", "Unowned")
    assert await world.human.effects() == ["human POST"] * 3


async def test_19_an_unowned_resource_is_not_touched_where_adoption_is_refused(world: World):
    await world.human.create("foo", "Square", "Green")
    original_shape = await world.human.get("foo")

    await world.declare("foo", "Square", "Purple", policy={"adoption": "Refuse"})

    conflict = await world.until_outcome("foo", "Conflict", generation=1)
    assert conflict.reason == "AlreadyExists"
    await world.until_observed_again()
    assert await world.human.get("foo") == original_shape
    assert await world.human.effects("foo") == ["human POST"]

    await world.withdraw("foo")

    await world.until_outcome("foo", "Deleted", reason="NotOurs")
    await world.until_observed_again()
    assert await world.human.get("foo") == original_shape
    assert every(OwnershipClaimed, await world.facts("foo")) == []


async def is_deleted(world: World, name: str) -> bool:
    return await world.human.find(name) is None
