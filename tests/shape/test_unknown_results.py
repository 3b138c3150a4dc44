"""The ladder of unknown results: repeat with the same key, look, ask a person."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ActionError, Approved, Reported
from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSought,
    ActionSucceeded,
    OwnershipClaimed,
    RetryScheduled,
    ShapeEvent,
)
from events.manifest import ProviderConfigSpec
from reconciler.kinds import Kind
from reconciler.provider import Capabilities
from tests.shape.building import (
    BLOCK,
    CONFIG,
    FOO_OWNER,
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
    *, keys: bool = False, unique_names: bool = True, labels: bool = True, grace: float = 0.0
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
            consistency_grace_seconds=grace,
        ),
        connect=BLOCK.connect,
    )


KEYLESS = kind_that_can()
NAMELESS = kind_that_can(unique_names=False)
BLIND = kind_that_can(unique_names=False, labels=False)
UNMARKED = kind_that_can(labels=False)


def begun(kind: Kind = BLOCK) -> Story:
    story = Story(kind=kind)
    story.declare()
    return story


def look_shows(story: Story, found: ExternalObject | None) -> list[ShapeEvent]:
    flight = story.flight
    assert flight.seeking
    return story.turn(
        Reported(
            flight.action.action_id,
            flight.attempt,
            story.now,
            story.now,
            "w",
            object=found,
            sought=True,
        )
    )


def unknown(story: Story, times: int = 1) -> list[ShapeEvent]:
    """So many attempts of unknown result; gives the events of the next attempt's beginning."""
    events: list[ShapeEvent] = []
    for _ in range(times):
        story.fail("Unknown")
        events = story.wake(3600)
    return events


def test_the_first_rung_repeats_with_the_same_key():
    story = begun()
    action = story.action
    for _ in range(2):
        assert only(ActionRetried, unknown(story)).action == action
    assert not story.flight.seeking


def test_the_second_rung_looks_when_repeats_tell_nothing():
    story = begun()
    action = story.action
    assert only(ActionSought, unknown(story, 3)).action == action
    assert story.flight.seeking


@pytest.mark.parametrize("labels", [owned_labels(), owned_labels(team="a")])
def test_what_a_look_finds_under_our_label_is_what_the_action_made(labels: dict[str, str]):
    story = begun()
    unknown(story, 3)
    succeeded = only(ActionSucceeded, look_shows(story, thing(uid="u7", labels=labels)))
    assert succeeded.found_by == "Label"
    assert story.state.owned is not None
    assert story.state.owned.uid == "u7"


def test_what_a_look_finds_under_the_actions_key_is_what_the_action_made():
    story = begun(UNMARKED)
    unknown(story, 3)
    made = replace(thing(uid="u7"), written_by=story.action.idempotency_key)
    assert only(ActionSucceeded, look_shows(story, made)).found_by == "Key"


def test_where_a_look_finds_nothing_the_same_action_is_called_again():
    story = begun()
    action = story.action
    unknown(story, 3)
    events = look_shows(story, None)
    assert names(events)[:2] == ["ActionNotDone", "ActionRetried"]
    assert only(ActionNotDone, events).action_id == action.action_id
    assert only(ActionRetried, events).action == action
    story.succeed()
    assert story.outcome == "Converged"


def test_where_a_look_finds_a_strangers_object_it_is_a_conflict():
    story = begun()
    unknown(story, 3)
    look_shows(story, thing(uid="h1"))
    assert story.idle
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    assert story.state.owned is None


def test_a_look_that_fails_is_followed_by_another_try():
    story = begun()
    unknown(story, 3)
    assert only(ActionRetried, unknown(story)).action == story.action


def test_a_look_waits_until_the_api_shows_what_was_done():
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
    story = begun(NAMELESS)
    assert only(ActionSought, unknown(story)).action == story.action
    look_shows(story, None)
    assert not story.flight.seeking, "it was not done: it may be called"


@pytest.mark.parametrize("error_class", ["Unknown", "Transient"])
def test_without_names_and_labels_a_creation_is_held_for_a_person(error_class: str):
    story = begun(BLIND)
    story.report(ActionError("Unknown" if error_class == "Unknown" else "Transient", "cut"))
    story.wake(3600)
    held = only(ActionHeld, look_shows(story, None))
    assert held.action_id == story.action.action_id
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    assert story.wake(36_000) == [], "nothing happens by itself"


def held_for_a_person() -> Story:
    story = begun(BLIND)
    unknown(story)
    look_shows(story, None)
    assert story.outcome == "Held"
    return story


def test_a_person_who_says_that_it_was_not_done_has_it_called_again():
    story = held_for_a_person()
    action = story.action
    events = story.turn(Approved("UnknownResult", reason="I looked"))
    assert only(ActionRetried, events).action == action
    assert story.answer.accepted
    story.succeed()
    assert story.outcome == "Converged"


def test_a_person_who_says_that_it_was_done_ends_the_action():
    story = held_for_a_person()
    story.withdraw()
    events = story.turn(Approved("UnknownResult", "Abandon", "it is there, and I removed it"))
    assert every(ActionAbandoned, events)
    assert not every(ActionRetried, events)
    assert story.idle


def test_a_taken_name_on_an_api_without_keys_is_our_own_work_if_it_carries_our_label():
    story = begun(KEYLESS)
    events = story.fail("Conflict", shown=thing(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"
    assert story.outcome == "Converged"


def test_a_taken_name_on_an_api_with_keys_is_ours_only_if_a_result_was_unknown():
    story = begun()
    story.fail("Conflict", shown=thing(labels=owned_labels()))
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")
    story = begun()
    unknown(story)
    events = story.fail("Conflict", shown=thing(uid="u1", labels=owned_labels()))
    assert only(ActionSucceeded, events).found_by == "Label"


def test_what_an_earlier_action_of_ours_made_is_changed_to_what_is_declared_now():
    story = begun(KEYLESS)
    events = story.fail("Conflict", shown=repainted(thing(labels=owned_labels()), color="Blue"))
    assert only(ActionSucceeded, events).found_by == "Label"
    assert only(ActionDecided, events).action.operation == "Update"


def test_without_labels_a_taken_name_after_an_unknown_result_is_held_if_it_looks_like_ours():
    story = begun(UNMARKED)
    unknown(story)
    story.fail("Conflict", shown=thing(uid="u1"))
    assert (story.outcome, story.reason) == ("Held", "UnknownResult")
    story = begun(UNMARKED)
    unknown(story)
    story.fail("Conflict", shown=thing({"type": "Circle"}, uid="u1"))
    assert story.outcome == "Conflict", "that is another's"


def updating() -> Story:
    story = converged()
    story.declare({"type": "Square", "color": "Purple"})
    unknown(story, 3)
    return story


def test_an_update_that_a_look_shows_as_done_is_done():
    story = updating()
    assert (
        only(ActionSucceeded, look_shows(story, repainted(story.seen, color="Purple"))).found_by
        == "Content"
    )
    assert story.outcome == "Converged"


def test_an_update_that_a_look_shows_as_not_done_is_called_again():
    story = updating()
    assert only(ActionRetried, look_shows(story, story.seen)).action == story.action


def test_an_update_that_a_look_shows_as_overtaken_is_decided_anew():
    story = updating()
    before = story.action
    decided = only(ActionDecided, look_shows(story, repainted(story.seen, color="Green")))
    assert decided.action.version != before.version


def test_an_update_of_what_is_gone_becomes_a_creation():
    story = updating()
    assert only(ActionDecided, look_shows(story, None)).action.operation == "Create"


def test_a_deletion_is_done_when_a_look_shows_nothing_and_called_again_when_it_is_there():
    story = converged()
    story.withdraw()
    unknown(story, 3)
    assert every(ActionRetried, look_shows(story, story.seen))
    unknown(story, 3)
    assert only(ActionSucceeded, look_shows(story, None)).found_by == "Absence"
    assert story.outcome == "Deleted"


def test_a_success_that_is_told_late_makes_the_object_ours():
    """The same attempt ran twice, and the one that was refused reported first."""
    story = begun()
    action = story.action
    story.fail("Permanent")
    assert story.outcome == "Failed"
    made = story.written(action)
    events = story.report(shown=made, action_id=action.action_id, attempt=1)
    assert only(ActionSucceeded, events).late
    assert story.state.owned is not None
    assert story.outcome == "Converged"


def test_a_late_success_of_what_was_withdrawn_meanwhile_is_deleted():
    story = begun()
    action = story.action
    story.fail("Permanent")
    story.withdraw()
    story.report(shown=story.written(action), action_id=action.action_id, attempt=1)
    assert (story.action.operation, story.action.uid) == ("Delete", "u1")


def test_an_object_under_our_label_after_an_uncertain_creation_is_ours():
    """The creation was refused in the end, but an earlier attempt of it may have been done."""
    story = begun()
    unknown(story)
    story.fail("Permanent")
    assert story.outcome == "Failed"
    events = story.see(thing(uid="u9", labels=owned_labels()))
    assert only(OwnershipClaimed, events).reason == "Found"
    story.withdraw()
    assert (story.action.operation, story.action.uid) == ("Delete", "u9")


def test_a_label_alone_makes_nothing_ours():
    story = Story()
    story.see(thing(labels=owned_labels()))
    assert (story.outcome, story.reason) == ("Disputed", "LabelSaysOurs")


def test_a_label_that_is_taken_off_is_put_back_or_reported():
    story = converged()
    story.see(relabelled(story.seen, {}))
    assert story.action.labels["reconciler/owner"] == FOO_OWNER
    story = converged(policy={"ownerLabel": "Report"})
    story.see(relabelled(story.seen, {}))
    assert story.idle
    assert (story.outcome, story.reason) == ("Disputed", "LabelMissing")


def test_the_log_keeps_every_rung():
    story = begun()
    unknown(story, 3)
    look_shows(story, None)
    rungs = [name for name in names([each.data for each in story.log]) if name.startswith("Action")]
    assert rungs == [
        "ActionDecided",
        "ActionFailed",
        "ActionRetried",
        "ActionFailed",
        "ActionRetried",
        "ActionFailed",
        "ActionSought",
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
