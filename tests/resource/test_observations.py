"""What proves that something is there or gone, and what proves nothing: scenario 16."""

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
    converged,
    names,
    only,
    repainted,
    thing,
)

UNCONDITIONAL = Capabilities(
    idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=False
)
SLOW = msgspec.structs.replace(SHARED, consistency_grace_seconds=5.0)


def test_a_listing_that_began_before_our_effect_proves_no_absence():
    story = converged()
    assert story.see(None, as_of=story.state.actions.effect_position - 1) == []
    assert story.outcome == "Converged"


def test_a_listing_that_began_after_our_effect_proves_absence():
    story = converged()
    assert "ExternalObserved" in names(story.see(None, as_of=story.state.actions.effect_position))


def test_an_observation_without_a_position_is_older_than_everything():
    story = converged()
    assert story.turn(Observed(CONFIG, "Foo", None)) == []


def test_an_observation_is_ignored_while_an_action_is_in_flight():
    story = Story()
    story.declare()
    assert story.see(None) == []
    assert story.see(thing()) == []


def test_an_older_observation_never_reverts_a_newer():
    story = converged()
    green = repainted(story.existing, color="Green")
    story.declare({"type": "Square", "color": "Red"}, policy={"mode": "CreateOnly"})
    story.see(green)
    newest = story.state.observed.position
    assert story.see(None, as_of=newest - 1) == []
    assert story.existing == green


def test_an_observation_from_the_future_does_not_block_later_ones():
    story = converged(policy={"mode": "CreateOnly"})
    story.see(repainted(story.existing, color="Green"), as_of=10**9)
    assert names(story.see(repainted(story.existing, color="Blue")))[0] == "ExternalObserved"


@pytest.mark.parametrize(("after_seconds", "believed"), [(4.0, False), (5.0, True), (6.0, True)])
def test_an_observation_counts_only_past_the_consistency_grace(
    after_seconds: float, believed: bool
):
    story = converged(configs={CONFIG: SLOW})
    began = story.now + timedelta(seconds=after_seconds)
    assert bool(story.see(None, began_at=began)) is believed


@pytest.mark.parametrize(("after_seconds", "believed"), [(4.0, False), (5.0, True), (6.0, True)])
@pytest.mark.parametrize("clocks_ahead", [timedelta(0), timedelta(hours=1), -timedelta(hours=1)])
def test_the_grace_is_counted_by_the_clock_of_the_bus(
    clocks_ahead: timedelta, after_seconds: float, believed: bool
):
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    bus_time = story.now - 3 * clocks_ahead  # nor has the decider's clock a say in it
    story.stored_at = bus_time
    story.succeed()
    story.stored_at = bus_time + timedelta(seconds=after_seconds + 30)
    began_at = bus_time + timedelta(seconds=after_seconds) + clocks_ahead
    events = story.see(None, began_at=began_at, age_seconds=30.0)
    assert bool(events) is believed


_WRONG_CLOCKS = [timedelta(0), timedelta(hours=1), -timedelta(hours=1)]


@pytest.mark.parametrize(("after_seconds", "believed"), [(4.0, False), (5.0, True)])
@pytest.mark.parametrize("clock_ahead", _WRONG_CLOCKS)
def test_a_grace_that_is_configured_after_the_write_is_counted_by_the_clock_of_the_bus(
    clock_ahead: timedelta, after_seconds: float, believed: bool
):
    story = Story()
    story.stored_at = START
    story.now += clock_ahead
    story.declare()
    story.succeed()
    story.configs[CONFIG] = SLOW
    story.stored_at += timedelta(seconds=after_seconds)
    assert bool(story.see(None)) is believed


@pytest.mark.parametrize("clock_ahead", _WRONG_CLOCKS)
def test_a_raised_grace_counts_from_the_write_that_raised_it_by_the_clock_of_the_bus(
    clock_ahead: timedelta,
):
    story = Story()
    story.stored_at = START
    story.now += clock_ahead
    story.declare()
    story.succeed()
    known_object = story.existing
    story.stored_at += timedelta(seconds=5)
    story.see(None)
    story.stored_at += timedelta(seconds=1)
    story.fail("Conflict", shown=known_object)
    assert story.state.observed.grace_seconds == 10
    story.stored_at += timedelta(seconds=9)
    assert story.see(None, evidence="Read") == []
    story.stored_at += timedelta(seconds=1)
    assert "DriftDetected" in names(story.see(None, evidence="Read"))


@pytest.mark.parametrize("clock_ahead", _WRONG_CLOCKS)
def test_a_deletion_waits_for_a_grace_by_the_clock_of_the_bus(clock_ahead: timedelta):
    story = Story()
    story.stored_at = START
    story.now += clock_ahead
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


def test_a_worker_that_stood_still_after_its_call_proves_nothing_within_the_grace():
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    story.succeed()
    story.withdraw()
    report = Reported(story.action.action_id, 1, story.now, story.now, "w1", absent=True)
    story.now += timedelta(seconds=30)
    assert "ActionFailed" in names(story.turn(report))


def test_an_observation_that_only_the_clock_of_its_observer_dates_proves_nothing():
    story = converged(configs={CONFIG: SLOW})
    later = story.now + timedelta(hours=1)
    assert story.see(None, began_at=later, age_seconds=None) == []


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_call_that_meets_nothing_proves_nothing_within_the_grace(is_withdrawn: bool):
    """An API that shows its objects late would get a second one, or keep one without an owner."""
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    story.stored_at = created_at = story.now
    story.succeed()
    if is_withdrawn:
        story.withdraw()
    else:
        story.declare({"type": "Square", "color": "Green"})

    def meets_nothing(after_seconds: float) -> list[ResourceEvent]:
        story.stored_at = story.now = created_at + timedelta(seconds=after_seconds)
        return story.report(absent=True) if is_withdrawn else story.fail("NotFound")

    events = meets_nothing(4.0)
    assert names(events)[:2] == ["ActionFailed", "RetryScheduled"]
    assert only(RetryScheduled, events).delay_seconds >= 1.0
    assert story.state.owned is not None
    assert "ActionRetried" in names(story.wake(10))
    meets_nothing(15.0)
    assert story.state.owned is None, "past the grace, it counts"


def test_an_observation_reported_after_a_pause_is_not_believed_too_early():
    story = Story(configs={CONFIG: SLOW})
    story.declare()
    story.stored_at = bus_time = story.now
    story.succeed()
    story.stored_at = bus_time + timedelta(seconds=30)
    began_at = bus_time + timedelta(seconds=1)
    assert story.see(None, began_at=began_at, age_seconds=0.5) == []


def test_with_a_grace_an_observation_without_a_time_proves_nothing():
    story = converged(configs={CONFIG: SLOW})
    assert story.see(None, age_seconds=None) == []


def test_while_the_grace_is_not_known_an_observation_proves_nothing():
    story = converged()
    story.configs.clear()
    assert "ExternalObserved" not in names(story.see(None, began_at=story.now))


def returned_after(seconds: float) -> Story:
    """A listing lacks an object so long after its creation; then it exists all the same."""
    story = converged()
    known_object = story.existing
    story.now += timedelta(seconds=seconds)
    story.see(None)
    story.now += timedelta(seconds=1)
    story.fail("Conflict", shown=known_object)
    assert story.outcome == "Converged"
    return story


def test_an_object_that_returns_soon_after_it_was_gone_proves_lag_and_raises_the_grace():
    story = returned_after(5)
    claimed = only(OwnershipClaimed, [each.data for each in story.log])
    assert (claimed.reason, claimed.grace_seconds) == ("Returned", 10)
    assert story.state.observed.grace_seconds == 10
    story.declare({"color": "Blue"})
    story.succeed()
    began = story.now + timedelta(seconds=9)
    assert story.see(repainted(story.existing, color="Red"), began_at=began) == []
    began = story.now + timedelta(seconds=10)
    assert "DriftDetected" in names(
        story.see(repainted(story.existing, color="Red"), began_at=began)
    )


def test_a_raised_grace_lasts_for_the_next_object_and_is_raised_again():
    story = returned_after(5)
    story.now += timedelta(hours=2)
    absence_events = story.see(None, began_at=story.now, evidence="Read")
    assert "ActionDecided" in names(absence_events)
    story.succeed()
    known_object, made_at = story.existing, story.now
    assert story.see(None, began_at=made_at + timedelta(seconds=9)) == []
    story.now = made_at + timedelta(seconds=12)
    assert "ActionDecided" in names(story.see(None, began_at=story.now))
    story.fail("Conflict", shown=known_object)
    assert story.state.observed.grace_seconds == 24


@pytest.mark.parametrize("seconds", [0, 61, 3600])
def test_an_object_that_returns_long_after_its_creation_proves_no_lag(seconds: float):
    story = returned_after(seconds)
    claimed = only(OwnershipClaimed, [each.data for each in story.log])
    assert (claimed.reason, claimed.grace_seconds) == ("Returned", 0)
    assert not story.see(None), "but its absence is not believed of a listing"


def test_what_one_api_shows_late_says_nothing_of_another():
    story = returned_after(5)
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
    story.see(None, age_seconds=2.0)
    story.fail("Conflict", shown=known_object)
    assert story.state.observed.grace_seconds == 76
    story.configs[CONFIG] = msgspec.structs.replace(SHARED, consistency_grace_seconds=90.0)
    story.stored_at += timedelta(seconds=85)
    assert story.see(repainted(known_object), age_seconds=0.0) == []


def test_observations_of_another_configuration_are_ignored():
    story = converged()
    assert story.see(None, config="elsewhere") == []
    assert story.see(None, name="Bar") == []
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    assert story.see(thing(name="Bar"), name="Bar") == []


def test_where_names_are_not_unique_another_of_its_name_says_nothing_of_ours():
    by_id = msgspec.structs.replace(UNCONDITIONAL, deterministic_names=False)
    story = Story(kind=replace(BLOCK, capabilities=by_id))
    story.declare()
    story.succeed()
    deleted_observation = Observed(CONFIG, "Foo", None, as_of=story.position, absent_uid="another")
    assert story.turn(deleted_observation) == []
    assert story.see(thing(uid="another")) == []
    deleted_observation = msgspec.structs.replace(
        deleted_observation, as_of=story.position, absent_uid=story.existing.uid
    )
    assert "OwnershipReleased" in names(story.turn(deleted_observation))


def test_the_same_observation_twice_is_one_event():
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    first = story.see(thing(), as_of=1)
    assert names(first) == ["ExternalObserved", "OutcomeRecorded"]
    assert story.see(thing(), as_of=1) == []


def test_an_absence_without_a_declaration_is_not_recorded():
    story = Story()
    assert story.see(None) == []
    assert story.wake() == []


def test_the_absence_of_an_unowned_object_is_reported():
    story = Story()
    story.see(thing())
    assert story.outcome == "Unowned"
    story.see(None)
    assert (story.outcome, story.reason) == ("Deleted", "GoneByOthers")


def test_what_is_adopted_is_written_as_it_is_and_not_as_it_was_first_seen():
    story = Story()
    story.see(thing({"type": "Square", "color": "Red"}))
    story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    assert story.action.version == "1", "the API refuses it"
    story.fail("Conflict", shown=thing({"type": "Circle", "color": "Red"}, version="2"))
    assert (story.action.version, story.action.fields["type"]) == ("2", "Circle")


def test_without_conditional_writes_an_adoption_waits_for_a_read():
    story = Story(kind=replace(BLOCK, capabilities=UNCONDITIONAL))
    story.see(thing({"type": "Square", "color": "Red"}))
    story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    assert (story.outcome, story.reason) == ("Degraded", "AwaitingRead")
    story.see(thing({"type": "Circle", "color": "Red"}))
    assert story.action.fields == {"type": "Circle", "color": "Blue"}


def test_an_adoption_waits_for_a_read_even_of_an_unchanged_object():
    story = Story(kind=replace(BLOCK, capabilities=UNCONDITIONAL))
    story.see(thing({"color": "Blue"}))
    story.declare({"color": "Blue"}, policy={"adoption": "Adopt"})
    story.see(thing({"color": "Blue"}))
    assert "OwnershipClaimed" in names([each.data for each in story.log])


def test_a_new_version_resolves_a_conflict_that_showed_no_object():
    story = converged()
    story.declare({"type": "Circle"})
    for _ in range(4):
        story.fail("Conflict")
    assert story.idle
    touched = repainted(story.existing)
    assert names(story.see(touched)) == ["ExternalObserved"]
    story.wake(600)
    assert story.action.version == touched.version


def test_of_two_observations_that_began_together_the_last_reported_counts():
    story = Story()
    story.declare(policy={"mode": "ObserveOnly"})
    first = story.command(Observed(CONFIG, "Foo", thing({"color": "Red"}), as_of=1))
    second = story.command(Observed(CONFIG, "Foo", thing({"color": "Blue"}), as_of=1))
    story.give([first, second])
    assert story.existing.fields == {"color": "Blue"}
    assert story.give([first]) == []


def test_what_a_listing_had_missed_once_may_be_absent_again_after_its_deletion():
    story = converged()
    known_object = story.existing
    story.see(None)
    story.fail("Conflict", shown=known_object)
    story.withdraw()
    story.succeed()
    story.see(known_object)
    assert story.outcome == "Disputed"
    story.see(None)
    assert story.state.observed.object is None
    assert story.outcome == "Deleted"


def test_what_a_crash_has_left_of_a_turn_is_decided_from_the_state():
    story = converged()
    count_before = len(story.log)
    story.see(thing(uid="h9"))
    story.log = story.log[: count_before + 1]  # the observation without the events after it
    story.state = fold(story.log)
    assert story.state.owned is not None
    assert only(OwnershipReleased, story.wake()).reason == "Replaced"
