"""Data that vanished with its object: no empty object replaces it without an approval."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from events.external import ExternalObject
from events.intake import Approved, LossCount, Observed
from events.log import ActionDecided, ExternalObserved, OwnershipClaimed, OwnershipReleased
from events.manifest import Fields
from tests.resource.building import (
    BLOCK,
    CONFIG,
    SHARED,
    Story,
    api_object,
    converged_story,
    every,
    only,
    owned_labels,
    repaint,
)

HELD = ("Held", "DataMissing")


def _data_loss(fields: Fields | None, observed_object: ExternalObject) -> str:
    has_data = observed_object.fields.get("color") != "Empty"
    return f"all data of {observed_object.name}" if fields is None and has_data else ""


KEEPER = replace(BLOCK, describe_data_loss=_data_loss)


def lost_story(**policy: Any) -> Story:
    """Return a resource whose object vanished 20 s after it was last recorded."""
    story = converged_story(kind=KEEPER, policy=policy or None)
    story.now += timedelta(seconds=20)
    story.observe(None)
    return story


def outcome(story: Story) -> tuple[str, str]:
    return story.outcome, story.reason


def test_45_vanished_data_is_not_replaced_by_an_empty_object():
    story = lost_story()
    assert (outcome(story), story.idle) == (HELD, True)
    assert story.outcome_message == (
        "'Foo' (uid u1), with all data of Foo, has been missing since 2026-01-01T00:00:20Z; last "
        "recorded at 2026-01-01T00:00:00Z; restore it, or approve to continue without the data, "
        "or withdraw the resource"
    )
    assert only(OwnershipReleased, [each.data for each in story.log]).lost_data == "all data of Foo"
    assert story.observe(None) == []
    assert story.wake(36_000) == []


def test_45_an_object_that_returns_ends_the_hold():
    story = lost_story()
    existing = ExternalObject("Foo", {"type": "Square", "color": "Red"}, "u1", "9", owned_labels())
    claimed = only(OwnershipClaimed, story.observe(existing))
    assert (claimed.reason, story.outcome, story.state.lost) == ("Returned", "Converged", None)
    story.now += timedelta(seconds=60)  # longer than the lag that the return may have shown
    story.observe(None, evidence="Read")
    assert outcome(story) == HELD, "it can vanish again"


def test_an_approved_loss_of_many_objects_does_not_recreate_one_with_data():
    story = converged_story(kind=KEEPER)

    def miss_many() -> None:
        losses = LossCount(12, 12)
        story.turn(
            Observed(CONFIG, story.key.name, None, "CompleteListing", story.position, losses=losses)
        )

    miss_many()
    assert outcome(story) == ("Held", "LossGuard")
    assert story.outcome_message.endswith("or approve the loss to record this one as deleted")
    story.turn(Approved("LossGuard"))
    miss_many()
    assert (outcome(story), story.idle) == (HELD, True)


def test_the_hold_names_the_object_under_its_new_name():
    story = lost_story()
    assert len(every(ExternalObserved, story.observe(None, found_as="Bar"))) == 1
    assert "a Block with its uid is now named 'Bar'; rename it back" in story.outcome_message
    assert story.observe(None, found_as="Bar") == [], "nothing is new"
    story.observe(None)
    assert "Bar" not in story.outcome_message


def test_a_renamed_object_does_not_mean_that_the_api_is_late():
    story = converged_story(kind=KEEPER)
    story.now += timedelta(seconds=20)
    story.observe(None, found_as="Bar")
    assert "named 'Bar'" in story.outcome_message
    claimed = only(OwnershipClaimed, story.observe(api_object(uid="u1", labels=owned_labels())))
    assert (claimed.grace_seconds, story.state.observed.is_listing_disproved) == (0.0, False)


def test_an_approval_lets_an_empty_object_be_created():
    story = lost_story()
    story.turn(Approved("DataMissing"))
    assert story.action.operation == "Create"
    story.succeed()
    assert story.outcome == "Converged"
    story.observe(None)
    assert outcome(story) == HELD, "an approval covers one loss"


def test_an_approval_covers_a_creation_that_must_be_corrected_first():
    story = lost_story()
    story.turn(Approved("DataMissing"))
    story.fail("Refused")
    assert story.outcome == "Failed"
    story.declare({"type": "Circle"})
    assert story.action.operation == "Create"


def test_a_withdrawal_ends_the_hold_and_creates_nothing():
    story = lost_story()
    story.withdraw()
    assert (story.outcome, story.idle) == ("Deleted", True)
    story.declare()
    assert story.action.operation == "Create", "a new declaration starts over"


@pytest.mark.parametrize("change", [{"fields": {"type": "Circle"}}, {"config": "other"}])
def test_a_changed_declaration_does_not_end_the_hold(change: dict[str, Any]):
    story = converged_story(kind=KEEPER, configs={"default": SHARED, "other": SHARED})
    story.observe(None)
    story.declare(**change)
    assert (outcome(story), story.idle) == (HELD, True)
    assert ("'Foo' (uid u1) in 'default'" in story.outcome_message) is ("config" in change)


def test_an_object_of_another_api_with_the_same_uid_is_not_the_missing_one():
    story = converged_story(kind=KEEPER, configs={"default": SHARED, "other": SHARED})
    story.observe(None)
    story.declare(config="other", policy={"adoption": "Adopt"})
    story.observe(api_object(uid="u1"), config="other")
    assert (outcome(story), story.state.owned) == (HELD, None)
    story.turn(Approved("DataMissing"))
    assert story.state.owned is not None, "the policy adopts it after the approval"


@pytest.mark.parametrize("adoption", ["Refuse", "Adopt"])
def test_an_object_that_takes_the_name_is_not_adopted_in_place_of_the_data(adoption: str):
    """A client such as `docker run` may create an empty object under the name immediately."""
    story = converged_story(kind=KEEPER, policy={"adoption": adoption})
    story.observe(api_object(uid="another"))
    assert outcome(story) == HELD
    assert "another object (uid another) now has the name 'Foo'" in story.outcome_message
    story.observe(None)
    assert (outcome(story), story.idle) == (HELD, True)
    story.observe(api_object(uid="another"))
    story.turn(Approved("DataMissing"))
    if adoption == "Refuse":
        assert outcome(story) == ("Conflict", "AlreadyExists")
    else:
        assert (story.action.operation, story.action.uid) == ("Update", "another")


def test_a_write_that_finds_no_object_detects_the_loss():
    story = converged_story(kind=KEEPER)
    story.declare({"type": "Circle"})
    story.fail("NotFound")
    assert (outcome(story), story.idle) == (HELD, True)


def test_an_object_without_data_is_recreated():
    story = converged_story(kind=KEEPER)
    story.observe(repaint(story.existing, color="Empty"))
    story.succeed(color="Empty")
    story.observe(None)
    assert story.action.operation == "Create"


def test_our_own_deletion_is_no_missing_data():
    story = converged_story(kind=replace(KEEPER, immutable=frozenset({"type"})))
    story.declare({"type": "Circle"})
    story.turn(Approved("DataLoss"))
    assert (story.action.operation, story.action.purpose) == ("Delete", "Replace")
    story.succeed()
    assert story.action.operation == "Create"


def test_create_only_reports_drift_as_before():
    story = lost_story(mode="CreateOnly")
    assert outcome(story) == ("Drifted", "CreateOnly")


def test_a_declared_absence_gives_the_data_up():
    story = lost_story()
    story.declare(policy={"mode": "Absent"})
    story.observe(None)
    assert outcome(story) == ("Converged", "Absent")
    assert every(ActionDecided, story.declare()) != []
