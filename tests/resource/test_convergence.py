"""Creations, updates, losses and drift: scenarios 1 to 4 and 24, and the three-way merge."""

from __future__ import annotations

import pytest

from events.intake import Declared
from events.log import (
    ActionDecided,
    DriftDetected,
    FieldDifference,
    GenerationSuperseded,
    OutcomeRecorded,
    OwnershipReleased,
)
from reconciler.resource.owner_label import OWNER_LABEL
from tests.resource.building import (
    FOO_OWNER,
    UNLABELED,
    Story,
    converged_story,
    every,
    manifest,
    names,
    only,
    owned_labels,
    relabel,
    repaint,
)


def test_a_declared_resource_is_created_and_converges_as_generation_1():
    story = Story()
    events = story.declare({"type": "Square", "color": "Red"})
    assert names(events) == ["SpecDeclared", "ActionDecided"]
    assert story.action.operation == "Create"
    assert story.action.fields == {"type": "Square", "color": "Red"}
    assert story.action.labels == {OWNER_LABEL: FOO_OWNER}
    assert story.action.causes == ("default/Block/Foo@1",)
    assert names(story.succeed()) == ["ActionSucceeded", "OutcomeRecorded"]
    assert story.outcomes() == [("Converged", 1)]


def test_a_new_color_is_one_update_of_the_same_object():
    story = converged_story()
    uid = story.existing.uid
    events = story.declare({"type": "Square", "color": "Purple"})
    assert names(events) == ["SpecDeclared", "ActionDecided"]
    assert (story.action.operation, story.action.uid) == ("Update", uid)
    assert story.action.fields == {"type": "Square", "color": "Purple"}
    story.succeed()
    assert story.outcomes() == [("Converged", 1), ("Converged", 2)]


def test_an_object_that_another_client_deleted_is_drift_and_is_recreated():
    story = converged_story()
    events = story.observe(None)
    assert names(events) == [
        "ExternalObserved",
        "DriftDetected",
        "OwnershipReleased",
        "ActionDecided",
    ]
    assert only(DriftDetected, events).missing
    assert only(OwnershipReleased, events).reason == "Gone"
    assert story.action.operation == "Create"
    story.succeed()
    assert story.outcome == "Converged"


def test_a_change_by_another_client_is_recorded_with_both_values_and_reverted():
    story = converged_story()
    events = story.observe(repaint(story.existing, color="Green"))
    drift = only(DriftDetected, events)
    assert drift.differences == (FieldDifference("color", "Red", "Green"),)
    assert story.action.operation == "Update"
    assert story.action.fields["color"] == "Red"
    cause = story.state.cause
    assert story.action.causes == (cause,)
    story.succeed()
    assert story.outcome == "Converged"


def test_the_correction_of_drift_names_the_drift_event_as_its_cause():
    story = converged_story()
    story.observe(repaint(story.existing, color="Green"))
    (drift,) = [event for event in story.log if isinstance(event.data, DriftDetected)]
    assert story.action.causes == (drift.id,)


def test_two_spellings_of_a_value_are_not_a_difference():
    story = converged_story({"color": "red"})
    events = story.observe(repaint(story.existing, color="RED"))
    assert names(events) == ["ExternalObserved"]


def test_an_unchanged_observation_is_not_recorded():
    story = converged_story()
    for _ in range(10):
        assert story.observe(story.existing) == []
        assert story.wake(30) == []


def test_a_new_version_without_a_change_is_not_recorded():
    story = converged_story()
    existing = story.existing
    assert story.observe(repaint(existing)) == []


def test_fields_that_other_clients_added_are_kept():
    story = converged_story({"color": "Red"})
    assert names(story.observe(repaint(story.existing, owner="someone"))) == ["ExternalObserved"]
    story.declare({"color": "Blue"})
    assert story.action.fields == {"color": "Blue", "owner": "someone"}


@pytest.mark.parametrize("others", [{}, {"owner": "someone"}], ids=["alone", "beside others'"])
def test_a_field_removed_from_the_spec_is_removed_from_the_object(others: dict[str, str]):
    story = converged_story({"type": "Square", "color": "Red"})
    story.observe(repaint(story.existing, **others))
    story.declare({"type": "Square"})
    assert story.action.operation == "Update"
    assert story.action.fields == {"type": "Square", **others}
    story.succeed()
    assert story.outcome == "Converged"


def test_a_nested_field_is_compared_merged_and_removed_at_its_own_path():
    story = converged_story({"size": {"w": 1, "h": 2}})
    events = story.observe(repaint(story.existing, size={"w": 9, "h": 2, "depth": 3}))
    assert only(DriftDetected, events).differences == (FieldDifference("size.w", 1, 9),)
    assert story.action.fields == {"size": {"w": 1, "h": 2, "depth": 3}}
    story.succeed()
    story.declare({"size": {"w": 1}})
    assert story.action.fields == {"size": {"w": 1, "depth": 3}}


def test_an_ignored_field_keeps_the_value_of_another_client():
    story = converged_story(policy={"ignoreFields": ["color"]})
    assert story.state.owned is not None
    assert story.state.owned.applied is not None
    assert names(story.observe(repaint(story.existing, color="Green"))) == ["ExternalObserved"]
    assert story.outcome == "Converged"
    story.declare({"type": "Circle", "color": "Red"}, policy={"ignoreFields": ["color"]})
    assert story.action.fields == {"type": "Circle", "color": "Green"}


def test_drift_of_a_field_next_to_an_ignored_one_is_detected():
    story = converged_story(policy={"ignoreFields": ["color"]})
    events = story.observe(repaint(story.existing, color="Green", type="Circle"))
    assert only(DriftDetected, events).differences == (FieldDifference("type", "Square", "Circle"),)


def test_an_ignored_field_that_another_client_removed_is_not_restored():
    story = converged_story(policy={"ignoreFields": ["color"]})
    existing = story.existing
    without = relabel(existing, existing.labels)
    del without.fields["color"]
    story.observe(without)
    story.declare({"type": "Circle", "color": "Red"}, policy={"ignoreFields": ["color"]})
    assert story.action.fields == {"type": "Circle"}


def test_an_ignored_nested_field_is_left_to_other_clients():
    story = converged_story({"size": {"w": 1, "h": 2}}, policy={"ignoreFields": ["size.w"]})
    assert names(story.observe(repaint(story.existing, size={"w": 9, "h": 2}))) == [
        "ExternalObserved"
    ]
    story.declare({"size": {"w": 1, "h": 5}}, policy={"ignoreFields": ["size.w"]})
    assert story.action.fields == {"size": {"w": 9, "h": 5}}


def test_a_field_that_is_no_longer_ignored_is_written():
    story = converged_story(policy={"ignoreFields": ["color"]})
    story.observe(repaint(story.existing, color="Green"))
    story.declare({"type": "Circle", "color": "Red"}, policy={"ignoreFields": ["color"]})
    story.succeed()
    story.declare({"type": "Circle", "color": "Red"})
    assert story.action.fields == {"type": "Circle", "color": "Red"}


def test_labels_are_declared_changed_and_removed_like_fields():
    story = converged_story(labels={"team": "a", "tier": "x"})
    assert story.existing.labels == owned_labels(team="a", tier="x")
    story.declare(labels={"team": "b", "tier": "x"})
    assert story.action.labels == owned_labels(team="b", tier="x")
    story.succeed()
    story.declare(labels={"team": "b"})
    assert story.action.labels == owned_labels(team="b")
    story.succeed()
    assert story.outcome == "Converged"


def test_an_ignored_label_is_left_to_other_clients():
    policy = {"ignoreFields": ["labels.team"]}
    story = converged_story(labels={"team": "a"}, policy=policy)
    assert names(story.observe(relabel(story.existing, owned_labels(team="z")))) == [
        "ExternalObserved"
    ]
    story.declare({"color": "Blue"}, labels={"team": "a"}, policy=policy)
    assert story.action.labels == owned_labels(team="z")


def test_a_removed_owner_label_is_restored_and_no_second_object_is_created():
    story = converged_story()
    events = story.observe(relabel(story.existing, {}))
    assert only(DriftDetected, events).differences == (
        FieldDifference(f"labels.{OWNER_LABEL}", FOO_OWNER, None),
    )
    assert story.action.operation == "Update"
    assert story.action.labels == {OWNER_LABEL: FOO_OWNER}


def test_an_api_without_labels_gets_none():
    story = converged_story(kind=UNLABELED, labels={"team": "a"})
    assert story.existing.labels == {}
    assert story.outcome == "Converged"


@pytest.mark.parametrize(
    "policy", [None, {"ignoreFields": ["labels.team"]}], ids=["plain", "with ignored label"]
)
def test_a_value_that_the_api_does_not_accept_does_not_cause_a_hot_loop(
    policy: dict[str, object] | None,
):
    story = converged_story(labels={"team": "a"}, policy=policy)
    story.observe(relabel(story.existing, owned_labels(team="z" if policy else "a")))
    story.declare({"type": "Square", "color": "Purple"}, labels={"team": "a"}, policy=policy)
    story.succeed(color="Violet")
    assert story.idle
    assert (story.outcome, story.reason) == ("Degraded", "NotAccepted")
    assert story.observe(story.existing) == []
    assert story.wake(3600) == []


def test_a_different_object_after_a_repeated_call_is_written_once_more():
    story = Story()
    story.declare()
    changed_object = story.object_after(story.action, color="Violet")
    story.report(existing=changed_object, replayed=True)
    assert story.action.operation == "Update", "another client may have changed it"
    story.succeed(color="Violet")
    assert (story.idle, story.reason) == (True, "NotAccepted")


def test_a_new_generation_is_applied_after_a_value_that_was_not_accepted():
    story = converged_story()
    story.declare({"type": "Square", "color": "Purple"})
    story.succeed(color="Violet")
    story.declare({"type": "Square", "color": "Blue"})
    assert story.action.fields["color"] == "Blue"


def test_only_the_newest_of_five_declarations_in_a_batch_is_applied():
    story = Story()
    colors = ["Red", "Green", "Blue", "White", "Black"]
    events = story.turn(*[Declared(manifest({"color": color})) for color in colors])
    assert [(each.generation, each.by) for each in every(GenerationSuperseded, events)] == [
        (1, 2),
        (2, 3),
        (3, 4),
        (4, 5),
    ]
    assert only(ActionDecided, events).action.fields == {"color": "Black"}
    story.succeed()
    assert story.outcomes() == [("Converged", 5)]


def test_the_newest_of_five_separate_declarations_is_applied_after_the_first():
    story = Story()
    for color in ["Red", "Green", "Blue", "White", "Black"]:
        story.declare({"color": color})
    assert story.action.fields == {"color": "Red"}
    events = story.succeed()
    assert only(ActionDecided, events).action.fields == {"color": "Black"}
    assert every(OutcomeRecorded, events) == []
    story.succeed()
    assert story.outcomes() == [("Converged", 5)]


def test_a_completed_generation_is_not_superseded():
    story = converged_story()
    assert every(GenerationSuperseded, story.declare({"color": "Blue"})) == []


def test_a_difference_before_a_generation_is_applied_is_not_drift():
    story = converged_story({"type": "Square", "color": "Red"})
    story.declare({"type": "Square"}, policy={"paused": True})
    events = story.observe(repaint(story.existing, note="from a human"))
    assert every(DriftDetected, events) == []


def test_a_successful_write_without_a_returned_object_converges():
    story = Story()
    story.declare()
    story.report()
    assert story.outcome == "Converged"
    assert story.existing.fields == {"type": "Square", "color": "Red"}
