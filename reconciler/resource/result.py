"""Events that a worker's report causes: the end of an attempt or of a lookup."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import assert_never

from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ActionError, Reported
from events.log import (
    Action,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionSucceeded,
    Effect,
    FoundBy,
    ResourceEvent,
)
from events.names import ResourceKey
from reconciler.resource.approval import approval_command
from reconciler.resource.attempt import is_unlisted, judge_conflict, judge_lookup, name_owner
from reconciler.resource.backoff import MAX_SECONDS
from reconciler.resource.next_step import would_claim
from reconciler.resource.observation import bus_start_time, is_unconfirmed
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.state import Ended, InFlight, ResourceState
from reconciler.resource.turn import Command, CommandResult, Context


def report(
    data: Reported, command: Command, state: ResourceState, context: Context
) -> CommandResult:
    """Record the result of an attempt.

    The success of any attempt ends the action. A failure counts only for the current attempt, and
    only once.
    """
    flight = state.actions.in_flight
    if flight is None or flight.action.action_id != data.action_id:
        late_events = _late_successes(data, command, state)
        return CommandResult(
            (
                *late_events,
                *_build_doubts(data, _ended_with_possible_effect(state, context), context),
            )
        )
    action = flight.action
    premature_error = _error_if_too_early(data, action, command, state, context)
    if premature_error is not None:
        data = replace(data, error=premature_error, absent=False)
    if data.error is None and not data.is_lookup:
        redelivered = data.redelivered and _may_run_twice(action, context)
        success = _build_success(
            data, action, redelivered=redelivered, reported_at=command.stored_at
        )
        uid = None if data.object is None else data.object.uid
        # The write may have reached an object that replaced ours after our last read.
        is_other_object = None not in (action.uid, uid) and action.uid != uid
        success = _with_doubt(success, command, state, context)
        return CommandResult((success,), shows_object=is_other_object)
    if data.attempt != flight.attempt or flight.failed is not None or flight.is_held:
        return CommandResult(tuple(_build_doubts(data, (flight,), context)))
    if data.error is None:
        event = _after_lookup(data, flight, state, context)
    else:
        event = _after_failure(data, data.error, flight, state, context)
    return CommandResult((_with_report_time(event, command),), shows_object=_shows_object(event))


def _error_if_too_early(
    data: Reported, action: Action, command: Command, state: ResourceState, context: Context
) -> ActionError | None:
    """Return the error for a call that found no object, if the API may not show our last write yet.

    Otherwise it would count as proof of absence, and the decider would create a second object.
    Lookups wait for the grace period before they start.
    """
    found_nothing = data.absent if data.error is None else data.error.error_class == "NotFound"
    written_at, stored_at = state.actions.effect_at, command.stored_at
    if data.is_lookup or not found_nothing or written_at is None or stored_at is None:
        return None
    grace = min(context.grace_seconds(action.provider_config, state), MAX_SECONDS)
    duration = max(data.finished_at - data.started_at, timedelta())
    began_at = bus_start_time(stored_at, duration, data.started_at)
    remaining = grace - (began_at - written_at).total_seconds()
    if not grace or remaining <= 0:
        return None
    message = (
        "the API reported that the object does not exist; it may not show the last write yet "
        f"(consistencyGraceSeconds: {grace:g})"
    )
    return ActionError("NotDone", message, retry_after_seconds=round(remaining, 3))


def _shows_object(ended: ResourceEvent) -> bool:
    """Return whether a failed attempt also shows the current object, or its absence."""
    if not isinstance(ended, ActionFailed):
        return False
    error_class = ended.error.error_class
    return error_class == "NotFound" or (error_class == "Conflict" and ended.object is not None)


def _build_success(
    data: Reported,
    action: Action,
    *,
    redelivered: bool = False,
    reported_at: datetime | None = None,
) -> ActionSucceeded:
    """Return the success of an attempt."""
    return ActionSucceeded(
        data.action_id,
        action.operation,
        data.attempt,
        data.object,
        data.replayed,
        found_by="Absence" if data.absent else None,  # another client may have deleted it
        redelivered=redelivered,
        purpose=action.purpose,
        reported_at=reported_at,
        external_name=action.external_name if action.purpose == "Replace" else "",
    )


def _with_doubt(
    success: ActionSucceeded, command: Command, state: ResourceState, context: Context
) -> ActionSucceeded:
    """Mark a deletion after which an object from an earlier creation may exist.

    The creation may have created an object other than the missing one. In an API without a
    listing, its call may also arrive late and go unnoticed.
    """
    if success.operation != "Delete" or success.purpose == "Retire":
        return success
    is_unclear = success.found_by == "Absence" and is_unconfirmed(command, state, context)
    if not context.capabilities.listing:
        is_unclear |= state.actions.uncertain_create
    return replace(success, unconfirmed=True) if is_unclear else success


def _with_report_time(event: ResourceEvent, command: Command) -> ResourceEvent:
    """Add the bus time of the report, at which a later grace period also starts."""
    if not isinstance(event, (ActionSucceeded, ActionFailed)):
        return event
    return replace(event, reported_at=command.stored_at)


# --- ended actions


def _late_successes(
    data: Reported, command: Command, state: ResourceState
) -> Iterable[ResourceEvent]:
    """Record the success of an action that had already failed or was abandoned.

    The log explains every effect, even if it no longer changes the state (invariant 13).
    """
    if data.error is not None or data.is_lookup:
        return
    for ended in state.actions.ended:
        if ended.action.action_id == data.action_id and _is_new(data, ended, command):
            outdated = not _is_current(data, ended, state)
            success = _build_success(data, ended.action, reported_at=command.stored_at)
            success = replace(success, late=True, outdated=outdated)
            yield _with_location(success, ended.action)


def _with_location(success: ActionSucceeded, action: Action) -> ActionSucceeded:
    """Add the location of a late creation, because no later event names it."""
    if action.operation != "Create":
        return success
    location = (action.provider_config, action.external_name)
    return replace(success, provider_config=location[0], external_name=location[1])


def _is_new(data: Reported, ended: Ended, command: Command) -> bool:
    """Return whether the log does not contain this success yet."""
    if ended.action.operation == "Create" and ended.reported_by:
        # A redelivered call has created a second object after the deletion of the first.
        uid = None if data.object is None else data.object.uid
        return uid is not None and uid not in ended.created_uids
    return not ended.reported_late and ended.reported_by != command.message_id


def _build_doubts(
    data: Reported, known: tuple[InFlight | Ended, ...], context: Context
) -> Iterable[ResourceEvent]:
    """Record that another call may have taken effect, unless the log already contains that."""
    if data.error is None or data.error.error_class != "Unknown" or data.is_lookup:
        return
    for candidate in known:
        is_known = (
            candidate.effect.may_arrive if isinstance(candidate, InFlight) else candidate.in_doubt
        )
        if candidate.action.action_id == data.action_id and not is_known:
            operation, message = candidate.action.operation, data.error.message
            unlisted = is_unlisted(candidate.action, context.capabilities)
            yield ActionDoubted(
                data.action_id, operation, data.attempt, message, unconfirmed=unlisted
            )


def _ended_with_possible_effect(state: ResourceState, context: Context) -> tuple[Ended, ...]:
    """Return the ended actions for which another call may still have an effect."""
    if not context.capabilities.idempotency_keys:
        return state.actions.ended
    # An API with keys returns its first response to every later call of a creation.
    return tuple(
        each
        for each in state.actions.ended
        if each.action.operation != "Create" or not (each.reported_by or each.created_uids)
    )


def _is_current(data: Reported, ended: Ended, state: ResourceState) -> bool:
    """Return whether a late success still describes the object.

    An action in flight may have changed a created or updated object. A deletion stays valid,
    because no uid is used twice.
    """
    action = ended.action
    owned = state.retiring if action.purpose == "Retire" else state.owned
    is_idle = state.actions.in_flight is None
    is_second_object = action.purpose == "Replace" and not ended.reported_by
    if ended.reported_by and action.operation != "Create":
        return False
    is_its_object = owned is not None and (owned.provider_config, owned.external_name) == (
        action.provider_config,
        action.external_name,
    )
    uid = action.uid if data.object is None else data.object.uid
    same_uid = owned is not None and uid is not None and owned.uid == uid
    match action.operation:
        case "Create" if uid in ended.created_uids:
            return False  # a listing showed the object first, and it may since have been deleted
        case "Create" if state.actions.disowned.get(uid or "", 0) > ended.version:
            # The object was owned before its report, and no longer is. If ids are derived from
            # names, the call may have come later. A later listing then shows the object.
            return False
        case "Create":
            return is_idle and (owned is None or (is_second_object and state.retiring is None))
        case "Update":
            return is_idle and is_its_object and same_uid
        case "Delete":
            return is_its_object and same_uid


# --- the action in flight


def _may_run_twice(action: Action, context: Context) -> bool:
    """Return whether the call of another worker may still take effect after a redelivery.

    An idempotency key prevents that for creations.
    """
    return action.operation != "Create" or not context.capabilities.idempotency_keys


def _after_lookup(
    data: Reported, flight: InFlight, state: ResourceState, context: Context
) -> ResourceEvent:
    """Return the event that ends a lookup, according to the object that it found."""
    action = flight.action
    failed = ActionFailed(
        data.action_id,
        action.operation,
        data.attempt,
        ActionError("Conflict", "a read after an unknown result found a different object"),
        data.object,
        purpose=action.purpose,
    )
    finding = judge_lookup(action, data.object, context)
    if _is_handed_over(data.object, state):
        finding = "Another"
    elif data.labeled_uids or _is_replaced_object(action, data.object, state):
        # the lookup may have found the old object, which has the same name or label
        finding = "Unclear"
    match finding:
        case "NotDone":
            return ActionNotDone(data.action_id, action.operation, data.attempt)
        case "Unclear":
            if not context.capabilities.idempotency_keys or name_owner(state):
                if data.labeled_uids:
                    message = _describe_several_candidates(data, context)
                    return ActionHeld(data.action_id, message, data.object)
                held = _hold_unless_claimed(failed, flight, state, context)
                if flight.effect is Effect.CHECKED and isinstance(held, ActionHeld):
                    return ActionNotDone(data.action_id, action.operation, data.attempt)
                return held
            error = ActionError(
                "Unknown",
                "a read cannot show whether the call took effect; a retry with the same key can",
            )
            return replace(failed, error=error, object=None)
        case "Gone":
            error = ActionError("NotFound", "a read after an unknown result found no object")
            return replace(failed, error=error, object=None)
        case "Another":
            return failed
        case "Label" | "Key" | "Content" | "Absence":
            return _build_found_success(data, action, finding)
        case _:
            assert_never(finding)


def _is_handed_over(existing: ExternalObject | None, state: ResourceState) -> bool:
    """Return whether another resource has taken the object over. It may still have our label."""
    return existing is not None and existing.uid in state.moved_objects


def _is_replaced_object(
    action: Action, existing: ExternalObject | None, state: ResourceState
) -> bool:
    """Return whether a lookup for a replacement found an object that the log already knows."""
    known = {each.uid for each in (state.owned, state.retiring) if each is not None}
    is_replacement = action.operation == "Create" and action.purpose == "Replace"
    return (
        is_replacement
        and existing is not None
        and existing.uid is not None
        and existing.uid in known
    )


def _after_failure(
    data: Reported, error: ActionError, flight: InFlight, state: ResourceState, context: Context
) -> ResourceEvent:
    """Return the event for a failed attempt.

    The object that conflicts may be the action's own result.
    """
    action = flight.action
    redelivered = not data.is_lookup and _may_earlier_call_arrive(data, action, context)
    # An API with keys would have returned the response of the other worker's call.
    may_be_done = redelivered and not context.capabilities.idempotency_keys
    failed = ActionFailed(
        data.action_id,
        action.operation,
        data.attempt,
        error,
        data.object,
        redelivered=redelivered,
        purpose=action.purpose,
    )
    if error.error_class == "Refused" and _is_partial_creation(data.object, action, context):
        return replace(_build_success(data, action, redelivered=may_be_done), refused=error)
    if error.error_class != "Conflict":
        return failed
    if data.object is None and not data.replayed and (flight.unknown_results or data.redelivered):
        # The conflicting object may be our own, or our call may still be running. A retry or a
        # lookup will show which.
        return replace(failed, error=replace(error, error_class="Unknown"))
    uncertain = flight.effect.may_exist or state.actions.uncertain_create or may_be_done
    finding = judge_conflict(action, data.object, context, uncertain=uncertain)
    if _is_handed_over(data.object, state):
        finding = "Another"
    if finding == "Unclear":
        return _hold_unless_claimed(failed, flight, state, context)
    if finding in ("Label", "Key", "Content"):
        return _build_found_success(data, action, finding)
    return failed


def _is_partial_creation(existing: ExternalObject | None, action: Action, context: Context) -> bool:
    """Return whether a refused creation with several calls has created this object."""
    is_creation = action.operation == "Create" and existing is not None
    return is_creation and judge_lookup(action, existing, context) in ("Key", "Label")


def _may_earlier_call_arrive(data: Reported, action: Action, context: Context) -> bool:
    """Return whether a call of the attempt's previous worker may still take effect.

    Only a refusal that is stored under a creation's key settles that call, too.
    """
    is_stored = data.replayed and context.capabilities.idempotency_keys
    return data.redelivered and not (is_stored and action.operation == "Create")


def _build_found_success(data: Reported, action: Action, found_by: FoundBy) -> ActionSucceeded:
    """Return the success of an action whose effect a read has shown."""
    return ActionSucceeded(
        data.action_id,
        action.operation,
        data.attempt,
        data.object,
        found_by=found_by,
        purpose=action.purpose,
        external_name=action.external_name if action.purpose == "Replace" else "",
    )


def _hold_unless_claimed(
    failed: ActionFailed, flight: InFlight, state: ResourceState, context: Context
) -> ResourceEvent:
    """Hold the action for an operator, unless the resource would own the object anyway."""
    existing, location = failed.object, flight.action.provider_config
    if existing is not None and would_claim(existing, location, state, context):
        return failed
    other_owner = name_owner(state) if existing is not None else ""
    message = _describe_unknown_result(existing, context, other_owner)
    return ActionHeld(failed.action_id, message, existing, other_owner)


def _describe_several_candidates(data: Reported, context: Context) -> str:
    """Describe the candidates for the result of a creation, which all carry its owner label.

    If the resource owned the wrong one, the other would leak.
    """
    uids = ", ".join(data.labeled_uids)
    label = f"{OWNER_LABEL}={context.owner}"
    return (
        f"several objects have the label {label} (uids {uids}), and at most one of them is the "
        "result of this action: another client has copied the label. Check the objects. Leave the "
        f"label on the one that this action created, and remove the label {OWNER_LABEL} from the "
        f"others. Then repeat the action: {approval_command(context.key)}"
    )


def _describe_unknown_result(
    existing: ExternalObject | None, context: Context, other_owner: str
) -> str:
    """Describe why the result is unknown, and what an operator must do.

    ``other_owner``: the resource that owns the name of the object by now.
    """
    approve = approval_command(context.key)
    if existing is not None and other_owner:
        is_visible = ResourceKey.parse(other_owner).namespace == context.key.namespace
        owner_name = other_owner if is_visible else "a resource in another namespace"
        return (
            f"{existing.name!r} (uid {existing.uid}) may have been created by this action, but its "
            f"name belongs to {owner_name}. End the action without another call: "
            f"{approval_command(context.key, abandon=True)}. Then withdraw this resource, or "
            "declare it with another external name"
        )
    if existing is None:
        return (
            "the result of the call is unknown: the API stores neither idempotency keys nor owner "
            "labels. Check the API. If the call did not take effect, repeat it: "
            f"{approve}. If it did, withdraw the resource, and then end the action without "
            f"another call: {approval_command(context.key, abandon=True)}. If the "
            "resource stays declared, Reconciler will create another object"
        )
    if not context.capabilities.labels:
        return (
            f"{existing.name!r} (uid {existing.uid}) may have been created by this action or by "
            "another client: the API stores neither idempotency keys nor owner labels. Check the "
            "object. If it is yours, declare the resource with spec.policy.adoption: Adopt. Then "
            f"repeat the action: {approve}"
        )
    return (
        f"{existing.name!r} (uid {existing.uid}) may have been created by this action or by "
        "another client: the API stores no idempotency keys, and the object has no owner label. "
        f"Check the object. If it is yours, add the label {OWNER_LABEL}={context.owner}. Then "
        f"repeat the action: {approve}"
    )
