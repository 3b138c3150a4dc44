"""An object that is as declared may be unusable: conditions ``Converged`` and ``Ready``."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec

from events.external import ExternalObject, digest
from events.intake import ReconcileRequested
from events.log import Condition, PartAvailability
from events.manifest import Fields
from reconciler.provider.kind import READY, Readiness
from reconciler.resource.availability import REPLACEMENT_READY_SECONDS
from reconciler.resource.expectation import turn_digest
from tests.resource.building import BLOCK, START, Story, names


def _ready(fields: Fields, observed_object: ExternalObject) -> Readiness:
    assert fields["type"] == "Square", "readiness is computed from the declared fields"
    health = observed_object.outputs.get("health")
    return READY if health == "up" else Readiness(False, "Starting", f"its health is {health}")


SERVER = replace(BLOCK, ready=_ready)


def condition(story: Story, name: str) -> Condition:
    assert story.state.outcome is not None
    (existing_condition,) = [each for each in story.state.outcome.conditions if each.type == name]
    return existing_condition


def server_story(health: str | None = None) -> Story:
    story = Story(kind=SERVER)
    story.declare()
    outputs = {} if health is None else {"health": health}
    story.report(
        existing=msgspec.structs.replace(story.object_after(story.action), outputs=outputs)
    )
    return story


def test_an_object_that_is_as_declared_may_not_be_ready():
    story = server_story()
    assert story.outcome == "Converged"
    assert condition(story, "Converged").status == "True"
    ready = condition(story, "Ready")
    assert (ready.status, ready.reason) == ("False", "Starting")
    assert ready.message == "its health is None"


def test_an_outcome_records_every_change_of_readiness():
    story = server_story("down")
    for health, status in (("up", "True"), ("down", "False")):
        observed_object = msgspec.structs.replace(story.existing, outputs={"health": health})
        assert names(story.observe(observed_object)) == ["ExternalObserved", "OutcomeRecorded"]
        assert (story.outcome, condition(story, "Ready").status) == ("Converged", status)
    assert story.observe(story.existing) == [], "an unchanged observation is not recorded"


def test_a_changed_output_is_not_drift_and_does_not_cause_an_action():
    story = server_story("up")
    observed_object = msgspec.structs.replace(
        story.existing, outputs={"health": "up", "port": 5432}
    )
    assert names(story.observe(observed_object)) == ["ExternalObserved"]
    assert story.idle


def test_outputs_are_in_the_digest():
    plain = ExternalObject("foo", {})
    assert digest(plain) != digest(ExternalObject("foo", {}, outputs={"port": 1}))


def test_an_object_that_is_not_as_declared_is_not_ready_for_the_same_reason():
    story = Story(kind=SERVER)
    story.declare()
    story.fail("Refused", message="no such type")
    ready = condition(story, "Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Refused", "no such type")


# --- kinds that may stop being ready by themselves


def availability(story: Story) -> PartAvailability:
    assert story.state.outcome is not None
    assert story.state.outcome.availability is not None
    return story.state.outcome.availability


def see(story: Story, started_at: str, health: str = "up") -> list[str]:
    outputs = {"health": health, "startedAt": started_at}
    return names(story.observe(msgspec.structs.replace(story.existing, outputs=outputs)))


def pass_seconds(story: Story, seconds: float) -> None:
    story.stored_at = (story.stored_at or START) + timedelta(seconds=seconds)


def running_story() -> Story:
    story = server_story("starting")
    pass_seconds(story, 0.0)
    see(story, "10:00")
    return story


def confirm(story: Story) -> list[str]:
    """Request a read, which shows the same object."""
    story.turn(ReconcileRequested())
    return names(story.observe(story.existing))


def test_an_object_is_available_after_a_read_that_began_late_enough():
    story = running_story()
    assert availability(story) == PartAvailability("10:00", START)
    pass_seconds(story, REPLACEMENT_READY_SECONDS - 0.1)
    assert confirm(story) == ["ExternalObserved"], "the read began too early"
    pass_seconds(story, 0.1)
    story.turn(ReconcileRequested())
    assert not availability(story).available, "the last read is older"
    assert names(story.observe(story.existing)) == ["ExternalObserved", "OutcomeRecorded"]
    assert availability(story) == PartAvailability("10:00", START, available=True)
    assert confirm(story) == ["ExternalObserved"], "it stays available"


def test_a_read_that_began_before_its_request_does_not_make_an_object_available():
    story = running_story()
    pass_seconds(story, REPLACEMENT_READY_SECONDS)
    position = story.state.observed.position
    story.turn(ReconcileRequested())
    changed = msgspec.structs.replace(
        story.existing, outputs={**story.existing.outputs, "restarts": 0}
    )
    assert names(story.observe(changed, as_of=position)) == ["ExternalObserved"]
    assert not availability(story).available


def test_each_interruption_restarts_and_doubles_the_interval_of_an_object():
    story = running_story()
    pass_seconds(story, REPLACEMENT_READY_SECONDS)
    confirm(story)
    assert see(story, "10:01") == ["ExternalObserved", "OutcomeRecorded"]
    assert availability(story) == PartAvailability("10:01", story.stored_at, 1)
    pass_seconds(story, 2 * REPLACEMENT_READY_SECONDS - 0.1)
    confirm(story)
    assert not availability(story).available
    pass_seconds(story, 0.1)
    confirm(story)
    assert availability(story).available
    see(story, "10:01", "down")
    assert availability(story) == PartAvailability("", None, 2)
    see(story, "10:01")
    assert availability(story) == PartAvailability("10:01", story.stored_at, 2)


def test_a_recreated_object_has_a_new_interval_without_an_interruption():
    story = running_story()
    pass_seconds(story, REPLACEMENT_READY_SECONDS)
    confirm(story)
    story.observe(None)
    story.observe(None)
    assert story.action.operation == "Create"
    created = msgspec.structs.replace(
        story.object_after(story.action), outputs={"health": "up", "startedAt": "10:05"}
    )
    story.report(existing=created)
    assert availability(story) == PartAvailability("10:05", story.stored_at)


def test_a_written_object_has_a_new_interval_without_an_interruption():
    story = running_story()
    pass_seconds(story, REPLACEMENT_READY_SECONDS)
    confirm(story)
    story.declare({"type": "Square", "color": "Blue"})
    assert story.action.operation == "Update"
    outputs = {"health": "up", "startedAt": "10:00"}
    written = msgspec.structs.replace(story.object_after(story.action), outputs=outputs)
    story.report(existing=written)
    assert availability(story) == PartAvailability("10:00", story.stored_at)


def test_a_process_that_an_update_starts_again_was_interrupted():
    story = running_story()
    story.declare({"type": "Square", "color": "Blue"})
    outputs = {"health": "up", "startedAt": "10:05"}
    written = msgspec.structs.replace(story.object_after(story.action), outputs=outputs)
    story.report(existing=written)
    assert availability(story) == PartAvailability("10:05", START, 1)


def test_a_kind_without_readiness_has_no_availability():
    story = Story(kind=BLOCK)
    story.declare()
    story.succeed()
    assert story.state.outcome is not None
    assert story.state.outcome.availability is None


def test_a_deleted_object_has_no_availability():
    story = running_story()
    story.withdraw()
    story.succeed()
    assert story.outcome == "Deleted"
    assert story.state.outcome is not None
    assert story.state.outcome.availability is None


def test_a_plan_does_not_depend_on_the_time_since_which_an_object_is_ready():
    stories = [running_story(), running_story()]
    pass_seconds(stories[1], 5)
    for story in stories:
        see(story, "10:01")
    first, second = (story.log[-1:] for story in stories)
    assert first[0].data != second[0].data
    assert turn_digest(first) == turn_digest(second)
