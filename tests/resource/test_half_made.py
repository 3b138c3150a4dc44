"""A creation of several calls of which a later one is refused for good: what it made is ours."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from events.external import ExternalObject
from events.log import (
    ActionDecided,
    ActionFailed,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    LookupDecided,
)
from events.manifest import Fields
from reconciler.provider.kind import Kind
from reconciler.resource.owner_label import OWNER_LABEL
from tests.judge.history import Effect, History, RecordedEvent
from tests.judge.judging import findings
from tests.resource.building import BLOCK, UNLABELLED, Story, every, only, thing
from tests.resource.test_replacement import BESIDE, check_rows, created_story, decided

RED: Fields = {"type": "Square", "color": "Red"}
HALF: Fields = {"type": "Square"}


def half_of(story: Story) -> ExternalObject:
    """What the first call has made."""
    action = story.action
    observed_object = msgspec.structs.replace(story.written(action), fields=HALF)
    return msgspec.structs.replace(observed_object, written_by=action.idempotency_key)


def refused(kind: Kind = BLOCK) -> Story:
    story = Story(kind=kind)
    story.declare(RED)
    story.fail("Refused", shown=half_of(story), message="Red is not painted here")
    return story


@pytest.mark.parametrize("kind", [BLOCK, UNLABELLED])
def test_what_was_made_is_owned_and_the_refusal_is_reported(kind: Kind):
    story = refused(kind)
    assert story.state.owned is not None
    assert story.state.owned.uid == story.existing.uid
    assert (story.outcome, story.reason) == ("Failed", "Refused")
    assert story.state.outcome is not None
    assert story.state.outcome.message == "Red is not painted here"
    assert story.idle
    assert decided(story) == [("Create", "Converge")], "and not called again"
    check_rows(story)


def test_the_log_explains_the_effect():
    story = refused()
    success = only(ActionSucceeded, [event.data for event in story.log])
    assert success.refused is not None
    [action] = [each.data.action for each in story.log if isinstance(each.data, ActionDecided)]
    assert success.action_id == action.action_id
    effect = Effect(1.0, "Create", "Foo", story.existing.uid or "", action.idempotency_key)
    log = [RecordedEvent(position, 0.0, event) for position, event in enumerate(story.log, start=1)]
    assert findings(History(log=log, messages=None, effects=[effect])) == []


def test_what_was_made_goes_when_it_is_withdrawn():
    story = refused()
    uid = story.existing.uid
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", uid)
    story.succeed()
    assert story.outcome == "Deleted"
    check_rows(story)


def test_what_was_made_goes_though_it_was_withdrawn_before_the_refusal():
    story = Story()
    story.declare(RED)
    story.withdraw()
    half = half_of(story)
    story.fail("Refused", shown=half)
    assert (story.action.operation, story.action.uid) == ("Delete", half.uid)
    story.succeed()
    assert story.outcome == "Deleted"


def test_an_observation_of_it_is_no_drift_and_calls_nothing():
    story = refused()
    assert story.see(story.existing) == []
    story.see(msgspec.structs.replace(story.existing, outputs={"port": 1}))
    assert not any(type(each.data).__name__ == "DriftDetected" for each in story.log)
    assert story.idle
    assert story.outcome == "Failed"


def test_a_new_generation_continues_from_it():
    story = refused()
    story.declare({"type": "Square", "color": "Blue"})
    assert story.action.operation == "Update"
    story.succeed()
    assert (story.outcome, story.existing.fields["color"]) == ("Converged", "Blue")


def test_a_refusal_before_anything_was_made_is_one_as_ever():
    story = Story()
    story.declare(RED)
    only(ActionFailed, story.fail("Refused"))
    assert story.state.owned is None
    assert story.outcome == "Failed"


@pytest.mark.parametrize("labels", [{}, {OWNER_LABEL: "another"}])
def test_what_carries_neither_the_key_nor_our_label_is_not_ours(labels: dict[str, str]):
    story = Story()
    story.declare(RED)
    story.fail("Refused", shown=thing(HALF, labels=labels))
    assert story.state.owned is None
    story.withdraw()
    assert story.idle


def test_a_half_made_replacement_stands_beside_and_both_go():
    story = created_story(replace(BESIDE, name="Block"))
    old = story.existing
    story.declare({"type": "Circle", "color": "Red"})
    half = msgspec.structs.replace(half_of(story), fields={"type": "Circle"})
    story.fail("Refused", shown=half)
    check_rows(story)
    assert story.outcome == "Failed"
    assert story.state.retiring is not None
    assert story.state.retiring.uid == old.uid, "what was there stays until the new one is whole"
    story.withdraw()
    deleted_uids = [story.action.uid]
    story.succeed()
    deleted_uids.append(story.action.uid)
    story.succeed()
    assert sorted(map(str, deleted_uids)) == sorted(map(str, [old.uid, half.uid]))
    assert story.outcome == "Deleted"
    assert len(every(ActionSucceeded, [event.data for event in story.log])) == 4


def test_what_a_lookup_finds_half_made_is_completed():
    """The answer to the second call never came, three times: a look finds what the first made."""
    story = Story()
    story.declare(RED)
    half = half_of(story)
    for _ in range(3):
        story.fail("Unknown")
        story.wake(3600)
    story.look(half)
    assert (story.action.operation, story.action.uid) == ("Update", half.uid)
    story.succeed()
    assert story.outcome == "Converged"


def test_what_stands_half_made_in_the_way_of_its_own_creation_is_completed():
    story = Story()
    story.declare(RED)
    half = half_of(story)
    story.fail("Conflict", shown=half)
    assert (story.action.operation, story.action.uid) == ("Update", half.uid)


def test_a_conflict_that_shows_no_object_does_not_end_a_creation_that_may_be_half_made():
    """The object in the way may be its own, even if it was withdrawn: then it would leak."""
    story = Story()
    story.declare(RED)
    action, half = story.action, half_of(story)
    story.fail("Unknown", message="the second call was not made")
    story.withdraw()
    story.wake(3600)
    error = only(ActionFailed, story.fail("Conflict")).error
    assert error.error_class == "Unknown", "whose the object in the way is, is not known"
    assert story.outcome != "Deleted"
    assert only(ActionRetried, story.wake(3600)).action == action
    story.fail("Conflict", shown=msgspec.structs.replace(half, written_by="another-key"))
    assert (story.action.operation, story.action.uid) == ("Delete", half.uid)


def test_a_conflict_that_shows_no_object_ends_a_creation_after_a_read_has_found_nothing():
    """The API may keep its first answer, a 409, with the key: a repeat would never end."""
    story = Story()
    story.declare(RED)
    first = story.action
    story.fail("Unknown")
    for _ in range(2):
        story.wake(3600)
        story.fail("Conflict")
    assert every(LookupDecided, story.wake(3600))
    assert every(ActionNotDone, story.look(None))
    again = only(ActionDecided, story.fail("Conflict")).action
    assert again.idempotency_key != first.idempotency_key
