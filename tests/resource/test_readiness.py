"""An object that is as declared may be unusable: conditions ``Converged`` and ``Ready``."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from events.external import ExternalObject, digest
from events.log import Condition
from events.manifest import Fields
from reconciler.provider.kind import READY, Readiness
from tests.resource.building import BLOCK, Story, names


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
