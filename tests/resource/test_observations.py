"""Which observations prove that an object exists or is missing: scenario 16."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from events.intake import Observed, Reported
from events.log import (
    ActionFailed,
    OwnershipClaimed,
    OwnershipReleased,
    ResourceEvent,
    RetryScheduled,
)
from reconciler.provider import Capabilities
from reconciler.resource.evolve import fold
from tests.resource.building import (
    BLOCK,
    CONFIG,
    SHARED,
    START,
    Story,
    api_object,
    converged_story,
    names,
    only,
    repaint,
)

UNCONDITIONAL = Capabilities(
    idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=False
)
SLOW = msgspec.structs.replace(SHARED, consistency_grace_seconds=5.0)


def test_a_listing_that_began_before_our_effect_does_not_prove_absence():
    story = converged_story()
    assert story.observe(None, as_of=story.state.actions.effect_position - 1) == []
    assert story.outcome == "Converged"


def test_a_listing_that_began_after_our_effect_proves_absence():
    story = converged_story()
    assert "ExternalObserved" in names(
        story.observe(None, as_of=story.state.actions.effect_position)
    )


def test_an_observation_without_a_position_proves_nothing():
    story = converged_story()
    assert story.turn(Observed(CONFIG, "Foo", None)) == []


def test_an_observation_is_ignored_while_an_action_is_in_flight():
    story = Story()
    story.declare()
    assert story.observe(None) == []
    assert story.observe(api_object()) == []


def test_an_older_observation_never_reverts_a_newer_one():
    story = converged_story()
    green = repaint(story.existing, color="Green")
    story.declare({"type": "Square", "color": "Red"}, policy={"mode": "CreateOnly"})
    story.observe(green)
    newest = story.state.observed.position
    assert story.observe(None, as_of=newest - 1) == []
    assert story.existing == green


def test_an_observation_from_the_future_does_not_block_later_ones():
    story = converged_story(policy={"mode": "CreateOnly"})
    story.observe(repaint(story.existing, color="Green"), as_of=10**9)
    assert names(story.observe(repaint(story.existing, color="Blue")))[0] == "ExternalObserved"


@pytest.mark.parametrize(("after_seconds", "is_accepted"), [(4.0, False), (5.0, True), (6.0, True)])
def test_an_observation_is_accepted_only_past_the_consistency_grace(
    after_seconds: float, is_accepted: bool
):
    story = converged_story(configs={CONFIG: SLOW})
    began = story.now + timedelta(seconds=after_seconds)
    assert bool(story.observe(None, began_at=began)) is is_accepted


@pytest.mark.parametrize(("after_seconds", "is_accepted"), [(4.0, False), (5.0, True), (6.0, True)])
@pytest.mark.parametrize("clock_offsets", [timedelta(0), timedelta(hours=1), -timedelta(hours=1)])
def test_the_grace_is_measured_with_the_bus_clock(
    clock_offsets: timedelta, after_seconds: float, is_accepted: bool
):
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    bus_time = story.now - 3 * clock_offsets  # the decider's clock is also irrelevant
    story.stored_at = bus_time
    story.succeed()
    story.stored_at = bus_time + timedelta(seconds=after_seconds + 30)
    began_at = bus_time + timedelta(seconds=after_seconds) + clock_offsets
    events = story.observe(None, began_at=began_at, age_seconds=30.0)
    assert bool(events) is is_accepted


_CLOCK_OFFSETS = [timedelta(0), timedelta(hours=1), -timedelta(hours=1)]


@pytest.mark.parametrize(("after_seconds", "is_accepted"), [(4.0, False), (5.0, True)])
@pytest.mark.parametrize("clock_offset", _CLOCK_OFFSETS)
def test_a_grace_that_is_configured_after_the_write_uses_the_bus_clock(
    clock_offset: timedelta, after_seconds: float, is_accepted: bool
):
    story = Story()
    story.stored_at = START
    story.now += clock_offset
    story.declare()
    story.succeed()
    story.configs[CONFIG] = SLOW
    story.stored_at += timedelta(seconds=after_seconds)
    assert bool(story.observe(None)) is is_accepted


@pytest.mark.parametrize("clock_offset", _CLOCK_OFFSETS)
def test_a_raised_grace_starts_at_its_write_according_to_the_bus_clock(
    clock_offset: timedelta,
):
    story = Story()
    story.stored_at = START
    story.now += clock_offset
    story.declare()
    story.succeed()
    known_object = story.existing
    story.stored_at += timedelta(seconds=5)
    story.observe(None)
    story.stored_at += timedelta(seconds=1)
    story.fail("Conflict", existing=known_object)
    assert story.state.observed.grace_seconds == 10
    story.stored_at += timedelta(seconds=9)
    assert story.observe(None, evidence="Read") == []
    story.stored_at += timedelta(seconds=1)
    assert "DriftDetected" in names(story.observe(None, evidence="Read"))


@pytest.mark.parametrize("clock_offset", _CLOCK_OFFSETS)
def test_a_deletion_waits_for_a_grace_according_to_the_bus_clock(clock_offset: timedelta):
    story = Story()
    story.stored_at = START
    story.now += clock_offset
    story.declare()
    story.succeed()
    story.configs[CONFIG] = SLOW
    story.withdraw()
    story.stored_at += timedelta(seconds=2)
    failed = only(ActionFailed, story.report(absent=True))
    assert 0 < (failed.error.retry_after_seconds or 0.0) <= 5
    story.wake(10)
    story.stored_at += timedelta(seconds=10)
    story.report(absent=True)
    assert story.outcome == "Deleted"


def test_a_suspended_worker_does_not_prove_absence_within_the_grace():
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    story.succeed()
    story.withdraw()
    report = Reported(story.action.action_id, 1, story.now, story.now, "w1", absent=True)
    story.now += timedelta(seconds=30)
    assert "ActionFailed" in names(story.turn(report))


def test_an_observation_dated_only_by_its_observers_clock_proves_nothing():
    story = converged_story(configs={CONFIG: SLOW})
    later = story.now + timedelta(hours=1)
    assert story.observe(None, began_at=later, age_seconds=None) == []


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_call_that_finds_no_object_proves_nothing_within_the_grace(is_withdrawn: bool):
    """An API that lags would get a second object, or keep one without an owner."""
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    story.stored_at = created_at = story.now
    story.succeed()
    if is_withdrawn:
        story.withdraw()
    else:
        story.declare({"type": "Square", "color": "Green"})

    def report_missing(after_seconds: float) -> list[ResourceEvent]:
        story.stored_at = story.now = created_at + timedelta(seconds=after_seconds)
        return story.report(absent=True) if is_withdrawn else story.fail("NotFound")

    events = report_missing(4.0)
    assert names(events)[:2] == ["ActionFailed", "RetryScheduled"]
    assert only(RetryScheduled, events).delay_seconds >= 1.0
    assert story.state.owned is not None
    assert "ActionRetried" in names(story.wake(10))
    report_missing(15.0)
    assert story.state.owned is None, "past the grace, it proves absence"


def test_an_observation_reported_after_a_pause_is_not_accepted_too_early():
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    story.stored_at = bus_time = story.now
    story.succeed()
    story.stored_at = bus_time + timedelta(seconds=30)
    began_at = bus_time + timedelta(seconds=1)
    assert story.observe(None, began_at=began_at, age_seconds=0.5) == []


def test_with_a_grace_an_observation_without_a_time_proves_nothing():
    story = converged_story(configs={CONFIG: SLOW})
    assert story.observe(None, age_seconds=None) == []


def test_an_observation_proves_nothing_while_the_grace_is_unknown():
    story = converged_story()
    story.configs.clear()
    assert "ExternalObserved" not in names(story.observe(None, began_at=story.now))


def story_with_return_after(seconds: float) -> Story:
    """Return a story whose object returned after a listing omitted it, ``seconds`` old."""
    story = converged_story()
    known_object = story.existing
    story.now += timedelta(seconds=seconds)
    story.observe(None)
    story.now += timedelta(seconds=1)
    story.fail("Conflict", existing=known_object)
    assert story.outcome == "Converged"
    return story


def test_an_object_that_returns_soon_proves_lag_and_raises_the_grace():
    story = story_with_return_after(5)
    claimed = only(OwnershipClaimed, [each.data for each in story.log])
    assert (claimed.reason, claimed.grace_seconds) == ("Returned", 10)
    assert story.state.observed.grace_seconds == 10
    story.declare({"color": "Blue"})
    story.succeed()
    began = story.now + timedelta(seconds=9)
    assert story.observe(repaint(story.existing, color="Red"), began_at=began) == []
    began = story.now + timedelta(seconds=10)
    assert "DriftDetected" in names(
        story.observe(repaint(story.existing, color="Red"), began_at=began)
    )


def test_a_raised_grace_applies_to_the_next_object_and_can_be_raised_again():
    story = story_with_return_after(5)
    story.now += timedelta(hours=2)
    absence_events = story.observe(None, began_at=story.now, evidence="Read")
    assert "ActionDecided" in names(absence_events)
    story.succeed()
    known_object, created_again_at = story.existing, story.now
    assert story.observe(None, began_at=created_again_at + timedelta(seconds=9)) == []
    story.now = created_again_at + timedelta(seconds=12)
    assert "ActionDecided" in names(story.observe(None, began_at=story.now))
    story.fail("Conflict", existing=known_object)
    assert story.state.observed.grace_seconds == 24


@pytest.mark.parametrize("seconds", [0, 61, 3600])
def test_an_object_that_returns_long_after_its_creation_does_not_prove_lag(seconds: float):
    story = story_with_return_after(seconds)
    claimed = only(OwnershipClaimed, [each.data for each in story.log])
    assert (claimed.reason, claimed.grace_seconds) == ("Returned", 0)
    assert not story.observe(None), "but a listing no longer proves its absence"


def test_a_raised_grace_does_not_apply_to_another_api():
    story = story_with_return_after(5)
    story.configs["other"] = SHARED
    story.withdraw()
    story.succeed()
    story.declare(config="other")
    assert story.state.observed.grace_seconds == 0


def test_a_raised_grace_does_not_lower_a_declared_one():
    slow = msgspec.structs.replace(SHARED, consistency_grace_seconds=30.0)
    story = Story(configs={CONFIG: slow})
    story.declare()
    story.stored_at = story.now
    story.succeed()
    known_object = story.existing
    story.stored_at += timedelta(seconds=40)
    story.observe(None, age_seconds=2.0)
    story.fail("Conflict", existing=known_object)
    assert story.state.observed.grace_seconds == 76
    story.configs[CONFIG] = msgspec.structs.replace(SHARED, consistency_grace_seconds=90.0)
    story.stored_at += timedelta(seconds=85)
    assert story.observe(repaint(known_object), age_seconds=0.0) == []


def test_observations_of_another_configuration_are_ignored():
    story = converged_story()
    assert story.observe(None, config="elsewhere") == []
    assert story.observe(None, name="Bar") == []
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    assert story.observe(api_object(name="Bar"), name="Bar") == []


def test_an_object_with_the_same_name_is_ignored_if_names_are_not_unique():
    by_id = msgspec.structs.replace(UNCONDITIONAL, deterministic_names=False)
    story = Story(kind=replace(BLOCK, capabilities=by_id))
    story.declare()
    story.succeed()
    deleted_observation = Observed(CONFIG, "Foo", None, as_of=story.position, absent_uid="another")
    assert story.turn(deleted_observation) == []
    assert story.observe(api_object(uid="another")) == []
    deleted_observation = msgspec.structs.replace(
        deleted_observation, as_of=story.position, absent_uid=story.existing.uid
    )
    assert "OwnershipReleased" in names(story.turn(deleted_observation))


def test_the_same_observation_twice_is_one_event():
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    first = story.observe(api_object(), as_of=1)
    assert names(first) == ["ExternalObserved", "OutcomeRecorded"]
    assert story.observe(api_object(), as_of=1) == []


def test_an_absence_without_a_declaration_is_not_recorded():
    story = Story()
    assert story.observe(None) == []
    assert story.wake() == []


def test_the_absence_of_an_unowned_object_is_reported():
    story = Story()
    story.observe(api_object())
    assert story.outcome == "Unowned"
    story.observe(None)
    assert (story.outcome, story.reason) == ("Deleted", "GoneByOthers")


def test_an_adopted_object_is_written_from_its_current_content():
    story = Story()
    story.observe(api_object({"type": "Square", "color": "Red"}))
    story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    assert story.action.version == "1", "the API refuses a write with an old version"
    story.fail("Conflict", existing=api_object({"type": "Circle", "color": "Red"}, version="2"))
    assert (story.action.version, story.action.fields["type"]) == ("2", "Circle")


def test_without_conditional_writes_an_adoption_waits_for_a_read():
    story = Story(kind=replace(BLOCK, capabilities=UNCONDITIONAL))
    story.observe(api_object({"type": "Square", "color": "Red"}))
    story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    story.observe(api_object({"type": "Circle", "color": "Red"}))
    assert story.action.fields == {"type": "Circle", "color": "Blue"}


def test_an_adoption_waits_for_a_read_even_if_nothing_needs_a_write():
    story = Story(kind=replace(BLOCK, capabilities=UNCONDITIONAL))
    story.observe(api_object({"color": "Blue"}))
    story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    story.observe(api_object({"color": "Blue"}))
    assert "OwnershipClaimed" in names([each.data for each in story.log])


def test_a_new_version_resolves_a_conflict_that_showed_no_object():
    story = converged_story()
    story.declare({"type": "Circle"})
    for _ in range(4):
        story.fail("Conflict")
    assert story.idle
    touched = repaint(story.existing)
    assert names(story.observe(touched)) == ["ExternalObserved"]
    story.wake(600)
    assert story.action.version == touched.version


def test_the_last_reported_of_two_simultaneous_observations_is_kept():
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    first = story.command(Observed(CONFIG, "Foo", api_object({"color": "Red"}), as_of=1))
    second = story.command(Observed(CONFIG, "Foo", api_object({"color": "Blue"}), as_of=1))
    story.process([first, second])
    assert story.existing.fields == {"color": "Blue"}
    assert story.process([first]) == []


def test_an_object_that_a_listing_omitted_can_be_absent_after_its_deletion():
    story = converged_story()
    known_object = story.existing
    story.observe(None)
    story.fail("Conflict", existing=known_object)
    story.withdraw()
    story.succeed()
    story.observe(known_object)
    assert story.outcome == "Disputed"
    story.observe(None)
    assert story.state.observed.object is None
    assert story.outcome == "Deleted"


def test_an_incomplete_turn_after_a_crash_is_completed_from_the_state():
    story = converged_story()
    length_before = len(story.log)
    story.observe(api_object(uid="h9"))
    story.log = story.log[: length_before + 1]  # the observation without the events after it
    story.state = fold(story.log)
    assert story.state.owned is not None
    assert only(OwnershipReleased, story.wake()).reason == "Replaced"
