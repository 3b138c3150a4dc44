"""Scenario 16: a listing that fails or lies must not cost anybody a resource (invariant 6)."""

from __future__ import annotations

from tests.scenarios.harness import World, api_config, manifest

NAMES = [f"foo-{number}" for number in range(6)]


async def converged(world: World) -> None:
    await world.declare_all([manifest(name) for name in NAMES])
    for name in NAMES:
        await world.until_outcome(name, "Converged")


async def failed_listings(world: World) -> int:
    return (await world.human.requests()).get("GET", {}).get("500", 0)


async def test_16_a_listing_that_fails_half_way_deletes_and_makes_nothing(bare_world: World):
    """One page came, in which most resources are not: that is no proof of anything."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, page_size=2, exclusive=True))
    await converged(world)
    await world.human.forgets_counts()
    await world.human.breaks(listing_fail_after_pages=1)
    await world.human.makes("stray")
    position = await world.log_position()

    async def failed_a_few_times() -> bool:
        return await failed_listings(world) >= 4

    await world.until(failed_a_few_times, "four listings failed")
    await world.until_settled()
    assert await world.log_position() == position
    assert await world.human.effects() == ["POST"] * 6 + ["human POST"]

    await world.human.mends()

    async def stray_is_gone() -> bool:
        return await world.human.finds("stray") is None

    await world.until(stray_is_gone, "a whole listing shows the stray, which is removed")
    assert [each["name"] for each in await world.human.sees_all()] == NAMES
