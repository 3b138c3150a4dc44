"""The plan of a composed resource lists exactly the actions on its parts that follow."""

from __future__ import annotations

from collections.abc import Collection

from events.intake import FinalizerRequested
from events.manifest import Manifest
from events.names import ResourceKey
from reconciler.roles.planning.foresight import Foresight, ListingTarget
from reconciler.sdk.plan import Plan, PlannedResource, compute_plan
from tests.composites.conftest import WARM, colors, until_ready
from tests.composites.palette import CONFIG, palette
from tests.scenarios.harness import World, shape


async def plan(world: World, *manifests: Manifest, withdraw: tuple[ResourceKey, ...] = ()) -> Plan:
    return await compute_plan(world.nc, manifests, withdraw=withdraw, kinds=world.kinds)


def by_name(created_plan: Plan) -> dict[str, PlannedResource]:
    return {resource.key.name: resource for resource in created_plan.resources}


def steps(created_plan: Plan) -> dict[str, str]:
    """Return the actions on parts that the palette's action leads to."""
    [action] = by_name(created_plan)["warm"].actions
    return {each.resource.rpartition("/")[2]: each.step for each in action.parts}


def operations(created_plan: Plan) -> dict[str, list[str]]:
    return {
        resource.key.name: [action.operation for action in resource.actions]
        for resource in created_plan.resources
        if resource.part_of == str(WARM)
    }


async def test_27_planned_actions_on_parts_are_the_actions_that_follow(world: World):
    created_plan = await plan(world, palette("warm", "Red", "Yellow"))
    assert steps(created_plan) == {"warm-red": "Declare", "warm-yellow": "Declare"}
    assert operations(created_plan) == {"warm-red": ["Create"], "warm-yellow": ["Create"]}
    assert await colors(world) == {}, "nothing has been declared"
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)

    created_plan = await plan(world, palette("warm", "Red", "White"))
    assert steps(created_plan) == {"warm-white": "Declare", "warm-yellow": "Withdraw"}
    assert operations(created_plan) == {"warm-white": ["Create"], "warm-yellow": ["Delete"]}
    assert by_name(created_plan)["warm-yellow"].withdrawn
    assert not (await plan(world, palette("warm", "Red", "Yellow"))).changes


async def test_27_the_plan_shows_the_changed_field_of_a_part(world: World):
    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    created_plan = await plan(world, palette("warm", "Red", type="Circle"))
    [action] = by_name(created_plan)["warm"].actions
    [part] = action.parts
    [changed_part] = part.changes
    assert (part.resource, part.step) == ("default/Shape/warm-red", "Change")
    assert (changed_part.path, changed_part.observed, changed_part.wanted) == (
        "type",
        "Square",
        "Circle",
    )
    [update] = by_name(created_plan)["warm-red"].actions
    assert update.operation == "Update"
    await world.declare_all([palette("warm", "Red", type="Circle")])

    async def is_round() -> bool:
        return (await world.human.get("warm-red"))["type"] == "Circle"

    await world.until(is_round, "the part is as planned")


async def test_a_refreshed_plan_lists_the_apis_of_parts(world: World):
    listed: list[ListingTarget] = []

    async def listing(_foresight: Foresight, places: Collection[ListingTarget]) -> None:
        listed[:] = sorted(places)

    expected = [ListingTarget("default", "Shape"), ListingTarget(CONFIG, "Palette")]
    warm = palette("warm", "Red")
    await compute_plan(world.nc, [warm], kinds=world.kinds, listing=listing)
    assert listed == expected, "parts that the plan declares"
    await world.declare_all([warm])
    await until_ready(world, WARM)
    await compute_plan(world.nc, [warm], kinds=world.kinds, listing=listing)
    assert listed == expected, "unchanged parts"
    await compute_plan(world.nc, [], withdraw=[WARM], kinds=world.kinds, listing=listing)
    assert listed == expected, "parts that the plan withdraws"


async def test_27_the_plan_of_a_withdrawal_names_deleted_parts_and_the_holder_of_one(world: World):
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)
    await world.publish(shape("warm-red"), FinalizerRequested("billing"), "finalizer")

    async def is_held() -> bool:
        row = await world.client.status(shape("warm-red"))
        return row is not None and "billing" in row.finalizers

    await world.until(is_held, "billing holds the part")
    created_plan = await plan(world, withdraw=(WARM,))
    assert steps(created_plan) == {"warm-red": "Withdraw", "warm-yellow": "Withdraw"}
    assert operations(created_plan) == {"warm-red": [], "warm-yellow": ["Delete"]}
    held = by_name(created_plan)["warm-red"]
    assert (held.says, held.reason) == ("Held", "Finalizers")
    assert "billing" in held.message


async def test_27_a_part_declared_by_another_client_is_named_and_nothing_is_planned(world: World):
    await world.declare("warm-red", color="Green")
    await world.until_outcome("warm-red", "Converged")
    created_plan = await plan(world, palette("warm", "Red", "Blue"))
    warm = by_name(created_plan)["warm"]
    assert warm.says == "Waiting"
    assert "default/Shape/warm-red is already declared separately" in warm.message
    assert operations(created_plan) == {}


async def test_27_a_part_that_the_decider_refuses_is_refused_in_the_plan(world: World):
    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    created_plan = await plan(world, palette("warm", "Red", "Blue", copies={"Blue": "Blue"}))
    refused = [each for each in created_plan.resources if each.says == "Refused"]
    assert [(each.part_of, each.reason) for each in refused] == [(str(WARM), "Invalid")]
