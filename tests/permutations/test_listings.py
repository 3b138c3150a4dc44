"""Scenario 16: a failing or wrong listing must not lose a resource (invariant 6)."""

from __future__ import annotations

import time
from typing import Any

from events.log import (
    ActionDecided,
    DriftDetected,
    ExternalObserved,
    ListingsFailed,
    OwnershipClaimed,
)
from reconciler.roles.observer.listing_reports import FAILED_INTERVALS, MIN_FAILED_SECONDS
from tests.scenarios.harness import World, api_config, every, only, shape, type_names
from tests.scenarios.test_listings import BREAKER_NEVER_OPENS, CONFIG, declare_and_converge


async def test_16_an_object_that_a_complete_listing_omits_is_never_created_twice(world: World):
    """A listing that claims to be complete but omits a resource looks like a correct one.

    Expected: the loss is recorded and the resource recreated, as after a deletion by a person
    (scenario 3). The API refuses the creation because the name is taken, so the existing object is
    read. It has the uid of the released object, so it is ours again. From then on, only a read
    proves its absence, not a listing.
    """
    await declare_and_converge(world)
    original_shape = await world.human.get("foo-3")

    await world.human.inject_faults(listing_drop_names=["foo-3"])

    async def has_returned() -> bool:
        claims = every(OwnershipClaimed, await world.facts("foo-3"))
        return [claim.reason for claim in claims] == ["Returned"]

    await world.until(has_returned, "foo-3 is ours again")
    await world.until_outcome("foo-3", "Converged")
    await world.until_observed_again(times=3)
    assert await world.human.get("foo-3") == original_shape
    assert await world.human.effects() == ["POST"] * 6
    facts = type_names(await world.facts("foo-3"))
    assert facts[4:] == [
        "ExternalObserved",
        "DriftDetected",
        "OwnershipReleased",
        "ActionDecided",
        "ActionFailed",
        "OwnershipClaimed",
        "OutcomeRecorded",
    ]

    await world.human.delete("foo-3")

    async def is_recreated() -> bool:
        existing_shape = await world.human.find("foo-3")
        return existing_shape is not None and existing_shape["uid"] != original_shape["uid"]

    await world.until(is_recreated, "a real deletion is accepted, because it was read")
    assert await world.human.effects() == ["POST"] * 6 + ["human DELETE", "POST"]


async def test_16_with_adoption_an_omitted_object_is_adopted_again_immediately(world: World):
    await world.declare("foo", policy={"adoption": "Adopt"})
    await world.until_outcome("foo", "Converged")
    original_shape = await world.human.get("foo")

    await world.human.inject_faults(listing_drop_names=["foo"], remaining=1)

    async def is_adopted_again() -> bool:
        return type_names(await world.facts("foo"))[-1:] == ["OutcomeRecorded"] and bool(
            every(DriftDetected, await world.facts("foo"))
        )

    await world.until(is_adopted_again, "foo is adopted again")
    await world.until_outcome("foo", "Converged")
    await world.until_observed_again()
    assert await world.human.get("foo") == original_shape
    assert await world.human.effects() == ["POST"]


async def test_16_a_listing_started_before_our_write_proves_nothing(bare_world: World):
    """The listing began before the creation and ends after it, so it does not prove absence."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("other")
    await world.until_outcome("other", "Converged")
    await world.human.inject_faults(latency_ms=150, methods=["GET"])

    for _ in range(3):
        await world.until_observed_again(times=1)
        await world.declare("foo")
        await world.until_outcome("foo", "Converged")
        await world.withdraw("foo")
        await world.until_outcome("foo", "Deleted")

    await world.until_observed_again()
    assert await world.human.effects("foo") == ["POST", "DELETE"] * 3
    assert every(DriftDetected, await world.facts("foo")) == []


async def test_16_a_lagging_listing_counts_only_after_the_grace_period(
    bare_world: World,
):
    """Listings lag by two seconds, which the configuration permits.

    The name is unique to this test: a lagging listing shows objects from the previous test.
    """
    world = bare_world
    await world.start_reconciler()
    await world.human.inject_faults(listing_lag_seconds=2)
    await world.configure(api_config(world.human.url, consistency_grace_seconds=2.5))

    await world.declare("late")
    await world.until_outcome("late", "Converged")
    await world.until_observed_again(times=12)  # longer than the lag

    assert await world.human.effects("late") == ["POST"]
    facts = await world.facts("late")
    assert only(ActionDecided, facts).action.operation == "Create"
    assert every(ExternalObserved, facts) == []

    await world.human.delete("late")

    await world.until(lambda: world.human.find("late"), "a real deletion is still detected")
    await world.until_outcome(shape("late"), "Converged")
    assert await world.human.effects("late") == ["POST", "human DELETE", "POST"]


RESYNC_SECONDS = MIN_FAILED_SECONDS / FAILED_INTERVALS


async def start_with_failing_listings(world: World, **rest: Any) -> None:
    """Fail every listing from its second page on, as long as the API has several objects."""
    await world.start_reconciler()
    config = api_config(world.human.url, page_size=2, resync=RESYNC_SECONDS, **rest)
    await world.configure(config)
    await world.human.inject_faults(listing_fail_after_pages=1)


async def advance(world: World, seconds: float) -> None:
    end = time.monotonic() + seconds

    async def is_over() -> bool:
        return time.monotonic() >= end

    await world.until(is_over, f"{seconds} s later", seconds=seconds + 1)
    await world.until_settled()


async def test_16_an_api_that_never_completes_a_listing_is_reported_once_and_on_time(
    bare_world: World,
):
    world = bare_world
    await start_with_failing_listings(world, breaker=BREAKER_NEVER_OPENS)
    await declare_and_converge(world)
    await world.until_outcome(CONFIG, "Degraded", reason="ListingsFailed")
    event = next(
        each for each in await world.history(CONFIG) if isinstance(each.data, ListingsFailed)
    )
    failed = only(ListingsFailed, [event.data])
    delay_seconds = (event.time - failed.failure.since).total_seconds()
    assert MIN_FAILED_SECONDS <= delay_seconds < MIN_FAILED_SECONDS + 10
    position = await world.log_position()
    await world.restart_reconciler()
    await advance(world, 3 * MIN_FAILED_SECONDS)
    assert await world.log_position() == position

    await world.human.clear_faults()
    await world.until_outcome(CONFIG, "Converged")
    await world.human.inject_faults(listing_fail_after_pages=1, remaining=1)
    await world.until_observed_again()
    facts = await world.facts(CONFIG)
    assert type_names(facts)[-4:] == [
        "ListingsFailed",
        "OutcomeRecorded",
        "ListingsResumed",
        "OutcomeRecorded",
    ]
    assert len(every(ListingsFailed, facts)) == 1


async def test_16_a_breaker_opened_by_failed_listings_is_the_only_report(bare_world: World):
    """There are no other calls, so each listing is the probe."""
    world = bare_world
    await start_with_failing_listings(world)
    await declare_and_converge(world)
    await world.until_outcome(CONFIG, "Degraded", reason="BreakerOpen")
    await advance(world, 3 * MIN_FAILED_SECONDS)
    assert every(ListingsFailed, await world.facts(CONFIG)) == []


async def test_16_failed_listings_of_a_kind_without_resources_are_not_reported(bare_world: World):
    world = bare_world
    for name in ("a", "b", "c"):
        await world.human.create(name)
    await start_with_failing_listings(world, breaker=BREAKER_NEVER_OPENS)
    await advance(world, 3 * MIN_FAILED_SECONDS)
    assert every(ListingsFailed, await world.facts(CONFIG)) == []
