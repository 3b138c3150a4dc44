"""Attempts, backoff, refusals and conflicts: scenarios 12 to 15; invariants 2, 3 and 9."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.intake import ActionError, ErrorClass, Reported
from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionRetried,
    LookupDecided,
    RetryScheduled,
)
from events.provider_config import Retry
from reconciler.resource.attempt import MAX_CONFLICTS, MAX_REPEATS
from reconciler.resource.backoff import MAX_SECONDS, delay
from tests.resource.building import (
    CONFIG,
    SHARED,
    Story,
    api_object,
    converged_story,
    every,
    names,
    only,
    repaint,
)

RETRYABLE: tuple[ErrorClass, ...] = ("NotDone", "Throttled", "Unknown")


@pytest.mark.parametrize("error_class", RETRYABLE)
def test_every_attempt_has_the_same_key_and_parameters(error_class: ErrorClass):
    story = Story()
    story.declare()
    action = story.action
    for attempt in range(1, 6):
        assert story.flight.attempt == attempt
        story.fail(error_class)
        events = story.wake(3600)
        repeats = [each for each in events if isinstance(each, (ActionRetried, LookupDecided))]
        assert [each.action for each in repeats] == [action]
        assert story.action == action
    story.succeed()
    assert story.outcome == "Converged"


def test_a_failed_attempt_is_retried_after_a_reported_delay():
    story = Story()
    story.declare()
    events = story.fail("NotDone", message="connection refused")
    assert names(events) == ["ActionFailed", "RetryScheduled", "OutcomeRecorded"]
    wait = only(RetryScheduled, events)
    assert wait.delay_seconds == 0.75
    assert wait.at == story.now + timedelta(seconds=0.75)
    assert (story.outcome, story.reason) == ("Degraded", "NotDone")
    assert story.wake(0.74) == []
    assert names(story.wake(0.01)) == ["ActionRetried"]
    assert story.wake(3600) == []


def test_a_repeated_failure_is_not_recorded_again():
    story = Story()
    story.declare()
    story.fail("NotDone")
    story.wake(3600)
    assert names(story.fail("NotDone")) == ["ActionFailed", "RetryScheduled"]


def test_the_delay_doubles_up_to_the_maximum():
    story = Story(configs={CONFIG: msgspec.structs.replace(SHARED, retry=Retry(1.0, 5.0))})
    story.declare()
    waits: list[float] = []
    for _ in range(5):
        waits += [each.delay_seconds for each in every(RetryScheduled, story.fail("Unknown"))]
        story.wake(3600)
    assert waits == [0.75, 1.5, 3.0, 3.75, 3.75]


def test_a_retry_after_beyond_the_maximum_delay_is_honored():
    story = Story()
    story.declare()
    events = story.fail("Throttled", retry_after=1000.0)
    assert only(RetryScheduled, events).delay_seconds == 1050.0


def test_throttled_resources_do_not_retry_at_the_same_time():
    waits = {delay(Retry(), 1, jitter / 10, 30.0).total_seconds() for jitter in range(10)}
    assert len(waits) == 10
    assert min(waits) == 30.0


def test_an_attempt_that_was_not_sent_is_not_a_failure():
    story = Story()
    story.declare()
    for _ in range(10):
        closed = ActionError("Throttled", "the gate is closed", None, 4.0, attempted=False)
        assert only(RetryScheduled, story.report(closed)).delay_seconds == 4.5
        story.wake(3600)
    assert story.state.waits.failures == 0
    assert only(RetryScheduled, story.fail("Unknown")).delay_seconds == 0.75


def test_an_absurd_retry_after_is_bounded():
    story = Story()
    story.declare()
    events = story.fail("Throttled", retry_after=1e300)
    assert only(RetryScheduled, events).delay_seconds == MAX_SECONDS


@given(
    st.integers(min_value=0, max_value=10_000),
    st.floats(min_value=0, max_value=1, exclude_max=True),
    st.floats(min_value=0.001, max_value=1e6),
    st.floats(min_value=0.001, max_value=1e6),
)
def test_a_delay_is_between_half_of_its_ceiling_and_its_ceiling(
    failures: int, jitter: float, initial: float, maximum: float
):
    seconds = delay(Retry(initial, maximum), failures, jitter).total_seconds()
    ceiling = min(maximum, initial * 2.0 ** min(max(failures - 1, 0), 32), MAX_SECONDS)
    assert ceiling / 2 - 1e-6 <= seconds <= ceiling + 1e-6


def test_jitter_is_an_input():
    waits: list[float] = []
    for jitter in (0.0, 0.5, 0.999):
        story = Story(jitter=jitter)
        story.declare()
        waits += [each.delay_seconds for each in every(RetryScheduled, story.fail("Unknown"))]
    assert waits == [0.5, 0.75, 1.0]


def test_a_late_success_of_an_earlier_attempt_is_recorded():
    story = Story()
    story.declare()
    action = story.action
    story.fail("Unknown")
    story.wake(3600)
    observed_object = story.object_after(action)
    story.report(existing=observed_object, attempt=1)
    assert story.outcome == "Converged"
    assert story.report(existing=observed_object, attempt=2, action_id=action.action_id) == []


def test_a_late_failure_of_an_earlier_attempt_is_ignored():
    story = Story()
    story.declare()
    story.fail("Unknown")
    story.wake(3600)
    assert story.report(story.state.waits.failure, attempt=1) == []
    assert story.flight.attempt == 2


def test_a_failure_that_is_reported_twice_is_counted_once():
    story = Story()
    story.declare()
    story.fail("Unknown")
    assert story.fail("Unknown") == []
    assert story.state.waits.failures == 1


def test_a_result_of_another_action_is_ignored():
    story = Story()
    story.declare()
    assert story.report(action_id="default/Block/Foo@999") == []


def test_an_action_with_an_unknown_result_is_repeated_despite_newer_declarations():
    story = Story()
    story.declare({"color": "Red"})
    action = story.action
    story.fail("Unknown")
    story.declare({"color": "Blue"})
    story.withdraw()
    assert only(ActionRetried, story.wake(3600)).action == action


@pytest.mark.parametrize("error_class", ["NotDone", "Throttled"])
def test_an_update_that_had_no_effect_is_abandoned_for_a_newer_declaration(error_class: ErrorClass):
    story = converged_story()
    story.declare({"type": "Circle"})
    old = story.action
    story.fail(error_class)
    events = story.declare({"type": "Triangle"})
    assert only(ActionAbandoned, events).action_id == old.action_id
    new = only(ActionDecided, events).action
    assert new.fields == {"type": "Triangle"}
    assert new.idempotency_key != old.idempotency_key


def test_an_update_with_two_attempts_is_not_abandoned():
    story = converged_story()
    story.declare({"type": "Circle"})
    story.fail("Unknown")
    story.wake(3600)
    story.fail("NotDone")
    assert every(ActionAbandoned, story.declare({"type": "Triangle"})) == []


def test_an_abandoned_update_that_took_effect_leaves_no_field_behind():
    # The worker died after the call, and the redelivered attempt found the API down.
    story = converged_story({"type": "Square"})
    original = story.existing
    story.declare({"type": "Square", "color": "Blue"})
    story.fail("NotDone")
    story.declare({"type": "Circle"})
    story.fail("Conflict", existing=repaint(original, color="Blue"))
    assert story.action.fields == {"type": "Circle"}


def test_a_creation_with_an_unknown_result_is_repeated_after_a_withdrawal():
    # The worker died after the call, and the redelivered attempt found the API down.
    story = Story()
    story.declare()
    action = story.action
    story.fail("Unknown", redelivered=True)
    story.withdraw()
    assert only(ActionRetried, story.wake(3600)).action == action
    events = story.succeed()
    assert only(ActionDecided, events).action.operation == "Delete"


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_creation_that_keeps_failing_is_abandoned_after_a_lookup_finds_nothing(
    withdrawn: bool,
):
    story = Story()
    story.declare({"color": "Red"})
    first = story.action
    for _ in range(MAX_REPEATS):
        story.fail("Unknown", message="500: internal error")
        if story.state.desired.generation == 1:
            story.withdraw() if withdrawn else story.declare({"color": "Blue"})
        story.wake(3600)
    assert story.flight.is_lookup
    abandoned = only(ActionAbandoned, story.report_lookup(None))
    assert (abandoned.action_id, abandoned.in_doubt) == (first.action_id, True)
    if withdrawn:
        assert story.outcomes()[-1] == ("Deleted", 2)
    else:
        assert story.action.fields == {"color": "Blue"}


@pytest.mark.parametrize("refusal", ["Refused", "NotDone"])
@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_refusal_after_an_attempt_in_doubt_is_followed_by_a_lookup(
    refusal: ErrorClass, withdrawn: bool
):
    story = Story()
    story.declare({"color": "Red"})
    story.fail("Unknown")
    story.wake(3600)
    story.fail(refusal)
    story.withdraw() if withdrawn else story.declare({"color": "Blue"})
    assert every(LookupDecided, story.wake(3600))
    assert only(ActionAbandoned, story.report_lookup(None)).in_doubt
    if withdrawn:
        assert story.outcome == "Deleted"
    else:
        assert story.action.fields == {"color": "Blue"}


def test_a_refusal_after_doubt_ends_the_action_once_a_lookup_finds_nothing():
    story = Story()
    story.declare()
    story.fail("Unknown")
    story.wake(3600)
    assert only(ActionFailed, story.fail("Refused")).consequence == "Retry"
    assert every(LookupDecided, story.wake(3600))
    assert every(ActionRetried, story.report_lookup(None))
    assert only(ActionFailed, story.fail("Refused")).consequence == "Refused"
    assert story.outcome == "Failed"


def test_a_lookup_that_the_api_refuses_ends_the_action():
    story = Story()
    story.declare()
    story.fail("Refused", redelivered=True)
    story.wake(3600)
    refused = ActionError("Refused", "no object can have this name")
    flight = story.flight
    report = Reported(flight.action.action_id, flight.attempt, story.now, story.now, "w1", refused)
    events = story.turn(msgspec.structs.replace(report, is_lookup=True))
    assert only(ActionFailed, events).consequence == "Refused"
    assert story.outcome == "Failed"


def test_a_creation_that_had_no_effect_is_abandoned_for_a_newer_declaration():
    story = Story()
    story.declare({"color": "Red"})
    first = story.action
    story.fail("NotDone", message="there is no such image")
    events = story.declare({"color": "Blue"})
    assert names(events) == [
        "SpecDeclared",
        "GenerationSuperseded",
        "ActionAbandoned",
        "ActionDecided",
    ]
    assert story.action.fields == {"color": "Blue"}
    assert story.action.idempotency_key != first.idempotency_key
    assert not story.state.actions.uncertain_create


def test_a_creation_that_had_no_effect_is_abandoned_after_a_withdrawal():
    story = Story()
    story.declare()
    story.fail("NotDone")
    story.withdraw()
    assert story.idle
    assert story.outcomes()[-1] == ("Deleted", 2)


@pytest.mark.parametrize("error_class", ["Unknown", "Throttled"])
def test_an_earlier_attempt_in_doubt_causes_a_lookup(error_class: ErrorClass):
    story = Story()
    story.declare()
    action = story.action
    story.fail(error_class)
    story.wake(3600)
    story.fail("NotDone")
    story.withdraw()
    assert only(LookupDecided, story.wake(7200)).action == action
    assert only(ActionAbandoned, story.report_lookup(None)).in_doubt is (error_class == "Unknown")
    assert story.outcome == "Deleted"


def test_a_refused_generation_waits_for_a_new_one():
    story = Story()
    story.declare({"color": "Red"})
    events = story.fail("Refused", message="422: no such color")
    assert names(events) == ["ActionFailed", "OutcomeRecorded"]
    assert story.outcome == "Failed"
    assert story.state.outcome is not None
    assert story.state.outcome.message == "422: no such color"
    for _ in range(3):
        assert story.wake(3600) == []
        assert story.observe(None) == []
    story.declare({"color": "Blue"})
    assert story.action.fields == {"color": "Blue"}


def test_a_refusal_of_an_old_generation_does_not_fail_the_newest():
    story = Story()
    story.declare({"color": "Red"})
    story.declare({"color": "Blue"})
    events = story.fail("Refused")
    assert only(ActionDecided, events).action.fields == {"color": "Blue"}
    assert "Degraded" not in story.outcome


def test_a_refused_update_does_not_delay_the_deletion():
    story = converged_story()
    story.declare({"type": "Circle"})
    story.withdraw()
    events = story.fail("Refused")
    assert only(ActionDecided, events).action.operation == "Delete"


def test_a_refused_deletion_is_retried_at_the_maximum_interval():
    story = converged_story()
    story.withdraw()
    for _ in range(4):
        events = story.fail("Refused", message="403: protected")
        assert only(RetryScheduled, events).delay_seconds == 225.0
        assert story.idle
        assert (story.outcome, story.reason) == ("Degraded", "Refused")
        assert story.wake(200) == []
        assert only(ActionDecided, story.wake(25)).action.operation == "Delete"
    story.succeed()
    assert story.outcome == "Deleted"


def test_a_conflict_that_shows_the_object_is_resolved_immediately():
    story = converged_story()
    existing = story.existing
    story.declare({"type": "Circle"})
    events = story.fail("Conflict", existing=repaint(existing, type="Circle", color="Green"))
    assert only(ActionDecided, events).action.version == f"{existing.version}+"


def test_an_update_of_a_missing_object_recreates_it():
    story = converged_story()
    story.declare({"type": "Circle"})
    events = story.fail("NotFound")
    assert only(ActionDecided, events).action.operation == "Create"


def test_endless_conflicts_do_not_cause_a_hot_loop():
    story = converged_story()
    story.declare({"type": "Circle"})
    immediate_calls = 0
    while every(ActionDecided, story.fail("Conflict")):
        immediate_calls += 1
        assert immediate_calls <= MAX_CONFLICTS
    waits: list[float] = []
    for _ in range(4):
        assert story.idle
        assert story.state.waits.until is not None
        waits.append((story.state.waits.until - story.now).total_seconds())
        assert story.wake(waits[-1] / 2) == []
        story.wake(waits[-1] / 2)
        story.fail("Conflict")
    assert waits == [0.75, 1.5, 3.0, 6.0]


def test_an_obstacle_that_comes_and_goes_does_not_cause_a_hot_loop():
    story = Story()
    story.declare()
    calls = 0
    while not story.idle and calls < 20:
        story.fail("NotFound")
        calls += 1
    assert calls <= MAX_CONFLICTS + 1


def test_a_delay_is_in_the_state_and_survives_a_restart():
    story = Story()
    story.declare()
    story.fail("NotDone")
    story.state = msgspec.msgpack.decode(
        msgspec.msgpack.encode(story.state), type=type(story.state)
    )
    assert story.wake(0.5) == []
    assert names(story.wake(0.25)) == ["ActionRetried"]


def test_a_success_resets_the_backoff():
    story = Story()
    story.declare()
    for _ in range(3):
        story.fail("Unknown")
        story.wake(3600)
    story.succeed()
    story.observe(repaint(story.existing, color="Green"))
    assert only(RetryScheduled, story.fail("Unknown")).delay_seconds == 0.75


def test_an_intent_is_recorded_for_every_operation_before_its_result():
    story = converged_story()
    story.declare({"color": "Blue"})
    story.succeed()
    story.withdraw()
    story.succeed()
    decided = every(ActionDecided, [event.data for event in story.log])
    assert [each.action.operation for each in decided] == ["Create", "Update", "Delete"]
    assert len({each.action.idempotency_key for each in decided}) == 3
    assert all(each.action.causes for each in decided)


def test_a_foreign_object_in_the_way_of_a_retry_is_left_alone():
    story = Story()
    story.declare()
    story.fail("Unknown")
    story.wake(3600)
    story.fail("Conflict", existing=api_object())
    assert story.idle
    assert story.outcome == "Conflict"


def test_an_update_with_an_unknown_result_leaves_no_field_behind():
    # The first attempt succeeded, and the API removed its key before the second.
    story = converged_story({"type": "Square"})
    original = story.existing
    story.declare({"type": "Square", "color": "Blue"})
    story.fail("Unknown")
    story.declare({"type": "Circle"})
    story.wake(3600)
    story.fail("Conflict", existing=repaint(original, color="Blue"))
    assert story.action.fields == {"type": "Circle"}


def test_equal_inputs_lead_to_equal_decisions():
    logs = [converged_story().log for _ in range(2)]
    assert logs[0] == logs[1]
    assert (
        len({story.action.idempotency_key for story in (Story(), Story()) if story.declare()}) == 1
    )


def test_a_clock_that_is_ahead_does_not_extend_a_delay():
    story = Story()
    story.declare()
    story.now += timedelta(hours=1)
    story.fail("NotDone")
    story.now -= timedelta(hours=1)
    assert every(ActionRetried, story.wake(1))


def test_clocks_that_differ_by_seconds_do_not_shorten_a_delay():
    story = Story()
    story.declare()
    story.now += timedelta(seconds=20)
    story.fail("NotDone", retry_after=300)
    story.now -= timedelta(seconds=20)
    assert story.wake(1) == []


def test_a_refusal_ends_the_action_if_a_lookup_finds_a_foreign_object():
    """With keys, the API would have repeated its first response, so the object is foreign."""
    story = Story()
    story.declare()
    story.fail("Unknown")
    story.wake(3600)
    story.fail("Refused")
    assert every(LookupDecided, story.wake(3600))
    story.report_lookup(api_object(labels={}))
    assert every(ActionRetried, story.wake(3600))
    assert only(ActionFailed, story.fail("Refused")).consequence == "Refused"
    assert story.outcome == "Failed"
