"""A possible effect is never treated as none: redeliveries, late successes, conflicts."""

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
    api_object,
    converged_story,
    error,
    every,
    names,
    only,
    owned_labels,
    relabel,
    repaint,
)
from tests.resource.test_unknown_results import KEYLESS, declared_story, kind_with

REFUSALS: list[ErrorClass] = ["NotDone", "Throttled"]


def story_with_deletion(*, configs: dict[str, ProviderConfigSpec] | None = None) -> Story:
    """Return a story with a deletion in flight."""
    story = converged_story({"color": "Red"}, configs=configs)
    story.withdraw()
    assert story.action.operation == "Delete"
    return story


# --- the same attempt is redelivered and refused


@pytest.mark.parametrize("refusal", REFUSALS)
def test_scenario_31_a_refused_redelivery_of_a_deletion_is_looked_up(
    refusal: ErrorClass,
):
    """A worker deletes and dies; the second worker is refused; the object is declared again."""
    story = story_with_deletion()
    assert only(ActionFailed, story.fail(refusal, redelivered=True)).redelivered
    assert not every(ActionAbandoned, story.declare({"color": "Blue"}))
    assert story.outcome == "Degraded", "it has not converged"
    assert only(LookupDecided, story.wake(3600)).action.operation == "Delete"
    events = story.report_lookup(None)
    assert only(ActionSucceeded, events).found_by == "Absence"
    assert only(ActionDecided, events).action.operation == "Create"
    assert not every(DriftDetected, events), "no other client is blamed"


@pytest.mark.parametrize("refusal", REFUSALS)
def test_scenario_31_a_refused_redelivery_of_an_update_is_looked_up(refusal: ErrorClass):
    story = converged_story({"color": "Red"})
    original = story.existing
    story.declare({"color": "Purple"})
    story.fail(refusal, redelivered=True)
    assert not every(ActionAbandoned, story.declare({"color": "Red"}))
    assert only(LookupDecided, story.wake(3600))
    events = story.report_lookup(repaint(original, color="Purple"))
    assert only(ActionSucceeded, events).found_by == "Content"
    assert only(ActionDecided, events).action.fields == {"color": "Red"}


def test_an_obsolete_write_that_had_no_effect_is_abandoned_in_doubt():
    """The first worker may be suspended before its call."""
    story = story_with_deletion()
    original = story.existing
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    events = story.report_lookup(original)
    assert names(events)[:2] == ["ActionNotDone", "ActionAbandoned"]
    assert only(ActionAbandoned, events).in_doubt
    assert story.outcome == "Converged"


def test_a_refusal_of_the_first_delivery_proves_that_nothing_was_done():
    story = story_with_deletion()
    story.fail("NotDone")
    events = story.declare({"color": "Blue"})
    assert not only(ActionAbandoned, events).in_doubt
    assert only(ActionDecided, events).action.operation == "Update"


def test_an_action_that_is_still_desired_is_repeated_with_the_same_key():
    story = story_with_deletion()
    action = story.action
    story.fail("NotDone", redelivered=True)
    assert only(ActionRetried, story.wake(3600)).action == action


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_failed_lookup_of_an_obsolete_object_is_followed_by_another_lookup(redelivered: bool):
    story = story_with_deletion()
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Blue"})
    story.wake(3600)
    unknown = story.flight.unknown_results
    report = Reported(story.action.action_id, story.flight.attempt, story.now, story.now, "w1")
    failed = ActionError("NotDone", "try again later", 503)
    story.turn(replace(report, error=failed, is_lookup=True, redelivered=redelivered))
    assert story.flight.unknown_results == unknown, (
        "a lookup has no effect, even if it was delivered before"
    )
    assert only(LookupDecided, story.wake(3600))
    assert only(ActionSucceeded, story.report_lookup(None)).found_by == "Absence"


def test_a_retry_that_becomes_a_lookup_waits_for_the_grace_of_its_kind():
    story = converged_story(kind=kind_with(keys=True, grace=60.0))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    waits = only(RetryScheduled, story.declare({"type": "Circle"}))
    assert waits.delay_seconds >= 60.0
    assert not every(LookupDecided, story.wake(59))
    assert every(LookupDecided, story.wake(3600))


def test_a_retry_that_becomes_a_lookup_waits_only_for_the_rest_of_the_grace():
    story = converged_story(kind=kind_with(keys=True, grace=60.0))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    story.now += timedelta(seconds=50)
    waits = only(RetryScheduled, story.declare({"type": "Circle"}))
    assert 10.0 <= waits.delay_seconds < 60.0
    assert every(LookupDecided, story.wake(waits.delay_seconds))


def test_a_wait_ended_on_request_keeps_the_rest_of_the_grace_for_the_lookup():
    story = converged_story(kind=kind_with(keys=True, grace=60.0))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    story.declare({"type": "Circle"})
    story.now += timedelta(seconds=50)
    waits = only(RetryScheduled, story.turn(ReconcileRequested("the API is back")))
    assert 10.0 <= waits.delay_seconds < 60.0


def test_the_fields_of_an_update_in_doubt_are_treated_as_ours():
    story = converged_story({"type": "Square"})
    original = story.existing
    story.declare({"type": "Square", "color": "Blue"})
    story.fail("Conflict", existing=repaint(original, color="Blue"), redelivered=True)
    story.declare({"type": "Circle"})
    story.fail("Conflict", existing=repaint(original, color="Blue"))
    assert story.action.fields == {"type": "Circle"}


# --- a success that is reported late


def test_a_zombies_deletion_is_recorded_and_the_object_is_recreated():
    story = story_with_deletion()
    deletion, original = story.action, story.existing
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.report_lookup(original)
    assert (story.idle, story.outcome) == (True, "Converged")
    events = story.report(action_id=deletion.action_id, redelivered=True)
    late = only(ActionSucceeded, events)
    assert (late.late, late.outdated, late.action_id) == (True, False, deletion.action_id)
    recreation = only(ActionDecided, events).action
    assert recreation.operation == "Create"
    assert recreation.causes == (f"{story.key}@{story.log[-2].resourceversion}",)
    assert not every(DriftDetected, events)
    assert not every(OwnershipReleased, events)


def test_a_zombies_deletion_reported_during_an_update_leads_to_a_recreation():
    story = story_with_deletion()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Blue"})
    update = story.action
    assert update.operation == "Update"
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert (late.late, late.outdated) == (True, False)
    assert story.action == update, "the update awaits its own result"
    events = story.fail("NotFound")
    assert not every(DriftDetected, events)
    assert only(ActionDecided, events).action.operation == "Create"


def test_a_zombies_update_is_recorded_and_corrected():
    story = converged_story({"color": "Red"})
    original = story.existing
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.report_lookup(original)
    assert story.outcome == "Converged"
    painted = repaint(original, color="Purple")
    events = story.report(action_id=update.action_id, existing=painted, redelivered=True)
    assert only(ActionSucceeded, events).late
    correction = only(ActionDecided, events).action
    assert (correction.operation, correction.fields) == ("Update", {"color": "Red"})


def test_a_late_update_is_outdated_while_another_action_is_in_flight():
    """The other action may have since succeeded, so the object's writer is unknown."""
    story = converged_story({"color": "Red"})
    original = story.existing
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Blue"})
    story.wake(3600)
    assert only(ActionDecided, story.report_lookup(original)).action.fields == {"color": "Blue"}
    painted = repaint(original, color="Purple")
    events = story.report(action_id=update.action_id, existing=painted, redelivered=True)
    assert [(each.late, each.outdated) for each in every(ActionSucceeded, events)] == [(True, True)]
    assert story.existing == original
    story.succeed()
    assert story.outcome == "Converged"


def test_a_late_creation_is_outdated_while_another_one_is_in_flight():
    story = declared_story()
    creation = story.action
    story.fail("Refused")
    story.declare({"color": "Blue"})
    assert story.action.operation == "Create"
    created_object = story.object_after(creation)
    late = only(
        ActionSucceeded, story.report(action_id=creation.action_id, existing=created_object)
    )
    assert (late.late, late.outdated) == (True, True)
    assert story.state.owned is None
    assert not story.idle


def test_a_late_success_for_a_replaced_object_explains_and_changes_nothing():
    story = story_with_deletion()
    deletion, original = story.action, story.existing
    story.fail("NotDone", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.report_lookup(original)
    story.observe(None)  # a zombie deleted it and has not reported yet
    story.succeed()
    owned = story.state.owned
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert (late.late, late.outdated) == (True, True)
    assert (story.state.owned, story.outcome) == (owned, "Converged")


def test_a_late_success_is_recorded_once():
    story = story_with_deletion()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Blue"})
    assert every(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert story.report(action_id=deletion.action_id) == []


def test_a_late_success_after_a_forced_release_explains_the_effect():
    story = story_with_deletion()
    deletion = story.action
    released = story.turn(ForcedRelease("it is no longer ours", orphan=True))
    assert only(ActionAbandoned, released).in_doubt, "its call may be in progress"
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id))
    assert (late.late, late.outdated) == (True, True)


def test_an_action_that_ended_in_doubt_is_suspected_of_a_deletion():
    story = story_with_deletion()
    deletion, original = story.action, story.existing
    story.fail("Throttled", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.report_lookup(original)
    assert only(DriftDetected, story.observe(None)).suspected_action == deletion.action_id


def test_a_write_is_suspected_only_of_drift_to_its_own_content():
    story = converged_story({"color": "Red"})
    original = story.existing
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("Throttled", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    story.report_lookup(original)
    assert story.outcome == "Converged"
    drift = only(DriftDetected, story.observe(repaint(story.existing, color="Green")))
    assert drift.suspected_action == "", "another client painted it green"
    story.succeed()
    drift = only(DriftDetected, story.observe(repaint(story.existing, color="Purple")))
    assert drift.suspected_action == update.action_id


def test_a_repeated_report_about_a_held_action_changes_nothing():
    story = declared_story(KEYLESS)
    story.fail("Conflict", existing=api_object(uid="h1"), redelivered=True)
    assert story.outcome == "Held"
    assert story.fail("Conflict", existing=api_object(uid="h1")) == []


def test_an_action_that_certainly_failed_is_not_suspected():
    story = story_with_deletion()
    story.fail("NotDone")
    story.declare({"color": "Red"})
    assert only(DriftDetected, story.observe(None)).suspected_action == ""


def test_an_action_that_an_operator_abandons_is_in_doubt():
    story = declared_story(KEYLESS)
    story.fail("Conflict", existing=api_object(uid="u1"), redelivered=True)
    story.withdraw()
    events = story.turn(Approved("UnknownResult", "Abandon", "it does not exist"))
    assert only(ActionAbandoned, events).in_doubt


def test_a_redelivered_deletion_is_suspected_once_the_next_object_is_missing():
    """The first worker resumes, and its call deletes the object created in the meantime."""
    story = story_with_deletion()
    deletion = story.action
    succeeded = only(ActionSucceeded, story.report(redelivered=True))
    assert succeeded.redelivered
    story.declare({"color": "Blue"})
    story.succeed()
    drift = only(DriftDetected, story.observe(None))
    assert drift.suspected_action == deletion.action_id
    story.succeed()
    assert only(DriftDetected, story.observe(None)).suspected_action == "", "each is suspected once"


def test_a_resumed_worker_reports_its_effect_on_the_next_object_late():
    story = story_with_deletion()
    deletion = story.action
    story.report(redelivered=True)
    story.declare({"color": "Blue"})
    story.succeed()
    late = only(ActionSucceeded, story.report(action_id=deletion.action_id, redelivered=True))
    assert (late.late, late.outdated) == (True, True)
    assert story.report(action_id=deletion.action_id, redelivered=True) == [], "once"
    assert only(DriftDetected, story.observe(None)).suspected_action == deletion.action_id


def test_a_redelivered_report_is_not_a_late_success():
    story = story_with_deletion()
    report = Reported(story.action.action_id, 1, story.now, story.now, "w1", redelivered=True)
    command = story.command(report)
    assert every(ActionSucceeded, story.process([command]))
    assert story.process([command]) == []


def test_an_overtaken_report_does_not_validate_older_observations():
    """A decider died with the first report; the second worker's report was decided before."""
    story = story_with_deletion()
    report = Reported(story.action.action_id, 1, story.now, story.now, "w1")
    overtaken = story.command(report)
    story.turn(replace(report, worker="w2", redelivered=True))
    story.declare({"color": "Blue"})
    story.succeed()
    story.now += timedelta(seconds=5)
    assert only(ActionSucceeded, story.process([overtaken])).late
    assert story.observe(None, as_of=overtaken.position) == [], "it began before the creation"


def test_an_action_with_a_late_unknown_result_is_looked_up_before_abandonment():
    """The first worker was refused; the second, with the same attempt, got no response."""
    story = story_with_deletion()
    original = story.existing
    story.fail("NotDone")
    doubted = story.fail("Unknown", redelivered=True)
    assert names(doubted)[0] == "ActionDoubted"
    assert story.fail("Unknown", redelivered=True) == [], "the doubt is already recorded"
    assert not every(ActionAbandoned, story.declare({"color": "Red"}))
    assert only(LookupDecided, story.wake(3600))
    assert only(ActionAbandoned, story.report_lookup(original)).in_doubt


def test_a_late_unknown_result_of_an_abandoned_action_explains_a_loss():
    story = story_with_deletion()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Red"})
    events = story.report(error("Unknown"), action_id=deletion.action_id, redelivered=True)
    assert only(ActionDoubted, events).operation == "Delete"
    assert not story.report(error("Unknown"), action_id=deletion.action_id, redelivered=True)
    assert only(DriftDetected, story.observe(None)).suspected_action == deletion.action_id


def test_a_late_refusal_does_not_put_the_action_in_doubt():
    story = story_with_deletion()
    deletion = story.action
    story.fail("NotDone")
    story.declare({"color": "Red"})
    assert story.report(error("NotDone"), action_id=deletion.action_id) == []


@pytest.mark.parametrize("kind", [BLOCK, KEYLESS])
def test_a_late_unknown_result_makes_a_refused_creation_uncertain(kind: object):
    story = declared_story(BLOCK if kind is BLOCK else KEYLESS)
    creation = story.action
    story.fail("Refused")
    assert not story.state.actions.uncertain_create
    story.report(error("Unknown"), action_id=creation.action_id, redelivered=True)
    assert story.state.actions.uncertain_create


def test_a_late_update_is_judged_by_the_object_that_it_found():
    story = converged_story({"color": "Red"})
    story.declare({"color": "Purple"})
    update = story.action
    story.fail("NotFound", redelivered=True)
    story.succeed()
    assert story.outcome == "Converged"
    found_object = repaint(story.existing, color="Green")
    events = story.report(action_id=update.action_id, existing=found_object, redelivered=True)
    assert not only(ActionSucceeded, events).outdated
    assert only(ActionDecided, events).action.fields == {"color": "Purple"}


def test_a_resource_without_an_object_is_deleted_even_without_its_configuration():
    story = Story(configs={})
    story.declare()
    assert (story.outcome, story.reason) == ("Held", "ProviderConfigMissing")
    story.withdraw()
    assert (story.outcome, story.reason) == ("Deleted", "Gone")


# --- conflicts


def test_a_conflict_without_a_cause_ends_the_action_and_the_next_has_a_new_key():
    """The API may store its first response, a 409, with the key and return it to every repeat."""
    story = declared_story(BLOCK)
    first = story.action
    events = story.fail("Conflict")
    assert only(ActionFailed, events).error.error_class == "Conflict"
    second = only(ActionDecided, events).action
    assert second.idempotency_key != first.idempotency_key
    assert (second.operation, second.fields) == (first.operation, first.fields)


def test_a_stored_conflict_always_ends_the_action():
    story = declared_story(BLOCK)
    first = story.action
    story.fail("Unknown")
    story.wake(3600)
    events = story.fail("Conflict", replayed=True, redelivered=True)
    assert only(ActionDecided, events).action.idempotency_key != first.idempotency_key


def test_conflicts_without_a_visible_cause_do_not_cause_a_hot_loop():
    story = declared_story(BLOCK)
    for _ in range(3):
        assert every(ActionDecided, story.fail("Conflict"))
    assert every(RetryScheduled, story.fail("Conflict"))


@pytest.mark.parametrize("kind", [BLOCK, KEYLESS])
def test_after_doubt_a_conflict_without_a_cause_is_looked_up_first(kind: object):
    """The cause may be our own object, or our own call that is still running."""
    story = declared_story(BLOCK if kind is BLOCK else KEYLESS)
    action = story.action
    events = story.fail("Conflict", redelivered=True)
    assert only(ActionFailed, events).error.error_class == "Unknown"
    for _ in range(2):
        assert only(ActionRetried, story.wake(3600)).action == action
        story.fail("Conflict")
    assert every(LookupDecided, story.wake(3600))
    assert every(ActionNotDone, story.report_lookup(None))
    assert only(ActionDecided, story.fail("Conflict")).action.operation == "Create"


def test_without_keys_an_update_that_finds_its_own_content_succeeds():
    story = converged_story({"color": "Red"}, kind=KEYLESS)
    original = story.existing
    story.declare({"color": "Blue"})
    painted = repaint(original, color="Blue")
    events = story.fail("Conflict", existing=painted, redelivered=True)
    assert only(ActionSucceeded, events).found_by == "Content"
    assert story.outcome == "Converged"


def test_an_update_that_finds_another_version_on_its_first_delivery_conflicts():
    story = converged_story({"color": "Red"}, kind=KEYLESS)
    original = story.existing
    story.declare({"color": "Blue"})
    events = story.fail("Conflict", existing=repaint(original, color="Blue"))
    assert only(ActionFailed, events).error.error_class == "Conflict"


def test_with_keys_an_object_that_a_redelivered_creation_finds_is_foreign():
    story = Story(kind=BLOCK, configs={CONFIG: SHARED})
    story.declare()
    copy = api_object(uid="h1", labels=owned_labels())
    story.fail("Conflict", existing=copy, redelivered=True)
    assert story.state.owned is None, "the key shows that the first call created nothing"
    assert not every(OwnershipClaimed, story.observe(repaint(copy, color="Blue")))
    assert story.state.owned is None


@pytest.mark.parametrize("refusal", ["Conflict", "Refused", "NotDone"])
def test_with_keys_a_refusal_does_not_settle_the_call_of_another_worker(refusal: ErrorClass):
    """Some APIs store no refusals with the key: the first call can arrive once the name is free."""
    story = Story(kind=BLOCK, configs={CONFIG: SHARED})
    story.declare()
    found_object = api_object(uid="h1") if refusal == "Conflict" else None
    assert only(
        ActionFailed, story.fail(refusal, existing=found_object, redelivered=True)
    ).redelivered
    story.withdraw()
    if refusal != "Conflict":
        assert every(LookupDecided, story.wake(3600)), "the other call may have created it"
        assert only(ActionAbandoned, story.report_lookup(None)).in_doubt, "or may still create it"
    claimed = only(OwnershipClaimed, story.observe(api_object(uid="late", labels=owned_labels())))
    assert (claimed.uid, claimed.reason) == ("late", "Found")
    assert (story.action.operation, story.action.uid) == ("Delete", "late")


def test_a_stored_refusal_settles_the_call_of_another_worker():
    story = Story(kind=BLOCK, configs={CONFIG: SHARED})
    story.declare()
    events = story.fail("Conflict", existing=api_object(uid="h1"), redelivered=True, replayed=True)
    assert not only(ActionFailed, events).redelivered
    assert not every(OwnershipClaimed, story.observe(api_object(uid="h2", labels=owned_labels())))


def test_a_write_that_may_not_have_happened_is_decided_again():
    """The API still shows the previous write, so it has not refused this one."""
    story = converged_story({"color": "Red"})
    original = story.existing
    story.declare({"color": "Red", "size": {"w": 2, "h": 1}})
    events = story.fail("Conflict", existing=original, redelivered=True)
    assert not every(DriftDetected, events), "no client changed the size"
    assert (story.action.operation, story.reason) != ("Update", "NotAccepted")
    assert story.action.fields["size"] == {"w": 2, "h": 1}


def test_a_write_in_doubt_that_succeeded_is_recorded_as_applied():
    story = converged_story({"color": "Red"})
    original = story.existing
    story.declare({"type": "Square", "color": "Red"})
    written_object = repaint(original, type="Square")
    story.fail("Conflict", existing=written_object, redelivered=True)
    assert story.outcome == "Converged"
    assert every(DriftDetected, story.observe(repaint(written_object, type="Circle")))


def test_the_confirmation_of_a_write_is_reported_once():
    story = converged_story({"color": "Red"})
    original = story.existing
    story.declare({"type": "Square", "color": "Red"})
    written_object = repaint(original, type="Square")
    events = story.fail("Conflict", existing=written_object, redelivered=True)
    assert only(OutcomeRecorded, events).confirms_write
    assert not every(OutcomeRecorded, story.observe(written_object))


@pytest.mark.parametrize("keys", [True, False])
def test_a_conflict_with_an_object_that_has_the_key_of_the_update_is_a_success(keys: bool):
    story = converged_story({"color": "Red"}, kind=kind_with(keys=keys))
    original = story.existing
    story.declare({"type": "Square", "color": "Red"})
    written_object = repaint(original, type="Square")
    written_object = replace(written_object, written_by=story.action.idempotency_key)
    events = story.fail("Conflict", existing=written_object)
    assert only(ActionSucceeded, events).found_by == "Key"


def test_an_update_with_an_unknown_result_does_not_validate_a_copied_label():
    story = converged_story({"color": "Red"})
    story.declare({"type": "Square", "color": "Red"})
    story.fail("Unknown")
    story.wake(3600)
    story.succeed()
    assert story.outcome == "Converged"
    events = story.observe(api_object(uid="u9", labels=owned_labels()))
    assert not every(OwnershipClaimed, events)
    assert (story.outcome, story.reason) == ("Conflict", "AlreadyExists")


def test_a_grace_above_the_maximum_wait_ends_after_that_wait():
    story = converged_story(kind=kind_with(keys=True, grace=2 * MAX_SECONDS))
    story.withdraw()
    story.fail("NotDone", redelivered=True)
    story.declare({"type": "Circle"})
    assert every(LookupDecided, story.wake(MAX_SECONDS))


def test_an_abandoned_write_that_never_happened_is_decided_again():
    story = converged_story({"color": "Red"})
    original = story.existing
    larger = {"color": "Red", "size": {"w": 2, "h": 1}}
    story.declare(larger)
    story.fail("Throttled", redelivered=True)
    story.declare({"color": "Red"})
    story.wake(3600)
    assert every(ActionAbandoned, story.report_lookup(original))
    assert story.outcome == "Converged"
    assert only(ActionDecided, story.declare(larger)).action.fields == larger


def test_a_creation_that_a_listing_found_first_is_recorded_when_its_report_arrives():
    """The refused worker reports first; the worker that created the object reports last."""
    story = declared_story(BLOCK)
    creation = story.action
    story.fail("NotDone")
    story.withdraw()
    created = replace(story.object_after(creation), uid="u9", written_by=creation.idempotency_key)
    assert only(OwnershipClaimed, story.observe(created)).reason == "Found"
    story.succeed()
    assert story.outcome == "Deleted"

    late = story.report(existing=created, action_id=creation.action_id, redelivered=True)
    success = only(ActionSucceeded, late)
    assert (success.late, success.outdated) == (True, True)
    assert story.state.owned is None, "it has been deleted"


@pytest.mark.parametrize(
    ("end", "claimed"), [("deleted", ["Found"]), ("gone", ["Returned"]), ("released", [])]
)
def test_a_late_report_of_a_creation_does_not_claim_an_adopted_object(end: str, claimed: list[str]):
    """Another client had removed the object's label, so that nothing showed who created it."""
    story = Story(kind=KEYLESS)
    deletion = "Orphan" if end == "released" else "Delete"
    story.declare({"color": "Red"}, policy={"adoption": "Adopt", "deletion": deletion})
    creation = story.action
    created = story.object_after(creation)
    events = story.fail("Conflict", existing=relabel(created, {}), redelivered=True)
    assert only(OwnershipClaimed, events).reason == "Adopted"
    story.succeed()
    if end == "gone":
        story.declare({"color": "Red"}, policy={"mode": "CreateOnly"})
        story.observe(None)
    else:
        story.withdraw()
        story.succeed()

    late = story.report(existing=created, action_id=creation.action_id)
    success = only(ActionSucceeded, late)
    assert (success.late, success.outdated) == (True, True)
    assert story.state.owned is None
    # Where the name serves as the id, the call may have created the object again.
    events = story.observe(relabel(created, {}))
    assert [each.reason for each in every(OwnershipClaimed, events)] == claimed


def test_an_id_that_returns_is_owned_after_the_late_report_of_its_creation():
    """Where the name serves as the id, an earlier object of the resource had the same id."""
    story = converged_story({"color": "Red"}, kind=KEYLESS)
    original = story.existing
    story.withdraw()
    story.succeed()
    story.declare({"color": "Red"})
    creation = story.action
    story.fail("Refused", redelivered=True)
    late = story.report(existing=original, action_id=creation.action_id)
    assert not only(ActionSucceeded, late).outdated
    assert story.outcome == "Converged"


def test_a_released_object_is_not_claimed_for_an_earlier_unknown_creation():
    story = declared_story(BLOCK)
    creation = story.action
    created = replace(story.object_after(creation), written_by=creation.idempotency_key)
    story.fail("Unknown")
    story.withdraw()
    story.turn(ForcedRelease("the API is being moved", orphan=True))
    story.declare(policy={"deletion": "Orphan"})
    assert only(ActionSucceeded, story.fail("Conflict", existing=created)).found_by == "Label"
    story.withdraw()
    story.succeed()
    assert story.outcome == "Released"
    events = story.observe(repaint(relabel(created, {}), color="Blue"))
    assert every(ExternalObserved, events)
    assert not every(OwnershipClaimed, events)
