"""A requested reconciliation: waits end immediately, and the read is recorded."""

from __future__ import annotations

from events.intake import Declared, Observed, ReconcileRequested
from events.log import ActionDecided, ExternalObserved, ReconcileAccepted
from events.manifest import Manifest, Metadata, Policy
from tests.resource.building import (
    CONFIG,
    Story,
    converged_story,
    every,
    names,
    only,
    provider_config_story,
    repaint,
)
from tests.resource.test_contention import contention_story, overwrite, overwrite_repeatedly


def request_reconciliation(story: Story) -> list[str]:
    return names(story.turn(ReconcileRequested("the API is back")))


def test_a_waiting_attempt_is_made_immediately():
    story = Story()
    story.declare()
    story.fail("NotDone", message="connection refused")
    assert request_reconciliation(story) == ["ReconcileAccepted", "ActionRetried"]
    assert story.wake(3600) == []
    story.succeed()
    assert story.outcome == "Converged"


def test_a_correction_delayed_by_contention_is_made_immediately():
    story = contention_story()
    overwrite_repeatedly(story)
    overwrite(story)
    assert story.idle
    events = story.turn(ReconcileRequested())
    assert only(ActionDecided, events).action.fields["color"] == "Red"


def test_the_next_read_is_recorded_even_if_nothing_has_changed():
    story = converged_story()
    assert story.observe(story.existing) == []
    assert request_reconciliation(story) == ["ReconcileAccepted"]
    assert every(ExternalObserved, story.observe(story.existing))
    assert story.observe(story.existing) == [], "only one read was requested"


def test_a_read_that_began_before_the_request_does_not_fulfill_it():
    story = converged_story()
    position_before = story.state.observed.position
    request_reconciliation(story)
    existing = Observed(CONFIG, story.existing.name, story.existing, as_of=position_before)
    assert story.turn(existing) == []
    assert every(ExternalObserved, story.observe(story.existing))


def test_a_redelivered_request_gets_a_reply_again():
    story = converged_story()
    command = story.command(ReconcileRequested())
    assert names(story.process([command])) == ["ReconcileAccepted"]
    assert story.process([command]) == []
    assert story.reply.accepted


def test_an_undeclared_resource_is_not_refreshed():
    story = Story()
    assert request_reconciliation(story) == []
    assert (story.reply.accepted, story.reply.reason) == (False, "NotDeclared")


def test_a_configuration_has_no_object_to_refresh():
    story = provider_config_story()
    metadata = Metadata("default", "system")
    spec = {"provider": "tests", "endpoint": "http://localhost"}
    story.turn(Declared(Manifest("reconciler/v1", "ProviderConfig", metadata, spec)))
    assert only(ReconcileAccepted, story.turn(ReconcileRequested())) == ReconcileAccepted(False)
    assert story.state.observed.read_requested_at is None


def test_a_paused_resource_is_refreshed_but_not_changed():
    story = converged_story()
    story.declare(policy=Policy(paused=True))
    assert request_reconciliation(story) == ["ReconcileAccepted"]
    assert every(ActionDecided, story.observe(repaint(story.existing))) == []
