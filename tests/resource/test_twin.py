"""Twins, which are other processes with a copy of the log: detection, and holds until approval."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from events.epochs import epochs_in, first_epoch, is_restored, next_epoch
from events.external import ExternalObject
from events.intake import ApiReported, Approved, Declared, NewerObject, Withdrawn
from events.log import (
    ActionDecided,
    ActionRetried,
    DriftDetected,
    HoldApproved,
    LookupDecided,
    OutcomeRecorded,
    ResourceEvent,
    TwinDetected,
    event_id,
)
from events.names import ResourceKey
from reconciler.resource.api_health import MAX_NEWER_OBJECTS
from reconciler.resource.attempt import idempotency_key
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.resource.turn import TwinHold
from reconciler.resource.twin import MAX_NEWER_VERSIONS, KeySpaces, newer_action
from tests.resource.building import FOO, FOO_OWNER, LOG_ID, Story, api_object, every, manifest, only
from tests.resource.test_api_health import config_story, declare, report_failing, report_responding

HELD = TwinHold(7, is_held=True)
FIRST = KeySpaces.of(LOG_ID, "", None)
RED, BLUE = {"color": "Red"}, {"color": "Blue"}


def key_at(version: int, *, epoch: str = "", of: ResourceKey = FOO, log_id: str = LOG_ID) -> str:
    return idempotency_key(log_id, event_id(of, version), epoch)


def own_object(written_by: str | None, *, label: str = FOO_OWNER) -> ExternalObject:
    return replace(api_object(uid="u1", labels={OWNER_LABEL: label}), written_by=written_by)


# --- detection


def test_a_key_with_a_version_beyond_the_log_belongs_to_a_twin():
    assert newer_action(own_object(key_at(12)), FIRST, 7) == event_id(FOO, 12)
    assert newer_action(own_object(key_at(1)), FIRST, 0) == event_id(FOO, 1), (
        "the log has no event of the resource"
    )


@pytest.mark.parametrize(
    "existing",
    [
        own_object(key_at(7)),
        own_object(key_at(2)),
        own_object(None),
        own_object("a-key-of-another-client"),
        own_object(key_at(12, log_id="log2"), label=owner("log2", FOO)),
        replace(own_object(key_at(12)), labels={}),
        own_object(key_at(12, of=ResourceKey("default", "Block", "Bar"))),
        own_object(key_at(7 + MAX_NEWER_VERSIONS + 1)),
    ],
    ids=[
        "our newest action",
        "an older one",
        "an API that shows no key",
        "a key that is not ours",
        "another log's",
        "without a label",
        "with the label of another resource",
        "too far ahead",
    ],
)
def test_other_keys_do_not_prove_a_twin(existing: ExternalObject):
    """A copy of one of our objects has a key that this log has decided."""
    assert newer_action(existing, FIRST, 7) is None


def test_a_restored_log_accepts_the_keys_of_earlier_epochs():
    """Objects that were written after the backup are newer than the restored log."""
    restored = KeySpaces.of(LOG_ID, "e2.e1", None)
    assert newer_action(own_object(key_at(12)), restored, 7)
    assert newer_action(own_object(key_at(12, epoch="e1")), restored, 7)
    assert newer_action(own_object(key_at(12, epoch="e2.e1")), restored, 7)
    assert newer_action(own_object(key_at(7, epoch="e1")), restored, 7) is None
    assert newer_action(own_object(key_at(12, epoch="e3")), restored, 7) is None


def test_a_client_that_knows_only_the_labels_cannot_forge_a_twin():
    """A client that can write an object knows the id of the log, but not its first epoch."""
    first = first_epoch("random")
    restored = next_epoch("e2", first)
    assert (is_restored(""), is_restored(first), is_restored(restored)) == (False, False, True)
    for epoch in (first, restored):
        for hold in (None, HELD._replace(approved_by="m1")):
            spaces = KeySpaces.of(LOG_ID, epoch, hold)
            assert newer_action(own_object(key_at(12)), spaces, 7) is None
            assert newer_action(own_object(key_at(12, epoch=first)), spaces, 7)


def test_an_epoch_contains_all_earlier_ones_even_if_they_do_not_contain_each_other():
    first, second = next_epoch("e2", "e1"), next_epoch("e3", "e1", "")
    assert (first, second) == ("e2.e1", "e3.e1")
    assert next_epoch("e4", first, "e1") == next_epoch("e4", "e1", first, first) == "e4.e2.e1"
    joined = next_epoch("e5", next_epoch("e4", first, second), "e6.e1")
    for epoch in (joined, "e4.e2.e1,e3.e1", "e2.e1", "e3.e1", "e6.e1", "e1"):
        assert epoch in epochs_in(joined)
        assert newer_action(
            own_object(key_at(12, epoch=epoch)), KeySpaces.of(LOG_ID, joined, None), 7
        )
    assert next_epoch("e7", joined, first, second, "e1") == f"e7.{joined}"
    assert next_epoch("e1") == "e1"


def test_an_action_records_the_epoch_of_its_key():
    """Without its metadata, only its events show the epochs of a log."""
    story = Story()
    story.declare()
    assert story.action.epoch == ""
    story = Story()
    story.restored_as_of = "2026-11-25T03:00:00Z"
    story.declare()
    assert story.action.epoch == "e1"
    assert story.action.idempotency_key == idempotency_key(LOG_ID, story.action.action_id, "e1")


# --- the ProviderConfig


def newer_object(name: str = "a", version: int = 12, known: int = 7) -> NewerObject:
    action = event_id(ResourceKey("default", "Block", name), version)
    return NewerObject("Block", name, f"uid-{name}", action, known)


def report_twin(
    story: Story, *newer: NewerObject, as_of: int | None = None, total: int = 0
) -> list[Any]:
    known_version = story.state.api.twin.version if as_of is None else as_of
    total = total or len(newer)
    return story.turn(ApiReported("Twin", "w1", story.now, known_version, newer=newer, total=total))


def approve(story: Story) -> list[ResourceEvent]:
    return story.turn(Approved("Twin", reason="the copy was stopped"))


def test_a_configuration_is_held_with_the_objects_that_prove_it():
    story = config_story()
    events = report_twin(
        story, newer_object("a"), newer_object("b"), newer_object("c"), newer_object("d")
    )
    assert only(TwinDetected, events).total == 4
    outcome = only(OutcomeRecorded, events)
    assert (outcome.outcome, outcome.reason) == ("Held", "Twin")
    assert "4 objects were written by actions that this log does not contain" in outcome.message
    assert "Block 'a' (uid uid-a) by default/Block/a@12" in outcome.message
    assert "and 1 more" in outcome.message


def test_the_same_objects_are_recorded_once_and_others_are_added():
    story = config_story()
    report_twin(story, newer_object("a"))
    assert report_twin(story, newer_object("a")) == []
    assert [
        each.name for each in only(TwinDetected, report_twin(story, newer_object("b"))).objects
    ] == ["a", "b"]


def test_a_limited_number_of_objects_is_recorded_and_all_are_counted():
    story = config_story()
    many = [newer_object(f"n{number}") for number in range(MAX_NEWER_OBJECTS)]
    detected = only(TwinDetected, report_twin(story, *many, total=500))
    assert (len(detected.objects), detected.total) == (MAX_NEWER_OBJECTS, 500)


def test_all_objects_are_approved_together():
    story = config_story()
    report_twin(story, newer_object("a"), newer_object("b"))
    assert only(HoldApproved, approve(story)).hold == "Twin"
    assert story.outcome == "Converged"


def test_objects_read_before_the_approval_do_not_cause_a_hold():
    story = config_story()
    report_twin(story, newer_object("a"))
    version_before = story.state.api.twin.version
    approve(story)
    assert report_twin(story, newer_object("a"), newer_object("b"), as_of=version_before) == []


def test_each_hold_needs_its_own_approval():
    story = config_story()
    report_twin(story, newer_object("a"))
    approve(story)
    report_twin(story, newer_object("b"))
    assert (story.outcome, story.reason) == ("Held", "Twin")
    assert every(HoldApproved, approve(story))
    assert story.outcome == "Converged"


def test_neither_a_declaration_nor_the_breaker_ends_the_hold():
    story = config_story()
    report_twin(story, newer_object("a"))
    declare(story, {"provider": "tests", "endpoint": "http://elsewhere"})
    assert (story.outcome, story.reason) == ("Held", "Twin")
    report_failing(story)
    assert (story.outcome, story.reason) == ("Held", "Twin")
    report_responding(story)
    assert (story.outcome, story.reason) == ("Held", "Twin")


# --- its resources


def held_story() -> Story:
    story = Story()
    story.twins["default"] = HELD
    return story


def test_nothing_is_created_while_the_api_is_held():
    story = held_story()
    assert not every(ActionDecided, story.declare())
    assert (story.outcome, story.reason) == ("Held", "Twin")
    assert story.wake() == [], "a wake-up records nothing new"


def test_nothing_is_corrected_or_deleted_while_the_api_is_held():
    story = Story()
    story.declare(RED)
    story.succeed()
    story.twins["default"] = HELD
    events = story.observe(replace(story.existing, fields=BLUE))
    assert every(DriftDetected, events), "the observation is recorded"
    assert not every(ActionDecided, events)
    assert not every(ActionDecided, story.withdraw())
    assert (story.outcome, story.reason) == ("Held", "Twin")


def test_an_action_is_not_repeated_but_looked_up_while_the_api_is_held():
    story = Story()
    story.declare()
    story.fail("NotDone")
    story.twins["default"] = HELD
    assert not every(ActionRetried, story.wake(600))
    assert (story.outcome, story.reason) == ("Held", "Twin")
    story.twins.clear()
    for _ in range(3):
        story.wake(600)
        story.fail("Unknown")
    story.twins["default"] = HELD
    assert every(LookupDecided, story.wake(600)), "a read is harmless"


def test_other_apis_continue():
    story = Story()
    story.twins["another"] = HELD
    assert every(ActionDecided, story.declare())


def test_actions_after_the_approval_have_keys_that_no_copy_has_used():
    """The copy that lags reaches the same versions again."""
    story = held_story()
    story.declare()
    story.twins["default"] = TwinHold(8, is_held=False, approved_by="m9")
    action = only(ActionDecided, story.wake()).action
    assert action.idempotency_key != idempotency_key(LOG_ID, action.action_id)
    known_key_spaces = KeySpaces.of(LOG_ID, "", story.twins["default"])
    assert newer_action(own_object(action.idempotency_key), known_key_spaces, 0) == action.action_id


def test_the_hold_of_a_resource_is_approved_with_its_configuration():
    story = held_story()
    story.declare()
    assert story.turn(Approved("Twin")) == []
    assert story.reply.reason == "Invalid"
    assert "ProviderConfig" in story.reply.message


def test_a_withdrawn_resource_without_an_object_needs_no_approval():
    story = held_story()
    story.turn(Declared(manifest()), Withdrawn())
    assert story.outcome == "Deleted"
