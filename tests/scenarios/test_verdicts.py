"""Scenarios 9, 10 and 11: what the label and the log show, and what each strategy concludes."""

from __future__ import annotations

from typing import Any

import pytest

from events.provider_config import DeletionGuard
from reconciler.resource.owner_label import OWNER_LABEL, owner
from tests.scenarios.harness import World, api_config, shape


def our_label(world: World, name: str) -> dict[str, str]:
    return {OWNER_LABEL: owner(world.log.log_id, shape(name))}


async def test_9_our_label_on_an_undeclared_object_is_disputed(world: World):
    await world.stop_reconciler()
    await world.human.create("bar", labels=our_label(world, "bar"))
    await world.start_reconciler()

    await world.until_outcome("bar", "Disputed", reason="LabelNotInLog")
    await world.until_observed_again()
    assert await world.human.effects("bar") == ["human POST"]


@pytest.mark.parametrize("labels", [{}, {OWNER_LABEL: ""}])
async def test_10_our_label_is_restored_after_its_removal(world: World, labels: dict[str, str]):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    await world.human.update("foo", labels=labels)

    await world.until(lambda: has_label(world, "foo"), "the label is restored")
    await world.until_observed_again()
    assert await world.human.effects("foo") == ["POST", "human PUT", "PUT"]


STRATEGIES: dict[str, dict[str, Any]] = {
    "Log": {"ownership": "Log"},
    "Prefix": {"ownership": "Prefix", "owner_prefix": "our-"},
    "Label": {"ownership": "Label"},
    "Strict": {"ownership": "Strict", "owner_prefix": "our-"},
    "Exclusive": {"exclusive": True},
}

# The fate of undeclared objects, according to docs/concepts/ownership.md.
UNDECLARED_VERDICTS: dict[str, dict[str, str]] = {
    "Log": {"bar": "Unowned", "our-bar": "Unowned", "labeled": "Disputed"},
    "Prefix": {"bar": "Unowned", "our-bar": "Deleted", "labeled": "Disputed"},
    "Label": {"bar": "Unowned", "our-bar": "Unowned", "labeled": "Deleted"},
    "Strict": {"bar": "Unowned", "our-bar": "Disputed", "labeled": "Disputed"},
    "Exclusive": {"bar": "Deleted", "our-bar": "Deleted", "labeled": "Disputed"},
}


STRATEGY_ON_SERVER = "Strict"


async def test_11_a_strategy_follows_the_verdict_table(bare_world: World):
    """``tests/permutations`` tests the other strategies."""
    await check_verdicts(bare_world, STRATEGY_ON_SERVER)


async def check_verdicts(world: World, strategy: str) -> None:
    """Run scenarios 3, 5, 7 and 9 under a strategy."""
    guard = DeletionGuard(max_count=10, max_percent=100)
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, deletion_guard=guard, **STRATEGIES[strategy]))

    # Scenario 3: under any strategy, a declared object that a person deletes is recreated.
    await world.declare("our-foo")
    await world.until_outcome("our-foo", "Converged")
    await world.human.delete("our-foo")
    await world.until(lambda: world.human.find("our-foo"), "it is recreated")

    # Scenarios 5 and 9: undeclared objects.
    await world.human.create("bar")
    await world.human.create("our-bar")
    await world.human.create("labeled", labels=our_label(world, "labeled"))
    for name, outcome in UNDECLARED_VERDICTS[strategy].items():
        await world.until_outcome(name, outcome)
    await world.until_observed_again()
    remaining_names = {each["name"] for each in await world.human.list_all()}
    deleted = {
        name for name, verdict in UNDECLARED_VERDICTS[strategy].items() if verdict == "Deleted"
    }
    assert remaining_names == {"our-foo", "bar", "our-bar", "labeled"} - deleted

    # Scenario 7: a resource that is withdrawn while no role is running does not leak.
    await world.stop_reconciler()
    await world.withdraw("our-foo")
    await world.start_reconciler()
    await world.until_outcome("our-foo", "Deleted")
    assert await world.human.find("our-foo") is None


async def has_label(world: World, name: str) -> bool:
    return (await world.human.get(name))["labels"] == our_label(world, name)
