"""The ladder of unknown results: repeat with the same key, look, ask a person."""

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


def kind_that_can(
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


def replaced_by_id(kind: Kind) -> Kind:
    return dataclasses.replace(kind, immutable=frozenset({"type"}))


KEYLESS = kind_that_can()
NAMELESS = kind_that_can(unique_names=False)
BLIND = kind_that_can(unique_names=False, labels=False)
UNMARKED = kind_that_can(labels=False)


def declared_story(kind: Kind = BLOCK) -> Story:
    story = Story(kind=kind)
    story.declare()
    return story


def unknown(story: Story, times: int = 1) -> list[ResourceEvent]:
    """So many attempts of unknown result; gives the events of the next attempt's beginning."""
    events: list[ResourceEvent] = []
    for _ in range(times):
        story.fail("Unknown")
        events = story.wake(3600)
    return events


def test_the_first_step_repeats_with_the_same_key():
    story = declared_story()
    action = story.action
    for _ in range(2):
        assert only(ActionRetried, unknown(story)).action == action
    assert not story.flight.is_lookup


def test_the_second_step_is_a_lookup_when_repeats_prove_nothing():
    story = declared_story()
    action = story.action
    assert only(LookupDecided, unknown(story, 3)).action == action
    assert story.flight.is_lookup


@pytest.mark.parametrize("labels", [owned_labels(), owned_labels(team="a")])
def test_what_a_lookup_finds_under_our_label_is_what_the_action_made(labels: dict[str, str]):
    story = declared_story()
    unknown(story, 3)
    succeeded = only(ActionSucceeded, story.look(thing(uid="u7", labels=labels)))
    assert succeeded.found_by == "Label"
    assert story.state.owned is not None
    assert story.state.owned.uid == "u7"


def test_what_a_lookup_finds_under_the_actions_key_is_what_the_action_made():
    story = declared_story(UNMARKED)
    unknown(story, 3)
    created_object = replace(thing(uid="u7"), written_by=story.action.idempotency_key)
    assert only(ActionSucceeded, story.look(created_object)).found_by == "Key"


def test_where_a_lookup_finds_nothing_the_same_action_is_called_again():
    story = declared_story()
    action = story.action
    unknown(story, 3)
    events = story.look(None)
    assert names(events)[:2] == ["ActionNotDone", "ActionRetried"]
    assert only(ActionNotDone, events).action_id == action.action_id
    assert only(ActionRetried, events).action == action
    story.succeed()
    assert story.outcome == "Converged"


def test_where_a_lookup_finds_a_foreign_object_it_is_a_conflict():
    story = declared_story()
    unknown(story, 3)
    story.look(thing(uid="h1", labels={"reconciler/owner": "another"}))
    assert story.idle
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert story.state.owned is None


def test_the_key_attributes_an_unclaimed_object_that_a_lookup_finds():
    """Another client may have removed our label. The API shows by the key what we created."""
    story = declared_story()
    action = story.action
    unknown(story, 3)
    failed = only(ActionFailed, story.look(thing(uid="u7")))
    assert failed.error.error_class == "Unknown"
    assert only(ActionRetried, story.wake(3600)).action == action
    story.report(shown=thing(uid="u7"))
    assert story.state.owned is not None
    assert story.state.owned.uid == "u7"


def test_what_nobody_claims_and_the_key_did_not_make_is_foreign():
    story = declared_story()
    unknown(story, 3)
    story.look(thing(uid="h1"))
    story.wake(3600)
    story.fail("Conflict", shown=thing(uid="h1"))
    assert story.idle
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_a_lookup_that_fails_is_followed_by_another_try():
    story = declared_story()
    unknown(story, 3)
    assert only(ActionRetried, unknown(story)).action == story.action


def test_a_lookup_waits_until_the_api_shows_what_was_done():
    story = Story(kind=kind_that_can(keys=True, grace=60.0))
    story.declare()
    for _ in range(2):
        story.fail("Unknown")
        story.wake(3600)
    wait = only(RetryScheduled, story.fail("Unknown"))
    assert wait.delay_seconds >= 60.0
    assert wait.at >= story.now + timedelta(seconds=60)


def test_a_creation_that_cannot_be_repeated_is_looked_for_at_once():
    """Without keys and without unique names a second call could make a second object."""
    story = declared_story(NAMELESS)
    assert only(LookupDecided, unknown(story)).action == story.action
    story.look(None)
    assert not story.flight.is_lookup, "it was not done: it may be called"


def test_without_names_and_labels_a_creation_is_held_for_a_person():
    story = declared_story(BLIND)
    story.report(ActionError("Unknown", "cut"))
    story.wake(3600)
    held = only(ActionHeld, story.look(None))
    assert held.action_id == story.action.action_id
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    assert story.wake(36_000) == [], "nothing happens by itself"


def held_for_a_person() -> Story:
    story = declared_story(BLIND)
    unknown(story)
    story.look(None)
    assert story.outcome == "Held"
    return story


def test_a_person_who_says_that_it_was_not_done_has_it_called_again():
    story = held_for_a_person()
    action = story.action
    events = story.turn(Approved("UnknownResult", reason="I looked"))
    assert story.answer.accepted
    assert only(LookupDecided, events).action == action, "they may have labelled it"
    events = story.look(None)
    assert names(events)[:2] == ["ActionNotDone", "ActionRetried"]
    story.succeed()
    assert story.outcome == "Converged"


@pytest.mark.parametrize("policy", [{}, {"adoption": "Adopt"}])
def test_of_two_objects_with_our_label_an_operator_names_the_created_one(
    policy: dict[str, str],
):
    """Another client has copied the label: the other object would leak, or never was ours."""
    story = Story(kind=NAMELESS)
    story.declare(policy=policy)
    if policy:
        story.see(None)
    unknown(story)
    copied, own_object = (thing(uid=uid, labels=owned_labels()) for uid in ("h1", "u2"))
    for _ in range(2):
        held = only(ActionHeld, story.look(copied, labeled_uids=("h1", "u2")))
        assert "h1, u2" in held.reason
        assert f"remove the label {OWNER_LABEL} from the others" in held.reason
        assert story.state.owned is None
        story.turn(Approved("UnknownResult", reason="I looked"))
        assert story.flight.is_lookup, "nothing is created before the label is looked for again"
    assert only(ActionSucceeded, story.look(own_object)).found_by == "Label"
    assert story.state.owned is not None
    assert story.state.owned.uid == "u2"


def test_of_two_objects_with_our_label_the_key_identifies_the_created_one():
    story = declared_story(kind_that_can(keys=True, unique_names=False))
    action = story.action
    unknown(story, 3)
    copied = thing(uid="h1", labels=owned_labels())
    failed = only(ActionFailed, story.look(copied, labeled_uids=("h1", "u2")))
    assert failed.error.error_class == "Unknown"
    assert only(ActionRetried, story.wake(3600)).action == action


def test_a_lookup_passes_over_the_objects_that_existed_before_the_creation():
    story = Story(kind=replaced_by_id(NAMELESS))
    story.declare({"type": "Square"})
    story.succeed()
    replaced = story.existing.uid
    story.declare({"type": "Circle"})
    assert story.action.operation == "Create"
    looked = only(LookupDecided, unknown(story))
    assert looked.known_uids == (replaced,)


def test_a_lookup_where_names_are_unique_needs_no_uids():
    assert only(LookupDecided, unknown(declared_story(), 3)).known_uids == ()


def test_what_a_person_has_labelled_is_found_and_not_made_a_second_time():
    story = declared_story(NAMELESS)
    unknown(story)
    other_object = thing(uid="u1", labels={"reconciler/owner": "somebody else's"})
    assert only(ActionHeld, story.look(other_object)), "ours may stand beside it"
    assert only(LookupDecided, story.turn(Approved("UnknownResult", reason="labelled")))
    assert only(ActionSucceeded, story.look(thing(uid="u2", labels=owned_labels())))
    assert story.state.owned is not None
    assert story.state.owned.uid == "u2"


def test_a_second_hold_of_an_action_is_approved_anew():
    story = held_for_a_person()
    story.turn(Approved("UnknownResult", reason="I looked"))
    story.look(None)
    unknown(story)
    story.look(None)
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    events = story.turn(Approved("UnknownResult", reason="I looked again"))
    assert story.answer.reason == "Accepted"
    assert every(LookupDecided, events)


def test_an_approval_does_not_cover_a_later_call_with_an_unknown_result():
    story = declared_story(UNMARKED)
    unknown(story)
    story.fail("Conflict", shown=thing(uid="u1"))
    assert only(ActionRetried, story.turn(Approved("UnknownResult", reason="I looked")))
    assert only(LookupDecided, unknown(story, 3))
    assert only(ActionHeld, story.look(thing(uid="u2"))).object == thing(uid="u2")


def test_a_person_who_says_that_it_was_done_ends_the_action():
    story = held_for_a_person()
    story.withdraw()
    events = story.turn(Approved("UnknownResult", "Abandon", "it is there, and I removed it"))
    assert every(ActionAbandoned, events)
    assert not every(ActionRetried, events)
    assert story.idle


def test_a_taken_name_on_an_api_without_keys_is_our_own_work_if_it_carries_our_label():
    story = declared_story(KEYLESS)
    events = story.fail("Conflict", shown=thing(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"
    assert story.outcome == "Converged"


def test_a_taken_name_on_an_api_with_keys_is_ours_only_if_a_result_was_unknown():
    story = declared_story()
    story.fail("Conflict", shown=thing(labels=owned_labels()))
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    story = declared_story()
    unknown(story)
    events = story.fail("Conflict", shown=thing(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"


def test_what_an_earlier_action_of_ours_made_is_changed_to_what_is_declared_now():
    story = declared_story(KEYLESS)
    events = story.fail("Conflict", shown=repainted(thing(labels=owned_labels()), color="Blue"))
    assert only(ActionSucceeded, events).found_by == "Label"
    assert only(ActionDecided, events).action.operation == "Update"


@pytest.mark.parametrize("observed_object", [thing(uid="u1"), thing({"type": "Circle"}, uid="u1")])
def test_without_labels_a_taken_name_after_an_unknown_result_is_held_for_a_person(
    observed_object: ExternalObject,
):
    """Another client may have changed what our first call created before the second finds it."""
    story = declared_story(UNMARKED)
    unknown(story)
    assert only(ActionHeld, story.fail("Conflict", shown=observed_object)).object == observed_object
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story = declared_story(UNMARKED)
    unknown(story, 3)
    assert only(ActionHeld, story.look(observed_object)).object == observed_object


def test_without_labels_a_withdrawn_creation_of_unknown_result_is_not_attributed_to_others():
    story = declared_story(UNMARKED)
    unknown(story)
    story.withdraw()
    story.fail("Conflict", shown=thing({"type": "Circle"}, uid="u1"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult"), "it would leak"


# --- without keys, what carries no label may be ours all the same


def test_a_redelivered_creation_that_meets_what_nobody_claims_is_held_for_a_person():
    """A worker died after its call, and another client removed our label before the second."""
    story = declared_story(KEYLESS)
    held = only(ActionHeld, story.fail("Conflict", shown=thing(uid="u1"), redelivered=True))
    assert held.object == thing(uid="u1")
    assert "uid u1" in held.reason
    assert f"reconciler/owner={FOO_OWNER}" in held.reason
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    assert story.wake(36_000) == [], "nothing happens by itself"


def test_what_a_creation_meets_at_its_first_delivery_is_foreign():
    story = declared_story(KEYLESS)
    story.fail("Conflict", shown=thing(uid="h1"))
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_a_creation_that_was_perhaps_made_before_stays_so_at_its_next_attempt():
    story = declared_story(KEYLESS)
    story.fail("Throttled", redelivered=True)
    story.wake(3600)
    assert only(ActionHeld, story.fail("Conflict", shown=thing(uid="u1")))


def test_after_an_unknown_result_what_nobody_claims_is_held_for_a_person():
    story = declared_story(KEYLESS)
    unknown(story)
    assert only(ActionHeld, story.fail("Conflict", shown=thing(uid="u1")))
    story = declared_story(KEYLESS)
    unknown(story, 3)
    assert only(ActionHeld, story.look(thing(uid="u1")))


def test_what_another_owner_claims_is_never_taken_for_our_own_work():
    story = declared_story(KEYLESS)
    another = thing(uid="h1", labels={"reconciler/owner": "another"})
    story.fail("Conflict", shown=another, redelivered=True)
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


@pytest.mark.parametrize(
    ("policy", "configs"), [({"adoption": "Adopt"}, {CONFIG: SHARED}), ({}, {CONFIG: EXCLUSIVE})]
)
def test_no_approval_is_needed_where_the_object_is_adopted_anyway(
    policy: Fields, configs: dict[str, ProviderConfigSpec]
):
    story = Story(kind=KEYLESS, configs=configs)
    story.declare(policy=policy)
    events = story.fail("Conflict", shown=thing(uid="u1"), redelivered=True)
    assert every(OwnershipClaimed, events)
    assert not every(ActionHeld, events)


def test_what_would_be_adopted_if_it_were_not_withdrawn_is_held():
    story = Story(kind=KEYLESS)
    story.declare(policy={"adoption": "Adopt"})
    story.withdraw()
    story.fail("Conflict", shown=thing(uid="u1"), redelivered=True)
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")


def held_for_unclaimed_object(*, after_unknown_result: bool = False) -> Story:
    story = declared_story(KEYLESS)
    if after_unknown_result:
        unknown(story)
    story.fail("Conflict", shown=thing(uid="u1"), redelivered=not after_unknown_result)
    assert story.outcome == "Held"
    return story


def test_a_person_who_finds_it_to_be_ours_gives_it_our_label_and_has_it_called_again():
    story = held_for_unclaimed_object()
    story.withdraw()
    assert only(ActionRetried, story.turn(Approved("UnknownResult", reason="it is ours")))
    events = story.fail("Conflict", shown=thing(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"
    assert (story.action.operation, story.action.uid) == ("Delete", "u1"), "no leak"


@pytest.mark.parametrize("after_unknown_result", [False, True])
def test_a_person_who_finds_it_to_be_anothers_is_not_asked_again(after_unknown_result: bool):
    story = held_for_unclaimed_object(after_unknown_result=after_unknown_result)
    story.turn(Approved("UnknownResult", reason="it is of the shop"))
    story.fail("Conflict", shown=thing(uid="u1"))
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_without_keys_a_creation_of_two_deliveries_may_have_made_a_second_object():
    """The worker that had it first may wake up long after, and make its call."""
    story = declared_story(KEYLESS)
    created_object = story.written(story.action)
    assert only(ActionSucceeded, story.report(shown=created_object, redelivered=True)).redelivered
    story.withdraw()
    story.report()
    story.see(thing(uid="u9", labels=owned_labels()))
    assert (story.action.operation, story.action.uid) == ("Delete", "u9")


def test_with_keys_a_second_delivery_proves_nothing():
    story = declared_story()
    created_object = story.written(story.action)
    assert not only(
        ActionSucceeded, story.report(shown=created_object, redelivered=True)
    ).redelivered
    assert not story.state.actions.uncertain_create


# --- a creation that has created more than one object


def created_twice(kind: Kind, labels: dict[str, str]) -> tuple[Story, ExternalObject]:
    """Another client deletes what the first delivery created, and the second creates again."""
    story = Story(kind=kind)
    story.declare()
    action_id = story.action.action_id
    story.succeed()
    second = thing(uid="u9", labels=labels)
    late = only(ActionSucceeded, second_success(story, action_id, second))
    assert (late.late, late.outdated, late.object) == (True, True, second)
    return story, second


def second_success(
    story: Story, action_id: str, created_object: ExternalObject
) -> list[ResourceEvent]:
    return story.report(shown=created_object, action_id=action_id, attempt=1, redelivered=True)


@pytest.mark.parametrize(
    ("kind", "labels"), [(KEYLESS, owned_labels()), (KEYLESS, {}), (UNMARKED, {})]
)
def test_the_second_object_of_a_creation_is_ours_when_it_is_seen(
    kind: Kind, labels: dict[str, str]
):
    story, second = created_twice(kind, labels)
    assert second_success(story, story.state.actions.ended[-1].action.action_id, second) == []
    claimed = only(OwnershipClaimed, story.see(second))
    assert (claimed.uid, claimed.reason) == ("u9", "Found")
    story.withdraw()
    if labels or kind is UNMARKED:
        assert (story.action.operation, story.action.uid) == ("Delete", "u9"), "no leak"


def test_the_second_object_of_a_creation_is_ours_when_another_action_meets_it():
    story, second = created_twice(KEYLESS, {})
    story.declare({"type": "Square", "color": "Blue"})
    events = story.fail("Conflict", shown=second)
    assert only(OwnershipClaimed, events).uid == "u9"
    assert only(ActionDecided, events).action.uid == "u9"


def test_the_second_object_of_a_creation_is_deleted_though_the_first_was():
    story = declared_story(KEYLESS)
    action_id = story.action.action_id
    story.succeed()
    story.withdraw()
    story.report()
    assert story.outcome == "Deleted"
    events = second_success(story, action_id, thing(uid="u9", labels=owned_labels()))
    assert not only(ActionSucceeded, events).outdated
    assert (story.action.operation, story.action.uid) == ("Delete", "u9")


def test_a_second_object_that_was_released_is_not_claimed_again():
    story = Story(kind=UNMARKED)
    story.declare(policy={"deletion": "Orphan"})
    action_id = story.action.action_id
    story.succeed()
    second = thing(uid="u9")
    second_success(story, action_id, second)
    assert every(OwnershipClaimed, story.see(second))
    story.withdraw()
    assert story.outcome == "Released"
    story.see(None)
    assert not every(OwnershipClaimed, story.see(second))
    assert story.state.owned is None


def test_with_keys_a_repeated_success_proves_nothing():
    story = declared_story()
    action_id = story.action.action_id
    created_object = story.written(story.action)
    story.report(shown=created_object)
    assert story.report(shown=created_object, action_id=action_id, attempt=1, replayed=True) == []
    lost_error = ActionError("Unknown", "a worker that had it was not heard of again")
    assert story.report(lost_error, action_id=action_id, attempt=1, redelivered=True) == []


def test_what_carries_the_key_of_an_ended_creation_is_ours():
    """The API has no labels, and the worker that called again was not heard of."""
    story = Story(kind=UNLABELLED)
    story.declare()
    action = story.action
    story.fail("NotDone")
    story.withdraw()
    assert story.idle
    created_object = replace(thing(uid="u9"), written_by=action.idempotency_key)
    assert only(OwnershipClaimed, story.see(created_object)).reason == "Found"
    assert (story.action.operation, story.action.uid) == ("Delete", "u9"), "no leak"


def in_doubt(kind: Kind = KEYLESS) -> Story:
    """The result of a second delivery of a creation was lost, and the first object was deleted."""
    story = declared_story(kind)
    action_id = story.action.action_id
    story.succeed()
    lost_error = ActionError("Unknown", "a worker that had it was not heard of again")
    story.report(lost_error, action_id=action_id, attempt=1, redelivered=True)
    return story


def test_what_carries_our_label_after_a_creation_in_doubt_is_ours_even_while_it_is_paused():
    story = in_doubt()
    story.declare(policy={"paused": True})
    assert only(OwnershipClaimed, story.see(thing(uid="u9", labels=owned_labels()))).uid == "u9"
    assert story.outcome == "Paused"


@pytest.mark.parametrize("kind", [KEYLESS, UNMARKED])
@pytest.mark.parametrize("is_declared", [True, False])
def test_what_nobody_claims_after_a_creation_in_doubt_is_held_for_a_person(
    kind: Kind, is_declared: bool
):
    story = in_doubt(kind)
    if not is_declared:
        story.withdraw()
        story.report()
    story.see(thing(uid="u9"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story.turn(Approved("UnknownResult", reason="it is of the shop"))
    assert story.outcome == ("Conflict" if is_declared else "Unowned")
    story.see(repainted(thing(uid="u9"), color="Green"))
    assert story.outcome != "Held", "it is not asked again"


@pytest.mark.parametrize(
    ("policy", "outcome"), [({"paused": True}, "Paused"), ({"mode": "ObserveOnly"}, "Converged")]
)
def test_an_operator_is_asked_for_the_owner_even_where_nothing_is_to_be_written(
    policy: Fields, outcome: str
):
    story = in_doubt()
    story.declare(policy=policy)
    story.see(thing(uid="u9"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story.turn(Approved("UnknownResult", reason="it is of the shop"))
    assert story.outcome == outcome


def test_a_creation_in_doubt_that_gets_our_label_is_ours_before_and_after_an_approval():
    for is_approved in (True, False):
        story = in_doubt()
        story.see(thing(uid="u9"))
        if is_approved:
            story.turn(Approved("UnknownResult", reason="I labelled it"))
        events = story.see(relabelled(thing(uid="u9"), owned_labels()))
        assert only(OwnershipClaimed, events).uid == "u9"


def test_an_object_adopted_after_a_creation_in_doubt_needs_no_approval():
    story = in_doubt()
    story.declare(policy={"adoption": "Adopt"})
    assert only(OwnershipClaimed, story.see(thing(uid="u9"))).reason == "Adopted"


def updating() -> Story:
    story = converged()
    story.declare({"type": "Square", "color": "Purple"})
    unknown(story, 3)
    return story


def test_an_update_that_a_lookup_shows_as_done_is_done():
    story = updating()
    assert (
        only(ActionSucceeded, story.look(repainted(story.existing, color="Purple"))).found_by
        == "Content"
    )
    assert story.outcome == "Converged"


def test_an_update_that_a_lookup_shows_as_not_done_is_called_again():
    story = updating()
    assert only(ActionRetried, story.look(story.existing)).action == story.action


def test_an_update_that_a_lookup_shows_as_overtaken_is_decided_anew():
    story = updating()
    previous_action = story.action
    decided = only(ActionDecided, story.look(repainted(story.existing, color="Green")))
    assert decided.action.version != previous_action.version


def test_an_update_of_what_is_gone_becomes_a_creation():
    story = updating()
    assert only(ActionDecided, story.look(None)).action.operation == "Create"


def test_a_deletion_is_done_when_a_lookup_shows_nothing_and_called_again_when_it_is_there():
    story = converged()
    story.withdraw()
    unknown(story, 3)
    assert every(ActionRetried, story.look(story.existing))
    unknown(story, 3)
    assert only(ActionSucceeded, story.look(None)).found_by == "Absence"
    assert story.outcome == "Deleted"


def test_a_deletion_that_meets_nothing_does_not_claim_what_another_client_did():
    story = converged()
    story.withdraw()
    assert only(ActionSucceeded, story.report(absent=True)).found_by == "Absence"
    assert story.outcome == "Deleted"


def test_a_success_that_is_reported_late_makes_the_object_ours():
    """The same attempt ran twice, and the one that was refused reported first."""
    story = declared_story()
    action = story.action
    story.fail("Refused")
    assert story.outcome == "Failed"
    created_object = story.written(action)
    events = story.report(shown=created_object, action_id=action.action_id, attempt=1)
    assert only(ActionSucceeded, events).late
    assert story.state.owned is not None
    assert story.outcome == "Converged"


def test_a_late_success_of_what_was_withdrawn_meanwhile_is_deleted():
    story = declared_story()
    action = story.action
    story.fail("Refused")
    story.withdraw()
    story.report(shown=story.written(action), action_id=action.action_id, attempt=1)
    assert (story.action.operation, story.action.uid) == ("Delete", "u1")


def refused_for_good(story: Story) -> None:
    """Refuse a creation of which an earlier attempt is in doubt: a lookup comes first."""
    story.fail("Refused")
    story.wake(3600)
    story.look(None)
    story.fail("Refused")


def test_an_object_under_our_label_after_an_uncertain_creation_is_ours():
    """The creation was refused in the end, but an earlier attempt of it may have been done."""
    story = declared_story()
    unknown(story)
    refused_for_good(story)
    assert story.outcome == "Failed"
    events = story.see(thing(uid="u9", labels=owned_labels()))
    assert only(OwnershipClaimed, events).reason == "Found"
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "u9")


def test_what_an_uncertain_creation_made_is_ours_where_nothing_is_to_be_written():
    story = declared_story()
    unknown(story)
    refused_for_good(story)
    story.declare(policy={"mode": "ObserveOnly"})
    events = story.see(thing(uid="u9", labels=owned_labels()))
    assert only(OwnershipClaimed, events).reason == "Found"
    assert story.outcome == "Converged"


def test_a_label_alone_makes_nothing_ours():
    story = Story()
    story.see(thing(labels=owned_labels()))
    assert (story.outcome, story.reason) == ("Disputed", "LabelNotInLog")


def test_a_label_that_is_taken_off_is_restored_or_reported():
    story = converged()
    story.see(relabelled(story.existing, {}))
    assert story.action.labels["reconciler/owner"] == FOO_OWNER
    story = converged(policy={"ownerLabel": "Report"})
    story.see(relabelled(story.existing, {}))
    assert story.idle
    assert (story.outcome, story.reason) == ("Disputed", "LabelMissing")


@pytest.mark.parametrize("kind", [NAMELESS, BLIND], ids=["labels", "nothing"])
def test_a_creation_of_unknown_result_is_not_repeated_though_the_next_answer_is_throttled(
    kind: Kind,
):
    """The API refuses that call alone: what the one before has made would be made once more."""
    story = declared_story(kind)
    story.fail("Unknown")
    assert only(LookupDecided, story.wake(3600))
    action, attempt = story.action, story.flight.attempt
    slower = ActionError("Throttled", "slower", 429, 5.0)
    report = Reported(action.action_id, attempt, story.now, story.now, "w1", slower)
    story.turn(replace(report, is_lookup=True))
    assert every(ActionRetried, story.wake(3600)) == []
    assert story.flight.is_lookup


@pytest.mark.parametrize("kind", [NAMELESS, BLIND], ids=["labels", "nothing"])
def test_a_creation_that_another_worker_had_is_not_repeated_when_it_is_throttled(kind: Kind):
    story = declared_story(kind)
    story.fail("Throttled", redelivered=True)
    assert only(LookupDecided, story.wake(3600))


def test_a_creation_that_was_only_throttled_is_repeated():
    story = declared_story(NAMELESS)
    story.fail("Throttled")
    assert only(ActionRetried, story.wake(3600))


def test_a_creation_that_was_throttled_after_its_lookup_is_looked_up_once_more():
    """It may consist of several calls, and the first of them may have created the object."""
    story = declared_story()
    unknown(story, 2)
    story.fail("Refused")
    assert only(LookupDecided, story.wake(3600))
    story.look(None)
    assert story.flight.effect is Effect.UNKNOWN
    story.wake(3600)
    story.fail("Throttled")
    assert story.flight.is_in_doubt
    assert only(ActionRetried, story.wake(3600))
    story.fail("Refused")
    assert only(LookupDecided, story.wake(3600))
    story.look(None)
    story.wake(3600)
    story.fail("Refused")
    assert story.idle, "the lookup showed that nothing was created"


def test_the_log_keeps_every_step():
    story = declared_story()
    unknown(story, 3)
    story.look(None)
    rungs = [
        name
        for name in names([each.data for each in story.log])
        if name.startswith(("Action", "Lookup"))
    ]
    assert rungs == [
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


def test_the_grace_of_the_configuration_counts_as_well():
    config = ProviderConfigSpec(
        provider="tests", endpoint="http://localhost", consistency_grace_seconds=30
    )
    story = Story(kind=NAMELESS, configs={CONFIG: config})
    story.declare()
    assert only(RetryScheduled, story.fail("Unknown")).delay_seconds >= 30


@pytest.mark.parametrize("clock_was_ahead", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_lookup_waits_for_the_grace_by_the_clock_of_the_bus(clock_was_ahead: timedelta):
    """A decider with a wrong clock recorded the failure; another one decides the lookup."""
    story = Story(kind=kind_that_can(unique_names=False, grace=60.0))
    story.stored_at = story.now
    story.now += clock_was_ahead
    story.declare()
    story.fail("Unknown")
    story.now = story.stored_at = story.stored_at + timedelta(seconds=59)
    assert not every(LookupDecided, story.wake())
    assert story.state.actions.in_flight is not None
    story.stored_at += timedelta(seconds=2)
    assert every(LookupDecided, story.wake(30))


@pytest.mark.parametrize("clock_ahead", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_lookup_after_an_approval_waits_for_the_grace_by_the_clock_of_the_bus(
    clock_ahead: timedelta,
):
    story = Story(kind=kind_that_can(unique_names=False, grace=60.0))
    story.stored_at = story.now
    story.declare()
    story.fail("Unknown")
    story.stored_at = story.now = story.now + timedelta(hours=1)
    assert every(LookupDecided, story.wake())
    story.look(thing())
    story.now += clock_ahead
    assert not every(LookupDecided, story.turn(Approved("UnknownResult")))
    story.stored_at += timedelta(seconds=61)
    assert every(LookupDecided, story.wake(100))


UNLISTED = kind_that_can(listing=False)


@pytest.mark.parametrize(("kind", "is_read_again"), [(UNLISTED, True), (KEYLESS, False)])
def test_a_creation_that_may_arrive_late_is_looked_for_where_nothing_lists_it(
    kind: Kind, is_read_again: bool
):
    story = Story(kind=kind)
    story.declare()
    story.fail("Unknown")
    story.wake(3600)
    story.fail("Refused")
    story.withdraw()
    story.wake(3600)
    events = story.look(None)
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
    late = thing(labels=owned_labels())
    events = story.see(late)
    assert only(OwnershipClaimed, events).reason == "Found"
    assert story.action.operation == "Delete"


@pytest.mark.parametrize("clock_is_ahead", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_retry_waits_by_the_clock_of_the_bus(clock_is_ahead: timedelta):
    """A decider with a wrong clock scheduled it; another one, with another clock, decides it."""
    story = Story(kind=KEYLESS)
    story.stored_at = began = story.now
    story.now += clock_is_ahead
    story.declare()
    retry = only(RetryScheduled, story.fail("NotDone"))
    assert retry.at - began == timedelta(seconds=retry.delay_seconds)
    story.now -= 2 * clock_is_ahead
    assert not every(ActionRetried, story.wake(retry.delay_seconds / 2))
    assert every(ActionRetried, story.wake(retry.delay_seconds))
