"""Scenarios 5, 6, 7, 8, 19 and 20: ownership of objects, and its record in the log."""

from __future__ import annotations

from events.log import (
    ActionDecided,
    DriftDetected,
    OwnershipClaimed,
    OwnershipReleased,
)
from reconciler.resource.owner_label import OWNER_LABEL
from tests.scenarios.harness import World, every, only, type_names


async def test_5_in_a_shared_api_an_undeclared_object_is_reported_and_left_alone(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    await world.human.create("bar")

    await world.until_outcome("bar", "Unowned", reason="NotDeclared")
    await world.until_observed_again()
    assert await world.human.effects("bar") == ["human POST"]
    assert (await world.human.get("bar"))["labels"] == {}
    status = await world.until(lambda: world.status("bar"), "bar is reported")
    assert (status.declared, status.owned, status.outcome) == (False, False, "Unowned")


async def test_6_the_guard_holds_a_mass_deletion_until_few_objects_are_left(exclusive_world: World):
    world = exclusive_world
    await world.stop_reconciler()
    unmanaged = ["bar-1", "bar-2", "bar-3", "bar-4"]
    for name in unmanaged:
        await world.human.create(name)

    await world.start_reconciler()

    for name in unmanaged:
        held = await world.until_outcome(name, "Held", reason="DeletionGuard")
        assert "4 of 4" in held.message
    await world.until_observed_again()
    assert await world.human.effects() == ["human POST"] * 4

    await world.human.delete("bar-1")
    await world.human.delete("bar-2")

    for name in ("bar-3", "bar-4"):
        await world.until_outcome(name, "Deleted")
    assert await world.human.list_all() == []


async def test_7_a_resource_withdrawn_while_the_reconciler_is_down_does_not_leak(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged", generation=1)
    await world.stop_reconciler()

    await world.withdraw("foo")
    assert await world.human.effects("foo") == ["POST"]
    await world.start_reconciler()

    await world.until_outcome("foo", "Deleted", generation=2)
    assert await world.human.find("foo") is None
    assert await world.human.effects("foo") == ["POST", "DELETE"]
    assert type_names(await world.facts("foo"))[-4:] == [
        "SpecWithdrawn",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
    ]


async def test_8_ownership_is_rebuilt_from_the_log_alone_and_the_lost_object_is_recreated(
    world: World,
):
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=1)
    await world.stop_reconciler()
    lost_shape = await world.human.get("foo")

    await world.human.delete("foo")
    await world.erase_caches()
    assert await world.rows() == {}
    await world.start_reconciler(["projector"])
    own_ownership = await world.until(
        lambda: world.client.ownership("default/Shape/foo"), "ownership"
    )
    assert (own_ownership.owned, own_ownership.uid) == (True, lost_shape["uid"])
    assert await world.human.find("foo") is None

    await world.restart_reconciler()

    shape = await world.until(lambda: world.human.find("foo"), "foo is recreated")
    assert (shape["color"], shape["labels"]) == ("Purple", world.owner_of("foo"))
    await world.until_outcome("foo", "Converged", generation=1)
    assert await world.human.effects("foo") == ["POST", "human DELETE", "POST"]
    facts = await world.facts("foo")
    assert only(DriftDetected, facts).missing
    assert only(OwnershipReleased, facts).uid == lost_shape["uid"]


async def test_19_an_unowned_resource_is_adopted_without_a_create_and_corrected(world: World):
    await world.human.create("foo", "Square", "Green", {"team": "humans"})
    before = await world.human.get("foo")

    await world.declare("foo", "Square", "Purple", policy={"adoption": "Adopt"})

    await world.until_outcome("foo", "Converged", generation=1)
    after = await world.human.get("foo")
    assert (after["color"], after["uid"]) == ("Purple", before["uid"])
    assert after["labels"] == {"team": "humans", **world.owner_of("foo")}
    assert await world.human.effects("foo") == ["human POST", "PUT"]
    claimed = only(OwnershipClaimed, await world.facts("foo"))
    assert (claimed.reason, claimed.uid) == ("Adopted", before["uid"])


async def test_20_an_orphan_is_released_and_stays_in_the_api(world: World):
    await world.declare("foo", policy={"deletion": "Orphan"})
    await world.until_outcome("foo", "Converged", generation=1)
    kept_shape = await world.human.get("foo")

    await world.withdraw("foo")

    await world.until_outcome("foo", "Released", generation=2)
    await world.until_observed_again()
    remaining_shape = await world.human.get("foo")
    assert OWNER_LABEL in kept_shape["labels"]
    assert remaining_shape["labels"] == {}, "the owner label is removed"
    assert {
        **remaining_shape,
        "labels": kept_shape["labels"],
        "version": kept_shape["version"],
    } == kept_shape
    assert await world.human.effects("foo") == ["POST", "PUT"]
    facts = await world.facts("foo")
    released = only(OwnershipReleased, facts)
    assert (released.reason, released.uid) == ("Orphaned", kept_shape["uid"])
    decided = [each.action.operation for each in every(ActionDecided, facts)]
    assert decided == ["Create", "Update"]

    await world.declare("foo")
    await world.until_outcome("foo", "Conflict", generation=3)
    await world.declare("foo", policy={"adoption": "Adopt"})
    await world.until_outcome("foo", "Converged", generation=4)
    assert (await world.human.get("foo"))["labels"] == kept_shape["labels"]
