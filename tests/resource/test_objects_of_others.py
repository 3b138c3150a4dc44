"""An object of another resource in the log is neither claimed nor deleted."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from events.intake import ActionError, Observed, UnmanagedCount, Withdrawn
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
    UNLABELED,
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

ANOTHER = "team/Shape/y"
UNCONDITIONAL = dataclasses.replace(
    BLOCK,
    capabilities=Capabilities(
        idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=False
    ),
)


def test_an_object_that_another_resource_declares_is_not_unmanaged():
    story = Story(configs={CONFIG: EXCLUSIVE})
    events = story.observe(api_object(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")
    events = story.observe(
        repaint(api_object(uid="h1"), color="Blue"), unmanaged=(1, 60), belongs_to=ANOTHER
    )
    assert names(events) == ["ExternalObserved"]


def test_an_object_that_belongs_to_no_resource_is_unmanaged():
    story = Story(configs={CONFIG: EXCLUSIVE})
    existing = api_object(uid="h1")
    story.observe(existing, unmanaged=(0, 60), belongs_to=ANOTHER)
    events = story.observe_twice(existing, unmanaged=(1, 60), belongs_to="")
    assert only(ActionDecided, events).action.operation == "Delete"


# --- an overtaken listing: another resource may have claimed the object before the decision


def test_an_unmanaged_object_is_deleted_only_after_an_up_to_date_listing():
    """Earlier listings show it as undeclared."""
    story = Story(configs={CONFIG: EXCLUSIVE})
    existing = api_object(uid="h1")
    for _ in range(3):
        events = story.observe(existing, unmanaged=(1, 60), belongs_to="", known_version=0)
        assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    version_before = story.state.outcome_version - 1
    assert not every(
        OwnershipClaimed, story.observe(existing, unmanaged=(1, 60), known_version=version_before)
    )
    events = story.observe(existing, unmanaged=(1, 60), belongs_to="")
    assert only(ActionDecided, events).action.uid == "h1"


def test_an_unmanaged_object_that_another_resource_adopts_is_left_to_it():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(1, 60), belongs_to="", known_version=0)
    events = story.observe(api_object(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


def test_a_wait_before_a_withdrawal_does_not_permit_a_deletion():
    story = Story(configs={CONFIG: EXCLUSIVE}, kind=UNCONDITIONAL)
    story.observe(api_object(uid="h1"), unmanaged=(1, 60), belongs_to=ANOTHER)
    story.observe(api_object(uid="h1"), unmanaged=(1, 60), belongs_to="")
    story.declare(policy={"adoption": "Adopt"})
    assert story.reason == "AwaitingRead"
    observation = Observed(CONFIG, "Foo", api_object(uid="h1"), "CompleteListing", story.position)
    later_observation = replace(
        observation, exclusive=UnmanagedCount(1, 60), known_version=story.state.version
    )
    events = story.turn(Withdrawn(), later_observation)
    assert not every(OwnershipClaimed, events)
    assert (
        only(ActionDecided, story.observe(api_object(uid="h1"), unmanaged=(1, 60))).action.uid
        == "h1"
    )


def test_a_held_unmanaged_object_is_released_to_the_resource_that_declares_it():
    story = Story(configs={CONFIG: EXCLUSIVE})
    existing = api_object(uid="h1")
    story.observe(existing, unmanaged=(50, 60))
    assert story.outcome == "Held"
    story.observe(existing, unmanaged=(49, 60), belongs_to=ANOTHER)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


def test_the_label_of_the_resource_that_has_the_object_is_not_a_dispute():
    story = Story(configs={CONFIG: EXCLUSIVE})
    labels = owned_labels()
    labels = {name: value.replace("Foo", "y") for name, value in labels.items()}
    story.observe(api_object(uid="h1", labels=labels), unmanaged=(0, 60), belongs_to=ANOTHER)
    assert (story.outcome, story.reason) == ("Unowned", "BelongsToAnother")


@pytest.mark.parametrize("another", ["", ANOTHER])
def test_the_absence_of_an_undeclared_object_is_recorded_once(another: str):
    """Both listings were published before the first of them was decided."""
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(1, 60), belongs_to=another)
    assert story.outcome in ("Degraded", "Unowned")
    deleted_observation = Observed(CONFIG, "Foo", None, "CompleteListing", story.position)
    listings = [
        replace(deleted_observation, exclusive=UnmanagedCount(*count))
        for count in ((1, 60), (0, 59))
    ]
    assert names(story.turn(*listings)) == ["ExternalObserved", "OutcomeRecorded"]


@pytest.mark.parametrize("remaining_owner", [ANOTHER, ""])
def test_the_loss_of_another_resources_object_is_not_attributed_to_another_client(
    remaining_owner: str,
):
    """That resource may be withdrawn and deleted when the listing is compared."""
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    story.observe(None, belongs_to=remaining_owner)
    assert (story.outcome, story.reason) == ("Deleted", "Gone")


@pytest.mark.parametrize("log", ["log1", "another"])
def test_an_object_with_the_label_of_a_deleted_resource_may_be_deleted_by_it(log: str):
    """The resource was withdrawn and deleted it between a listing and its comparison."""
    story = Story(configs={CONFIG: SHARED})
    labels = {OWNER_LABEL: f"{log}.team.Shape.y"}
    story.observe(api_object(uid="h1", labels=labels))
    story.observe(None)
    assert story.reason == ("Gone" if log == LOG_ID else "GoneByOthers")
    assert story.state.observed.belongs_to == (ANOTHER if log == LOG_ID else "")


def test_two_resources_do_not_both_adopt_an_object():
    story = Story(configs={CONFIG: SHARED})
    story.observe(api_object(uid="h1"), belongs_to=ANOTHER)
    events = story.declare({"type": "Square"}, policy={"adoption": "Adopt"})
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    events = story.observe(story.existing, belongs_to="")
    assert only(OwnershipClaimed, events).reason == "Adopted"


def test_a_resource_owns_the_object_that_it_creates_after_an_absence():
    story = Story(configs={CONFIG: EXCLUSIVE})
    story.observe(api_object(uid="h1"), unmanaged=(0, 60), belongs_to=ANOTHER)
    story.observe(None, belongs_to="")
    story.declare({"type": "Square"})
    assert story.state.observed.belongs_to == ""
    story.succeed()
    assert only(ActionDecided, story.withdraw()).action.operation == "Delete"


def test_no_object_is_created_while_another_resource_owns_its_name():
    """That resource has lost its object, and is about to create it again."""
    story = Story(configs={CONFIG: SHARED})
    story.declare({"type": "Square"})
    events = story.report(ActionError("Conflict", "", attempted=False, belongs_to=ANOTHER))
    assert not every(ActionDecided, events)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    assert "name belongs to a resource in another namespace" in story.outcome_message
    assert not every(ActionDecided, story.declare({"type": "Circle"}))
    assert every(ActionDecided, story.observe(None, belongs_to=""))


def test_a_new_declaration_asks_again_who_owns_its_name():
    """The row of the withdrawn resource was deleted, so no listing reports a change."""
    story = Story(configs={CONFIG: SHARED})
    story.declare()
    story.report(ActionError("Conflict", "", attempted=False, belongs_to=ANOTHER))
    story.withdraw()
    assert every(ActionDecided, story.declare())


def test_a_lost_object_of_another_resource_is_not_created():
    story = Story(configs={CONFIG: SHARED})
    story.declare({"type": "Square"})
    story.fail("Conflict", existing=api_object(uid="theirs"))
    story.observe(api_object(uid="theirs"), belongs_to=ANOTHER)
    assert not every(ActionDecided, story.observe(None, belongs_to=ANOTHER))
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    assert every(ActionDecided, story.observe(None, belongs_to=""))


def test_another_external_name_is_another_object():
    story = Story(configs={CONFIG: SHARED})
    story.observe(api_object(uid="h1"), belongs_to=ANOTHER)
    story.declare({"type": "Square"}, annotations={EXTERNAL_NAME_ANNOTATION: "another"})
    assert story.state.observed.belongs_to == ""
    story.succeed()
    assert only(ActionDecided, story.withdraw()).action.operation == "Delete"


def test_an_object_that_belongs_to_two_resources_is_not_deleted_by_either():
    story = converged_story()
    story.observe(story.existing, belongs_to=ANOTHER)
    assert not every(ActionDecided, story.withdraw())
    assert (story.outcome, story.reason) == ("Disputed", "OwnedByAnother")
    assert (
        only(ActionDecided, story.observe(story.existing, belongs_to="")).action.operation
        == "Delete"
    )


def test_an_object_that_belongs_to_two_resources_is_not_written_by_either():
    story = converged_story({"color": "Red"})
    story.observe(story.existing, belongs_to=ANOTHER)
    assert not every(ActionDecided, story.declare({"color": "Blue"}))
    assert (story.outcome, story.reason) == ("Disputed", "OwnedByAnother")
    assert "team" not in story.outcome_message
    events = story.observe(story.existing, belongs_to="")
    assert only(ActionDecided, events).action.operation == "Update"


# --- a write that finds another object in place of ours


def story_with_replaced_object() -> Story:
    """Return a story whose update found another client's object with the same name."""
    story = converged_story({"color": "Red"})
    story.declare({"color": "Blue"})
    assert story.action.uid is not None
    painted_object = relabel(repaint(story.existing, color="Blue"), owned_labels())
    events = story.report(existing=replace(painted_object, uid="other"))
    assert only(OwnershipReleased, events).reason == "Replaced"
    assert not every(DriftDetected, events)
    return story


def test_a_write_by_name_does_not_make_an_object_ours():
    story = story_with_replaced_object()
    assert story.state.owned is None
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_a_withdrawal_does_not_delete_an_object_that_was_only_written_by_name():
    story = story_with_replaced_object()
    assert not every(ActionDecided, story.withdraw())
    assert story.outcome == "Disputed", "it has our label from that write"


@pytest.mark.parametrize("evidence", ["another resource has it", "its label"])
def test_an_observed_resource_shows_nothing_from_another_namespace(evidence: str):
    story = Story(configs={CONFIG: SHARED})
    story.declare({"color": "Red"}, policy={"mode": "ObserveOnly"})
    label = owner(LOG_ID, ResourceKey.parse(ANOTHER))
    if evidence == "its label":
        story.observe(api_object(uid="h1", labels={OWNER_LABEL: label}))
    else:
        story.observe(api_object(uid="h1"), belongs_to=ANOTHER)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    assert "another namespace" in story.outcome_message
    assert not {"Red", ANOTHER} & set(story.outcome_message.replace(";", "").split())


def test_an_observed_object_in_the_same_namespace_is_compared():
    story = Story(configs={CONFIG: SHARED})
    story.declare({"color": "Purple"}, policy={"mode": "ObserveOnly"})
    story.observe(api_object(uid="h1"), belongs_to=f"{story.key.namespace}/Shape/y")
    assert story.outcome == "Drifted"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("default/Badge/Foo", "default/Badge/Foo"),
        ("team/Badge/Foo", "a resource in another namespace"),
    ],
)
@pytest.mark.parametrize("evidence", ["another resource has it", "its label"])
def test_an_undeclared_object_is_attributed_to_the_resource_that_has_it(
    named: str, expected: str, evidence: str
):
    """The objects of a kind that is defined over another one appear in the listings of both."""
    story = Story(configs={CONFIG: SHARED})
    if evidence == "its label":
        label = owner(LOG_ID, ResourceKey.parse(named))
        events = story.observe(api_object(uid="h1", labels={OWNER_LABEL: label}))
    else:
        events = story.observe(api_object(uid="h1"), belongs_to=named)
    assert not every(OwnershipClaimed, events)
    assert story.outcome == "Unowned"
    assert story.reason == ("OwnedByAnother" if evidence == "its label" else "BelongsToAnother")
    assert expected in story.outcome_message
    assert (named in story.outcome_message) == (named == expected)


def test_the_label_of_another_log_does_not_name_a_resource_of_this_one():
    story = Story(configs={CONFIG: SHARED})
    story.observe(api_object(uid="h1", labels={OWNER_LABEL: "another.default.Badge.Foo"}))
    assert (story.outcome, story.reason) == ("Unowned", "NotDeclared")


# --- an object without a label: only a listing shows which resource has it


@pytest.mark.parametrize("config", [SHARED, EXCLUSIVE], ids=["shared", "exclusive"])
def test_an_unlabeled_object_in_the_way_of_a_creation_is_adopted_after_a_listing(
    config: ProviderConfigSpec,
):
    """Otherwise a tenant could adopt, change and delete another tenant's object."""
    story = Story(kind=UNLABELED, configs={CONFIG: config})
    story.declare(policy={"adoption": "Adopt"})
    events = story.fail("Conflict", existing=api_object(uid="theirs"))
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    events = story.observe(api_object(uid="theirs"), belongs_to=ANOTHER)
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    events = story.withdraw()
    assert not every(ActionDecided, events)


def test_an_unlabeled_object_that_belongs_to_no_resource_is_adopted():
    story = Story(kind=UNLABELED)
    story.declare(policy={"adoption": "Adopt"})
    story.fail("Conflict", existing=api_object(uid="nobodys"))
    events = story.observe(api_object(uid="nobodys"), belongs_to="")
    assert only(OwnershipClaimed, events).uid == "nobodys"
    assert story.outcome == "Converged"


def test_adoption_after_an_unknown_creation_waits_only_for_a_listing():
    capabilities = UNLABELED.capabilities
    assert capabilities is not None
    kind = dataclasses.replace(
        UNLABELED, capabilities=replace(capabilities, idempotency_keys=False)
    )
    story = Story(kind=kind)
    story.declare(policy={"adoption": "Adopt"})
    story.fail("Unknown")
    story.wake(600)
    story.fail("Conflict", existing=api_object(uid="nobodys"))
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    events = story.observe(api_object(uid="nobodys"), belongs_to="")
    assert only(OwnershipClaimed, events).uid == "nobodys"


def test_a_message_does_not_name_resources_in_another_namespace():
    foreign_object = api_object(
        uid="theirs", labels={OWNER_LABEL: owner(LOG_ID, ResourceKey("team", "Block", "y"))}
    )
    story = Story()
    story.declare(policy={"adoption": "Adopt"})
    story.fail("Conflict", existing=foreign_object)
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")
    assert "another namespace" in story.outcome_message
    assert "team" not in story.outcome_message
    assert LOG_ID not in story.outcome_message
