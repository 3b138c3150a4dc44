"""Events contain the results of rules, so a changed rule does not change a recorded log."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import pytest
from msgspec.structs import replace

from events.intake import ActionError, ErrorClass
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    Base,
    Consequence,
    Effect,
    Operation,
    Purpose,
)
from events.manifest import Policy
from reconciler.resource import rules
from reconciler.resource.evolve import fold
from reconciler.resource.rules import apply_rules
from reconciler.resource.state import NEW, Actions, Desired, InFlight, Owned, ResourceState
from tests.resource.building import START, Story, converged_story, only, repaint

RETRIED = ("NotDone", "Throttled", "Unknown")


def action(operation: Operation = "Update", purpose: Purpose = "Converge") -> Action:
    return Action("a@2", "key", operation, 1, "default", "foo", (), purpose=purpose)


def record_failure(
    error: ActionError, state: ResourceState, *, flight: InFlight, redelivered: bool = False
) -> ActionFailed:
    data = ActionFailed(
        "a@2", flight.action.operation, 1, error, None, redelivered, None, flight.action.purpose
    )
    known_state = replace(state, actions=Actions(in_flight=flight))
    recorded = apply_rules(data, known_state, START)
    assert isinstance(recorded, ActionFailed)
    return recorded


def test_a_changed_rule_does_not_change_a_recorded_log(monkeypatch: pytest.MonkeyPatch) -> None:
    story = converged_story({"color": "Red"}, policy=Policy(ignore_fields=("size",)))
    for color in ("Blue", "Green"):
        story.observe(repaint(story.existing, color=color))
        story.fail("NotDone")
        story.wake(600)
        story.succeed()
    recorded = story.state
    assert recorded.recent_drifts
    assert recorded.owned is not None
    for rule in ("count_drift", "_declared_part", "_effect", "_consequence", "_is_base"):
        monkeypatch.setattr(rules, rule, None)
    assert fold(story.log) == recorded


@pytest.mark.parametrize("error_class", get_args(ErrorClass))
def test_a_retried_failure_is_certain_if_nothing_was_sent_or_done(error_class: ErrorClass) -> None:
    def effect(
        *, lookup: bool = False, redelivered: bool = False, attempted: bool = True
    ) -> Effect:
        error = ActionError(error_class, "", attempted=attempted)
        flight = InFlight(action(), is_lookup=lookup)
        return record_failure(error, NEW, flight=flight, redelivered=redelivered).effect

    effects_of_calls = {"Throttled": Effect.PARTIAL, "Unknown": Effect.UNKNOWN}
    assert effect() is effects_of_calls.get(error_class, Effect.REFUSED)
    assert effect(attempted=False) is Effect.NOT_SENT
    assert effect(lookup=True) is Effect.NOT_SENT
    assert effect(redelivered=True) is Effect.UNKNOWN


@pytest.mark.parametrize(
    ("error_class", "purpose", "generation", "consequence"),
    [
        *((each, "Converge", 1, "Retry") for each in RETRIED),
        ("Refused", "Converge", 1, "Refused"),
        ("Refused", "Converge", 2, "Outdated"),
        ("Refused", "Retire", 2, "Failed"),
        ("Refused", "Renew", 1, "Failed"),
        ("NotFound", "Converge", 1, "Observed"),
        ("Conflict", "Converge", 1, "Conflict"),
        ("NotFound", "Retire", 1, "Retired"),
        ("Conflict", "Retire", 1, "Conflict"),
    ],
)
def test_a_failure_has_a_consequence(
    error_class: ErrorClass, purpose: Purpose, generation: int, consequence: Consequence
) -> None:
    state = ResourceState(
        desired=Desired(generation=generation), retiring=Owned("default", "old", "u1")
    )
    flight = InFlight(action("Delete" if purpose == "Retire" else "Update", purpose))
    assert (
        record_failure(ActionError(error_class, ""), state, flight=flight).consequence
        == consequence
    )


def test_a_creation_beside_the_replaced_object_proves_nothing_about_it() -> None:
    state = ResourceState(owned=Owned("default", "foo", "u1"))
    flight = InFlight(action("Create", "Replace"))
    assert (
        record_failure(ActionError("NotFound", ""), state, flight=flight).consequence == "Conflict"
    )


def test_the_base_of_a_write_is_recorded_if_it_differs_from_the_write() -> None:
    story = converged_story({"color": "Red"}, policy=Policy(ignore_fields=("size",)))
    created = only(ActionDecided, [each.data for each in story.log])
    assert created.base is None
    update = only(ActionDecided, story.observe(repaint(story.existing, color="Blue", size=3)))
    assert update.action.fields == {"color": "Red", "size": 3}
    assert update.base == Base(), "the desired fields and all labels"


def test_the_base_of_a_write_does_not_contain_the_ignored_fields() -> None:
    story = Story()
    story.declare({"type": "Square", "color": "Red"}, policy=Policy(ignore_fields=("color",)))
    created = only(ActionDecided, [each.data for each in story.log])
    assert created.action.fields == {"type": "Square", "color": "Red"}
    assert created.base == Base({"type": "Square"})


def test_a_creation_that_was_never_sent_is_abandoned_with_its_generation() -> None:
    story = Story()
    story.declare({"color": "Red"})
    closed = ActionError("Throttled", "the gate is closed", None, 4.0, attempted=False)
    story.report(closed)
    abandoned = only(ActionAbandoned, story.withdraw())
    assert not abandoned.in_doubt
    assert story.idle
    assert not story.state.actions.uncertain_create
    assert story.now - START < timedelta(seconds=4)
