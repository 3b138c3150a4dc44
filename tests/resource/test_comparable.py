"""A kind that compares less than it writes: drift shows compared values, a write contains all."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from events.log import ActionDecided, ActionSucceeded, DriftDetected, FieldDifference
from events.manifest import Fields
from reconciler.resource.difference import Wanted, differences
from tests.resource.building import BLOCK, Story, api_object, every, only, repaint


def initial(fields: Fields) -> Fields:
    color = fields.get("color")
    return {**fields, "color": {"initial": color[0]}} if isinstance(color, str) else fields


INITIALS = replace(BLOCK, comparable=initial)
"""A kind whose API shows only the first letter of a color."""


def created_story() -> Story:
    story = Story(kind=INITIALS)
    story.declare({"type": "Square", "color": "Red"})
    assert story.action.fields["color"] == "Red", "a write contains the whole value"
    story.succeed(color={"initial": "R"})
    return story


def test_an_object_with_equal_compared_values_is_as_declared() -> None:
    story = created_story()
    assert story.outcome == "Converged"
    assert story.observe(story.existing) == []


def test_drift_shows_compared_values_and_is_corrected_with_the_whole_value() -> None:
    story = created_story()
    events = story.observe(repaint(story.existing, color={"initial": "B"}))
    assert only(DriftDetected, events).differences == (FieldDifference("color.initial", "R", "B"),)
    assert only(ActionDecided, events).action.fields == {"type": "Square", "color": "Red"}
    story.succeed(color={"initial": "R"})
    assert story.outcome == "Converged"


def test_a_new_declaration_with_equal_compared_values_is_not_written() -> None:
    story = created_story()
    events = story.declare({"type": "Square", "color": "Rose"})
    assert every(ActionDecided, events) == []
    assert story.outcome == "Converged"


def test_a_value_that_the_api_changes_is_not_written_repeatedly() -> None:
    story = Story(kind=INITIALS)
    story.declare({"type": "Square", "color": "Red"})
    story.succeed(color={"initial": "X"})
    assert (story.outcome, story.reason) == ("Degraded", "NotAccepted")
    assert story.idle


def test_an_update_with_a_lost_response_is_found_by_its_compared_values() -> None:
    assert INITIALS.capabilities is not None
    keyless = msgspec.structs.replace(INITIALS.capabilities, idempotency_keys=False)
    story = Story(kind=replace(INITIALS, capabilities=keyless))
    story.declare({"type": "Square", "color": "Red"})
    story.succeed(color={"initial": "R"})
    story.declare({"type": "Square", "color": "Blue"})
    written_object = story.object_after(story.action, color={"initial": "B"})
    story.fail("Unknown")
    story.wake(3600)
    assert (
        only(ActionSucceeded, story.fail("Conflict", existing=written_object)).found_by == "Content"
    )
    assert story.outcome == "Converged"


def test_a_kind_without_comparable_values_compares_all_fields() -> None:
    observed_object = api_object({"color": "Red"})
    assert differences(
        Wanted({"color": "Rose"}, {}), observed_object, replace(INITIALS, comparable=None)
    )
    assert not differences(Wanted({"color": "Rose"}, {}), observed_object, INITIALS)
