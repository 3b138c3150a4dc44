"""Deletion, modes and pause: scenarios 7, 20 and 21, and ``Absent``."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from events.log import ActionDecided, DriftDetected, OwnershipClaimed, OwnershipReleased
from reconciler.resource.attempt import MAX_CONFLICTS
from reconciler.resource.owner_label import OWNER_LABEL
from tests.resource.building import (
    BLOCK,
    CONFIG,
    EXCLUSIVE,
    Story,
    converged,
    every,
    names,
    only,
    owned_labels,
    relabelled,
    repainted,
    thing,
)


def test_a_withdrawn_resource_is_deleted_with_its_uid():
    story = converged()
    uid = story.existing.uid
    assert names(story.withdraw()) == ["SpecWithdrawn", "ActionDecided"]
    assert (story.action.operation, story.action.uid) == ("Delete", uid)
    assert names(story.succeed()) == ["ActionSucceeded", "OutcomeRecorded"]
    assert story.outcomes()[-1] == ("Deleted", 2)
    assert story.wake(3600) == []


def test_a_resource_withdrawn_while_it_is_created_is_deleted_afterwards():
    story = Story()
    story.declare()
    assert names(story.withdraw()) == ["SpecWithdrawn", "GenerationSuperseded"]
    events = story.succeed()
    assert only(ActionDecided, events).action.operation == "Delete"
    story.succeed()
    assert story.outcomes() == [("Deleted", 2)]


def test_a_withdrawn_resource_that_is_gone_already_needs_no_call():
    story = converged()
    story.declare(policy={"mode": "CreateOnly"})
    story.see(None)
    story.withdraw()
    assert story.idle
    assert story.outcome == "Deleted"


def test_a_delete_that_finds_nothing_is_done():
    story = converged()
    story.withdraw()
    story.fail("NotFound")
    assert story.idle
    assert story.outcome == "Deleted"


def test_a_resource_declared_again_after_its_deletion_lives_again():
    story = converged()
    story.withdraw()
    story.succeed()
    story.declare()
    assert story.action.operation == "Create"
    story.succeed()
    assert story.outcomes() == [("Converged", 1), ("Deleted", 2), ("Converged", 3)]


def message_of(story: Story) -> str:
    assert story.state.outcome is not None
    return story.state.outcome.message


def orphan(**policy: str | bool) -> Story:
    """Give a resource that was made, and whose object stays when it is withdrawn."""
    return converged(policy={"deletion": "Orphan", **policy})


def test_an_orphan_is_released_and_stays():
    story = orphan()
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
    assert message_of(story) == "the object stays in the API, and Reconciler no longer manages it"
    assert story.outcomes()[-1] == ("Released", 2)
    assert story.wake(3600) == []
    assert names(story.see(repainted(story.existing, color="Green"))) == ["ExternalObserved"]


def test_an_orphan_that_a_listing_has_left_out_is_not_unmanaged_when_it_is_listed_again():
    story = orphan()
    story.configs[CONFIG] = EXCLUSIVE
    story.withdraw()
    story.succeed()
    kept_object = story.existing
    story.see(None)
    assert story.outcome == "Deleted"
    assert not every(OwnershipClaimed, story.see_twice(kept_object, unmanaged=(1, 60)))
    assert story.outcome == "Released"


def test_an_orphan_that_a_read_has_shown_to_be_missing_is_forgotten():
    """Where an object's name serves as its id, a later object is another client's."""
    story = orphan()
    story.configs[CONFIG] = EXCLUSIVE
    story.withdraw()
    story.succeed()
    kept_object = story.existing
    story.see(None, evidence="Read")
    assert (
        only(OwnershipClaimed, story.see_twice(kept_object, unmanaged=(1, 60))).uid
        == kept_object.uid
    )


def test_an_orphan_that_was_only_adopted_is_released_too():
    story = Story()
    existing = thing(labels=owned_labels())
    story.see(existing)
    story.declare(policy={"adoption": "Adopt", "deletion": "Orphan"})
    assert story.outcome == "Converged"
    story.withdraw()
    assert OWNER_LABEL not in story.action.labels
    story.succeed()
    assert story.outcome == "Released"
    assert story.wake(3600) == []


def test_the_drift_of_an_orphan_is_not_corrected_with_its_label():
    story = orphan(mode="CreateOnly")
    story.see(repainted(story.existing, color="Blue"))
    story.withdraw()
    assert story.action.fields["color"] == "Blue"
    story.succeed()
    assert story.outcome == "Released"


def test_an_orphan_whose_label_is_gone_already_is_released_without_a_call():
    story = orphan(ownerLabel="Report")
    story.see(relabelled(story.existing, {}))
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle


def test_an_orphan_whose_labels_are_fixed_is_released_without_a_call():
    story = Story(kind=dataclasses.replace(BLOCK, immutable=frozenset({"labels"})))
    story.declare(policy={"deletion": "Orphan"})
    story.succeed()
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle
    assert message_of(story).endswith("it still has its owner label")


def test_an_out_of_band_change_is_a_drift_where_labels_are_fixed_too():
    story = Story(kind=dataclasses.replace(BLOCK, immutable=frozenset({"labels"})))
    story.declare()
    story.succeed()
    drift = only(DriftDetected, story.see(repainted(story.existing, color="Green")))
    assert [each.path for each in drift.differences] == ["color"]


def test_nothing_is_written_to_an_orphan_that_is_paused_or_disputed():
    story = orphan()
    story.declare(policy={"deletion": "Orphan", "paused": True})
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle
    assert message_of(story).endswith("no longer manages it; it still has its owner label")

    story = orphan()
    story.see(relabelled(story.existing, {OWNER_LABEL: "another.default.Block.foo"}))
    assert story.outcome == "Disputed"
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    assert story.idle


def test_a_label_that_the_api_does_not_remove_does_not_hold_the_release():
    story = orphan()
    story.withdraw()
    events = story.fail("Refused")
    assert only(OwnershipReleased, events).reason == "Orphaned"
    assert story.outcome == "Released"
    assert "because the API rejected its removal" in message_of(story)
    assert story.wake(3600) == []


def test_a_label_that_the_api_puts_back_does_not_hold_the_release():
    story = orphan()
    labels = story.existing.labels
    story.withdraw()
    action = story.action
    observed_object = thing(action.fields, uid=str(action.uid), labels=labels)
    assert only(OwnershipReleased, story.report(shown=observed_object)).reason == "Orphaned"
    assert "the API accepted the write but kept the label" in message_of(story)
    assert story.wake(3600) == []


def test_conflicts_do_not_hold_the_release_of_an_orphan_for_ever():
    story = orphan()
    story.withdraw()
    for tries in range(MAX_CONFLICTS + 1):
        assert story.outcome != "Released", tries
        story.fail("Conflict", shown=replace(story.existing, version=f"other-{tries}"))
    assert story.outcome == "Released"
    assert story.idle


def test_an_orphan_that_is_gone_when_its_label_is_taken_off_is_just_gone():
    story = orphan()
    story.withdraw()
    events = story.fail("NotFound")
    assert only(OwnershipReleased, events).reason == "Gone"
    assert story.outcome == "Deleted"


def test_an_api_that_is_away_has_the_label_taken_off_later():
    story = orphan()
    story.withdraw()
    first = story.action
    story.fail("Unknown")
    assert story.outcome == "Degraded"
    story.wake(3600)
    assert story.action == first
    story.succeed()
    assert story.outcome == "Released"


def test_what_is_declared_again_while_its_label_is_taken_off_gets_it_back():
    story = orphan()
    story.withdraw()
    story.declare(policy={"deletion": "Orphan"})
    story.succeed()
    assert OWNER_LABEL in story.action.labels
    story.succeed()
    assert story.outcome == "Converged"


@pytest.mark.parametrize(("adoption", "outcome"), [("Adopt", "Converged"), ("Refuse", "Conflict")])
def test_an_orphan_that_is_declared_again_is_adopted_or_conflicts(adoption: str, outcome: str):
    story = orphan()
    story.withdraw()
    story.succeed()
    story.declare(policy={"adoption": adoption})
    if not story.idle:
        assert story.action.labels[OWNER_LABEL]
        story.succeed()
    assert story.outcome == outcome


def test_what_a_human_makes_after_an_orphan_is_gone_is_unowned():
    story = orphan()
    story.withdraw()
    story.succeed()
    story.see(None)
    assert story.outcome == "Deleted"
    story.see(thing(uid="human-2"))
    assert story.outcome == "Unowned"


def test_observe_only_never_creates_and_says_what_it_would_do():
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    assert story.idle
    story.see(None)
    assert (story.outcome, story.reason) == ("Drifted", "ObserveOnly")
    story.see(thing({"type": "Square", "color": "Blue"}))
    assert story.idle
    assert story.outcome == "Drifted"
    assert story.state.outcome is not None
    assert 'color: "Blue" (declared "Red")' in story.state.outcome.message


def test_observe_only_leaves_drift_of_an_owned_object():
    story = converged()
    story.declare(policy={"mode": "ObserveOnly"})
    events = story.see(repainted(story.existing, color="Blue"))
    assert every(DriftDetected, events)
    assert story.idle
    assert story.outcome == "Drifted"


def test_observe_only_never_deletes():
    story = converged()
    story.declare(policy={"mode": "ObserveOnly"})
    events = story.withdraw()
    assert only(OwnershipReleased, events).reason == "Orphaned"
    assert story.idle
    assert story.outcome == "Released"


def test_create_only_makes_it_once_and_then_reports():
    story = Story()
    story.declare(policy={"mode": "CreateOnly"})
    assert story.action.operation == "Create"
    story.succeed()
    assert story.outcome == "Converged"
    story.see(repainted(story.existing, color="Blue"))
    assert story.idle
    assert (story.outcome, story.reason) == ("Drifted", "CreateOnly")
    story.see(None)
    assert story.idle
    assert story.state.outcome is not None
    assert (
        story.state.outcome.message
        == "the object is missing; not recreated (spec.policy.mode CreateOnly)"
    )


def test_create_only_makes_it_again_in_a_new_life():
    story = converged(policy={"mode": "CreateOnly"})
    story.withdraw()
    story.succeed()
    story.declare(policy={"mode": "CreateOnly"})
    assert story.action.operation == "Create"


def test_a_paused_resource_reports_and_does_nothing():
    story = Story()
    story.declare(policy={"paused": True})
    assert story.idle
    assert story.outcome == "Paused"
    story = converged()
    story.declare(policy={"paused": True})
    events = story.see(repainted(story.existing, color="Blue"))
    assert every(DriftDetected, events)
    assert story.idle
    assert story.outcome == "Paused"
    story.declare()
    assert story.action.operation == "Update"


def test_a_paused_resource_starts_no_new_attempt_and_reports_it():
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


def test_absent_keeps_it_away():
    story = converged()
    story.declare(policy={"mode": "Absent"})
    assert story.action.operation == "Delete"
    story.succeed()
    assert (story.outcome, story.reason) == ("Converged", "Absent")
    assert story.wake(3600) == []


def test_absent_leaves_what_is_not_ours_unless_it_may_adopt():
    story = Story()
    story.declare(policy={"mode": "Absent"})
    story.see(None)
    assert story.outcome == "Converged"
    story.see(thing())
    assert story.idle
    assert story.outcome == "Conflict"
    story.declare(policy={"mode": "Absent", "adoption": "Adopt"})
    assert story.action.operation == "Delete"


def test_an_object_that_a_listing_had_missed_is_ours_again_though_the_resource_is_paused():
    story = converged()
    story.declare({"type": "Square", "color": "Blue"}, policy={"paused": True})
    known_object = story.existing
    story.see(None)
    events = story.see(known_object)
    assert only(OwnershipClaimed, events).reason == "Returned"
    assert story.outcome == "Paused"
    assert story.idle


def test_an_object_released_untouched_differs_from_one_never_owned():
    story = converged()
    story.declare(policy={"mode": "ObserveOnly"})
    assert only(OwnershipReleased, story.withdraw()).reason == "Orphaned"
    story.declare()
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert story.state.outcome is not None
    assert "was released earlier" in story.state.outcome.message
