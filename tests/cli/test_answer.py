"""The first sentence of the output of `why`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from events.intake import Declared
from events.log import DriftDetected
from reconciler.cli.past.answer import build_answer
from reconciler.ports import StoredEvent
from reconciler.sdk.why import Parent, explain
from tests.resource.building import FOO, Story, api_object, converged_story, manifest, repaint

GREEN = {"type": "Square", "color": "Green"}


def answer_for(story: Story, field: str = "", parent: str = "") -> str:
    history = [StoredEvent(10 + number, event) for number, event in enumerate(story.log)]
    explanation = explain(str(FOO), history, field)
    if parent:
        explanation = replace(explanation, parents=(Parent(parent, "", ()),))
    sentence = build_answer(FOO, history, explanation)
    assert sentence.startswith(str(FOO))
    return sentence.removeprefix(str(FOO)).strip()


def created_story() -> Story:
    return converged_story()


def updated_story() -> Story:
    story = converged_story()
    story.declare(GREEN)
    story.succeed()
    return story


def recreated_story() -> Story:
    story = converged_story()
    story.observe(None)
    story.succeed()
    return story


def renamed_story() -> Story:
    story = converged_story()
    story.observe(None, found_as="old")
    story.succeed()
    return story


def recreation_story() -> Story:
    story = converged_story()
    story.observe(None)
    return story


def corrected_story() -> Story:
    story = converged_story()
    story.observe(repaint(story.existing, color="Blue"))
    story.succeed()
    return story


def adopted_story() -> Story:
    story = Story()
    story.observe(api_object())
    story.declare(policy={"adoption": "Adopt"})
    if not story.idle:
        story.succeed()
    return story


def conflict_story() -> Story:
    story = Story()
    story.observe(api_object())
    story.declare()
    return story


def new_story() -> Story:
    story = Story()
    story.declare()
    return story


def redeclared_story() -> Story:
    story = converged_story()
    story.declare(GREEN)
    return story


def failing_story() -> Story:
    story = Story()
    story.declare()
    story.fail("NotDone")
    return story


def paused_story() -> Story:
    story = converged_story()
    story.declare(policy={"paused": True})
    return story


def deleted_story() -> Story:
    story = converged_story()
    story.withdraw()
    story.succeed()
    return story


def absent_story() -> Story:
    story = converged_story()
    story.declare(policy={"mode": "Absent"})
    story.succeed()
    return story


def undeclared_story() -> Story:
    story = Story()
    story.observe(api_object())
    return story


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            created_story,
            "exists because tests declared generation 1 and the worker created the object.",
        ),
        (
            updated_story,
            "is as declared: tests declared generation 2 and the worker updated the object.",
        ),
        (recreated_story, "was deleted outside of Reconciler and has been recreated."),
        (
            renamed_story,
            "was renamed to old outside of Reconciler and has been recreated; old still exists.",
        ),
        (
            recreation_story,
            "was deleted outside of Reconciler. An action is in progress (Create, attempt 1).",
        ),
        (corrected_story, "was changed outside of Reconciler (color) and has been corrected."),
        (
            adopted_story,
            "is as declared: tests declared generation 1 and the worker updated the object.",
        ),
        (
            conflict_story,
            "is in conflict (AlreadyExists): {message}.",
        ),
        (
            new_story,
            "has no outcome for generation 1 yet. An action is in progress (Create, attempt 1).",
        ),
        (
            redeclared_story,
            "has no outcome for generation 2 yet. An action is in progress (Update, attempt 1).",
        ),
        (
            failing_story,
            "is degraded (NotDone): the API said no. An action is in progress (Create, attempt 1).",
        ),
        (paused_story, "is paused (PausedByPolicy): {message}."),
        (deleted_story, "was deleted because tests withdrew its declaration."),
        (
            absent_story,
            "does not exist because tests declared generation 2 and the worker deleted the object.",
        ),
        (
            undeclared_story,
            "is not owned by Reconciler (NotDeclared): {message}.",
        ),
    ],
)
def test_the_first_sentence_answers_why(build: Callable[[], Story], sentence: str) -> None:
    story = build()
    message = "" if story.state.outcome is None else story.state.outcome.message
    assert answer_for(story) == sentence.format(message=message)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (updated_story, ': color is "Green" because tests declared it in generation 2.'),
        (
            recreation_story,
            ': color is not set, but should be "Red": tests declared it in generation 1.',
        ),
        (conflict_story, ': color is "Red", as tests declared it in generation 1.'),
        (
            new_story,
            ': color should be "Red", but no object has been observed: '
            "tests declared it in generation 1.",
        ),
        (deleted_story, ": color is not set."),
    ],
)
def test_the_first_sentence_answers_why_a_field_has_its_value(
    build: Callable[[], Story], sentence: str
) -> None:
    assert answer_for(build(), "color") == sentence


def test_a_declaration_by_a_parent_is_attributed_to_the_parent() -> None:
    story = Story()
    story.process([story.command(Declared(manifest()), actor="reconciler@host:1")])
    story.succeed()
    assert answer_for(story).startswith("exists because Reconciler declared generation 1")
    sentence = answer_for(story, parent="default/Board/b")
    assert sentence.startswith("exists because default/Board/b declared generation 1")


def test_drift_that_our_own_action_may_have_caused_is_attributed_to_that_action() -> None:
    story = recreated_story()
    story.log = [
        replace(event, data=replace(event.data, suspected_action="default/Block/Foo@2"))
        if isinstance(event.data, DriftDetected)
        else event
        for event in story.log
    ]
    assert answer_for(story) == (
        "was missing, possibly because of Reconciler's action default/Block/Foo@2, and has been "
        "recreated."
    )
