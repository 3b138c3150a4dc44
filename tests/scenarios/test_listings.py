"""Scenario 16: a failing or wrong listing must not lose a resource (invariant 6)."""

from __future__ import annotations

import pytest

from events.log import ListingsFailed, ListingsResumed
from events.provider_config import Breaker, config_key
from reconciler.roles.observer import listing_reports
from tests.scenarios.harness import World, api_config, every, manifest

CONFIG = config_key("default")
BREAKER_NEVER_OPENS = Breaker(failures=1_000_000)
NAMES = [f"foo-{number}" for number in range(6)]


async def declare_and_converge(world: World) -> None:
    await world.declare_all([manifest(name) for name in NAMES])
    for name in NAMES:
        await world.until_outcome(name, "Converged")


async def count_failed_listings(world: World) -> int:
    return (await world.human.requests()).get("GET", {}).get("500", 0)


async def test_16_a_listing_that_fails_halfway_deletes_and_creates_nothing(bare_world: World):
    """The only page lacks most resources, which proves nothing."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, page_size=2, exclusive=True))
    await declare_and_converge(world)
    await world.human.reset_counts()
    await world.human.inject_faults(listing_fail_after_pages=1)
    await world.human.create("stray")
    position = await world.log_position()

    async def has_failed_often() -> bool:
        return await count_failed_listings(world) >= 4

    await world.until(has_failed_often, "four listings failed")
    await world.until_settled()
    assert await world.log_position() == position
    assert await world.human.effects() == ["POST"] * 6 + ["human POST"]

    await world.human.clear_faults()

    async def is_unmanaged_deleted() -> bool:
        return await world.human.find("stray") is None

    await world.until(
        is_unmanaged_deleted, "a complete listing contains the stray, which is deleted"
    )
    assert [each["name"] for each in await world.human.list_all()] == NAMES


async def test_16_an_api_that_never_completes_a_listing_is_reported_until_it_does(
    bare_world: World, monkeypatch: pytest.MonkeyPatch
):
    """Individual objects are still read and written, so all resources appear to be fine."""
    monkeypatch.setattr(listing_reports, "MIN_FAILED_SECONDS", 1.0)
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, page_size=2, breaker=BREAKER_NEVER_OPENS))
    await declare_and_converge(world)
    await world.human.inject_faults(listing_fail_after_pages=1)
    outcome = await world.until_outcome(CONFIG, "Degraded", reason="ListingsFailed")
    assert "no listing of Shape has completed since" in outcome.message
    await world.declare("foo-0", color="Blue")
    await world.until_outcome("foo-0", "Converged", generation=2)

    await world.human.reset_counts()
    position = await world.log_position()

    async def has_failed_longer() -> bool:
        return await count_failed_listings(world) >= 20

    await world.until(has_failed_longer, "20 more listings failed")
    await world.restart_reconciler()
    await world.human.reset_counts()
    await world.until(has_failed_longer, "20 listings by the next process failed")
    await world.until_settled()
    assert await world.log_position() == position

    await world.human.clear_faults()
    await world.until_outcome(CONFIG, "Converged")
    facts = await world.facts(CONFIG)
    assert len(every(ListingsFailed, facts)) == len(every(ListingsResumed, facts)) == 1
