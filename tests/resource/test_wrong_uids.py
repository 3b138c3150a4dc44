"""An object does not leak if the API returns a wrong uid for its creation."""

from __future__ import annotations

from dataclasses import replace as changed
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import ActionRetried, OwnershipClaimed, OwnershipReleased
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
from tests.resource.test_observations import UNCONDITIONAL


def story_with_wrong_uid() -> tuple[Story, ExternalObject]:
    """Return a created resource, and its object with a different uid than in the response."""
    story = converged_story()
    return story, replace(story.existing, uid="real")


assert BLOCK.capabilities is not None
BY_ID = changed(BLOCK, capabilities=replace(BLOCK.capabilities, deterministic_names=False))
"""A kind with ids from the API, so its names prove nothing."""


def story_with_wrong_uid_by_id(*, marked: bool = True) -> tuple[Story, ExternalObject]:
    """Return a resource with ids from the API; a ``marked`` object has the key of its creation."""
    story = converged_story(kind=BY_ID)
    creation = story.state.actions.ended[-1].action
    key = creation.idempotency_key if marked else "key"
    return story, replace(story.existing, uid="real", written_by=key)


def advance(story: Story, seconds: float) -> Story:
    story.now += timedelta(seconds=seconds)
    return story


def test_an_object_with_our_label_soon_after_the_creation_is_ours():
    story, created_object = story_with_wrong_uid()
    events = story.observe(created_object)
    assert only(OwnershipReleased, events).unconfirmed
    assert only(OwnershipClaimed, events) == OwnershipClaimed("Foo", "real", "Found", CONFIG)
    assert story.outcome == "Converged"
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


def test_an_object_in_the_way_of_an_update_is_ours():
    story, created_object = story_with_wrong_uid()
    story.declare({"type": "Circle"})
    events = story.fail("Conflict", existing=created_object)
    assert only(OwnershipClaimed, events).uid == "real"
    assert (story.action.operation, story.action.uid) == ("Update", "real")


def test_an_object_in_the_way_of_a_deletion_is_deleted():
    story, created_object = story_with_wrong_uid()
    story.withdraw()
    story.fail("Conflict", existing=created_object)
    assert (story.action.operation, story.action.uid) == ("Delete", "real")
    story.succeed()
    assert story.outcome == "Deleted"


@pytest.mark.parametrize("reported", [{"absent": True}, {"error": "NotFound"}])
def test_an_object_that_a_deletion_missed_is_deleted(reported: dict[str, Any]):
    story, created_object = story_with_wrong_uid()
    story.withdraw()
    if "error" in reported:
        story.fail("NotFound")
    else:
        story.report(absent=True)
    assert story.outcome == "Deleted"
    events = story.observe(created_object)
    assert only(OwnershipClaimed, events).reason == "Found"
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


def test_a_successful_deletion_ends_the_search_for_the_object():
    story, created_object = story_with_wrong_uid()
    story.withdraw()
    story.report()
    assert story.observe(created_object)
    assert story.outcome == "Disputed"


@pytest.mark.parametrize("labels", [{}, {"reconciler/owner": "log2.default.Block.Foo"}])
def test_an_object_without_our_label_is_foreign(labels: dict[str, str]):
    story, created_object = story_with_wrong_uid()
    story.observe(replace(created_object, labels=labels))
    assert story.outcome == "Conflict"
    story.withdraw()
    assert story.idle


def test_our_label_long_after_the_creation_may_be_a_copy():
    story, created_object = story_with_wrong_uid()
    advance(story, 3600).observe(created_object)
    assert not every(OwnershipClaimed, [each.data for each in story.log])
    assert story.outcome == "Conflict"


def test_a_response_without_an_object_does_not_contain_a_uid():
    story = Story()
    story.declare()
    story.report()
    story.withdraw()
    story.report(absent=True)
    story.observe(api_object(labels=owned_labels()))
    assert story.outcome == "Disputed"


def test_a_longer_resync_interval_extends_the_period():
    slow = replace(SHARED, resync_seconds=600.0)
    story = converged_story(configs={CONFIG: slow})
    created_object = replace(story.existing, uid="real")
    assert every(OwnershipClaimed, advance(story, 900).observe(created_object))


def test_an_object_with_another_uid_after_a_listing_is_foreign():
    story, created_object = story_with_wrong_uid()
    story.declare({"type": "Square"}, policy={"mode": "CreateOnly"})
    story.observe(repaint(story.existing, color="Blue"))
    story.observe(created_object)
    assert story.outcome == "Conflict"


def test_an_object_with_another_uid_after_a_write_is_foreign():
    story, created_object = story_with_wrong_uid()
    story.declare({"type": "Circle"})
    story.succeed()
    story.observe(created_object)
    assert story.outcome == "Conflict"


def test_a_label_that_our_own_write_may_have_added_proves_nothing():
    """An unconditional update with an unknown result may have reached it."""
    story = converged_story(kind=changed(BLOCK, capabilities=UNCONDITIONAL))
    first = story.existing
    story.declare({"type": "Circle"})
    story.fail("Unknown")
    story.declare({"type": "Square", "color": "Red"})
    advance(story, 30).wake()
    story.report_lookup(first)
    assert story.idle
    story.observe(replace(first, uid="h1"))
    assert story.outcome == "Conflict"


def test_without_unique_names_the_object_with_the_key_of_the_creation_is_ours():
    story, created_object = story_with_wrong_uid_by_id()
    events = story.observe(created_object)
    assert only(OwnershipReleased, events).unconfirmed
    assert only(OwnershipClaimed, events).uid == "real"
    assert story.idle, "it is not created again"
    story.observe(None, absent_uid="u1")
    assert story.outcome == "Converged", "the wrong uid is no longer ours"
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


def test_without_unique_names_an_object_with_another_key_is_not_ours():
    story, created_object = story_with_wrong_uid_by_id(marked=False)
    assert not story.observe(created_object)
    assert story.state.owned is not None


def test_without_unique_names_a_copy_made_long_after_the_creation_is_not_ours():
    story, created_object = story_with_wrong_uid_by_id()
    assert not advance(story, 3600).observe(created_object)


def test_without_unique_names_a_copy_beside_a_listed_object_is_not_ours():
    story, created_object = story_with_wrong_uid_by_id()
    story.declare({"type": "Circle"})
    story.succeed()
    assert not story.observe(created_object)


# --- an object of an abandoned creation that a listing shows only later


def story_with_superseded_creation() -> tuple[Story, ExternalObject]:
    """A creation takes effect without a response, and a newer generation creates another object."""
    story = Story(kind=BY_ID)
    story.declare()
    creation = story.action
    created_object = replace(
        story.object_after(creation), uid="late", written_by=creation.idempotency_key
    )
    for _ in range(3):
        story.fail("Unknown")
        advance(story, 3600).wake()
    story.declare({"type": "Circle"})
    story.report_lookup(None)
    assert story.action.action_id != creation.action_id
    story.succeed()
    return story, created_object


def test_the_object_of_an_abandoned_creation_is_deleted_and_ours_is_kept():
    story, created_object = story_with_superseded_creation()
    owned = story.state.owned
    assert owned is not None
    events = story.observe(created_object)
    assert not every(OwnershipReleased, events)
    assert only(OwnershipClaimed, events).uid == "late"
    assert (story.action.operation, story.action.uid) == ("Delete", "late")
    story.succeed()
    assert story.state.owned == owned
    assert story.outcome == "Converged"
    assert not story.observe(created_object), "a listing that lags shows it again"
    assert story.idle


def test_the_object_of_an_abandoned_creation_is_deleted_if_ours_is_listed_first():
    story, created_object = story_with_superseded_creation()
    story.observe(replace(story.existing, version="2"))
    assert only(OwnershipClaimed, story.observe(created_object)).uid == "late"
    assert (story.action.operation, story.action.uid) == ("Delete", "late")


def test_a_withdrawal_also_deletes_the_object_of_an_abandoned_creation():
    story, created_object = story_with_superseded_creation()
    story.declare({"type": "Circle"}, policy={"paused": True})
    story.observe(created_object)
    assert story.idle
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "late")
    story.succeed()
    assert (story.action.operation, story.action.uid) == ("Delete", "u2")
    story.succeed()
    assert story.outcome == "Deleted"


@pytest.mark.parametrize(
    "changed",
    [
        {"written_by": "another"},
        {"labels": {}},
        {"labels": {"reconciler/owner": "log2.default.Block.Foo"}},
    ],
    ids=["another key", "no label", "another label"],
)
def test_an_object_without_the_key_or_the_label_of_the_creation_is_not_ours(
    changed: dict[str, Any],
):
    story, created_object = story_with_superseded_creation()
    assert not story.observe(replace(created_object, **changed))


def test_a_copy_of_the_object_of_an_abandoned_creation_is_not_ours():
    story, created_object = story_with_superseded_creation()
    story.observe(created_object)
    story.succeed()
    assert not story.observe(replace(created_object, uid="copy"))
    assert story.idle


def test_the_objects_of_two_abandoned_creations_are_deleted():
    story, first = story_with_superseded_creation()
    story.withdraw()
    story.succeed()
    story.declare()
    second = replace(
        story.object_after(story.action), uid="later", written_by=story.action.idempotency_key
    )
    for _ in range(3):
        story.fail("Unknown")
        advance(story, 3600).wake()
    story.declare({"type": "Circle"})
    story.report_lookup(None)
    story.succeed()
    for created_object in (first, second):
        assert only(OwnershipClaimed, story.observe(created_object)).uid == created_object.uid
        assert (story.action.operation, story.action.uid) == ("Delete", created_object.uid)
        story.succeed()
    assert story.outcome == "Converged"


def test_a_throttled_repeat_of_a_superseded_creation_is_retried():
    """With its key, it returns the first call's response; a listing may not show the object yet."""
    story = Story(kind=BY_ID)
    story.declare()
    creation = story.action
    story.fail("Unknown")
    story.declare({"type": "Circle"})
    advance(story, 3600).wake()
    story.fail("Throttled")
    assert every(ActionRetried, advance(story, 3600).wake())
    assert story.action.action_id == creation.action_id
    story.succeed()
    assert (story.action.operation, story.action.uid) == ("Update", "u1")


@pytest.mark.parametrize(
    ("unique", "outcome"), [(True, "Unowned"), (False, "Disputed")], ids=["by name", "by id"]
)
def test_an_unowned_object_with_the_label_of_another_resource_is_reported(
    unique: bool, outcome: str
):
    """A name that the resource never used indicates a copy; an id does not."""
    story = Story(kind=BLOCK if unique else BY_ID)
    existing = api_object(uid="u9", labels={"reconciler/owner": "log1.default.Block.other"})
    story.observe(replace(existing, written_by="key"))
    assert (story.outcome, story.reason) == (outcome, "OwnedByAnother")


def test_the_absence_of_an_earlier_object_does_not_prove_that_no_other_exists():
    """The observer had read the released uid, so another object of the same name may exist."""
    story, _ = story_with_wrong_uid_by_id()
    uid, began = story.existing.uid, story.position
    story.declare({"type": "Square", "color": "Red"}, policy={"mode": "ObserveOnly"})
    story.observe(None, evidence="Read", as_of=began, absent_uid=uid)
    assert story.outcome == "Waiting"
    assert not story.observe(None, evidence="Read", absent_uid=uid)
    assert story.outcome == "Waiting"
    story.observe(None)
    assert story.reason == "ObserveOnly"
