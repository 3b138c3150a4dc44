"""A possible effect never counts as none: redeliveries, late successes, conflicts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from events.intake import (
    ActionError,
    Approved,
    ErrorClass,
    ForcedRelease,
    ReconcileRequested,
    Reported,
)
from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionDoubted,
    ActionFailed,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    DriftDetected,
    ExternalObserved,
    LookupDecided,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    RetryScheduled,
)
from events.provider_config import ProviderConfigSpec
from reconciler.resource.backoff import MAX_SECONDS
from tests.resource.building import (
    BLOCK,
    CONFIG,
    SHARED,
    Story,
    converged,
    error,
    every,
    names,
    only,
    owned_labels,
    relabelled,
    repainted,
    thing,
)
from tests.resource.test_unknown_results import KEYLESS, declared_story, kind_that_can

REFUSALS: list[ErrorClass] = ["NotDone", "Throttled"]


def withdrawn(*, configs: dict[str, ProviderConfigSpec] | None = None) -> Story:
    """A deletion is under way."""
    story = converged({"color": "Red"}, configs=configs)
    story.withdraw()
    assert story.action.operation == "Delete"
    return story


# --- the same attempt is handed out again, and refused


@pytest.mark.parametrize("refusal", REFUSALS)
def test_scenario_31_a_refused_redelivery_of_a_deletion_is_looked_up_before_the_next_decision(
    refusal: ErrorClass,
):
    """A worker deleted it and died; the second was refused; the object is declared again."""
    story = withdrawn()
    assert only(ActionFailed, story.fail(refusal, redelivered=True)).redelivered
    assert not every(ActionAbandoned, story.declare({"color": "Blue"}))
    assert story.outcome == "Degraded", "nothing is said to have converged"
    assert only(LookupDecided, story.wake(3600)).action.operation == "Delete"
    events = story.look(None)
    assert only(ActionSucceeded, events).found_by == "Absence"
    assert only(ActionDecided, events).action.operation == "Create"
    assert not every(DriftDetected, events), "nobody else is blamed"


@pytest.mark.parametrize("refusal", REFUSALS)
def test_scenario_31_a_refused_redelivery_of_an_update_is_looked_up_too(refusal: ErrorClass):
    story = converged({"color": "Red"})
    original = story.existing
    story.declare({"color": "Purple"})
    story.fail(refusal, redelivered=True)
    assert not every(ActionAbandoned, story.declare({"color": "Red"}))
    assert only(LookupDecided, story.wake(3600))
    events = story.look(repainted(original, color="Purple"))
    assert only(ActionSucceeded, events).found_by == "Content"
    assert only(ActionDecided, events).action.fields == {"color": "Red"}


def test_an_unwanted_write_that_a_lookup_shows_as_not_done_is_abandoned_in_doubt():
    """The worker that had it may stand still before its call."""
    story = withdrawn()
    there = story.existing
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    events = story.look(there)
    assert names(events)[:2] == ["ActionNotDone", "ActionAbandoned"]
    assert only(ActionAbandoned, events).in_doubt
    assert story.outcome == "Converged"


def test_a_refusal_of_the_first_delivery_says_that_nothing_was_done():
    story = withdrawn()
    story.fail("NotDone")
    events = story.declare({"color": "Blue"})
    assert not only(ActionAbandoned, events).in_doubt
    assert only(ActionDecided, events).action.operation == "Update"


def test_what_is_still_wanted_is_repeated_with_the_same_key():
    story = withdrawn()
    action = story.action
    story.fail("NotDone", redelivered=True)
    assert only(ActionRetried, story.wake(3600)).action == action


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_failed_lookup_of_an_unwanted_object_is_followed_by_another_lookup(redelivered: bool):
    story = withdrawn()
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Blue"})
    story.wake(3600)
    unknown = story.flight.unknown_results
    report = Reported(story.action.action_id, story.flight.attempt, story.now, story.now, "w1")
    failed = ActionError("NotDone", "try again later", 503)
    story.turn(replace(report, error=failed, is_lookup=True, redelivered=redelivered))
    assert story.flight.unknown_results == unknown, "a look has no effect, whoever had it before"
    assert only(LookupDecided, story.wake(3600))
    assert only(ActionSucceeded, story.look(None)).found_by == "Absence"


def test_a_lookup_that_was_timed_as_a_call_waits_for_the_grace_of_the_api():
    story = converged(kind=kind_that_can(keys=True, grace=60.0))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    waits = only(RetryScheduled, story.declare({"type": "Circle"}))
    assert waits.delay_seconds >= 60.0
    assert not every(LookupDecided, story.wake(59))
    assert every(LookupDecided, story.wake(3600))


def test_a_lookup_that_was_timed_as_a_call_waits_only_for_what_is_left_of_the_grace():
    story = converged(kind=kind_that_can(keys=True, grace=60.0))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    story.now += timedelta(seconds=50)
    waits = only(RetryScheduled, story.declare({"type": "Circle"}))
    assert 10.0 <= waits.delay_seconds < 60.0
    assert every(LookupDecided, story.wake(waits.delay_seconds))


def test_a_wait_ended_on_request_keeps_the_rest_of_the_grace_for_the_lookup():
    story = converged(kind=kind_that_can(keys=True, grace=60.0))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    story.declare({"type": "Circle"})
    story.now += timedelta(seconds=50)
    waits = only(RetryScheduled, story.turn(ReconcileRequested("impatient")))
    assert 10.0 <= waits.delay_seconds < 60.0


def test_the_fields_of_an_update_in_doubt_count_as_ours():
    story = converged({"type": "Square"})
    original = story.existing
    story.declare({"type": "Square", "color": "Blue"})
    story.fail("Conflict", shown=repainted(original, color="Blue"), redelivered=True)
    story.declare({"type": "Circle"})
    story.fail("Conflict", shown=repainted(original, color="Blue"))
    assert story.action.fields == {"type": "Circle"}


# --- a success that is told late


def test_a_zombies_deletion_is_in_the_history_and_the_object_is_recreated():
    story = withdrawn()
    deletion, there = story.action, story.existing
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.look(there)
    assert (story.idle, story.outcome) == (True, "Converged")
    events = story.report(action_id=deletion.action_id, redelivered=True)
    late = only(ActionSucceeded, events)
    assert (late.late, late.outdated, late.action_id) == (True, False, deletion.action_id)
    again = only(ActionDecided, events).action
    assert again.operation == "Create"
    assert again.causes == (f"{story.key}@{story.log[-2].resourceversion}",)
    assert not every(DriftDetected, events)
    assert not every(OwnershipReleased, events)


def test_a_zombies_deletion_reported_during_an_update_leads_to_a_recreation():
    story = withdrawn()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Blue"})
    update = story.action
    assert update.operation == "Update"
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert (late.late, late.outdated) == (True, False)
    assert story.action == update, "its own result is waited for"
    events = story.fail("NotFound")
    assert not every(DriftDetected, events)
    assert only(ActionDecided, events).action.operation == "Create"


def test_a_zombies_update_is_in_the_history_and_is_corrected():
    story = converged({"color": "Red"})
    original = story.existing
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.look(original)
    assert story.outcome == "Converged"
    painted = repainted(original, color="Purple")
    events = story.report(action_id=update.action_id, shown=painted, redelivered=True)
    assert only(ActionSucceeded, events).late
    put_right = only(ActionDecided, events).action
    assert (put_right.operation, put_right.fields) == ("Update", {"color": "Red"})


def test_a_late_update_does_not_count_while_another_action_is_under_way():
    """The other one may have been done since: which of them the object shows is not known."""
    story = converged({"color": "Red"})
    original = story.existing
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Blue"})
    story.wake(3600)
    assert only(ActionDecided, story.look(original)).action.fields == {"color": "Blue"}
    painted = repainted(original, color="Purple")
    events = story.report(action_id=update.action_id, shown=painted, redelivered=True)
    assert [(each.late, each.outdated) for each in every(ActionSucceeded, events)] == [(True, True)]
    assert story.existing == original
    story.succeed()
    assert story.outcome == "Converged"


def test_a_late_creation_does_not_count_while_another_one_is_under_way():
    story = declared_story()
    creation = story.action
    story.fail("Refused")
    story.declare({"color": "Blue"})
    assert story.action.operation == "Create"
    created_object = story.written(creation)
    late = only(ActionSucceeded, story.report(action_id=creation.action_id, shown=created_object))
    assert (late.late, late.outdated) == (True, True)
    assert story.state.owned is None
    assert not story.idle


def test_a_late_success_of_what_is_long_replaced_explains_and_changes_nothing():
    story = withdrawn()
    deletion, there = story.action, story.existing
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.look(there)
    story.see(None)  # a zombie deleted it, and was not heard of until now
    story.succeed()
    owned = story.state.owned
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert (late.late, late.outdated) == (True, True)
    assert (story.state.owned, story.outcome) == (owned, "Converged")


def test_a_late_success_is_recorded_once():
    story = withdrawn()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Blue"})
    assert every(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert story.report(action_id=deletion.action_id) == []


def test_a_late_success_after_a_forced_release_explains_the_effect():
    story = withdrawn()
    deletion = story.action
    released = story.turn(ForcedRelease("it is not ours any more", orphan=True))
    assert only(ActionAbandoned, released).in_doubt, "its call is under way"
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert (late.late, late.outdated) == (True, True)


def test_what_is_missing_may_be_the_work_of_an_action_that_ended_in_doubt():
    story = withdrawn()
    deletion, there = story.action, story.existing
    story.fail("Throttled", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.look(there)
    assert only(DriftDetected, story.see(None)).suspected_action == deletion.action_id


def test_a_write_is_suspected_of_what_it_would_have_left_and_of_nothing_else():
    story = converged({"color": "Red"})
    there = story.existing
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("Throttled", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.look(there)
    assert story.outcome == "Converged"
    drift = only(DriftDetected, story.see(repainted(story.existing, color="Green")))
    assert drift.suspected_action == "", "a person painted it green"
    story.succeed()
    drift = only(DriftDetected, story.see(repainted(story.existing, color="Purple")))
    assert drift.suspected_action == update.action_id


def test_a_worker_that_reports_of_what_is_held_by_now_ends_it_no_second_time():
    story = declared_story(KEYLESS)
    story.fail("Conflict", shown=thing(uid="h1"), redelivered=True)
    assert story.outcome == "Held"
    assert story.fail("Conflict", shown=thing(uid="h1")) == []


def test_what_was_certainly_not_done_is_not_suspected():
    story = withdrawn()
    story.fail("NotDone")
    story.declare({"color": "Red"})
    assert only(DriftDetected, story.see(None)).suspected_action == ""


def test_an_abandonment_by_a_person_is_in_doubt():
    story = declared_story(KEYLESS)
    story.fail("Conflict", shown=thing(uid="u1"), redelivered=True)
    story.withdraw()
    events = story.turn(Approved("UnknownResult", "Abandon", "it is not there"))
    assert only(ActionAbandoned, events).in_doubt


def test_a_deletion_that_a_second_worker_found_done_is_suspected_when_the_next_object_goes():
    """The first one wakes up, and its call meets the object that was made since."""
    story = withdrawn()
    deletion = story.action
    succeeded = only(ActionSucceeded, story.report(redelivered=True))
    assert succeeded.redelivered
    story.declare({"color": "Blue"})
    story.succeed()
    drift = only(DriftDetected, story.see(None))
    assert drift.suspected_action == deletion.action_id
    story.succeed()
    assert only(DriftDetected, story.see(None)).suspected_action == "", "each is suspected once"


def test_what_a_woken_worker_did_to_the_next_object_is_reported_late():
    story = withdrawn()
    deletion = story.action
    story.report(redelivered=True)
    story.declare({"color": "Blue"})
    story.succeed()
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id, redelivered=True))
    assert (late.late, late.outdated) == (True, True)
    assert story.report(action_id=deletion.action_id, redelivered=True) == [], "once"
    assert only(DriftDetected, story.see(None)).suspected_action == deletion.action_id


def test_a_report_that_is_delivered_again_is_no_late_success():
    story = withdrawn()
    report = Reported(story.action.action_id, 1, story.now, story.now, "w1", redelivered=True)
    command = story.command(report)
    assert every(ActionSucceeded, story.give([command]))
    assert story.give([command]) == []


def test_a_report_that_was_overtaken_makes_no_older_observation_count():
    """A decider that died held the first; that of the second worker was decided before."""
    story = withdrawn()
    report = Reported(story.action.action_id, 1, story.now, story.now, "w1")
    overtaken = story.command(report)
    story.turn(replace(report, worker="w2", redelivered=True))
    story.declare({"color": "Blue"})
    story.succeed()
    story.now += timedelta(seconds=5)
    assert only(ActionSucceeded, story.give([overtaken])).late
    assert story.see(None, as_of=overtaken.position) == [], "it began before the creation"


def test_a_late_unknown_result_is_why_an_action_is_looked_up_before_it_is_given_up():
    """The first worker was refused; the second, which had the attempt too, heard no answer."""
    story = withdrawn()
    there = story.existing
    story.fail("NotDone")
    doubted = story.fail("Unknown", redelivered=True)
    assert names(doubted)[0] == "ActionDoubted"
    assert story.fail("Unknown", redelivered=True) == [], "it is known"
    assert not every(ActionAbandoned, story.declare({"color": "Red"}))
    assert only(LookupDecided, story.wake(3600))
    assert only(ActionAbandoned, story.look(there)).in_doubt


def test_a_late_unknown_result_of_what_was_given_up_explains_a_loss():
    story = withdrawn()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Red"})
    events = story.report(error("Unknown"), action_id=deletion.action_id, redelivered=True)
    assert only(ActionDoubted, events).operation == "Delete"
    assert not story.report(error("Unknown"), action_id=deletion.action_id, redelivered=True)
    assert only(DriftDetected, story.see(None)).suspected_action == deletion.action_id


def test_a_late_refusal_is_no_doubt():
    story = withdrawn()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Red"})
    assert story.report(error("NotDone"), action_id=deletion.action_id) == []


@pytest.mark.parametrize("kind", [BLOCK, KEYLESS])
def test_a_late_unknown_creation_that_was_refused_makes_the_next_one_careful(kind: object):
    story = declared_story(BLOCK if kind is BLOCK else KEYLESS)
    creation = story.action
    story.fail("Refused")
    assert not story.state.actions.uncertain_create
    story.report(error("Unknown"), action_id=creation.action_id, redelivered=True)
    assert story.state.actions.uncertain_create


def test_a_late_update_counts_by_the_object_that_it_met():
    story = converged({"color": "Red"})
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("NotFound", redelivered=True)
    story.succeed()
    assert story.outcome == "Converged"
    met = repainted(story.existing, color="Green")
    events = story.report(action_id=update.action_id, shown=met, redelivered=True)
    assert not only(ActionSucceeded, events).outdated
    assert only(ActionDecided, events).action.fields == {"color": "Purple"}


def test_what_was_never_made_is_gone_when_it_is_withdrawn_whatever_is_missing():
    story = Story(configs={})
    story.declare()
    assert (story.outcome, story.reason) == ("Held", "ProviderConfigMissing")
    story.withdraw()
    assert (story.outcome, story.reason) == ("Deleted", "Gone")


# --- conflicts


def test_a_conflict_whose_cause_is_gone_ends_the_action_and_the_next_has_a_new_key():
    """The API may keep its first answer, a 409, with the key: a repeat would never end."""
    story = declared_story(BLOCK)
    first = story.action
    events = story.fail("Conflict")
    assert only(ActionFailed, events).error.error_class == "Conflict"
    again = only(ActionDecided, events).action
    assert again.idempotency_key != first.idempotency_key
    assert (again.operation, again.fields) == (first.operation, first.fields)


def test_a_conflict_that_the_api_has_kept_ends_the_action_whatever_went_before():
    story = declared_story(BLOCK)
    first = story.action
    story.fail("Unknown")
    story.wake(3600)
    events = story.fail("Conflict", replayed=True, redelivered=True)
    assert only(ActionDecided, events).action.idempotency_key != first.idempotency_key


def test_conflicts_whose_cause_is_never_seen_are_no_hot_loop():
    story = declared_story(BLOCK)
    for _ in range(3):
        assert every(ActionDecided, story.fail("Conflict"))
    assert every(RetryScheduled, story.fail("Conflict"))


@pytest.mark.parametrize("kind", [BLOCK, KEYLESS])
def test_after_doubt_a_conflict_whose_cause_is_gone_is_looked_up_first(kind: object):
    """It may have been our own object, or our own call that still runs."""
    story = declared_story(BLOCK if kind is BLOCK else KEYLESS)
    action = story.action
    events = story.fail("Conflict", redelivered=True)
    assert only(ActionFailed, events).error.error_class == "Unknown"
    for _ in range(2):
        assert only(ActionRetried, story.wake(3600)).action == action
        story.fail("Conflict")
    assert every(LookupDecided, story.wake(3600))
    assert every(ActionNotDone, story.look(None))
    assert only(ActionDecided, story.fail("Conflict")).action.operation == "Create"


def test_without_keys_an_update_that_meets_its_own_work_was_done():
    story = converged({"color": "Red"}, kind=KEYLESS)
    original = story.existing
    story.declare({"color": "Blue"})
    painted = repainted(original, color="Blue")
    events = story.fail("Conflict", shown=painted, redelivered=True)
    assert only(ActionSucceeded, events).found_by == "Content"
    assert story.outcome == "Converged"


def test_at_its_first_delivery_an_update_that_meets_another_version_conflicts():
    story = converged({"color": "Red"}, kind=KEYLESS)
    original = story.existing
    story.declare({"color": "Blue"})
    events = story.fail("Conflict", shown=repainted(original, color="Blue"))
    assert only(ActionFailed, events).error.error_class == "Conflict"


def test_with_keys_what_a_redelivered_creation_meets_is_anothers():
    story = Story(kind=BLOCK, configs={CONFIG: SHARED})
    story.declare()
    copy = thing(uid="h1", labels=owned_labels())
    story.fail("Conflict", shown=copy, redelivered=True)
    assert story.state.owned is None, "by the key, the first call had created nothing"
    assert not every(OwnershipClaimed, story.see(repainted(copy, color="Blue")))
    assert story.state.owned is None


@pytest.mark.parametrize("refusal", ["Conflict", "Refused", "NotDone"])
def test_with_keys_a_refusal_does_not_settle_the_call_of_another_worker(refusal: ErrorClass):
    """An API may keep no refusal with the key: the first call can arrive when the name is free."""
    story = Story(kind=BLOCK, configs={CONFIG: SHARED})
    story.declare()
    met = thing(uid="h1") if refusal == "Conflict" else None
    assert only(ActionFailed, story.fail(refusal, shown=met, redelivered=True)).redelivered
    story.withdraw()
    if refusal != "Conflict":
        assert every(LookupDecided, story.wake(3600)), "the other call may have created it"
        assert only(ActionAbandoned, story.look(None)).in_doubt, "or may create it yet"
    claimed = only(OwnershipClaimed, story.see(thing(uid="late", labels=owned_labels())))
    assert (claimed.uid, claimed.reason) == ("late", "Found")
    assert (story.action.operation, story.action.uid) == ("Delete", "late")


def test_a_kept_refusal_settles_the_call_of_another_worker():
    story = Story(kind=BLOCK, configs={CONFIG: SHARED})
    story.declare()
    events = story.fail("Conflict", shown=thing(uid="h1"), redelivered=True, replayed=True)
    assert not only(ActionFailed, events).redelivered
    assert not every(OwnershipClaimed, story.see(thing(uid="h2", labels=owned_labels())))


def test_a_write_that_perhaps_never_happened_is_decided_again():
    """The API still has what the write before it left, so it has not refused this one."""
    story = converged({"color": "Red"})
    original = story.existing
    story.declare({"color": "Red", "size": {"w": 2, "h": 1}})
    events = story.fail("Conflict", shown=original, redelivered=True)
    assert not every(DriftDetected, events), "nobody changed the size"
    assert (story.action.operation, story.reason) != ("Update", "NotAccepted")
    assert story.action.fields["size"] == {"w": 2, "h": 1}


def test_a_write_in_doubt_that_was_done_counts_as_written():
    story = converged({"color": "Red"})
    original = story.existing
    story.declare({"type": "Square", "color": "Red"})
    written_object = repainted(original, type="Square")
    story.fail("Conflict", shown=written_object, redelivered=True)
    assert story.outcome == "Converged"
    assert every(DriftDetected, story.see(repainted(written_object, type="Circle")))


def test_what_confirms_a_write_is_reported_once():
    story = converged({"color": "Red"})
    original = story.existing
    story.declare({"type": "Square", "color": "Red"})
    written_object = repainted(original, type="Square")
    events = story.fail("Conflict", shown=written_object, redelivered=True)
    assert only(OutcomeRecorded, events).confirms_write
    assert not every(OutcomeRecorded, story.see(written_object))


@pytest.mark.parametrize("keys", [True, False])
def test_a_conflict_that_shows_the_key_of_the_update_shows_its_own_work(keys: bool):
    story = converged({"color": "Red"}, kind=kind_that_can(keys=keys))
    original = story.existing
    story.declare({"type": "Square", "color": "Red"})
    written_object = repainted(original, type="Square")
    written_object = replace(written_object, written_by=story.action.idempotency_key)
    events = story.fail("Conflict", shown=written_object)
    assert only(ActionSucceeded, events).found_by == "Key"


def test_an_update_of_unknown_result_does_not_make_a_copied_label_ours():
    story = converged({"color": "Red"})
    story.declare({"type": "Square", "color": "Red"})
    story.fail("Unknown")
    story.wake(3600)
    story.succeed()
    assert story.outcome == "Converged"
    events = story.see(thing(uid="u9", labels=owned_labels()))
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_a_grace_above_the_longest_wait_ends_after_that_wait():
    story = converged(kind=kind_that_can(keys=True, grace=2 * MAX_SECONDS))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    story.declare({"type": "Circle"})
    assert every(LookupDecided, story.wake(MAX_SECONDS))


def test_an_abandoned_write_that_never_happened_is_decided_again():
    story = converged({"color": "Red"})
    original = story.existing
    larger = {"color": "Red", "size": {"w": 2, "h": 1}}
    story.declare(larger)
    story.fail("Throttled", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    assert every(ActionAbandoned, story.look(original))
    assert story.outcome == "Converged"
    assert only(ActionDecided, story.declare(larger)).action.fields == larger


def test_a_creation_that_a_listing_found_first_is_recorded_when_its_report_arrives():
    """The worker that was refused reports first; the one that created the object, last."""
    story = declared_story(BLOCK)
    creation = story.action
    story.fail("NotDone")
    story.withdraw()
    created = replace(story.written(creation), uid="u9", written_by=creation.idempotency_key)
    assert only(OwnershipClaimed, story.see(created)).reason == "Found"
    story.succeed()
    assert story.outcome == "Deleted"

    late = story.report(shown=created, action_id=creation.action_id, redelivered=True)
    success = only(ActionSucceeded, late)
    assert (success.late, success.outdated) == (True, True)
    assert story.state.owned is None, "it was deleted since"


@pytest.mark.parametrize(
    ("end", "claimed"), [("deleted", ["Found"]), ("gone", ["Returned"]), ("released", [])]
)
def test_a_late_report_of_a_creation_does_not_own_what_was_adopted_meanwhile(
    end: str, claimed: list[str]
):
    """Another client had removed the label of the object, so that nothing showed who created it."""
    story = Story(kind=KEYLESS)
    deletion = "Orphan" if end == "released" else "Delete"
    story.declare({"color": "Red"}, policy={"adoption": "Adopt", "deletion": deletion})
    creation = story.action
    created = story.written(creation)
    events = story.fail("Conflict", shown=relabelled(created, {}), redelivered=True)
    assert only(OwnershipClaimed, events).reason == "Adopted"
    story.succeed()
    if end == "gone":
        story.declare({"color": "Red"}, policy={"mode": "CreateOnly"})
        story.see(None)
    else:
        story.withdraw()
        story.succeed()

    late = story.report(shown=created, action_id=creation.action_id)
    success = only(ActionSucceeded, late)
    assert (success.late, success.outdated) == (True, True)
    assert story.state.owned is None
    # Where the name serves as the id, the call may have created the object again.
    events = story.see(relabelled(created, {}))
    assert [each.reason for each in every(OwnershipClaimed, events)] == claimed


def test_an_id_that_returns_is_owned_by_the_late_report_of_its_creation():
    """Where the name serves as the id, another object of the resource had the same id before."""
    story = converged({"color": "Red"}, kind=KEYLESS)
    original = story.existing
    story.withdraw()
    story.succeed()
    story.declare({"color": "Red"})
    creation = story.action
    story.fail("Refused", redelivered=True)
    late = story.report(shown=original, action_id=creation.action_id)
    assert not only(ActionSucceeded, late).outdated
    assert story.outcome == "Converged"


def test_a_released_object_is_not_claimed_for_an_earlier_creation_of_unknown_result():
    story = declared_story(BLOCK)
    creation = story.action
    created = replace(story.written(creation), written_by=creation.idempotency_key)
    story.fail("Unknown")
    story.withdraw()
    story.turn(ForcedRelease("the API is being moved", orphan=True))
    story.declare(policy={"deletion": "Orphan"})
    assert only(ActionSucceeded, story.fail("Conflict", shown=created)).found_by == "Label"
    story.withdraw()
    story.succeed()
    assert story.outcome == "Released"
    events = story.see(repainted(relabelled(created, {}), color="Blue"))
    assert every(ExternalObserved, events)
    assert not every(OwnershipClaimed, events)
