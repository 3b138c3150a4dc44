"""Scenario 16: a listing that fails or lies must not cost anybody a resource (invariant 6)."""

from __future__ import annotations

from events.log import ActionDecided, DriftDetected, ExternalObserved, OwnershipClaimed
from tests.scenarios.harness import World, api_config, every, names, only, shape
from tests.scenarios.test_listings import converged


async def test_16_what_a_complete_listing_wrongly_leaves_out_is_never_made_twice(world: World):
    """A listing that claims to be complete and leaves a resource out cannot be told from the truth.

    What ought to happen: the loss is recorded and the resource made again, since that is what a
    deletion by a human looks like (scenario 3). The API refuses the create, for the name is taken,
    and what stands in the way is read: it is the very object that the log has just given up, by its
    uid, so it is ours again. From then on no listing proves its absence, only a read of its own.
    """
    await converged(world)
    before = await world.human.sees("foo-3")

    await world.human.breaks(listing_drop_names=["foo-3"])

    async def has_returned() -> bool:
        claims = every(OwnershipClaimed, await world.facts("foo-3"))
        return [claim.reason for claim in claims] == ["Returned"]

    await world.until(has_returned, "foo-3 is ours again")
    await world.until_outcome("foo-3", "Converged")
    await world.observed_again(times=3)
    assert await world.human.sees("foo-3") == before
    assert await world.human.effects() == ["POST"] * 6
    facts = names(await world.facts("foo-3"))
    assert facts[4:] == [
        "ExternalObserved",
        "DriftDetected",
        "OwnershipReleased",
        "ActionDecided",
        "ActionFailed",
        "OwnershipClaimed",
        "OutcomeRecorded",
    ]

    await world.human.deletes("foo-3")

    async def was_made_again() -> bool:
        found = await world.human.finds("foo-3")
        return found is not None and found["uid"] != before["uid"]

    await world.until(was_made_again, "a real deletion is believed, for it was read")
    assert await world.human.effects() == ["POST"] * 6 + ["human DELETE", "POST"]


async def test_16_with_adoption_a_resource_that_was_left_out_is_taken_back_at_once(world: World):
    await world.declare("foo", policy={"adoption": "Adopt"})
    await world.until_outcome("foo", "Converged")
    before = await world.human.sees("foo")

    await world.human.breaks(listing_drop_names=["foo"], remaining=1)

    async def was_taken_back() -> bool:
        return names(await world.facts("foo"))[-1:] == ["OutcomeRecorded"] and bool(
            every(DriftDetected, await world.facts("foo"))
        )

    await world.until(was_taken_back, "foo is taken back")
    await world.until_outcome("foo", "Converged")
    await world.observed_again()
    assert await world.human.sees("foo") == before
    assert await world.human.effects() == ["POST"]


async def test_16_a_listing_from_before_our_effect_proves_nothing(bare_world: World):
    """The listing began before the create and ends after it: it must not say that foo is gone."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("other")
    await world.until_outcome("other", "Converged")
    await world.human.breaks(latency_ms=150, methods=["GET"])

    for _ in range(3):
        await world.observed_again(times=1)
        await world.declare("foo")
        await world.until_outcome("foo", "Converged")
        await world.withdraw("foo")
        await world.until_outcome("foo", "Deleted")

    await world.observed_again()
    assert await world.human.effects("foo") == ["POST", "DELETE"] * 3
    assert every(DriftDetected, await world.facts("foo")) == []


async def test_16_an_api_that_shows_effects_late_is_believed_only_after_its_grace(
    bare_world: World,
):
    """Listings lag two seconds behind; the configuration says that they may.

    The name is this test's own: a late listing shows what the test before has left.
    """
    world = bare_world
    await world.start_reconciler()
    await world.human.breaks(listing_lag_seconds=2)
    await world.configure(api_config(world.human.url, consistency_grace_seconds=2.5))

    await world.declare("late")
    await world.until_outcome("late", "Converged")
    await world.observed_again(times=12)  # longer than the lag

    assert await world.human.effects("late") == ["POST"]
    facts = await world.facts("late")
    assert only(ActionDecided, facts).action.operation == "Create"
    assert every(ExternalObserved, facts) == []

    await world.human.deletes("late")

    await world.until(lambda: world.human.finds("late"), "a real deletion is still found")
    await world.until_outcome(shape("late"), "Converged")
    assert await world.human.effects("late") == ["POST", "human DELETE", "POST"]
