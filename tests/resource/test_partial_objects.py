"""The object of a creation in several calls is ours even if a later call is refused."""

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
from tests.resource.building import BLOCK, UNLABELED, Story, api_object, every, only
from tests.resource.test_replacement import BESIDE, check_rows, created_story, decided_actions

RED: Fields = {"type": "Square", "color": "Red"}
PARTIAL: Fields = {"type": "Square"}


def partial_object(story: Story) -> ExternalObject:
    """Return the object that the first call creates."""
    action = story.action
    observed_object = msgspec.structs.replace(story.object_after(action), fields=PARTIAL)
    return msgspec.structs.replace(observed_object, written_by=action.idempotency_key)


def refused_story(kind: Kind = BLOCK) -> Story:
    story = Story(kind=kind)
    story.declare(RED)
    story.fail("Refused", existing=partial_object(story), message="Red is not supported")
    return story


@pytest.mark.parametrize("kind", [BLOCK, UNLABELED])
def test_a_partial_object_is_owned_and_the_refusal_is_reported(kind: Kind):
    story = refused_story(kind)
    assert story.state.owned is not None
    assert story.state.owned.uid == story.existing.uid
    assert (story.outcome, story.reason) == ("Failed", "Refused")
    assert story.state.outcome is not None
    assert story.state.outcome.message == "Red is not supported"
    assert story.idle
    assert decided_actions(story) == [("Create", "Converge")], "the action is not repeated"
    check_rows(story)


def test_the_log_explains_a_partial_object():
    story = refused_story()
    success = only(ActionSucceeded, [event.data for event in story.log])
    assert success.refused is not None
    [action] = [each.data.action for each in story.log if isinstance(each.data, ActionDecided)]
    assert success.action_id == action.action_id
    effect = Effect(1.0, "Create", "Foo", story.existing.uid or "", action.idempotency_key)
    log = [RecordedEvent(position, 0.0, event) for position, event in enumerate(story.log, start=1)]
    assert findings(History(log=log, messages=None, effects=[effect])) == []


def test_a_withdrawal_deletes_a_partial_object():
    story = refused_story()
    uid = story.existing.uid
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", uid)
    story.succeed()
    assert story.outcome == "Deleted"
    check_rows(story)


def test_a_withdrawal_before_the_refusal_deletes_a_partial_object():
    story = Story()
    story.declare(RED)
    story.withdraw()
    partial = partial_object(story)
    story.fail("Refused", existing=partial)
    assert (story.action.operation, story.action.uid) == ("Delete", partial.uid)
    story.succeed()
    assert story.outcome == "Deleted"


def test_an_observation_of_a_partial_object_is_not_drift_and_does_not_cause_a_call():
    story = refused_story()
    assert story.observe(story.existing) == []
    story.observe(msgspec.structs.replace(story.existing, outputs={"port": 1}))
    assert not any(type(each.data).__name__ == "DriftDetected" for each in story.log)
    assert story.idle
    assert story.outcome == "Failed"


def test_a_new_generation_updates_a_partial_object():
    story = refused_story()
    story.declare({"type": "Square", "color": "Blue"})
    assert story.action.operation == "Update"
    story.succeed()
    assert (story.outcome, story.existing.fields["color"]) == ("Converged", "Blue")


def test_a_refusal_without_an_object_is_a_plain_failure():
    story = Story()
    story.declare(RED)
    only(ActionFailed, story.fail("Refused"))
    assert story.state.owned is None
    assert story.outcome == "Failed"


@pytest.mark.parametrize("labels", [{}, {OWNER_LABEL: "another"}])
def test_an_object_with_neither_the_key_nor_our_label_is_not_ours(labels: dict[str, str]):
    story = Story()
    story.declare(RED)
    story.fail("Refused", existing=api_object(PARTIAL, labels=labels))
    assert story.state.owned is None
    story.withdraw()
    assert story.idle


def test_a_withdrawal_deletes_a_partial_replacement_and_the_old_object():
    story = created_story(replace(BESIDE, name="Block"))
    old = story.existing
    story.declare({"type": "Circle", "color": "Red"})
    partial = msgspec.structs.replace(partial_object(story), fields={"type": "Circle"})
    story.fail("Refused", existing=partial)
    check_rows(story)
    assert story.outcome == "Failed"
    assert story.state.retiring is not None
    assert story.state.retiring.uid == old.uid, "the old object stays until the new one is complete"
    story.withdraw()
    deleted_uids = [story.action.uid]
    story.succeed()
    deleted_uids.append(story.action.uid)
    story.succeed()
    assert sorted(map(str, deleted_uids)) == sorted(map(str, [old.uid, partial.uid]))
    assert story.outcome == "Deleted"
    assert len(every(ActionSucceeded, [event.data for event in story.log])) == 4


def test_a_partial_object_that_a_lookup_finds_is_completed():
    """The second call gets no response three times; a lookup finds the object of the first."""
    story = Story()
    story.declare(RED)
    partial = partial_object(story)
    for _ in range(3):
        story.fail("Unknown")
        story.wake(3600)
    story.report_lookup(partial)
    assert (story.action.operation, story.action.uid) == ("Update", partial.uid)
    story.succeed()
    assert story.outcome == "Converged"


def test_a_partial_object_in_the_way_of_its_own_creation_is_completed():
    story = Story()
    story.declare(RED)
    partial = partial_object(story)
    story.fail("Conflict", existing=partial)
    assert (story.action.operation, story.action.uid) == ("Update", partial.uid)


def test_a_conflict_without_an_object_does_not_end_a_creation_in_doubt():
    """The object in the way may be its own, and would leak after a withdrawal."""
    story = Story()
    story.declare(RED)
    action, partial = story.action, partial_object(story)
    story.fail("Unknown", message="the second call was not made")
    story.withdraw()
    story.wake(3600)
    error = only(ActionFailed, story.fail("Conflict")).error
    assert error.error_class == "Unknown", "the owner of the object in the way is unknown"
    assert story.outcome != "Deleted"
    assert only(ActionRetried, story.wake(3600)).action == action
    story.fail("Conflict", existing=msgspec.structs.replace(partial, written_by="another-key"))
    assert (story.action.operation, story.action.uid) == ("Delete", partial.uid)


def test_a_conflict_without_an_object_ends_a_creation_after_a_lookup():
    """The API may store its first response, a 409, with the key and return it to every repeat."""
    story = Story()
    story.declare(RED)
    first = story.action
    story.fail("Unknown")
    for _ in range(2):
        story.wake(3600)
        story.fail("Conflict")
    assert every(LookupDecided, story.wake(3600))
    assert every(ActionNotDone, story.report_lookup(None))
    recreation = only(ActionDecided, story.fail("Conflict")).action
    assert recreation.idempotency_key != first.idempotency_key
