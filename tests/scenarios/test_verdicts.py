"""Scenarios 9, 10 and 11: what label and log say, and what each strategy believes."""

from __future__ import annotations

from typing import Any

import pytest

from events.log import OwnershipClaimed
from events.provider_config import DeletionGuard
from reconciler.resource.owner_label import OWNER_LABEL, owner
from tests.scenarios.harness import World, api_config, only, shape


def our_label(world: World, name: str) -> dict[str, str]:
    return {OWNER_LABEL: owner(world.log.log_id, shape(name))}


async def test_9_our_label_on_what_was_never_declared_is_disputed(world: World):
    await world.stop_reconciler()
    await world.human.makes("bar", labels=our_label(world, "bar"))
    await world.start_reconciler()

    await world.until_outcome("bar", "Disputed", reason="LabelSaysOurs")
    await world.observed_again()
    assert await world.human.effects("bar") == ["human POST"]


async def test_9_where_labels_decide_it_is_deleted(bare_world: World):
    world = bare_world
    await world.human.makes("bar", labels=our_label(world, "bar"))
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, ownership="Label"))

    await world.until_outcome("bar", "Deleted")
    assert await world.human.effects("bar") == ["human POST", "DELETE"]


async def test_9_where_labels_decide_a_mass_of_them_is_held_until_somebody_approves(
    bare_world: World,
):
    world = bare_world
    names = ["bar-1", "bar-2", "bar-3"]
    for name in names:
        await world.human.makes(name, labels=our_label(world, name))
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, ownership="Label"))

    for name in names:
        await world.until_outcome(name, "Held", reason="DeletionGuard")
    assert await world.human.effects() == ["human POST"] * 3
    answers = await world.client.approve_many(
        [shape(name) for name in names], hold="DeletionGuard", reason="left over"
    )
    assert [getattr(each, "reason", "") for each in answers] == ["Accepted"] * 3
    for name in names:
        await world.until_outcome(name, "Deleted")


async def test_10_our_label_that_is_taken_off_is_put_back(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    await world.human.changes("foo", labels={})

    await world.until(lambda: has_label(world, "foo"), "the label is back")
    await world.observed_again()
    assert await world.human.effects("foo") == ["POST", "human PUT", "PUT"]


async def test_10_or_only_reported_where_the_policy_says_so(world: World):
    await world.declare("foo", policy={"ownerLabel": "Report"})
    await world.until_outcome("foo", "Converged")

    await world.human.changes("foo", labels={})

    await world.until_outcome("foo", "Disputed", reason="LabelMissing")
    await world.observed_again()
    assert await world.human.effects("foo") == ["POST", "human PUT"]
    await world.withdraw("foo")
    await world.until_outcome("foo", "Deleted")


STRATEGIES: dict[str, dict[str, Any]] = {
    "Log": {"ownership": "Log"},
    "Prefix": {"ownership": "Prefix", "owner_prefix": "our-"},
    "Label": {"ownership": "Label"},
    "Union": {"ownership": "Union", "owner_prefix": "our-"},
    "Exclusive": {"exclusive": True},
}

# What becomes of an object that nobody declared, by docs/ownership.md.
NEVER_DECLARED: dict[str, dict[str, str]] = {
    "Log": {"bar": "Unowned", "our-bar": "Unowned", "labelled": "Disputed"},
    "Prefix": {"bar": "Unowned", "our-bar": "Deleted", "labelled": "Disputed"},
    "Label": {"bar": "Unowned", "our-bar": "Unowned", "labelled": "Deleted"},
    "Union": {"bar": "Unowned", "our-bar": "Disputed", "labelled": "Disputed"},
    "Exclusive": {"bar": "Deleted", "our-bar": "Deleted", "labelled": "Disputed"},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_11_every_strategy_does_what_the_table_of_verdicts_says(
    bare_world: World, strategy: str
):
    world = bare_world
    guard = DeletionGuard(max_count=10, max_percent=100)
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, deletion_guard=guard, **STRATEGIES[strategy]))

    # Scenario 3: what is declared and deleted by a human is made again, by any strategy.
    await world.declare("our-foo")
    await world.until_outcome("our-foo", "Converged")
    await world.human.deletes("our-foo")
    await world.until(lambda: world.human.finds("our-foo"), "it is made again")

    # Scenarios 5 and 9: what nobody declared.
    await world.human.makes("bar")
    await world.human.makes("our-bar")
    await world.human.makes("labelled", labels=our_label(world, "labelled"))
    for name, outcome in NEVER_DECLARED[strategy].items():
        await world.until_outcome(name, outcome)
    await world.observed_again()
    left = {each["name"] for each in await world.human.sees_all()}
    deleted = {name for name, told in NEVER_DECLARED[strategy].items() if told == "Deleted"}
    assert left == {"our-foo", "bar", "our-bar", "labelled"} - deleted

    # Scenario 7: what is withdrawn while nobody looks does not leak.
    await world.stop_reconciler()
    await world.withdraw("our-foo")
    await world.start_reconciler()
    await world.until_outcome("our-foo", "Deleted")
    assert await world.human.finds("our-foo") is None


async def test_11_by_prefix_a_name_that_does_not_begin_so_is_refused(bare_world: World):
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, ownership="Prefix", owner_prefix="our-"))

    await world.declare("foo")

    refused = await world.until_outcome("foo", "Rejected")
    assert "must begin with 'our-'" in refused.message
    assert await world.human.effects() == []


async def test_11_in_an_exclusive_scope_what_is_declared_and_there_is_taken_over(
    exclusive_world: World,
):
    world = exclusive_world
    await world.stop_reconciler()
    await world.human.makes("foo", color="Green")
    await world.declare("foo", color="Red")
    await world.start_reconciler()

    await world.until_outcome("foo", "Converged")
    assert only(OwnershipClaimed, await world.facts("foo")).reason == "ExclusiveScope"
    assert await world.human.effects("foo") == ["human POST", "PUT"]


async def has_label(world: World, name: str) -> bool:
    return (await world.human.sees(name))["labels"] == our_label(world, name)
