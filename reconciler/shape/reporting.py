"""What a worker's report adds to the history: how an attempt at an action ended."""

from __future__ import annotations

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
    FoundBy,
    OwnershipClaimed,
    ShapeEvent,
)
from reconciler.shape.desired import grace_seconds
from reconciler.shape.inputs import Command, Context, Record
from reconciler.shape.ladder import Finding, capabilities_of, find, found_in_the_way
from reconciler.shape.observing import record_loss_and_drift
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.plan import next_step
from reconciler.shape.state import Ended, InFlight, ShapeState


def report(state: ShapeState, command: Command, context: Context, record: Record) -> None:
    """Record the end of an attempt; what is settled already is not settled again."""
    data: Reported = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    flight = state.in_flight
    if flight is None or flight.action.action_id != data.action_id:
        _record_late_success(state, command, context, record)
        _record_doubt(state.ended, data, record)
        return
    operation = flight.action.operation
    if data.error is None and not data.sought:
        redelivered = _may_be_made_twice(flight.action, data, context)
        done = ActionSucceeded(
            data.action_id,
            operation,
            data.attempt,
            data.object,
            data.replayed,
            found_by=_found_by(data),
            redelivered=redelivered,
        )
        after = record(_dated(done, flight.action, command, context))
        if _has_met_another(flight.action, data.object):
            record_loss_and_drift(after, context, record)
        return
    if data.attempt != flight.attempt or flight.failed is not None or flight.held:
        _record_doubt((flight,), data, record)
        return
    if data.error is None:
        ended = _after_look(state, flight, data, context)
    else:
        ended = _after_failure(state, flight, data, data.error, context)
    after = record(_dated(ended, flight.action, command, context))
    if isinstance(ended, ActionFailed) and after.in_flight is None:
        _record_what_stands_there(after, ended, context, record)


def _has_met_another(action: Action, shown: ExternalObject | None) -> bool:
    """Tell whether a write met an object that took the place of ours after we had read it."""
    uids = (action.uid, None if shown is None else shown.uid)
    return None not in uids and uids[0] != uids[1]


def _found_by(data: Reported) -> FoundBy | None:
    """Tell what a success rests on, if the call itself had no effect: who had is not known."""
    return "Absence" if data.absent else None


def _dated(event: ShapeEvent, action: Action, command: Command, context: Context) -> ShapeEvent:
    """Add when the report came, where a grace is counted from then."""
    is_end = isinstance(event, (ActionSucceeded, ActionFailed))
    if not is_end or not grace_seconds(context, action.provider_config):
        return event
    return replace(event, reported_at=command.stored_at)


def _record_late_success(
    state: ShapeState, command: Command, context: Context, record: Record
) -> None:
    """Record that an action which was taken for failed, or given up, was done all the same.

    Every effect that the API saw is explained, if it changes nothing else any more (invariant 13).
    """
    data: Reported = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    if data.error is not None or data.sought:
        return
    for ended in state.ended:
        is_news = not ended.told_late and ended.known_by != command.message_id
        if ended.action.action_id == data.action_id and is_news:
            done = ActionSucceeded(
                data.action_id,
                ended.action.operation,
                data.attempt,
                data.object,
                data.replayed,
                found_by=_found_by(data),
                late=True,
                outdated=bool(ended.known_by) or not _still_counts(state, ended.action, data),
            )
            record(_dated(done, ended.action, command, context))


def _record_doubt(known: tuple[InFlight | Ended, ...], data: Reported, record: Record) -> None:
    """Record that a call which nobody waits for may have been done, unless that is known."""
    if data.error is None or data.error.error_class != "Unknown" or data.sought:
        return
    for each in known:
        if each.action.action_id == data.action_id and not each.in_doubt:
            operation, message = each.action.operation, data.error.message
            record(ActionDoubted(data.action_id, operation, data.attempt, message))


def _still_counts(state: ShapeState, action: Action, data: Reported) -> bool:
    """Tell whether a success that is told late says how the object stands now.

    What was made or written may have changed since, if another action has begun. What was deleted
    stays so: a uid is given once.
    """
    owned = state.owned
    is_its_object = owned is not None and (owned.provider_config, owned.external_name) == (
        action.provider_config,
        action.external_name,
    )
    uid = action.uid if data.object is None else data.object.uid
    same_uid = owned is not None and uid is not None and owned.uid == uid
    match action.operation:
        case "Create":
            return state.in_flight is None and owned is None
        case "Update":
            return state.in_flight is None and is_its_object and same_uid
        case "Delete":
            return is_its_object and same_uid


def _may_be_made_twice(action: Action, data: Reported, context: Context) -> bool:
    """Tell whether another worker's call may still do something; a creation's key forbids it."""
    return data.redelivered and (action.operation != "Create" or _keyless(context))


def _keyless(context: Context) -> bool:
    return not capabilities_of(context).idempotency_keys


def _after_look(
    state: ShapeState, flight: InFlight, data: Reported, context: Context
) -> ShapeEvent:
    """Settle an action by what a look found of it."""
    finding = find(flight.action, data.object, context)
    failed = ActionFailed(
        data.action_id,
        flight.action.operation,
        data.attempt,
        ActionError("Conflict", "a look after an unknown result shows another object"),
        data.object,
    )
    match finding:
        case "NotDone":
            return ActionNotDone(data.action_id, flight.action.operation, data.attempt)
        case "Unclear" if capabilities_of(context).idempotency_keys:
            error = ActionError("Unknown", "a look cannot tell what was done: the key will")
            return replace(failed, error=error, object=None)
        case "Unclear":
            return _held_unless_claimed(state, flight, failed, context)
        case "Gone":
            error = ActionError("NotFound", "a look after an unknown result shows none")
            return replace(failed, error=error, object=None)
        case "Another":
            return failed
        case _:
            return _found(flight, data, finding)


def _after_failure(
    state: ShapeState, flight: InFlight, data: Reported, error: ActionError, context: Context
) -> ShapeEvent:
    """Settle a failed attempt: what stands in the way of a creation may be its own work."""
    redelivered = not data.sought and _is_unheard_of(flight.action, data, error, context)
    failed = ActionFailed(
        data.action_id,
        flight.action.operation,
        data.attempt,
        error,
        data.object,
        redelivered=redelivered,
    )
    if error.error_class != "Conflict":
        return failed
    if data.object is None and not data.replayed and (flight.unknown or data.redelivered):
        # It may have been our own object, or our own call may still run: a repeat or a look tells.
        return replace(failed, error=replace(error, error_class="Unknown"))
    uncertain = flight.uncertain or state.uncertain_create or redelivered
    finding: Finding = found_in_the_way(flight, data.object, context, uncertain=uncertain)
    if finding == "Unclear":
        return _held_unless_claimed(state, flight, failed, context)
    if finding in ("Label", "Key", "Content"):
        return _found(flight, data, finding)
    return failed


def _is_unheard_of(action: Action, data: Reported, error: ActionError, context: Context) -> bool:
    """Tell whether nothing is known of the call of a worker that had the attempt before.

    What a creation is answered for good under its key settles that call as well.
    """
    for_good = error.error_class in ("Conflict", "NotFound", "Permanent")
    settled = for_good and action.operation == "Create" and not _keyless(context)
    return data.redelivered and not settled


def _found(flight: InFlight, data: Reported, found_by: FoundBy) -> ActionSucceeded:
    return ActionSucceeded(
        data.action_id, flight.action.operation, data.attempt, data.object, found_by=found_by
    )


def _held_unless_claimed(
    state: ShapeState, flight: InFlight, failed: ActionFailed, context: Context
) -> ShapeEvent:
    """Ask a person whose an object is, unless it becomes ours whoever made it."""
    found, config = failed.object, flight.action.provider_config
    if found is not None:
        seen = replace(state, in_flight=None, observed=found, observed_in=config)
        if isinstance(next_step(seen, context), OwnershipClaimed):
            return failed
    return ActionHeld(failed.action_id, _question(found, context), found)


def _question(found: ExternalObject | None, context: Context) -> str:
    """Say what cannot be told, and what to do about it."""
    if found is None:
        return (
            "whether it was done cannot be told: the API keeps no keys, and its objects carry "
            "nothing of ours. Look, then approve with Proceed (it was not done); or withdraw the "
            "shape and approve with Abandon (it was): what stays declared is made again"
        )
    if not capabilities_of(context).labels:
        return (
            f"{found.name!r} (uid {found.uid}) may have been made by this action or by somebody "
            "else: the API keeps no keys, and its objects carry nothing of ours. Look; if it is "
            "ours, declare the shape with policy.adoption Adopt; then approve with Proceed"
        )
    return (
        f"{found.name!r} (uid {found.uid}) may have been made by this action or by somebody else: "
        "the API keeps no keys, and it carries no owner label. Look; if it is ours, give it the "
        f"label {OWNER_LABEL}={context.owner}; then approve with Proceed"
    )


def _record_what_stands_there(
    state: ShapeState, failed: ActionFailed, context: Context, record: Record
) -> None:
    """A conflict is an observation too, if it shows what stands in the way."""
    error_class = failed.error.error_class
    if error_class == "NotFound" or (error_class == "Conflict" and failed.object is not None):
        record_loss_and_drift(state, context, record)
