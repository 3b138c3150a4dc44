"""An object that another resource of the log has is that one's: nothing is claimed or deleted."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from events.intake import Observed, UnmanagedCount, Withdrawn
from events.log import (
    ActionDecided,
    DriftDetected,
    OwnershipClaimed,
    OwnershipReleased,
)
from events.manifest import EXTERNAL_NAME_ANNOTATION
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from reconciler.provider import Capabilities
from reconciler.resource.owner_label import OWNER_LABEL, owner
from tests.resource.building import (
    BLOCK,
    CONFIG,
    EXCLUSIVE,
    LOG_ID,
    SHARED,
    UNLABELLED,
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

ANOTHER = "team/Shape/y"
UNCONDITIONAL = dataclasses.replace(
    BLOCK,
    capabilities=Capabilities(
        idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=False
    ),
)


def test_what_another_resource_declares_is_not_unmanaged():
    story = Story(configs={CONFIG: EXCLUSIVE})
    events = story.see(thing(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")
    events = story.see(
        repainted(thing(uid="h1"), color="Blue"), unmanaged=(1, 60), belongs_to=ANOTHER
    )
    assert names(events) == ["ExternalObserved"]


def test_an_object_that_no_resource_has_is_unmanaged():
    story = Story(configs={CONFIG: EXCLUSIVE})
    there = thing(uid="h1")
    story.see(there, unmanaged=(0, 60), belongs_to=ANOTHER)
    events = story.see_twice(there, unmanaged=(1, 60), belongs_to="")
    assert only(ActionDecided, events).action.operation == "Delete"


# --- an overtaken listing: another resource may have the object by the time it is decided


def test_an_unmanaged_object_is_deleted_only_after_a_listing_that_knew_its_resource():
    """Listings that are published before that one show it as undeclared as often as they like."""
    story = Story(configs={CONFIG: EXCLUSIVE})
    there = thing(uid="h1")
    for _ in range(3):
        events = story.see(there, unmanaged=(1, 60), belongs_to="", known_version=0)
        assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    version_before = story.state.outcome_version - 1
    assert not every(
        OwnershipClaimed, story.see(there, unmanaged=(1, 60), known_version=version_before)
    )
    events = story.see(there, unmanaged=(1, 60), belongs_to="")
    assert only(ActionDecided, events).action.uid == "h1"


def test_an_unmanaged_object_that_another_resource_adopted_meanwhile_is_left_to_it():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(1, 60), belongs_to="", known_version=0)
    events = story.see(thing(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


def test_a_wait_from_before_a_withdrawal_proves_nothing_of_what_is_undeclared_since():
    story = Story(configs={CONFIG: EXCLUSIVE}, kind=UNCONDITIONAL)
    story.see(thing(uid="h1"), unmanaged=(1, 60), belongs_to=ANOTHER)
    story.see(thing(uid="h1"), unmanaged=(1, 60), belongs_to="")
    story.declare(policy={"adoption": "Adopt"})
    assert story.reason == "AwaitingRead"
    observation = Observed(CONFIG, "Foo", thing(uid="h1"), "CompleteListing", story.position)
    later_observation = replace(
        observation, exclusive=UnmanagedCount(1, 60), known_version=story.state.version
    )
    events = story.turn(Withdrawn(), later_observation)
    assert not every(OwnershipClaimed, events)
    assert only(ActionDecided, story.see(thing(uid="h1"), unmanaged=(1, 60))).action.uid == "h1"


def test_a_held_unmanaged_object_is_released_to_the_resource_that_declares_it():
    story = Story(configs={CONFIG: EXCLUSIVE})
    there = thing(uid="h1")
    story.see(there, unmanaged=(50, 60))
    assert story.outcome == "Held"
    story.see(there, unmanaged=(49, 60), belongs_to=ANOTHER)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


def test_a_label_of_another_resource_is_no_dispute_where_that_one_has_the_object():
    story = Story(configs={CONFIG: EXCLUSIVE})
    labels = owned_labels()
    labels = {name: value.replace("Foo", "y") for name, value in labels.items()}
    story.see(thing(uid="h1", labels=labels), unmanaged=(0, 60), belongs_to=ANOTHER)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


@pytest.mark.parametrize("another", ["", ANOTHER])
def test_the_absence_of_an_undeclared_object_is_recorded_once(another: str):
    """Both listings were published before the first of them was decided."""
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(1, 60), belongs_to=another)
    assert story.outcome in ("Degraded", "Unowned")
    deleted_observation = Observed(CONFIG, "Foo", None, "CompleteListing", story.position)
    listings = [
        replace(deleted_observation, exclusive=UnmanagedCount(*count))
        for count in ((1, 60), (0, 59))
    ]
    assert names(story.turn(*listings)) == ["ExternalObserved", "OutcomeRecorded"]


@pytest.mark.parametrize("still", [ANOTHER, ""])
def test_what_another_resource_had_was_not_deleted_by_others(still: str):
    """It may be withdrawn and gone when the listing is compared."""
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    story.see(None, belongs_to=still)
    assert (story.outcome, story.reason) == ("Deleted", "Gone")


@pytest.mark.parametrize("log", ["log1", "another"])
def test_what_carried_the_label_of_a_resource_that_is_gone_was_perhaps_deleted_by_it(log: str):
    """That one was withdrawn and deleted it, all between a listing and its comparison."""
    story = Story(configs={CONFIG: SHARED})
    labels = {OWNER_LABEL: f"{log}.team.Shape.y"}
    story.see(thing(uid="h1", labels=labels))
    story.see(None)
    assert story.reason == ("Gone" if log == LOG_ID else "GoneByOthers")
    assert story.state.observed.belongs_to == (ANOTHER if log == LOG_ID else "")


def test_two_resources_of_one_object_do_not_both_adopt_it():
    story = Story(configs={CONFIG: SHARED})
    story.see(thing(uid="h1"), belongs_to=ANOTHER)
    events = story.declare({"type": "Square"}, policy={"adoption": "Adopt"})
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    events = story.see(story.existing, belongs_to="")
    assert only(OwnershipClaimed, events).reason == "Adopted"


def test_what_is_declared_once_nothing_is_there_is_its_own_from_then_on():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.see(thing(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    story.see(None, belongs_to="")
    story.declare({"type": "Square"})
    assert story.state.observed.belongs_to == ""
    story.succeed()
    assert only(ActionDecided, story.withdraw()).action.operation == "Delete"


def test_under_another_external_name_it_is_another_object():
    story = Story(configs={CONFIG: SHARED})
    story.see(thing(uid="h1"), belongs_to=ANOTHER)
    story.declare({"type": "Square"}, annotations={EXTERNAL_NAME_ANNOTATION: "another"})
    assert story.state.observed.belongs_to == ""
    story.succeed()
    assert only(ActionDecided, story.withdraw()).action.operation == "Delete"


def test_what_two_resources_own_neither_deletes():
    story = converged()
    story.see(story.existing, belongs_to=ANOTHER)
    assert not every(ActionDecided, story.withdraw())
    assert (story.outcome, story.reason) == ("Disputed", "OwnedByAnother")
    assert (
        only(ActionDecided, story.see(story.existing, belongs_to="")).action.operation == "Delete"
    )


# --- a write that meets another object, which has taken the place of ours


def met() -> Story:
    """Our update has met an object that a person made under the name, after we had read ours."""
    story = converged({"color": "Red"})
    story.declare({"color": "Blue"})
    assert story.action.uid is not None
    painted = relabelled(repainted(story.existing, color="Blue"), owned_labels())
    events = story.report(shown=replace(painted, uid="persons"))
    assert only(OwnershipReleased, events).reason == "Replaced"
    assert not every(DriftDetected, events)
    return story


def test_an_object_that_a_write_has_met_by_its_name_is_not_ours_by_that():
    story = met()
    assert story.state.owned is None
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_nor_is_it_deleted_when_the_resource_is_withdrawn():
    story = met()
    assert not every(ActionDecided, story.withdraw())
    assert story.outcome == "Disputed", "it carries our label, which that write has put on it"


@pytest.mark.parametrize("evidence", ["another resource has it", "its label"])
def test_what_is_only_observed_shows_nothing_of_another_namespace(evidence: str):
    story = Story(configs={CONFIG: SHARED})
    story.declare({"color": "Red"}, policy={"mode": "ObserveOnly"})
    label = owner(LOG_ID, ResourceKey.parse(ANOTHER))
    if evidence == "its label":
        story.see(thing(uid="h1", labels={OWNER_LABEL: label}))
    else:
        story.see(thing(uid="h1"), belongs_to=ANOTHER)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    assert "another namespace" in story.outcome_message
    assert not {"Red", ANOTHER} & set(story.outcome_message.replace(";", "").split())


def test_what_is_only_observed_of_its_own_namespace_is_compared():
    story = Story(configs={CONFIG: SHARED})
    story.declare({"color": "Purple"}, policy={"mode": "ObserveOnly"})
    story.see(thing(uid="h1"), belongs_to=f"{story.key.namespace}/Shape/y")
    assert story.outcome == "Drifted"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("default/Badge/Foo", "default/Badge/Foo"),
        ("team/Badge/Foo", "a resource in another namespace"),
    ],
)
@pytest.mark.parametrize("evidence", ["another resource has it", "its label"])
def test_an_undeclared_object_is_shown_as_that_of_the_resource_that_has_it(
    named: str, expected: str, evidence: str
):
    """A kind that is defined over another one has its objects in the listings of both."""
    story = Story(configs={CONFIG: SHARED})
    if evidence == "its label":
        label = owner(LOG_ID, ResourceKey.parse(named))
        events = story.see(thing(uid="h1", labels={OWNER_LABEL: label}))
    else:
        events = story.see(thing(uid="h1"), belongs_to=named)
    assert not every(OwnershipClaimed, events)
    assert story.outcome == "Unowned"
    assert story.reason == ("OwnedByAnother" if evidence == "its label" else "BelongsToAnother")
    assert expected in story.outcome_message
    assert (named in story.outcome_message) == (named == expected)


def test_the_label_of_another_log_names_no_resource_of_this_one():
    story = Story(configs={CONFIG: SHARED})
    story.see(thing(uid="h1", labels={OWNER_LABEL: "another.default.Badge.Foo"}))
    assert (story.outcome, story.reason) == ("Unowned", "NotDeclared")


# --- an object without a label: only a listing shows which resource has it


@pytest.mark.parametrize("config", [SHARED, EXCLUSIVE], ids=["shared", "exclusive"])
def test_an_object_without_labels_that_a_creation_met_is_adopted_after_a_listing(
    config: ProviderConfigSpec,
):
    """Else a tenant could take, change and delete the object of another one."""
    story = Story(kind=UNLABELLED, configs={CONFIG: config})
    story.declare(policy={"adoption": "Adopt"})
    events = story.fail("Conflict", shown=thing(uid="theirs"))
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    events = story.see(thing(uid="theirs"), belongs_to=ANOTHER)
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    events = story.withdraw()
    assert not every(ActionDecided, events)


def test_an_object_without_labels_that_no_resource_has_is_adopted():
    story = Story(kind=UNLABELLED)
    story.declare(policy={"adoption": "Adopt"})
    story.fail("Conflict", shown=thing(uid="nobodys"))
    events = story.see(thing(uid="nobodys"), belongs_to="")
    assert only(OwnershipClaimed, events).uid == "nobodys"
    assert story.outcome == "Converged"


def test_adoption_after_a_creation_with_an_unknown_result_waits_for_a_listing_and_for_no_person():
    capabilities = UNLABELLED.capabilities
    assert capabilities is not None
    kind = dataclasses.replace(
        UNLABELLED, capabilities=replace(capabilities, idempotency_keys=False)
    )
    story = Story(kind=kind)
    story.declare(policy={"adoption": "Adopt"})
    story.fail("Unknown")
    story.wake(600)
    story.fail("Conflict", shown=thing(uid="nobodys"))
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    events = story.see(thing(uid="nobodys"), belongs_to="")
    assert only(OwnershipClaimed, events).uid == "nobodys"


def test_a_message_names_no_resource_of_another_namespace():
    foreign_object = thing(
        uid="theirs", labels={OWNER_LABEL: owner(LOG_ID, ResourceKey("team", "Block", "y"))}
    )
    story = Story()
    story.declare(policy={"adoption": "Adopt"})
    story.fail("Conflict", shown=foreign_object)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    assert "another namespace" in story.outcome_message
    assert "team" not in story.outcome_message
    assert LOG_ID not in story.outcome_message
