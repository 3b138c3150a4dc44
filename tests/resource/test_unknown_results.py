"""Steps after an unknown result: repeat with the same key, look up, hold for an operator."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ActionError, Approved, Reported
from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    Effect,
    LookupDecided,
    OwnershipClaimed,
    ResourceEvent,
    RetryScheduled,
)
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind
from reconciler.resource.owner_label import OWNER_LABEL
from tests.resource.building import (
    BLOCK,
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
    repaint,
)


def kind_with(
    *,
    keys: bool = False,
    unique_names: bool = True,
    labels: bool = True,
    listing: bool = True,
    grace: float = 0.0,
) -> Kind:
    return Kind(
        name=BLOCK.name,
        api_version=BLOCK.api_version,
        schema=BLOCK.schema,
        provider=BLOCK.provider,
        capabilities=Capabilities(
            idempotency_keys=keys,
            deterministic_names=unique_names,
            labels=labels,
            conditional_writes=True,
            listing=listing,
            consistency_grace_seconds=grace,
        ),
        connect=BLOCK.connect,
    )


def with_immutable_type(kind: Kind) -> Kind:
    return dataclasses.replace(kind, immutable=frozenset({"type"}))


KEYLESS = kind_with()
NAMELESS = kind_with(unique_names=False)
BLIND = kind_with(unique_names=False, labels=False)
UNMARKED = kind_with(labels=False)


def declared_story(kind: Kind = BLOCK) -> Story:
    story = Story(kind=kind)
    story.declare()
    return story


def report_unknown(story: Story, times: int = 1) -> list[ResourceEvent]:
    """Report unknown results for ``times`` attempts; return the events of the next attempt."""
    events: list[ResourceEvent] = []
    for _ in range(times):
        story.fail("Unknown")
        events = story.wake(3600)
    return events


def test_the_first_step_is_to_repeat_the_call_with_the_same_key():
    story = declared_story()
    action = story.action
    for _ in range(2):
        assert only(ActionRetried, report_unknown(story)).action == action
    assert not story.flight.is_lookup


def test_the_second_step_is_a_lookup():
    story = declared_story()
    action = story.action
    assert only(LookupDecided, report_unknown(story, 3)).action == action
    assert story.flight.is_lookup


@pytest.mark.parametrize("labels", [owned_labels(), owned_labels(team="a")])
def test_an_object_that_a_lookup_finds_by_our_label_is_ours(
    labels: dict[str, str],
):
    story = declared_story()
    report_unknown(story, 3)
    succeeded = only(ActionSucceeded, story.report_lookup(api_object(uid="u7", labels=labels)))
    assert succeeded.found_by == "Label"
    assert story.state.owned is not None
    assert story.state.owned.uid == "u7"


def test_an_object_that_a_lookup_finds_by_the_key_is_ours():
    story = declared_story(UNMARKED)
    report_unknown(story, 3)
    created_object = replace(api_object(uid="u7"), written_by=story.action.idempotency_key)
    assert only(ActionSucceeded, story.report_lookup(created_object)).found_by == "Key"


def test_the_same_action_is_repeated_after_a_lookup_finds_nothing():
    story = declared_story()
    action = story.action
    report_unknown(story, 3)
    events = story.report_lookup(None)
    assert names(events)[:2] == ["ActionNotDone", "ActionRetried"]
    assert only(ActionNotDone, events).action_id == action.action_id
    assert only(ActionRetried, events).action == action
    story.succeed()
    assert story.outcome == "Converged"


def test_a_lookup_that_finds_a_foreign_object_is_a_conflict():
    story = declared_story()
    report_unknown(story, 3)
    story.report_lookup(api_object(uid="h1", labels={"reconciler/owner": "another"}))
    assert story.idle
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert story.state.owned is None


def test_the_key_attributes_an_unclaimed_object_that_a_lookup_finds():
    """Another client may have removed our label. The key in the API identifies our object."""
    story = declared_story()
    action = story.action
    report_unknown(story, 3)
    failed = only(ActionFailed, story.report_lookup(api_object(uid="u7")))
    assert failed.error.error_class == "Unknown"
    assert only(ActionRetried, story.wake(3600)).action == action
    story.report(existing=api_object(uid="u7"))
    assert story.state.owned is not None
    assert story.state.owned.uid == "u7"


def test_an_unclaimed_object_that_the_key_did_not_create_is_foreign():
    story = declared_story()
    report_unknown(story, 3)
    story.report_lookup(api_object(uid="h1"))
    story.wake(3600)
    story.fail("Conflict", existing=api_object(uid="h1"))
    assert story.idle
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_a_failed_lookup_is_followed_by_another_attempt():
    story = declared_story()
    report_unknown(story, 3)
    assert only(ActionRetried, report_unknown(story)).action == story.action


def test_a_lookup_waits_for_the_grace_of_its_kind():
    story = Story(kind=kind_with(keys=True, grace=60.0))
    story.declare()
    for _ in range(2):
        story.fail("Unknown")
        story.wake(3600)
    wait = only(RetryScheduled, story.fail("Unknown"))
    assert wait.delay_seconds >= 60.0
    assert wait.at >= story.now + timedelta(seconds=60)


def test_a_creation_that_cannot_be_repeated_is_looked_up_immediately():
    """Without keys and unique names, a second call could create a second object."""
    story = declared_story(NAMELESS)
    assert only(LookupDecided, report_unknown(story)).action == story.action
    story.report_lookup(None)
    assert not story.flight.is_lookup, "nothing was created, so the call may be repeated"


def test_without_names_and_labels_a_creation_is_held_for_an_operator():
    story = declared_story(BLIND)
    story.report(ActionError("Unknown", "cut"))
    story.wake(3600)
    held = only(ActionHeld, story.report_lookup(None))
    assert held.action_id == story.action.action_id
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    assert story.wake(36_000) == [], "nothing happens without an operator"


def story_held_for_operator() -> Story:
    story = declared_story(BLIND)
    report_unknown(story)
    story.report_lookup(None)
    assert story.outcome == "Held"
    return story


def test_an_approved_action_is_repeated_after_another_lookup_finds_nothing():
    story = story_held_for_operator()
    action = story.action
    events = story.turn(Approved("UnknownResult", reason="I looked"))
    assert story.reply.accepted
    assert only(LookupDecided, events).action == action, "the operator may have labeled it"
    events = story.report_lookup(None)
    assert names(events)[:2] == ["ActionNotDone", "ActionRetried"]
    story.succeed()
    assert story.outcome == "Converged"


@pytest.mark.parametrize("policy", [{}, {"adoption": "Adopt"}])
def test_an_operator_identifies_which_of_two_objects_with_our_label_we_created(
    policy: dict[str, str],
):
    """Another client has copied the label, so the lookup cannot identify our object."""
    story = Story(kind=NAMELESS)
    story.declare(policy=policy)
    if policy:
        story.observe(None)
    report_unknown(story)
    copied_object, own_object = (api_object(uid=uid, labels=owned_labels()) for uid in ("h1", "u2"))
    for _ in range(2):
        held = only(ActionHeld, story.report_lookup(copied_object, labeled_uids=("h1", "u2")))
        assert "h1, u2" in held.reason
        assert f"remove the label {OWNER_LABEL} from the others" in held.reason
        assert story.state.owned is None
        story.turn(Approved("UnknownResult", reason="I looked"))
        assert story.flight.is_lookup, "nothing is created before another lookup of the label"
    assert only(ActionSucceeded, story.report_lookup(own_object)).found_by == "Label"
    assert story.state.owned is not None
    assert story.state.owned.uid == "u2"


def test_the_key_identifies_which_of_two_objects_with_our_label_we_created():
    story = declared_story(kind_with(keys=True, unique_names=False))
    action = story.action
    report_unknown(story, 3)
    copied_object = api_object(uid="h1", labels=owned_labels())
    failed = only(ActionFailed, story.report_lookup(copied_object, labeled_uids=("h1", "u2")))
    assert failed.error.error_class == "Unknown"
    assert only(ActionRetried, story.wake(3600)).action == action


def test_a_lookup_skips_the_objects_that_existed_before_the_creation():
    story = Story(kind=with_immutable_type(NAMELESS))
    story.declare({"type": "Square"})
    story.succeed()
    replaced = story.existing.uid
    story.declare({"type": "Circle"})
    assert story.action.operation == "Create"
    lookup = only(LookupDecided, report_unknown(story))
    assert lookup.known_uids == (replaced,)


def test_a_lookup_where_names_are_unique_needs_no_uids():
    assert only(LookupDecided, report_unknown(declared_story(), 3)).known_uids == ()


def test_an_object_that_an_operator_labels_is_found_and_not_created_again():
    story = declared_story(NAMELESS)
    report_unknown(story)
    other_object = api_object(uid="u1", labels={"reconciler/owner": "another"})
    assert only(ActionHeld, story.report_lookup(other_object)), "our object may exist as well"
    assert only(LookupDecided, story.turn(Approved("UnknownResult", reason="labeled")))
    assert only(ActionSucceeded, story.report_lookup(api_object(uid="u2", labels=owned_labels())))
    assert story.state.owned is not None
    assert story.state.owned.uid == "u2"


def test_a_second_hold_of_an_action_needs_another_approval():
    story = story_held_for_operator()
    story.turn(Approved("UnknownResult", reason="I looked"))
    story.report_lookup(None)
    report_unknown(story)
    story.report_lookup(None)
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    events = story.turn(Approved("UnknownResult", reason="I looked again"))
    assert story.reply.reason == "Accepted"
    assert every(LookupDecided, events)


def test_an_approval_does_not_cover_a_later_call_with_an_unknown_result():
    story = declared_story(UNMARKED)
    report_unknown(story)
    story.fail("Conflict", existing=api_object(uid="u1"))
    assert only(ActionRetried, story.turn(Approved("UnknownResult", reason="I looked")))
    assert only(LookupDecided, report_unknown(story, 3))
    assert only(ActionHeld, story.report_lookup(api_object(uid="u2"))).object == api_object(
        uid="u2"
    )


def test_an_approval_can_abandon_the_action():
    story = story_held_for_operator()
    story.withdraw()
    events = story.turn(Approved("UnknownResult", "Abandon", "it existed, and I removed it"))
    assert every(ActionAbandoned, events)
    assert not every(ActionRetried, events)
    assert story.idle


def test_without_keys_an_object_with_the_name_and_our_label_is_ours():
    story = declared_story(KEYLESS)
    events = story.fail("Conflict", existing=api_object(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"
    assert story.outcome == "Converged"


def test_with_keys_an_object_with_the_name_is_ours_only_after_an_unknown_result():
    story = declared_story()
    story.fail("Conflict", existing=api_object(labels=owned_labels()))
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    story = declared_story()
    report_unknown(story)
    events = story.fail("Conflict", existing=api_object(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"


def test_an_object_from_our_earlier_action_is_updated_to_the_current_declaration():
    story = declared_story(KEYLESS)
    events = story.fail(
        "Conflict", existing=repaint(api_object(labels=owned_labels()), color="Blue")
    )
    assert only(ActionSucceeded, events).found_by == "Label"
    assert only(ActionDecided, events).action.operation == "Update"


@pytest.mark.parametrize(
    "observed_object", [api_object(uid="u1"), api_object({"type": "Circle"}, uid="u1")]
)
def test_without_labels_a_name_conflict_after_an_unknown_result_is_held(
    observed_object: ExternalObject,
):
    """Another client may have changed what our first call created before the second finds it."""
    story = declared_story(UNMARKED)
    report_unknown(story)
    assert (
        only(ActionHeld, story.fail("Conflict", existing=observed_object)).object == observed_object
    )
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story = declared_story(UNMARKED)
    report_unknown(story, 3)
    assert only(ActionHeld, story.report_lookup(observed_object)).object == observed_object


def test_without_labels_a_withdrawn_creation_with_an_unknown_result_is_held():
    story = declared_story(UNMARKED)
    report_unknown(story)
    story.withdraw()
    story.fail("Conflict", existing=api_object({"type": "Circle"}, uid="u1"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult"), "it would leak"


# --- without keys, an object without a label may still be ours


def test_a_redelivered_creation_that_finds_an_unclaimed_object_is_held():
    """A worker died after its call, and another client removed our label before the second call."""
    story = declared_story(KEYLESS)
    held = only(ActionHeld, story.fail("Conflict", existing=api_object(uid="u1"), redelivered=True))
    assert held.object == api_object(uid="u1")
    assert "uid u1" in held.reason
    assert f"reconciler/owner={FOO_OWNER}" in held.reason
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    assert story.wake(36_000) == [], "nothing happens without an operator"


def test_an_object_that_a_creation_finds_on_its_first_delivery_is_foreign():
    story = declared_story(KEYLESS)
    story.fail("Conflict", existing=api_object(uid="h1"))
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_a_creation_in_doubt_is_still_in_doubt_on_its_next_attempt():
    story = declared_story(KEYLESS)
    story.fail("Throttled", redelivered=True)
    story.wake(3600)
    assert only(ActionHeld, story.fail("Conflict", existing=api_object(uid="u1")))


def test_an_unclaimed_object_after_an_unknown_result_is_held():
    story = declared_story(KEYLESS)
    report_unknown(story)
    assert only(ActionHeld, story.fail("Conflict", existing=api_object(uid="u1")))
    story = declared_story(KEYLESS)
    report_unknown(story, 3)
    assert only(ActionHeld, story.report_lookup(api_object(uid="u1")))


def test_an_object_with_the_label_of_another_owner_is_never_ours():
    story = declared_story(KEYLESS)
    another = api_object(uid="h1", labels={"reconciler/owner": "another"})
    story.fail("Conflict", existing=another, redelivered=True)
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


@pytest.mark.parametrize(
    ("policy", "configs"), [({"adoption": "Adopt"}, {CONFIG: SHARED}), ({}, {CONFIG: EXCLUSIVE})]
)
def test_an_object_that_would_be_adopted_needs_no_approval(
    policy: Fields, configs: dict[str, ProviderConfigSpec]
):
    story = Story(kind=KEYLESS, configs=configs)
    story.declare(policy=policy)
    events = story.fail("Conflict", existing=api_object(uid="u1"), redelivered=True)
    assert every(OwnershipClaimed, events)
    assert not every(ActionHeld, events)


def test_a_withdrawn_resource_does_not_adopt_an_object_but_is_held():
    story = Story(kind=KEYLESS)
    story.declare(policy={"adoption": "Adopt"})
    story.withdraw()
    story.fail("Conflict", existing=api_object(uid="u1"), redelivered=True)
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")


def held_for_unclaimed_object(*, after_unknown_result: bool = False) -> Story:
    story = declared_story(KEYLESS)
    if after_unknown_result:
        report_unknown(story)
    story.fail("Conflict", existing=api_object(uid="u1"), redelivered=not after_unknown_result)
    assert story.outcome == "Held"
    return story


def test_an_approved_action_finds_the_object_that_an_operator_labeled():
    story = held_for_unclaimed_object()
    story.withdraw()
    assert only(ActionRetried, story.turn(Approved("UnknownResult", reason="it is ours")))
    events = story.fail("Conflict", existing=api_object(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"
    assert (story.action.operation, story.action.uid) == ("Delete", "u1"), "no leak"


@pytest.mark.parametrize("after_unknown_result", [False, True])
def test_an_operator_is_not_asked_again_about_another_clients_object(after_unknown_result: bool):
    story = held_for_unclaimed_object(after_unknown_result=after_unknown_result)
    story.turn(Approved("UnknownResult", reason="it belongs to the shop"))
    story.fail("Conflict", existing=api_object(uid="u1"))
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_without_keys_a_redelivered_creation_may_have_created_two_objects():
    """The first worker may resume much later and make its call."""
    story = declared_story(KEYLESS)
    created_object = story.object_after(story.action)
    assert only(
        ActionSucceeded, story.report(existing=created_object, redelivered=True)
    ).redelivered
    story.withdraw()
    story.report()
    story.observe(api_object(uid="u9", labels=owned_labels()))
    assert (story.action.operation, story.action.uid) == ("Delete", "u9")


def test_with_keys_a_second_delivery_proves_nothing():
    story = declared_story()
    created_object = story.object_after(story.action)
    assert not only(
        ActionSucceeded, story.report(existing=created_object, redelivered=True)
    ).redelivered
    assert not story.state.actions.uncertain_create


# --- a creation that has created more than one object


def story_with_two_objects(kind: Kind, labels: dict[str, str]) -> tuple[Story, ExternalObject]:
    """Another client deletes what the first delivery created, and the second creates again."""
    story = Story(kind=kind)
    story.declare()
    action_id = story.action.action_id
    story.succeed()
    second = api_object(uid="u9", labels=labels)
    success = only(ActionSucceeded, second_success(story, action_id, second))
    assert (success.late, success.outdated, success.object) == (True, True, second)
    return story, second


def second_success(
    story: Story, action_id: str, created_object: ExternalObject
) -> list[ResourceEvent]:
    return story.report(existing=created_object, action_id=action_id, attempt=1, redelivered=True)


@pytest.mark.parametrize(
    ("kind", "labels"), [(KEYLESS, owned_labels()), (KEYLESS, {}), (UNMARKED, {})]
)
def test_the_second_object_of_a_creation_is_ours_when_it_is_listed(
    kind: Kind, labels: dict[str, str]
):
    story, second = story_with_two_objects(kind, labels)
    assert second_success(story, story.state.actions.ended[-1].action.action_id, second) == []
    claimed = only(OwnershipClaimed, story.observe(second))
    assert (claimed.uid, claimed.reason) == ("u9", "Found")
    story.withdraw()
    if labels or kind is UNMARKED:
        assert (story.action.operation, story.action.uid) == ("Delete", "u9"), "no leak"


def test_the_second_object_of_a_creation_is_ours_when_another_action_finds_it():
    story, second = story_with_two_objects(KEYLESS, {})
    story.declare({"type": "Square", "color": "Blue"})
    events = story.fail("Conflict", existing=second)
    assert only(OwnershipClaimed, events).uid == "u9"
    assert only(ActionDecided, events).action.uid == "u9"


def test_the_second_object_of_a_creation_is_deleted_after_the_first():
    story = declared_story(KEYLESS)
    action_id = story.action.action_id
    story.succeed()
    story.withdraw()
    story.report()
    assert story.outcome == "Deleted"
    events = second_success(story, action_id, api_object(uid="u9", labels=owned_labels()))
    assert not only(ActionSucceeded, events).outdated
    assert (story.action.operation, story.action.uid) == ("Delete", "u9")


def test_a_second_object_that_was_released_is_not_claimed_again():
    story = Story(kind=UNMARKED)
    story.declare(policy={"deletion": "Orphan"})
    action_id = story.action.action_id
    story.succeed()
    second = api_object(uid="u9")
    second_success(story, action_id, second)
    assert every(OwnershipClaimed, story.observe(second))
    story.withdraw()
    assert story.outcome == "Released"
    story.observe(None)
    assert not every(OwnershipClaimed, story.observe(second))
    assert story.state.owned is None


def test_with_keys_a_repeated_success_proves_nothing():
    story = declared_story()
    action_id = story.action.action_id
    created_object = story.object_after(story.action)
    story.report(existing=created_object)
    assert (
        story.report(existing=created_object, action_id=action_id, attempt=1, replayed=True) == []
    )
    lost_error = ActionError("Unknown", "the worker's lease expired")
    assert story.report(lost_error, action_id=action_id, attempt=1, redelivered=True) == []


def test_an_object_with_the_key_of_an_ended_creation_is_ours():
    """The API has no labels, and the worker that repeated the call did not report."""
    story = Story(kind=UNLABELED)
    story.declare()
    action = story.action
    story.fail("NotDone")
    story.withdraw()
    assert story.idle
    created_object = replace(api_object(uid="u9"), written_by=action.idempotency_key)
    assert only(OwnershipClaimed, story.observe(created_object)).reason == "Found"
    assert (story.action.operation, story.action.uid) == ("Delete", "u9"), "no leak"


def story_with_creation_in_doubt(kind: Kind = KEYLESS) -> Story:
    """Return a story whose second delivery of a creation has an unknown result."""
    story = declared_story(kind)
    action_id = story.action.action_id
    story.succeed()
    lost_error = ActionError("Unknown", "the worker's lease expired")
    story.report(lost_error, action_id=action_id, attempt=1, redelivered=True)
    return story


def test_a_paused_resource_claims_an_object_with_our_label_after_doubt():
    story = story_with_creation_in_doubt()
    story.declare(policy={"paused": True})
    assert (
        only(OwnershipClaimed, story.observe(api_object(uid="u9", labels=owned_labels()))).uid
        == "u9"
    )
    assert story.outcome == "Paused"


@pytest.mark.parametrize("kind", [KEYLESS, UNMARKED])
@pytest.mark.parametrize("is_declared", [True, False])
def test_an_unclaimed_object_after_a_creation_in_doubt_is_held(kind: Kind, is_declared: bool):
    story = story_with_creation_in_doubt(kind)
    if not is_declared:
        story.withdraw()
        story.report()
    story.observe(api_object(uid="u9"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story.turn(Approved("UnknownResult", reason="it belongs to the shop"))
    assert story.outcome == ("Conflict" if is_declared else "Unowned")
    story.observe(repaint(api_object(uid="u9"), color="Green"))
    assert story.outcome != "Held", "the operator is not asked again"


@pytest.mark.parametrize(
    ("policy", "outcome"), [({"paused": True}, "Paused"), ({"mode": "ObserveOnly"}, "Converged")]
)
def test_an_operator_is_asked_about_the_owner_even_if_nothing_is_written(
    policy: Fields, outcome: str
):
    story = story_with_creation_in_doubt()
    story.declare(policy=policy)
    story.observe(api_object(uid="u9"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story.turn(Approved("UnknownResult", reason="it belongs to the shop"))
    assert story.outcome == outcome


def test_an_object_with_our_label_after_doubt_is_ours_before_and_after_an_approval():
    for is_approved in (True, False):
        story = story_with_creation_in_doubt()
        story.observe(api_object(uid="u9"))
        if is_approved:
            story.turn(Approved("UnknownResult", reason="I labeled it"))
        events = story.observe(relabel(api_object(uid="u9"), owned_labels()))
        assert only(OwnershipClaimed, events).uid == "u9"


def test_an_object_adopted_after_a_creation_in_doubt_needs_no_approval():
    story = story_with_creation_in_doubt()
    story.declare(policy={"adoption": "Adopt"})
    assert only(OwnershipClaimed, story.observe(api_object(uid="u9"))).reason == "Adopted"


def story_with_unknown_update() -> Story:
    story = converged_story()
    story.declare({"type": "Square", "color": "Purple"})
    report_unknown(story, 3)
    return story


def test_an_update_that_a_lookup_confirms_succeeds():
    story = story_with_unknown_update()
    assert (
        only(ActionSucceeded, story.report_lookup(repaint(story.existing, color="Purple"))).found_by
        == "Content"
    )
    assert story.outcome == "Converged"


def test_an_update_that_a_lookup_shows_as_not_done_is_repeated():
    story = story_with_unknown_update()
    assert only(ActionRetried, story.report_lookup(story.existing)).action == story.action


def test_an_update_of_an_object_that_has_changed_is_decided_again():
    story = story_with_unknown_update()
    previous_action = story.action
    decided = only(ActionDecided, story.report_lookup(repaint(story.existing, color="Green")))
    assert decided.action.version != previous_action.version


def test_an_update_of_a_missing_object_becomes_a_creation():
    story = story_with_unknown_update()
    assert only(ActionDecided, story.report_lookup(None)).action.operation == "Create"


def test_a_deletion_is_repeated_until_a_lookup_finds_nothing():
    story = converged_story()
    story.withdraw()
    report_unknown(story, 3)
    assert every(ActionRetried, story.report_lookup(story.existing))
    report_unknown(story, 3)
    assert only(ActionSucceeded, story.report_lookup(None)).found_by == "Absence"
    assert story.outcome == "Deleted"


def test_a_deletion_of_a_missing_object_succeeds_by_absence():
    story = converged_story()
    story.withdraw()
    assert only(ActionSucceeded, story.report(absent=True)).found_by == "Absence"
    assert story.outcome == "Deleted"


def test_a_late_success_claims_the_object():
    """The same attempt ran twice, and the refused one was reported first."""
    story = declared_story()
    action = story.action
    story.fail("Refused")
    assert story.outcome == "Failed"
    created_object = story.object_after(action)
    events = story.report(existing=created_object, action_id=action.action_id, attempt=1)
    assert only(ActionSucceeded, events).late
    assert story.state.owned is not None
    assert story.outcome == "Converged"


def test_the_object_of_a_late_success_is_deleted_after_a_withdrawal():
    story = declared_story()
    action = story.action
    story.fail("Refused")
    story.withdraw()
    story.report(existing=story.object_after(action), action_id=action.action_id, attempt=1)
    assert (story.action.operation, story.action.uid) == ("Delete", "u1")


def refuse_permanently(story: Story) -> None:
    """Refuse a creation with an earlier attempt in doubt, which is looked up first."""
    story.fail("Refused")
    story.wake(3600)
    story.report_lookup(None)
    story.fail("Refused")


def test_an_object_with_our_label_after_an_uncertain_creation_is_ours():
    """The creation was eventually refused, but an earlier attempt may have succeeded."""
    story = declared_story()
    report_unknown(story)
    refuse_permanently(story)
    assert story.outcome == "Failed"
    events = story.observe(api_object(uid="u9", labels=owned_labels()))
    assert only(OwnershipClaimed, events).reason == "Found"
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "u9")


def test_the_object_of_an_uncertain_creation_is_ours_even_if_nothing_is_written():
    story = declared_story()
    report_unknown(story)
    refuse_permanently(story)
    story.declare(policy={"mode": "ObserveOnly"})
    events = story.observe(api_object(uid="u9", labels=owned_labels()))
    assert only(OwnershipClaimed, events).reason == "Found"
    assert story.outcome == "Converged"


def test_a_label_alone_does_not_prove_ownership():
    story = Story()
    story.observe(api_object(labels=owned_labels()))
    assert (story.outcome, story.reason) == ("Disputed", "LabelNotInLog")


def test_a_removed_label_is_restored_or_reported():
    story = converged_story()
    story.observe(relabel(story.existing, {}))
    assert story.action.labels["reconciler/owner"] == FOO_OWNER
    story = converged_story(policy={"ownerLabel": "Report"})
    story.observe(relabel(story.existing, {}))
    assert story.idle
    assert (story.outcome, story.reason) == ("Disputed", "LabelMissing")


@pytest.mark.parametrize("kind", [NAMELESS, BLIND], ids=["labels", "nothing"])
def test_a_creation_with_an_unknown_result_is_not_repeated_after_throttling(
    kind: Kind,
):
    """The API refuses only that call, and repeating the creation would create a second object."""
    story = declared_story(kind)
    story.fail("Unknown")
    assert only(LookupDecided, story.wake(3600))
    action, attempt = story.action, story.flight.attempt
    throttled = ActionError("Throttled", "too many requests", 429, 5.0)
    report = Reported(action.action_id, attempt, story.now, story.now, "w1", throttled)
    story.turn(replace(report, is_lookup=True))
    assert every(ActionRetried, story.wake(3600)) == []
    assert story.flight.is_lookup


@pytest.mark.parametrize("kind", [NAMELESS, BLIND], ids=["labels", "nothing"])
def test_a_redelivered_creation_is_not_repeated_after_throttling(kind: Kind):
    story = declared_story(kind)
    story.fail("Throttled", redelivered=True)
    assert only(LookupDecided, story.wake(3600))


def test_a_creation_that_was_only_throttled_is_repeated():
    story = declared_story(NAMELESS)
    story.fail("Throttled")
    assert only(ActionRetried, story.wake(3600))


def test_a_creation_that_is_throttled_after_its_lookup_is_looked_up_again():
    """It may consist of several calls, and the first of them may have created the object."""
    story = declared_story()
    report_unknown(story, 2)
    story.fail("Refused")
    assert only(LookupDecided, story.wake(3600))
    story.report_lookup(None)
    assert story.flight.effect is Effect.UNKNOWN
    story.wake(3600)
    story.fail("Throttled")
    assert story.flight.is_in_doubt
    assert only(ActionRetried, story.wake(3600))
    story.fail("Refused")
    assert only(LookupDecided, story.wake(3600))
    story.report_lookup(None)
    story.wake(3600)
    story.fail("Refused")
    assert story.idle, "the lookup showed that nothing was created"


def test_the_log_records_every_step():
    story = declared_story()
    report_unknown(story, 3)
    story.report_lookup(None)
    steps = [
        name
        for name in names([each.data for each in story.log])
        if name.startswith(("Action", "Lookup"))
    ]
    assert steps == [
        "ActionDecided",
        "ActionFailed",
        "ActionRetried",
        "ActionFailed",
        "ActionRetried",
        "ActionFailed",
        "LookupDecided",
        "ActionNotDone",
        "ActionRetried",
    ]


def test_a_lookup_also_waits_for_the_grace_of_the_configuration():
    config = ProviderConfigSpec(
        provider="tests", endpoint="http://localhost", consistency_grace_seconds=30
    )
    story = Story(kind=NAMELESS, configs={CONFIG: config})
    story.declare()
    assert only(RetryScheduled, story.fail("Unknown")).delay_seconds >= 30


@pytest.mark.parametrize("clock_offset", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_lookup_waits_for_the_grace_according_to_the_bus_clock(clock_offset: timedelta):
    """A decider with an inaccurate clock records the failure, and another decides the lookup."""
    story = Story(kind=kind_with(unique_names=False, grace=60.0))
    story.stored_at = story.now
    story.now += clock_offset
    story.declare()
    story.fail("Unknown")
    story.now = story.stored_at = story.stored_at + timedelta(seconds=59)
    assert not every(LookupDecided, story.wake())
    assert story.state.actions.in_flight is not None
    story.stored_at += timedelta(seconds=2)
    assert every(LookupDecided, story.wake(30))


@pytest.mark.parametrize("clock_offset", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_lookup_after_an_approval_uses_the_bus_clock_for_the_grace(
    clock_offset: timedelta,
):
    story = Story(kind=kind_with(unique_names=False, grace=60.0))
    story.stored_at = story.now
    story.declare()
    story.fail("Unknown")
    story.stored_at = story.now = story.now + timedelta(hours=1)
    assert every(LookupDecided, story.wake())
    story.report_lookup(api_object())
    story.now += clock_offset
    assert not every(LookupDecided, story.turn(Approved("UnknownResult")))
    story.stored_at += timedelta(seconds=61)
    assert every(LookupDecided, story.wake(100))


UNLISTED = kind_with(listing=False)


@pytest.mark.parametrize(("kind", "is_read_again"), [(UNLISTED, True), (KEYLESS, False)])
def test_a_creation_that_may_arrive_late_stays_unconfirmed_without_listings(
    kind: Kind, is_read_again: bool
):
    story = Story(kind=kind)
    story.declare()
    story.fail("Unknown")
    story.wake(3600)
    story.fail("Refused")
    story.withdraw()
    story.wake(3600)
    events = story.report_lookup(None)
    assert only(ActionAbandoned, events).unconfirmed == is_read_again
    assert story.outcome == "Deleted"


@pytest.mark.parametrize(("kind", "is_read_again"), [(UNLISTED, True), (KEYLESS, False)])
def test_a_deleted_object_may_be_created_again_by_an_earlier_call(kind: Kind, is_read_again: bool):
    story = Story(kind=kind)
    story.declare()
    story.fail("Unknown")
    story.wake(3600)
    story.succeed()
    story.withdraw()
    assert only(ActionSucceeded, story.succeed()).unconfirmed == is_read_again
    assert story.outcome == "Deleted"
    late = api_object(labels=owned_labels())
    events = story.observe(late)
    assert only(OwnershipClaimed, events).reason == "Found"
    assert story.action.operation == "Delete"


@pytest.mark.parametrize("clock_offset", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_retry_is_scheduled_according_to_the_bus_clock(clock_offset: timedelta):
    """One decider schedules the retry, and another one with a different clock decides it."""
    story = Story(kind=KEYLESS)
    story.stored_at = start = story.now
    story.now += clock_offset
    story.declare()
    retry = only(RetryScheduled, story.fail("NotDone"))
    assert retry.at - start == timedelta(seconds=retry.delay_seconds)
    story.now -= 2 * clock_offset
    assert not every(ActionRetried, story.wake(retry.delay_seconds / 2))
    assert every(ActionRetried, story.wake(retry.delay_seconds))


# --- the name of the object belongs to another resource by now


def story_with_lost_name(kind: Kind, owner: str = "default/Block/Bar") -> Story:
    """A creation with an unknown result, whose name another resource has taken meanwhile."""
    story = declared_story(kind)
    story.fail("Unknown")
    story.wake(3600)
    if story.flight.is_lookup:  # it found nothing
        story.report_lookup(None)
        story.wake(3600)
    story.report(ActionError("Conflict", "", attempted=False, belongs_to=owner))
    story.wake(3600)
    story.report_lookup(api_object(uid="theirs"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    return story


@pytest.mark.parametrize("kind", [UNLABELED, UNMARKED, KEYLESS])
@pytest.mark.parametrize(
    ("owner", "named"),
    [
        ("default/Block/Bar", "default/Block/Bar"),
        ("team/Block/Bar", "a resource in another name"),
    ],
)
def test_an_unknown_result_under_the_name_of_another_resource_advises_no_adoption(
    kind: Kind, owner: str, named: str
):
    story = story_with_lost_name(kind, owner)
    assert f"its name belongs to {named}" in story.outcome_message
    assert "adoption" not in story.outcome_message
    assert "add the label" not in story.outcome_message
    assert ("team" in story.outcome_message) is False
    assert "--abandon" in story.outcome_message
    story.turn(Approved("UnknownResult", "Abandon"))
    story.report(ActionError("Conflict", "", attempted=False, belongs_to=owner))
    assert (story.outcome, story.reason) == ("Conflict", "OwnedByAnother")


@pytest.mark.parametrize("kind", [UNLABELED, UNMARKED, KEYLESS])
def test_a_withdrawal_ends_an_unknown_result_under_the_name_of_another_resource(kind: Kind):
    story = story_with_lost_name(kind)
    events = story.withdraw()
    assert only(ActionAbandoned, events).in_doubt
    assert not every(ActionDecided, events)
    assert story.idle
    assert story.outcome == "Deleted"
    story.observe(api_object(uid="theirs"), belongs_to="default/Block/Bar")
    assert story.idle, "the object of the other resource is left unchanged"


def test_a_withdrawal_keeps_an_unknown_result_that_no_other_resource_has():
    story = declared_story(UNMARKED)
    story.fail("Unknown")
    story.wake(3600)
    story.fail("Conflict", existing=api_object())
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "UnknownResult"), "it would leak"
