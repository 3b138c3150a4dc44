"""Deletion, modes and pause: scenarios 7, 20 and 21, and ``Absent``."""

from __future__ import annotations

from events.log import ActionDecided, DriftDetected, OwnershipClaimed, OwnershipReleased
from tests.shape.building import (
    Story,
    converged,
    every,
    names,
    only,
    owned_labels,
    repainted,
    thing,
)


def test_a_withdrawn_shape_is_deleted_with_its_uid():
    story = converged()
    uid = story.seen.uid
    assert names(story.withdraw()) == ["SpecWithdrawn", "ActionDecided"]
    assert (story.action.operation, story.action.uid) == ("Delete", uid)
    assert names(story.succeed()) == ["ActionSucceeded", "OutcomeRecorded"]
    assert story.outcomes()[-1] == ("Deleted", 2)
    assert story.wake(3600) == []


def test_a_shape_withdrawn_while_it_is_created_is_deleted_afterwards():
    story = Story()
    story.declare()
    assert names(story.withdraw()) == ["SpecWithdrawn", "GenerationSuperseded"]
    events = story.succeed()
    assert only(ActionDecided, events).action.operation == "Delete"
    story.succeed()
    assert story.outcomes() == [("Deleted", 2)]


def test_a_withdrawn_shape_that_is_gone_already_needs_no_call():
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


def test_a_shape_declared_again_after_its_deletion_lives_again():
    story = converged()
    story.withdraw()
    story.succeed()
    story.declare()
    assert story.action.operation == "Create"
    story.succeed()
    assert story.outcomes() == [("Converged", 1), ("Deleted", 2), ("Converged", 3)]


def test_an_orphan_is_released_and_stays():
    story = converged(policy={"deletion": "Orphan"})
    events = story.withdraw()
    assert only(OwnershipReleased, events).reason == "Orphaned"
    assert story.idle
    assert story.outcomes()[-1] == ("Released", 2)
    assert story.wake(3600) == []
    assert names(story.see(repainted(story.seen, color="Green"))) == ["ExternalObserved"]


def test_an_orphan_that_was_only_adopted_is_released_too():
    story = Story()
    found = thing(labels=owned_labels())
    story.see(found)
    story.declare(policy={"adoption": "Adopt", "deletion": "Orphan"})
    assert story.outcome == "Converged"
    story.withdraw()
    assert story.outcome == "Released"
    assert story.wake(3600) == []


def test_what_a_human_makes_after_an_orphan_is_gone_is_unowned():
    story = converged(policy={"deletion": "Orphan"})
    story.withdraw()
    story.see(None)
    assert story.outcome == "Deleted"
    story.see(thing(uid="human-2"))
    assert story.outcome == "Unowned"


def test_observe_only_never_creates_and_says_what_it_would_do():
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    assert story.idle
    assert (story.outcome, story.reason) == ("Drifted", "ObserveOnly")
    story.see(thing({"type": "Square", "color": "Blue"}))
    assert story.idle
    assert story.outcome == "Drifted"
    assert story.state.outcome is not None
    assert "color: 'Blue' (declared 'Red')" in story.state.outcome.message


def test_observe_only_leaves_drift_of_an_owned_object():
    story = converged()
    story.declare(policy={"mode": "ObserveOnly"})
    events = story.see(repainted(story.seen, color="Blue"))
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
    story.see(repainted(story.seen, color="Blue"))
    assert story.idle
    assert (story.outcome, story.reason) == ("Drifted", "CreateOnly")
    story.see(None)
    assert story.idle
    assert story.state.outcome is not None
    assert story.state.outcome.message == "it is gone; would create it again"


def test_create_only_makes_it_again_in_a_new_life():
    story = converged(policy={"mode": "CreateOnly"})
    story.withdraw()
    story.succeed()
    story.declare(policy={"mode": "CreateOnly"})
    assert story.action.operation == "Create"


def test_a_paused_shape_reports_and_does_nothing():
    story = Story()
    story.declare(policy={"paused": True})
    assert story.idle
    assert story.outcome == "Paused"
    story = converged()
    story.declare(policy={"paused": True})
    events = story.see(repainted(story.seen, color="Blue"))
    assert every(DriftDetected, events)
    assert story.idle
    assert story.outcome == "Paused"
    story.declare()
    assert story.action.operation == "Update"


def test_a_paused_shape_starts_no_new_attempt_and_says_so():
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
    assert story.outcome == "Converged"
    story.see(thing())
    assert story.idle
    assert story.outcome == "Conflict"
    story.declare(policy={"mode": "Absent", "adoption": "Adopt"})
    assert story.action.operation == "Delete"


def test_an_object_that_a_listing_had_missed_is_ours_again_though_the_shape_is_paused():
    story = converged()
    story.declare({"type": "Square", "color": "Blue"}, policy={"paused": True})
    known = story.seen
    story.see(None)
    events = story.see(known)
    assert only(OwnershipClaimed, events).reason == "Returned"
    assert story.outcome == "Paused"
    assert story.idle
