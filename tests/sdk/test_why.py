"""Why a resource has its state: the chain of causes, the values of a field, and contention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from events.composition import PART_OF_LABEL, parent_in
from events.intake import Declared, Withdrawn
from events.log import SpecDeclared
from events.names import ResourceKey
from reconciler.ports import StoredEvent
from reconciler.sdk.why import CONTENTION_DRIFTS, Parent, explain, lineage
from tests.resource.building import Story, converged_story, manifest, repaint


def history(story: Story) -> list[StoredEvent]:
    return [StoredEvent(10 + number, event) for number, event in enumerate(story.log)]


def chain_types(story: Story, field: str = "") -> list[str]:
    explanation = explain("default/Block/Foo", history(story), field)
    return [type(story.log[version - 1].data).__name__ for version in explanation.chain]


def test_an_outcome_leads_back_to_the_declaration():
    story = converged_story()
    story.declare({"type": "Square", "color": "Green"})
    story.succeed()
    assert chain_types(story) == [
        "SpecDeclared",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
    ]
    chain = explain("x", history(story)).chain
    declared = story.log[chain[0] - 1].data
    assert isinstance(declared, SpecDeclared)
    assert declared.generation == 2


def test_a_repair_leads_back_to_the_observation():
    story = converged_story()
    story.observe(repaint(story.existing, color="Blue"))
    story.succeed()
    assert chain_types(story) == [
        "ExternalObserved",
        "DriftDetected",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
    ]


def test_a_failed_attempt_is_part_of_the_chain():
    story = converged_story()
    story.declare({"type": "Square", "color": "Green"})
    story.fail("NotDone")
    story.wake(3600)
    story.succeed()
    assert chain_types(story)[:2] == ["SpecDeclared", "ActionDecided"]
    assert chain_types(story)[-2:] == ["ActionSucceeded", "OutcomeRecorded"]


def test_a_chain_goes_forward_and_ends():
    story = converged_story()
    for color in ("Green", "Blue", "Red"):
        story.declare({"type": "Square", "color": color})
        story.succeed()
        story.observe(repaint(story.existing, color="Yellow"))
        story.succeed()
    for event in story.log:
        chain = explain("x", history(story)[: event.resourceversion]).chain
        assert all(before < after for before, after in pairwise(chain))


def test_each_value_of_a_field_has_its_cause():
    story = converged_story()
    story.declare({"type": "Square", "color": "Green"})
    story.succeed()
    story.observe(repaint(story.existing, color="Blue"))
    story.succeed()
    explanation = explain("x", history(story), "color")
    assert [each.value for each in explanation.wanted] == ["Red", "Green"]
    assert [each.value for each in explanation.applied] == ["Red", "Green"]
    assert [(each.value, each.event) for each in explanation.observed] == [
        ("Red", "ActionSucceeded"),
        ("Green", "ActionSucceeded"),
        ("Blue", "ExternalObserved"),
        ("Green", "ActionSucceeded"),
    ]
    assert explanation.wanted[-1].actor == "tests"
    assert explain("x", history(story), "colour").wanted == ()


def test_a_client_that_overwrites_a_field_repeatedly_is_in_contention():
    story = converged_story()
    for number in range(CONTENTION_DRIFTS):
        assert not explain("x", history(story)).repeated_drifts
        story.observe(repaint(story.existing, color=("Blue", "Yellow")[number % 2]))
        story.wake(seconds=60)  # the last repair waits
        story.succeed()
        story.now = story.now.replace(minute=number + 1)
    (repeated_drift,) = explain("x", history(story)).repeated_drifts
    assert (repeated_drift.path, repeated_drift.times) == ("color", CONTENTION_DRIFTS)
    assert (repeated_drift.ours, repeated_drift.theirs) == ("Red", ("Blue", "Yellow"))
    assert explain("x", history(story), "color").repeated_drifts == (repeated_drift,)
    assert not explain("x", history(story), "type").repeated_drifts


def test_old_changes_are_not_contention():
    story = converged_story()
    for number in range(CONTENTION_DRIFTS):
        story.now = story.now.replace(hour=2 * number + 1)
        story.observe(repaint(story.existing, color="Blue"))
        story.succeed()
    assert not explain("x", history(story)).repeated_drifts


# --- parts: the causes continue with the parents


def block(name: str) -> ResourceKey:
    return ResourceKey("default", "Block", name)


def declare_by(parent: Story | None, name: str, *, part_of: str = "", reason: str = "") -> Story:
    """Declare a block, by another block's newest action or by a client."""
    story = Story(key=block(name))
    labels = {PART_OF_LABEL: part_of} if part_of else {}
    declaration = Declared(manifest(key=story.key, labels=labels), reason=reason)
    key = "" if parent is None else parent.action.idempotency_key
    story.process([story.command(declaration, message_id=f"{key}.0123.declared" if key else "m1")])
    return story


async def parents(of: Story, *others: Story) -> list[Parent]:
    histories: Mapping[ResourceKey, Sequence[StoredEvent]] = {
        each.key: history(each) for each in (of, *others)
    }

    async def read(key: ResourceKey) -> Sequence[StoredEvent]:
        return histories.get(key, ())

    return [each for each, _ in await lineage(history(of), read)]


def kinds(story: Story, parent: Parent) -> list[str]:
    return [type(story.log[version - 1].data).__name__ for version in parent.chain]


async def test_33_the_chain_of_a_part_includes_the_declaration_of_each_parent():
    source = declare_by(None, "source", reason="release 7")
    web = declare_by(source, "web", part_of="default.Block.source", reason="commit c0ffee by Ada")
    box = declare_by(web, "box", part_of="default.Block.web", reason="part of default/Block/web")
    nearest, top = await parents(box, web, source)
    assert (nearest.resource, nearest.reason) == ("default/Block/web", "part of default/Block/web")
    assert (top.resource, top.reason) == ("default/Block/source", "commit c0ffee by Ada")
    assert kinds(web, nearest) == ["SpecDeclared", "ActionDecided"]
    assert kinds(source, top) == ["SpecDeclared", "ActionDecided"]
    assert await parents(source, web) == []


async def test_33_the_step_that_declared_a_part_counts_and_later_ones_do_not():
    web = declare_by(None, "web")
    box = declare_by(web, "box", part_of="default.Block.web", reason="part of it")
    first_action_id = web.action.action_id
    web.succeed()
    web.declare({"type": "Square", "color": "Green"})
    assert web.action.action_id != first_action_id
    [parent] = await parents(box, web)
    assert f"default/Block/web@{parent.chain[-1]}" == first_action_id

    # A reason given by another client is not the parent's; that of the parent's withdrawal is.
    box.turn(
        Declared(manifest({"color": "Blue"}, key=box.key, labels={PART_OF_LABEL: web.key.tokens}))
    )
    assert await parents(box, web) == [parent]
    message_id = f"{web.action.idempotency_key}.0123.withdrawn"
    box.process([box.command(Withdrawn(reason="no longer a part of it"), message_id=message_id)])
    [newer] = await parents(box, web)
    assert newer.reason == "no longer a part of it"
    assert f"default/Block/web@{newer.chain[-1]}" == web.action.action_id


async def test_a_parent_with_an_unknown_step_shows_its_newest_declaration():
    web = declare_by(None, "web")
    [parent] = await parents(declare_by(None, "box", part_of="default.Block.web"), web)
    assert kinds(web, parent) == ["SpecDeclared"]


async def test_a_walk_ends_at_a_cycle_and_at_an_unknown_parent():
    one = declare_by(None, "one", part_of="default.Block.two")
    two = declare_by(one, "two", part_of="default.Block.one")
    assert [each.resource for each in await parents(one, two)] == ["default/Block/two"]
    alone = declare_by(None, "alone", part_of="default.Block.alone")
    assert await parents(alone) == []
    assert await parents(declare_by(None, "box", part_of="default.Block.unknown")) == []


async def test_the_number_of_parents_is_limited():
    chain = [declare_by(None, "b0")]
    for number in range(40):
        chain.append(declare_by(chain[-1], f"b{number + 1}", part_of=f"default.Block.b{number}"))
    assert len(await parents(chain[-1], *chain)) == 16


@pytest.mark.parametrize("label", ["", "x", "a.b", "a.b.c.d", "a.b.*", "a/b/c d"])
def test_a_label_that_names_no_resource_has_no_parent(label: str):
    assert parent_in({PART_OF_LABEL: label}) is None
    assert parent_in({}) is None
