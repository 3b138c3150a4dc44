"""Which refused updates are part of a circle, from the histories of their resources."""

from __future__ import annotations

import pytest

from events.intake import ActionError
from events.names import ResourceKey
from reconciler.cli.past.exchanges import describe_circle, find_refused_changes
from reconciler.ports import StoredEvent
from tests.resource.building import FOO, Story

BAR = ResourceKey("default", "Block", "Bar")
REFUSALS = [
    ActionError("Refused", "color is in use", 422),
    ActionError("Conflict", "color is in use", 409),
    ActionError("NotDone", "color is in use", 409),
]
OTHER_FAILURES = [
    ActionError("NotDone", "unavailable", 503),
    ActionError("NotDone", "connection refused"),
    ActionError("Unknown", "timeout"),
    ActionError("NotDone", "calls are suspended", 409, attempted=False),
]


def history(story: Story) -> list[StoredEvent]:
    return [StoredEvent(10 + number, event) for number, event in enumerate(story.log)]


def refused(key: ResourceKey, before: str, after: str, failure: ActionError) -> Story:
    """Return a resource whose update to another color failed."""
    story = Story(key=key)
    story.declare({"color": before})
    story.succeed()
    story.declare({"color": after})
    story.report(failure)
    return story


def explain(first: Story, second: Story) -> str:
    changes = {str(each.key): find_refused_changes(history(each)) for each in (first, second)}
    return describe_circle(first.key, changes)


@pytest.mark.parametrize("failure", REFUSALS)
def test_a_circle_of_refused_updates_names_the_resources_and_the_way_out(failure: ActionError):
    stories = (refused(FOO, "Red", "Blue", failure), refused(BAR, "Blue", "Red", failure))
    text = explain(*stories)
    assert text.startswith(f"{FOO} and {BAR} exchange `color`, and the API refuses both updates. ")
    assert "Declare one of them with a temporary value." in text
    stories[1].declare({"color": "Green"})
    assert explain(*stories) == "", "the circle is broken"


@pytest.mark.parametrize("failure", OTHER_FAILURES)
def test_other_failures_of_updates_are_no_circle(failure: ActionError):
    stories = (refused(FOO, "Red", "Blue", failure), refused(BAR, "Blue", "Red", failure))
    assert explain(*stories) == ""


def test_a_refused_creation_or_a_withdrawn_resource_is_no_circle():
    story = Story()
    story.declare()
    story.report(REFUSALS[0])
    assert not find_refused_changes(history(story))
    story = refused(FOO, "Red", "Blue", REFUSALS[0])
    story.withdraw()
    assert not find_refused_changes(history(story))
