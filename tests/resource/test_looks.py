"""A requested reconciliation: waits end immediately, and the read is recorded."""

from __future__ import annotations

from events.intake import Declared, Observed, ReconcileRequested
from events.log import ActionDecided, ExternalObserved, ReconcileAccepted
from events.manifest import Manifest, Metadata, Policy
from tests.resource.building import (
    CONFIG,
    Story,
    converged,
    every,
    names,
    only,
    provider_config_story,
    repainted,
)
from tests.resource.test_contention import converged_story, overwrite, overwrite_repeatedly


def ask(story: Story) -> list[str]:
    return names(story.turn(ReconcileRequested("the API is back")))


def test_a_waiting_attempt_is_made_immediately():
    story = Story()
    story.declare()
    story.fail("NotDone", message="connection refused")
    assert ask(story) == ["ReconcileAccepted", "ActionRetried"]
    assert story.wake(3600) == []
    story.succeed()
    assert story.outcome == "Converged"


def test_a_repair_delayed_by_contention_is_made_immediately():
    story = converged_story()
    overwrite_repeatedly(story)
    overwrite(story)
    assert story.idle
    events = story.turn(ReconcileRequested())
    assert only(ActionDecided, events).action.fields["color"] == "Red"


def test_the_next_read_is_recorded_though_it_shows_nothing_new():
    story = converged()
    assert story.see(story.existing) == []
    assert ask(story) == ["ReconcileAccepted"]
    assert every(ExternalObserved, story.see(story.existing))
    assert story.see(story.existing) == [], "it was asked for once"


def test_a_read_from_before_the_request_does_not_answer_it():
    story = converged()
    position_before = story.state.observed.position
    ask(story)
    existing = Observed(CONFIG, story.existing.name, story.existing, as_of=position_before)
    assert story.turn(existing) == []
    assert every(ExternalObserved, story.see(story.existing))


def test_a_repeated_request_message_is_answered_again():
    story = converged()
    command = story.command(ReconcileRequested())
    assert names(story.give([command])) == ["ReconcileAccepted"]
    assert story.give([command]) == []
    assert story.answer.accepted


def test_an_undeclared_resource_is_not_refreshed():
    story = Story()
    assert ask(story) == []
    assert (story.answer.accepted, story.answer.reason) == (False, "NotDeclared")


def test_a_configuration_has_no_object_to_refresh():
    story = provider_config_story()
    metadata = Metadata("default", "system")
    spec = {"provider": "tests", "endpoint": "http://localhost"}
    story.turn(Declared(Manifest("reconciler/v1", "ProviderConfig", metadata, spec)))
    assert only(ReconcileAccepted, story.turn(ReconcileRequested())) == ReconcileAccepted(False)
    assert story.state.observed.read_requested_at is None


def test_a_paused_resource_is_refreshed_and_left_as_it_is():
    story = converged()
    story.declare(policy=Policy(paused=True))
    assert ask(story) == ["ReconcileAccepted"]
    assert every(ActionDecided, story.see(repainted(story.existing))) == []
