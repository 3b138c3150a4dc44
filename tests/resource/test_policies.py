"""Deletion, modes and pause: scenarios 7, 20 and 21, and mode ``Absent``."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from events.composition import PART_OF_LABEL
from events.log import ActionDecided, DriftDetected, OwnershipClaimed, OwnershipReleased
from events.manifest import EXTERNAL_NAME_ANNOTATION
from reconciler.resource.attempt import MAX_CONFLICTS
from reconciler.resource.owner_label import OWNER_LABEL
from tests.resource.building import (
    BLOCK,
    CONFIG,
    EXCLUSIVE,
    Story,
    api_object,
    converged_story,
    every,
    names,
    only,
    owned_labels,
    relabel,
    repaint,
)


def test_a_withdrawn_resource_is_deleted_with_its_uid():
    story = converged_story()
    uid = story.existing.uid
    assert names(story.withdraw()) == ["SpecWithdrawn", "ActionDecided"]
    assert (story.action.operation, story.action.uid) == ("Delete", uid)
    assert names(story.succeed()) == ["ActionSucceeded", "OutcomeRecorded"]
    assert story.outcomes()[-1] == ("Deleted", 2)
    assert story.wake(3600) == []


def test_a_resource_withdrawn_during_its_creation_is_deleted_afterwards():
    story = Story()
    story.declare()
    assert names(story.withdraw()) == ["SpecWithdrawn", "GenerationSuperseded"]
    events = story.succeed()
    assert only(ActionDecided, events).action.operation == "Delete"
    story.succeed()
    assert story.outcomes() == [("Deleted", 2)]


def test_a_withdrawn_resource_without_an_object_needs_no_call():
    story = converged_story()
    story.declare(policy={"mode": "CreateOnly"})
    story.observe(None)
    story.withdraw()
    assert story.idle
    assert story.outcome == "Deleted"


def test_a_deletion_that_finds_nothing_succeeds():
    story = converged_story()
    story.withdraw()
    story.fail("NotFound")
    assert story.idle
    assert story.outcome == "Deleted"


def test_a_resource_declared_after_its_deletion_is_recreated():
    story = converged_story()
    story.withdraw()
    story.succeed()
    story.declare()
    assert story.action.operation == "Create"
    story.succeed()
    assert story.outcomes() == [("Converged", 1), ("Deleted", 2), ("Converged", 3)]


def outcome_message(story: Story) -> str:
    assert story.state.outcome is not None
    return story.state.outcome.message


def orphaning_story(**policy: str | bool) -> Story:
    """Return a converged resource whose object is kept after a withdrawal."""
    return converged_story(policy={"deletion": "Orphan", **policy})


def test_an_orphan_is_released_and_kept():
    story = orphaning_story()
    original = story.existing
    withdrawn = story.withdraw()
    assert every(OwnershipReleased, withdrawn) == []
    action = only(ActionDecided, withdrawn).action
    assert (action.operation, action.uid, action.version) == (
        "Update",
        original.uid,
        original.version,
    )
    assert action.fields == original.fields
    assert action.labels == {
        name: value for name, value in original.labels.items() if name != OWNER_LABEL
    }
    events = story.succeed()
    assert only(OwnershipReleased, events).reason == "Orphaned"
    assert story.idle
    assert (
        outcome_message(story) == "the object stays in the API, and Reconciler no longer manages it"
    )
    assert story.outcomes()[-1] == ("Released", 2)
    assert story.wake(3600) == []
    assert names(story.observe(repaint(story.existing, color="Green"))) == ["ExternalObserved"]


def test_an_orphan_that_a_listing_omitted_is_not_unmanaged_afterwards():
    story = orphaning_story()
    story.configs[CONFIG] = EXCLUSIVE
    story.withdraw()
    story.succeed()
    kept_object = story.existing
    story.observe(None)
    assert story.outcome == "Deleted"
    assert not every(OwnershipClaimed, story.observe_twice(kept_object, unmanaged=(1, 60)))
    assert story.outcome == "Released"


def test_an_orphan_that_a_read_proves_missing_is_no_longer_tracked():
    """Where an object's name serves as its id, a later object is another client's."""
    story = orphaning_story()
    story.configs[CONFIG] = EXCLUSIVE
    story.withdraw()
    story.succeed()
    kept_object = story.existing
    story.observe(None, evidence="Read")
    assert (
        only(OwnershipClaimed, story.observe_twice(kept_object, unmanaged=(1, 60))).uid
        == kept_object.uid
    )


def test_an_orphan_that_was_only_adopted_is_released_too():
    story = Story()
    existing = api_object(labels=owned_labels())
    story.observe(existing)
    story.declare(policy={"adoption": "Adopt", "deletion": "Orphan"})
    assert story.outcome == "Converged"
    story.withdraw()
    assert OWNER_LABEL not in story.action.labels
    story.succeed()
    assert story.outcome == "Released"
    assert story.wake(3600) == []


def test_removing_the_label_of_an_orphan_does_not_correct_its_drift():
    story = orphaning_story(mode="CreateOnly")
    story.observe(repaint(story.existing, color="Blue"))
    story.withdraw()
    assert story.action.fields["color"] == "Blue"
    story.succeed()
    assert story.outcome == "Released"


def test_an_orphan_without_a_label_is_released_without_a_call():
    story = orphaning_story(ownerLabel="Report")
    story.observe(relabel(story.existing, {}))
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle


def test_an_orphan_with_immutable_labels_is_released_without_a_call():
    story = Story(kind=dataclasses.replace(BLOCK, immutable=frozenset({"labels"})))
    story.declare(policy={"deletion": "Orphan"})
    story.succeed()
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle
    assert outcome_message(story).endswith("it still has its owner label")


def test_an_out_of_band_change_is_drift_even_with_immutable_labels():
    story = Story(kind=dataclasses.replace(BLOCK, immutable=frozenset({"labels"})))
    story.declare()
    story.succeed()
    drift = only(DriftDetected, story.observe(repaint(story.existing, color="Green")))
    assert [each.path for each in drift.differences] == ["color"]


def test_48_a_move_to_another_parent_keeps_an_object_whose_labels_are_immutable():
    story = Story(kind=dataclasses.replace(BLOCK, immutable=frozenset({"labels"})))
    story.declare(labels={PART_OF_LABEL: "default.GitSource.a"})
    assert story.action.labels[PART_OF_LABEL] == "default.GitSource.a"
    story.succeed()
    moved = story.declare(labels={PART_OF_LABEL: "default.GitSource.b"})
    assert names(moved) == ["SpecDeclared", "OutcomeRecorded"]
    assert story.outcome == "Converged"
    assert story.observe(story.existing) == []


def test_nothing_is_written_to_an_orphan_that_is_paused_or_disputed():
    story = orphaning_story()
    story.declare(policy={"deletion": "Orphan", "paused": True})
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle
    assert outcome_message(story).endswith("no longer manages it; it still has its owner label")

    story = orphaning_story()
    story.observe(relabel(story.existing, {OWNER_LABEL: "another.default.Block.foo"}))
    assert story.outcome == "Disputed"
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle


def test_a_label_that_the_api_does_not_remove_does_not_block_the_release():
    story = orphaning_story()
    story.withdraw()
    events = story.fail("Refused")
    assert only(OwnershipReleased, events).reason == "Orphaned"
    assert story.outcome == "Released"
    assert "because the API rejected its removal" in outcome_message(story)
    assert story.wake(3600) == []


def test_a_label_that_the_api_restores_does_not_block_the_release():
    story = orphaning_story()
    labels = story.existing.labels
    story.withdraw()
    action = story.action
    observed_object = api_object(action.fields, uid=str(action.uid), labels=labels)
    assert only(OwnershipReleased, story.report(existing=observed_object)).reason == "Orphaned"
    assert "the API accepted the write but kept the label" in outcome_message(story)
    assert story.wake(3600) == []


def test_conflicts_do_not_block_the_release_of_an_orphan_permanently():
    story = orphaning_story()
    story.withdraw()
    for attempt in range(MAX_CONFLICTS + 1):
        assert story.outcome != "Released", attempt
        story.fail("Conflict", existing=replace(story.existing, version=f"other-{attempt}"))
    assert story.outcome == "Released"
    assert story.idle


def test_an_orphan_that_is_missing_when_its_label_is_removed_is_deleted():
    story = orphaning_story()
    story.withdraw()
    events = story.fail("NotFound")
    assert only(OwnershipReleased, events).reason == "Gone"
    assert story.outcome == "Deleted"


def test_the_label_is_removed_once_the_api_responds_again():
    story = orphaning_story()
    story.withdraw()
    first = story.action
    story.fail("Unknown")
    assert story.outcome == "Degraded"
    story.wake(3600)
    assert story.action == first
    story.succeed()
    assert story.outcome == "Released"


def test_a_declaration_during_the_removal_of_the_label_restores_it():
    story = orphaning_story()
    story.withdraw()
    story.declare(policy={"deletion": "Orphan"})
    story.succeed()
    assert OWNER_LABEL in story.action.labels
    story.succeed()
    assert story.outcome == "Converged"


@pytest.mark.parametrize(("adoption", "outcome"), [("Adopt", "Converged"), ("Refuse", "Conflict")])
def test_an_orphan_that_is_declared_again_is_adopted_or_conflicts(adoption: str, outcome: str):
    story = orphaning_story()
    story.withdraw()
    story.succeed()
    story.declare(policy={"adoption": adoption})
    if not story.idle:
        assert story.action.labels[OWNER_LABEL]
        story.succeed()
    assert story.outcome == outcome


def test_an_object_that_another_client_creates_after_an_orphan_is_unowned():
    story = orphaning_story()
    story.withdraw()
    story.succeed()
    story.observe(None)
    assert story.outcome == "Deleted"
    story.observe(api_object(uid="human-2"))
    assert story.outcome == "Unowned"


def test_observe_only_never_creates_and_reports_the_differences():
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    assert story.idle
    story.observe(None)
    assert (story.outcome, story.reason) == ("Drifted", "ObserveOnly")
    story.observe(api_object({"type": "Square", "color": "Blue"}))
    assert story.idle
    assert story.outcome == "Drifted"
    assert story.state.outcome is not None
    assert 'color: "Blue" (declared "Red")' in story.state.outcome.message


def test_observe_only_does_not_correct_drift_of_an_owned_object():
    story = converged_story()
    story.declare(policy={"mode": "ObserveOnly"})
    events = story.observe(repaint(story.existing, color="Blue"))
    assert every(DriftDetected, events)
    assert story.idle
    assert story.outcome == "Drifted"


def test_observe_only_never_deletes():
    story = converged_story()
    story.declare(policy={"mode": "ObserveOnly"})
    events = story.withdraw()
    assert only(OwnershipReleased, events).reason == "Orphaned"
    assert story.idle
    assert story.outcome == "Released"


def test_create_only_creates_once_and_then_reports_drift():
    story = Story()
    story.declare(policy={"mode": "CreateOnly"})
    assert story.action.operation == "Create"
    story.succeed()
    assert story.outcome == "Converged"
    story.observe(repaint(story.existing, color="Blue"))
    assert story.idle
    assert (story.outcome, story.reason) == ("Drifted", "CreateOnly")
    story.observe(None)
    assert story.idle
    assert story.state.outcome is not None
    assert (
        story.state.outcome.message
        == "the object is missing; not recreated (spec.policy.mode CreateOnly)"
    )


def test_create_only_creates_again_after_a_deletion_and_a_declaration():
    story = converged_story(policy={"mode": "CreateOnly"})
    story.withdraw()
    story.succeed()
    story.declare(policy={"mode": "CreateOnly"})
    assert story.action.operation == "Create"


def test_a_paused_resource_reports_drift_and_writes_nothing():
    story = Story()
    story.declare(policy={"paused": True})
    assert story.idle
    assert story.outcome == "Paused"
    story = converged_story()
    story.declare(policy={"paused": True})
    events = story.observe(repaint(story.existing, color="Blue"))
    assert every(DriftDetected, events)
    assert story.idle
    assert story.outcome == "Paused"
    story.declare()
    assert story.action.operation == "Update"


def test_a_paused_resource_does_not_start_a_new_attempt_and_reports_the_pause():
    story = Story()
    story.declare()
    story.fail("Unknown")
    story.declare(policy={"paused": True})
    story.wake(3600)
    assert story.flight.attempt == 1
    assert story.outcome == "Paused"
    story.declare()
    assert story.wake(3600) == []
    assert story.flight.attempt == 2


def test_absent_deletes_the_object():
    story = converged_story()
    story.declare(policy={"mode": "Absent"})
    assert story.action.operation == "Delete"
    story.succeed()
    assert (story.outcome, story.reason) == ("Converged", "Absent")
    assert story.wake(3600) == []


def test_absent_keeps_a_foreign_object_unless_it_may_adopt_it():
    story = Story()
    story.declare(policy={"mode": "Absent"})
    story.observe(None)
    assert story.outcome == "Converged"
    story.observe(api_object())
    assert story.idle
    assert story.outcome == "Conflict"
    story.declare(policy={"mode": "Absent", "adoption": "Adopt"})
    assert story.action.operation == "Delete"


def test_a_paused_resource_reclaims_an_object_that_a_listing_omitted():
    story = converged_story()
    story.declare({"type": "Square", "color": "Blue"}, policy={"paused": True})
    known_object = story.existing
    story.observe(None)
    events = story.observe(known_object)
    assert only(OwnershipClaimed, events).reason == "Returned"
    assert story.outcome == "Paused"
    assert story.idle


def test_the_message_about_a_released_object_names_the_release():
    story = converged_story()
    story.declare(policy={"mode": "ObserveOnly"})
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    story.declare()
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert story.state.outcome is not None
    assert "was released earlier" in story.state.outcome.message


def test_a_foreign_object_does_not_count_as_released_after_another_object_was():
    story = converged_story()
    story.declare(policy={"mode": "ObserveOnly"})
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    story.declare(annotations={EXTERNAL_NAME_ANNOTATION: "foreign"})
    foreign_object = api_object(name="foreign", uid="u9")
    story.fail("Conflict", existing=foreign_object)
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert story.state.outcome is not None
    assert "is not owned by this resource" in story.state.outcome.message
    story.withdraw()
    assert (story.outcome, story.reason) == ("Deleted", "NotOurs")
