"""Owned, foreign and disputed objects: scenarios 5, 6, 9, 10 and 19; invariant 7."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from events.log import ActionDecided, OwnershipClaimed, OwnershipReleased
from events.provider_config import DeletionGuard, Scope
from reconciler.resource.owner_label import OWNER_LABEL
from tests.resource.building import (
    CONFIG,
    EXCLUSIVE,
    FOO_OWNER,
    SHARED,
    UNLABELED,
    Story,
    api_object,
    converged_story,
    every,
    names,
    only,
    owned_labels,
    relabel,
)

BY_LABEL = msgspec.structs.replace(SHARED, ownership="Label")
ANOTHER = {OWNER_LABEL: "log2.default.Block.Foo"}


def test_another_clients_object_in_a_shared_api_is_left_alone_and_reported():
    story = Story()
    events = story.observe(api_object())
    assert names(events) == ["ExternalObserved", "OutcomeRecorded"]
    assert story.outcome == "Unowned"
    assert story.wake(3600) == []


def test_adoption_refuse_leaves_a_foreign_object_alone():
    story = Story()
    story.observe(api_object())
    story.declare({"color": "Blue"})
    assert story.idle
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert story.wake(3600) == []
    assert story.observe(api_object()) == []


def test_adoption_refuse_applies_to_an_object_that_the_creation_finds():
    story = Story()
    story.declare({"color": "Blue"})
    story.fail("Conflict", existing=api_object())
    assert story.idle
    assert story.outcome == "Conflict"


def test_adoption_claims_without_a_creation_and_corrects_the_difference():
    story = Story()
    story.observe(api_object(uid="h1", version="7"))
    events = story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    claimed = only(OwnershipClaimed, events)
    assert (claimed.reason, claimed.uid) == ("Adopted", "h1")
    action = story.action
    assert (action.operation, action.uid, action.version) == ("Update", "h1", "7")
    assert action.fields == {"type": "Square", "color": "Blue"}
    story.succeed()
    assert story.outcome == "Converged"


def test_adoption_does_not_claim_an_object_with_another_owner():
    story = Story()
    story.observe(api_object(labels=ANOTHER))
    story.declare(policy={"adoption": "Adopt"})
    assert story.idle
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")


def test_the_object_is_created_once_the_obstacle_is_deleted():
    story = Story()
    story.observe(api_object())
    story.declare()
    story.observe(None)
    assert story.action.operation == "Create"


def test_ownership_by_label_claims_an_object_with_our_label():
    story = Story(configs={CONFIG: BY_LABEL})
    story.declare()
    events = story.fail("Conflict", existing=api_object(labels=owned_labels()))
    assert only(OwnershipClaimed, events).reason == "Label"
    assert story.outcome == "Converged"


def test_ownership_by_log_does_not_claim_an_object_with_our_label():
    story = Story()
    story.observe(api_object(labels=owned_labels()))
    story.declare()
    assert story.outcome == "Conflict"


@pytest.mark.parametrize("config", [SHARED, EXCLUSIVE], ids=["shared", "exclusive"])
def test_our_label_on_an_undeclared_object_is_disputed(config: object):
    assert config in (SHARED, EXCLUSIVE)
    story = Story(configs={CONFIG: SHARED if config is SHARED else EXCLUSIVE})
    story.observe(api_object(labels=owned_labels()), unmanaged=(1, 5))
    assert story.idle
    assert story.outcome == "Disputed"
    assert story.wake(3600) == []


def test_ownership_by_label_deletes_an_undeclared_object_with_our_label():
    story = Story(configs={CONFIG: BY_LABEL})
    story.observe_twice(api_object(uid="h1", labels=owned_labels()), unmanaged=(1, 5))
    assert (story.action.operation, story.action.uid) == ("Delete", "h1")


def test_another_owners_object_is_never_deleted_from_an_exclusive_scope():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(labels=ANOTHER), unmanaged=(1, 5))
    assert story.idle
    assert story.outcome == "Disputed"


def test_an_object_that_another_owner_claimed_is_not_deleted_on_withdrawal():
    story = converged_story(policy={"mode": "CreateOnly"})
    story.observe(relabel(story.existing, ANOTHER))
    story.withdraw()
    assert story.idle
    assert story.outcome == "Disputed"
    assert story.wake(3600) == []


def test_an_object_that_another_owner_claimed_is_not_overwritten():
    """Two owners would otherwise restore their labels endlessly."""
    story = converged_story()
    own_object = story.existing
    story.observe(relabel(own_object, ANOTHER))
    assert story.idle
    assert (story.outcome, story.reason) == ("Disputed", "OwnedByAnother")
    story.observe(relabel(own_object, owned_labels()))
    assert story.idle
    assert story.outcome == "Converged"


EMPTY = {OWNER_LABEL: ""}


@pytest.mark.parametrize("labels", [{}, EMPTY])
def test_an_owner_label_that_was_removed_or_emptied_is_restored(labels: dict[str, str]):
    story = converged_story()
    story.observe(relabel(story.existing, labels))
    assert story.action.labels == owned_labels()
    story.succeed()
    assert story.outcome == "Converged"


def test_an_empty_owner_label_is_reported_as_missing():
    story = converged_story(policy={"ownerLabel": "Report"})
    story.observe(relabel(story.existing, EMPTY))
    assert story.idle
    assert (story.outcome, story.reason) == ("Disputed", "LabelMissing")


def test_an_object_with_an_empty_owner_label_can_be_adopted():
    story = Story()
    story.observe(api_object(labels=EMPTY))
    events = story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    assert only(OwnershipClaimed, events).reason == "Adopted"
    assert story.action.labels == owned_labels()


@pytest.mark.parametrize("labels", [{}, EMPTY])
def test_an_object_without_its_owner_label_is_deleted_on_withdrawal(labels: dict[str, str]):
    story = converged_story(policy={"mode": "CreateOnly"})
    story.observe(relabel(story.existing, labels))
    story.withdraw()
    assert story.action.operation == "Delete"


def test_an_object_with_another_uid_is_another_object():
    story = converged_story()
    events = story.observe(api_object(uid="human-2"))
    assert only(OwnershipReleased, events).reason == "Replaced"
    assert story.idle
    assert story.outcome == "Conflict"
    story.withdraw()
    assert story.idle
    assert (story.outcome, story.reason) == ("Deleted", "NotOurs")


def test_a_withdrawal_that_finds_another_object_is_reported_once():
    story = converged_story()
    story.observe(api_object(uid="human-2"))
    story.withdraw()
    assert story.wake(3600) == []
    assert story.observe(api_object(uid="human-2")) == []


def test_an_object_that_another_client_creates_after_a_deletion_is_unowned():
    story = converged_story()
    story.withdraw()
    story.succeed()
    assert story.outcome == "Deleted"
    story.observe(api_object(uid="human-2"))
    assert story.idle
    assert story.outcome == "Unowned"
    assert story.wake(3600) == []


def test_a_deletion_that_finds_another_object_leaves_it_alone():
    story = converged_story()
    story.withdraw()
    events = story.fail("Conflict", existing=api_object(uid="human-2"))
    assert only(OwnershipReleased, events).reason == "Replaced"
    assert story.idle
    assert story.outcome == "Deleted"


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_an_object_without_the_uid_that_a_write_requires_is_not_ours(is_withdrawn: bool):
    """Some APIs have no ids: the uid is in the object's metadata, which any client may remove."""
    story = converged_story()
    bare = replace(relabel(story.existing, {}), uid=None)
    if is_withdrawn:
        story.withdraw()
    else:
        story.observe(bare)
        assert story.action.operation == "Update"
    events = story.fail("Conflict", existing=bare)
    assert only(OwnershipReleased, events).reason == "Replaced"
    for _ in range(2):
        assert story.idle
        assert story.outcome == ("Deleted" if is_withdrawn else "Conflict")
        story.observe(bare)


# --- exclusive scope


def test_an_unmanaged_object_in_an_exclusive_scope_is_deleted():
    story = Story(configs={CONFIG: EXCLUSIVE})
    events = story.observe_twice(api_object(uid="h1"), unmanaged=(1, 5))
    assert only(OwnershipClaimed, events).reason == "ExclusiveScope"
    assert (story.action.operation, story.action.uid) == ("Delete", "h1")
    story.succeed()
    assert story.idle
    assert story.wake(3600) == []


@pytest.mark.parametrize(
    ("unmanaged", "removed"),
    [((2, 9), True), ((3, 9), False), ((2, 10), True), ((0, 9), False)],
)
def test_the_guard_allows_a_few_deletions_of_unmanaged_objects(
    unmanaged: tuple[int, int], removed: bool
):
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe_twice(api_object(), unmanaged=unmanaged)
    assert story.idle is not removed
    assert (story.outcome == "Held") is not removed


def test_the_guard_applies_percentages_to_scopes_of_ten_or_more_objects():
    many = msgspec.structs.replace(
        EXCLUSIVE,
        deletion_guard=msgspec.structs.replace(EXCLUSIVE.deletion_guard, max_count=100),
    )
    for unmanaged, total, removed in [(3, 10, True), (4, 10, False), (9, 9, True)]:
        story = Story(configs={CONFIG: many})
        story.observe_twice(api_object(), unmanaged=(unmanaged, total))
        assert story.idle is not removed


def test_a_held_unmanaged_object_is_deleted_after_a_listing_with_lower_counts():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(), unmanaged=(5, 9))
    assert story.outcome == "Held"
    assert story.observe(api_object(), unmanaged=(5, 9)) == []
    story.observe_twice(api_object(), unmanaged=(1, 9))
    assert story.action.operation == "Delete"


def test_an_unmanaged_object_that_was_not_counted_is_held():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object())
    assert story.outcome == "Held"


def test_a_declared_object_in_an_exclusive_scope_is_ours_and_not_unmanaged():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.declare()
    claimed = only(OwnershipClaimed, story.fail("Conflict", existing=api_object()))
    assert claimed.reason == "ExclusiveScope"
    assert story.action.operation == "Update"


def test_an_adopted_and_orphaned_object_in_an_exclusive_scope_is_kept():
    story = Story(configs={CONFIG: EXCLUSIVE}, kind=UNLABELED)
    story.observe(api_object(), unmanaged=(3, 5))
    policy = {"adoption": "Adopt", "deletion": "Orphan"}
    story.declare({"type": "Square", "color": "Red"}, policy=policy)
    story.observe(api_object(), belongs_to="")
    assert story.outcome == "Converged"
    story.observe(api_object({"type": "Square", "color": "Red", "note": 1}), unmanaged=(1, 5))
    events = story.withdraw()
    assert [each.reason for each in every(OwnershipReleased, events)] == ["Orphaned"]
    assert story.outcome == "Released"
    assert story.wake(3600) == []


def test_the_scope_of_the_observed_configuration_applies():
    story = Story(configs={CONFIG: SHARED, "mine": EXCLUSIVE})
    story.declare()
    story.succeed()
    story.withdraw()
    story.succeed()
    story.observe_twice(api_object(uid="h9"), config="mine", unmanaged=(1, 5))
    assert story.action.operation == "Delete"
    assert story.action.provider_config == "mine"


@pytest.mark.parametrize("scope", [{"prefix": "team-"}, {"labels": {"team": "a"}}])
def test_an_object_outside_of_a_narrowed_exclusive_scope_is_unowned(
    scope: dict[str, Any],
):
    story = Story(configs={CONFIG: replace(EXCLUSIVE, deletion_guard=DeletionGuard(max_count=0))})
    story.observe(api_object(), unmanaged=(1, 1))
    assert story.reason == "DeletionGuard"
    narrow = Scope(mode="Exclusive", **scope)
    story.configs[CONFIG] = replace(EXCLUSIVE, scope=narrow)
    assert every(ActionDecided, story.wake()) == []
    assert story.outcome == "Unowned"


def test_the_owner_label_names_the_log_and_the_resource():
    assert FOO_OWNER == "log1.default.Block.Foo"


def test_an_object_that_a_listing_wrongly_omitted_is_claimed_again():
    story = converged_story()
    existing = story.existing
    story.observe(None)
    assert story.action.operation == "Create"
    events = story.fail("Conflict", existing=existing)
    assert only(OwnershipClaimed, events).reason == "Returned"
    assert story.outcome == "Converged"
    assert not story.observe(None), "listings have been wrong about this object before"


def test_an_object_that_was_wrongly_reported_as_replaced_is_claimed_again():
    story = converged_story()
    existing = story.existing
    events = story.observe(replace(existing, uid="forged", labels={}))
    assert only(OwnershipReleased, events).reason == "Replaced"
    assert story.outcome == "Conflict"
    assert only(OwnershipClaimed, story.observe(existing)).reason == "Returned"
    assert story.outcome == "Converged"
