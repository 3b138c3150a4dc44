"""Scenarios 9, 10 and 11: what the label and the log show, and what each strategy concludes."""

from __future__ import annotations

import pytest

from events.log import OwnershipClaimed
from tests.scenarios.harness import World, api_config, only, shape
from tests.scenarios.test_verdicts import (
    STRATEGIES,
    STRATEGY_ON_SERVER,
    check_verdicts,
    our_label,
)


async def test_9_under_label_ownership_an_undeclared_labeled_object_is_deleted(bare_world: World):
    world = bare_world
    await world.human.create("bar", labels=our_label(world, "bar"))
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, ownership="Label"))

    await world.until_outcome("bar", "Deleted")
    assert await world.human.effects("bar") == ["human POST", "DELETE"]


async def test_9_under_label_ownership_a_mass_deletion_is_held_until_approval(
    bare_world: World,
):
    world = bare_world
    names = ["bar-1", "bar-2", "bar-3"]
    for name in names:
        await world.human.create(name, labels=our_label(world, name))
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, ownership="Label"))

    for name in names:
        await world.until_outcome(name, "Held", reason="DeletionGuard")
    assert await world.human.effects() == ["human POST"] * 3
    replies = await world.client.approve_many(
        [shape(name) for name in names], hold="DeletionGuard", reason="left over"
    )
    assert [getattr(each, "reason", "") for each in replies] == ["Accepted"] * 3
    for name in names:
        await world.until_outcome(name, "Deleted")


async def test_10_a_removed_label_is_only_reported_where_the_policy_requires_it(world: World):
    await world.declare("foo", policy={"ownerLabel": "Report"})
    await world.until_outcome("foo", "Converged")

    await world.human.update("foo", labels={})

    await world.until_outcome("foo", "Disputed", reason="LabelMissing")
    await world.until_observed_again()
    assert await world.human.effects("foo") == ["POST", "human PUT"]
    await world.withdraw("foo")
    await world.until_outcome("foo", "Deleted")


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if each != STRATEGY_ON_SERVER])
async def test_11_every_strategy_follows_the_verdict_table(bare_world: World, strategy: str):
    await check_verdicts(bare_world, strategy)


async def test_11_under_prefix_ownership_a_name_without_the_prefix_is_refused(bare_world: World):
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, ownership="Prefix", owner_prefix="our-"))

    await world.declare("foo")

    refused = await world.until_outcome("foo", "Rejected")
    assert "must start with 'our-'" in refused.message
    assert await world.human.effects() == []


async def test_11_in_an_exclusive_scope_a_declared_existing_object_is_adopted(
    exclusive_world: World,
):
    world = exclusive_world
    await world.stop_reconciler()
    await world.human.create("foo", color="Green")
    await world.declare("foo", color="Red")
    await world.start_reconciler()

    await world.until_outcome("foo", "Converged")
    assert only(OwnershipClaimed, await world.facts("foo")).reason == "ExclusiveScope"
    assert await world.human.effects("foo") == ["human POST", "PUT"]
