"""Why a resource stands as it does: the chain of causes, the values of a field, and fights."""

from __future__ import annotations

from itertools import pairwise

from events.log import SpecDeclared
from reconciler.ports import StoredEvent
from reconciler.sdk.why import FIGHT_DRIFTS, why
from tests.resource.building import Story, converged, repainted


def history(story: Story) -> list[StoredEvent]:
    return [StoredEvent(10 + number, event) for number, event in enumerate(story.log)]


def told(story: Story, field: str = "") -> list[str]:
    answer = why("default/Block/Foo", history(story), field)
    return [type(story.log[version - 1].data).__name__ for version in answer.chain]


def test_an_outcome_leads_back_to_the_declaration():
    story = converged()
    story.declare({"type": "Square", "color": "Green"})
    story.succeed()
    assert told(story) == ["SpecDeclared", "ActionDecided", "ActionSucceeded", "OutcomeRecorded"]
    chain = why("x", history(story)).chain
    declared = story.log[chain[0] - 1].data
    assert isinstance(declared, SpecDeclared)
    assert declared.generation == 2


def test_a_repair_leads_back_to_what_was_seen():
    story = converged()
    story.see(repainted(story.seen, color="Blue"))
    story.succeed()
    assert told(story) == [
        "ExternalObserved",
        "DriftDetected",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
    ]


def test_an_attempt_that_failed_is_passed_on_the_way():
    story = converged()
    story.declare({"type": "Square", "color": "Green"})
    story.fail("Transient")
    story.wake(3600)
    story.succeed()
    assert told(story)[:2] == ["SpecDeclared", "ActionDecided"]
    assert told(story)[-2:] == ["ActionSucceeded", "OutcomeRecorded"]


def test_a_chain_goes_forward_and_ends():
    story = converged()
    for color in ("Green", "Blue", "Red"):
        story.declare({"type": "Square", "color": color})
        story.succeed()
        story.see(repainted(story.seen, color="Yellow"))
        story.succeed()
    for event in story.log:
        chain = why("x", history(story)[: event.resourceversion]).chain
        assert all(before < after for before, after in pairwise(chain))


def test_a_field_has_its_values_each_with_who_made_it_so():
    story = converged()
    story.declare({"type": "Square", "color": "Green"})
    story.succeed()
    story.see(repainted(story.seen, color="Blue"))
    story.succeed()
    answer = why("x", history(story), "color")
    assert [each.value for each in answer.wanted] == ["Red", "Green"]
    assert [each.value for each in answer.applied] == ["Red", "Green"]
    assert [(each.value, each.event) for each in answer.observed] == [
        ("Red", "ActionSucceeded"),
        ("Green", "ActionSucceeded"),
        ("Blue", "ExternalObserved"),
        ("Green", "ActionSucceeded"),
    ]
    assert answer.wanted[-1].actor == "tests"
    assert why("x", history(story), "colour").wanted == ()


def test_who_overwrites_a_field_again_and_again_is_in_a_fight():
    story = converged()
    for number in range(FIGHT_DRIFTS):
        assert not why("x", history(story)).fights
        story.see(repainted(story.seen, color=("Blue", "Yellow")[number % 2]))
        story.wake(seconds=60)  # the last repair waits
        story.succeed()
        story.now = story.now.replace(minute=number + 1)
    (fight,) = why("x", history(story)).fights
    assert (fight.path, fight.times) == ("color", FIGHT_DRIFTS)
    assert (fight.ours, fight.theirs) == ("Red", ("Blue", "Yellow"))
    assert why("x", history(story), "color").fights == (fight,)
    assert not why("x", history(story), "type").fights


def test_what_happened_long_ago_is_no_fight():
    story = converged()
    for number in range(FIGHT_DRIFTS):
        story.now = story.now.replace(hour=2 * number + 1)
        story.see(repainted(story.seen, color="Blue"))
        story.succeed()
    assert not why("x", history(story)).fights
