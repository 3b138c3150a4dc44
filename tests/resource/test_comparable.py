"""A kind that compares less than it writes: drift tells what is compared, a write has it all."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from events.log import ActionDecided, ActionSucceeded, DriftDetected, FieldDifference
from events.manifest import Fields
from reconciler.resource.difference import Wanted, differences
from tests.resource.building import BLOCK, Story, every, only, repainted, thing


def initial(fields: Fields) -> Fields:
    color = fields.get("color")
    return {**fields, "color": {"initial": color[0]}} if isinstance(color, str) else fields


SHY = replace(BLOCK, comparable=initial)
"""Its API shows of a colour only the first letter."""


def created_story() -> Story:
    story = Story(kind=SHY)
    story.declare({"type": "Square", "color": "Red"})
    assert story.action.fields["color"] == "Red", "what is written is whole"
    story.succeed(color={"initial": "R"})
    return story


def test_what_is_compared_the_same_is_as_declared() -> None:
    story = created_story()
    assert story.outcome == "Converged"
    assert story.see(story.existing) == []


def test_drift_shows_what_is_compared_and_is_repaired_with_the_whole() -> None:
    story = created_story()
    events = story.see(repainted(story.existing, color={"initial": "B"}))
    assert only(DriftDetected, events).differences == (FieldDifference("color.initial", "R", "B"),)
    assert only(ActionDecided, events).action.fields == {"type": "Square", "color": "Red"}
    story.succeed(color={"initial": "R"})
    assert story.outcome == "Converged"


def test_a_new_declaration_that_compares_the_same_is_not_written() -> None:
    story = created_story()
    events = story.declare({"type": "Square", "color": "Rose"})
    assert every(ActionDecided, events) == []
    assert story.outcome == "Converged"


def test_what_the_api_keeps_otherwise_is_not_written_again_and_again() -> None:
    story = Story(kind=SHY)
    story.declare({"type": "Square", "color": "Red"})
    story.succeed(color={"initial": "X"})
    assert (story.outcome, story.reason) == ("Degraded", "NotAccepted")
    assert story.idle


def test_an_update_whose_answer_was_lost_is_found_by_what_is_compared() -> None:
    assert SHY.capabilities is not None
    keyless = msgspec.structs.replace(SHY.capabilities, idempotency_keys=False)
    story = Story(kind=replace(SHY, capabilities=keyless))
    story.declare({"type": "Square", "color": "Red"})
    story.succeed(color={"initial": "R"})
    story.declare({"type": "Square", "color": "Blue"})
    written_object = story.written(story.action, color={"initial": "B"})
    story.fail("Unknown")
    story.wake(3600)
    assert only(ActionSucceeded, story.fail("Conflict", shown=written_object)).found_by == "Content"
    assert story.outcome == "Converged"


def test_a_kind_without_it_compares_all() -> None:
    observed_object = thing({"color": "Red"})
    assert differences(
        Wanted({"color": "Rose"}, {}), observed_object, replace(SHY, comparable=None)
    )
    assert not differences(Wanted({"color": "Rose"}, {}), observed_object, SHY)
