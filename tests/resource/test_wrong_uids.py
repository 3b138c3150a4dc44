"""An API answers a creation with a wrong uid: the object that it has made must not leak."""

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
    converged,
    every,
    only,
    owned_labels,
    repainted,
    thing,
)
from tests.resource.test_observations import UNCONDITIONAL


def created() -> tuple[Story, ExternalObject]:
    """A resource is created; the API shows the object with another uid than its answer had."""
    story = converged()
    return story, replace(story.existing, uid="real")


assert BLOCK.capabilities is not None
BY_ID = changed(BLOCK, capabilities=replace(BLOCK.capabilities, deterministic_names=False))
"""A kind whose ids the API makes: its names prove nothing."""


def created_by_id(*, marked: bool = True) -> tuple[Story, ExternalObject]:
    """The API makes the ids; the object carries the key of its creation if it is ``marked``."""
    story = converged(kind=BY_ID)
    created = story.state.actions.ended[-1].action
    key = created.idempotency_key if marked else "key"
    return story, replace(story.existing, uid="real", written_by=key)


def later(story: Story, seconds: float) -> Story:
    story.now += timedelta(seconds=seconds)
    return story


def test_the_object_that_carries_our_label_soon_after_is_ours():
    story, created_object = created()
    events = story.see(created_object)
    assert only(OwnershipReleased, events).unconfirmed
    assert only(OwnershipClaimed, events) == OwnershipClaimed("Foo", "real", "Found", CONFIG)
    assert story.outcome == "Converged"
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


def test_the_object_that_stands_in_the_way_of_an_update_is_ours():
    story, created_object = created()
    story.declare({"type": "Circle"})
    events = story.fail("Conflict", shown=created_object)
    assert only(OwnershipClaimed, events).uid == "real"
    assert (story.action.operation, story.action.uid) == ("Update", "real")


def test_the_object_that_stands_in_the_way_of_a_deletion_is_deleted():
    story, created_object = created()
    story.withdraw()
    story.fail("Conflict", shown=created_object)
    assert (story.action.operation, story.action.uid) == ("Delete", "real")
    story.succeed()
    assert story.outcome == "Deleted"


@pytest.mark.parametrize("answer", [{"absent": True}, {"error": "NotFound"}])
def test_the_object_that_a_deletion_has_not_met_is_deleted(answer: dict[str, Any]):
    story, created_object = created()
    story.withdraw()
    if "error" in answer:
        story.fail("NotFound")
    else:
        story.report(absent=True)
    assert story.outcome == "Deleted"
    events = story.see(created_object)
    assert only(OwnershipClaimed, events).reason == "Found"
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


def test_a_deletion_that_deletes_leaves_nothing_to_look_for():
    story, created_object = created()
    story.withdraw()
    story.report()
    assert story.see(created_object)
    assert story.outcome == "Disputed"


@pytest.mark.parametrize("labels", [{}, {"reconciler/owner": "log2.default.Block.Foo"}])
def test_without_our_label_it_is_another_clients(labels: dict[str, str]):
    story, created_object = created()
    story.see(replace(created_object, labels=labels))
    assert story.outcome == "Conflict"
    story.withdraw()
    assert story.idle


def test_long_after_the_creation_our_label_may_be_a_copy():
    story, created_object = created()
    later(story, 3600).see(created_object)
    assert not every(OwnershipClaimed, [each.data for each in story.log])
    assert story.outcome == "Conflict"


def test_an_api_that_answers_without_an_object_has_named_no_uid():
    story = Story()
    story.declare()
    story.report()
    story.withdraw()
    story.report(absent=True)
    story.see(thing(labels=owned_labels()))
    assert story.outcome == "Disputed"


def test_a_slow_api_has_more_time():
    slow = replace(SHARED, resync_seconds=600.0)
    story = converged(configs={CONFIG: slow})
    created_object = replace(story.existing, uid="real")
    assert every(OwnershipClaimed, later(story, 900).see(created_object))


def test_once_a_look_has_shown_the_uid_another_one_is_another_object():
    story, created_object = created()
    story.declare({"type": "Square"}, policy={"mode": "CreateOnly"})
    story.see(repainted(story.existing, color="Blue"))
    story.see(created_object)
    assert story.outcome == "Conflict"


def test_once_a_write_has_met_the_uid_another_one_is_another_object():
    story, created_object = created()
    story.declare({"type": "Circle"})
    story.succeed()
    story.see(created_object)
    assert story.outcome == "Conflict"


def test_a_label_that_our_own_write_may_have_put_on_it_proves_nothing():
    """An update of unknown result, which the API does not bind to an object, may have met it."""
    story = converged(kind=changed(BLOCK, capabilities=UNCONDITIONAL))
    first = story.existing
    story.declare({"type": "Circle"})
    story.fail("Unknown")
    story.declare({"type": "Square", "color": "Red"})
    later(story, 30).wake()
    story.look(first)
    assert story.idle
    story.see(replace(first, uid="h1"))
    assert story.outcome == "Conflict"


def test_without_unique_names_the_object_with_the_key_of_the_creation_is_ours():
    story, created_object = created_by_id()
    events = story.see(created_object)
    assert only(OwnershipReleased, events).unconfirmed
    assert only(OwnershipClaimed, events).uid == "real"
    assert story.idle, "it is not created again"
    story.see(None, absent_uid="u1")
    assert story.outcome == "Converged", "the wrong uid is not ours any more"
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "real")


def test_without_unique_names_an_object_with_another_key_is_not_ours():
    story, created_object = created_by_id(marked=False)
    assert not story.see(created_object)
    assert story.state.owned is not None


def test_without_unique_names_a_copy_made_long_after_the_creation_is_not_ours():
    story, created_object = created_by_id()
    assert not later(story, 3600).see(created_object)


def test_without_unique_names_a_copy_beside_a_listed_object_is_not_ours():
    story, created_object = created_by_id()
    story.declare({"type": "Circle"})
    story.succeed()
    assert not story.see(created_object)


# --- an object of a creation that was abandoned, of which a listing shows nothing until later


def superseded() -> tuple[Story, ExternalObject]:
    """A creation takes effect without a response, and a newer generation creates another object."""
    story = Story(kind=BY_ID)
    story.declare()
    creation = story.action
    created_object = replace(
        story.written(creation), uid="late", written_by=creation.idempotency_key
    )
    for _ in range(3):
        story.fail("Unknown")
        later(story, 3600).wake()
    story.declare({"type": "Circle"})
    story.look(None)
    assert story.action.action_id != creation.action_id
    story.succeed()
    return story, created_object


def test_the_object_of_an_abandoned_creation_is_deleted_and_ours_stays():
    story, created_object = superseded()
    owned = story.state.owned
    assert owned is not None
    events = story.see(created_object)
    assert not every(OwnershipReleased, events)
    assert only(OwnershipClaimed, events).uid == "late"
    assert (story.action.operation, story.action.uid) == ("Delete", "late")
    story.succeed()
    assert story.state.owned == owned
    assert story.outcome == "Converged"
    assert not story.see(created_object), "a listing that lags shows it again"
    assert story.idle


def test_the_object_of_an_abandoned_creation_is_deleted_though_ours_was_listed_first():
    story, created_object = superseded()
    story.see(replace(story.existing, version="2"))
    assert only(OwnershipClaimed, story.see(created_object)).uid == "late"
    assert (story.action.operation, story.action.uid) == ("Delete", "late")


def test_a_withdrawal_deletes_the_object_of_an_abandoned_creation_as_well():
    story, created_object = superseded()
    story.declare({"type": "Circle"}, policy={"paused": True})
    story.see(created_object)
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
def test_an_object_without_the_key_or_the_label_of_an_abandoned_creation_is_not_ours(
    changed: dict[str, Any],
):
    story, created_object = superseded()
    assert not story.see(replace(created_object, **changed))


def test_a_copy_of_the_object_of_an_abandoned_creation_is_not_ours():
    story, created_object = superseded()
    story.see(created_object)
    story.succeed()
    assert not story.see(replace(created_object, uid="copy"))
    assert story.idle


def test_the_objects_of_two_abandoned_creations_are_deleted():
    story, first = superseded()
    story.withdraw()
    story.succeed()
    story.declare()
    second = replace(
        story.written(story.action), uid="later", written_by=story.action.idempotency_key
    )
    for _ in range(3):
        story.fail("Unknown")
        later(story, 3600).wake()
    story.declare({"type": "Circle"})
    story.look(None)
    story.succeed()
    for created_object in (first, second):
        assert only(OwnershipClaimed, story.see(created_object)).uid == created_object.uid
        assert (story.action.operation, story.action.uid) == ("Delete", created_object.uid)
        story.succeed()
    assert story.outcome == "Converged"


def test_a_throttled_repetition_of_a_superseded_creation_is_repeated_until_it_is_answered():
    """Its key gets the response of the first call; a listing may not show the object yet."""
    story = Story(kind=BY_ID)
    story.declare()
    creation = story.action
    story.fail("Unknown")
    story.declare({"type": "Circle"})
    later(story, 3600).wake()
    story.fail("Throttled")
    assert every(ActionRetried, later(story, 3600).wake())
    assert story.action.action_id == creation.action_id
    story.succeed()
    assert (story.action.operation, story.action.uid) == ("Update", "u1")


@pytest.mark.parametrize(
    ("unique", "outcome"), [(True, "Unowned"), (False, "Disputed")], ids=["by name", "by id"]
)
def test_an_object_that_nobody_has_with_the_label_of_a_resource_of_its_kind(
    unique: bool, outcome: str
):
    """A name that the resource never used shows a copy; an id does not."""
    story = Story(kind=BLOCK if unique else BY_ID)
    existing = thing(uid="u9", labels={"reconciler/owner": "log1.default.Block.other"})
    story.see(replace(existing, written_by="key"))
    assert (story.outcome, story.reason) == (outcome, "OwnedByAnother")


def test_that_an_earlier_object_is_absent_does_not_show_that_no_other_exists():
    """The observer had read the released uid: an object of the same name may exist all the time."""
    story, _ = created_by_id()
    uid, began = story.existing.uid, story.position
    story.declare({"type": "Square", "color": "Red"}, policy={"mode": "ObserveOnly"})
    story.see(None, evidence="Read", as_of=began, absent_uid=uid)
    assert story.outcome == "Waiting"
    assert not story.see(None, evidence="Read", absent_uid=uid)
    assert story.outcome == "Waiting"
    story.see(None)
    assert story.reason == "ObserveOnly"
