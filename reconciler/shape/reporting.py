"""What a worker's report adds to the history: how an attempt at an action ended."""

from __future__ import annotations

from events.intake import ActionError, Reported
from events.log import (
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionSucceeded,
    FoundBy,
    ShapeEvent,
)
from reconciler.shape.inputs import Command, Context, Record
from reconciler.shape.ladder import Finding, find, found_in_the_way
from reconciler.shape.observing import record_loss_and_drift
from reconciler.shape.state import InFlight, ShapeState


def report(state: ShapeState, command: Command, context: Context, record: Record) -> None:
    """Record the end of an attempt; what is settled already is not settled again."""
    data: Reported = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    flight = state.in_flight
    if flight is None or flight.action.action_id != data.action_id:
        _fold_late_success(state, data, record)
        return
    operation = flight.action.operation
    if data.error is None and not data.sought:
        record(ActionSucceeded(data.action_id, operation, data.attempt, data.object, data.replayed))
        return
    if data.attempt != flight.attempt or flight.failed is not None:
        return
    if data.error is None:
        ended = _after_look(flight, data, context)
    else:
        ended = _after_failure(state, flight, data, data.error, context)
    after = record(ended)
    if isinstance(ended, ActionFailed) and after.in_flight is None:
        _record_what_stands_there(after, ended, context, record)


def _fold_late_success(state: ShapeState, data: Reported, record: Record) -> None:
    """A creation that was taken for failed was done all the same: the object is ours."""
    ended = state.ended_create
    is_it = ended is not None and ended.action.action_id == data.action_id
    if not is_it or data.error is not None or data.sought:
        return
    if state.in_flight is None and state.owned is None:
        record(
            ActionSucceeded(
                data.action_id, "Create", data.attempt, data.object, data.replayed, late=True
            )
        )


def _after_look(flight: InFlight, data: Reported, context: Context) -> ShapeEvent:
    """Settle an action by what a look found of it."""
    finding = find(flight.action, data.object, context)
    operation = flight.action.operation
    match finding:
        case "NotDone":
            return ActionNotDone(data.action_id, operation, data.attempt)
        case "Unclear":
            return _held(data.action_id)
        case "Gone":
            error = ActionError("NotFound", "a look after an unknown result shows none")
            return ActionFailed(data.action_id, operation, data.attempt, error)
        case "Another":
            error = ActionError("Conflict", "a look after an unknown result shows another object")
            return ActionFailed(data.action_id, operation, data.attempt, error, data.object)
        case _:
            return _found(flight, data, finding)


def _after_failure(
    state: ShapeState, flight: InFlight, data: Reported, error: ActionError, context: Context
) -> ShapeEvent:
    """Settle a failed attempt: what stands in the way of a creation may be its own work."""
    operation = flight.action.operation
    failed = ActionFailed(data.action_id, operation, data.attempt, error, data.object)
    if error.error_class != "Conflict":
        return failed
    uncertain = flight.uncertain or state.uncertain_create
    finding: Finding = found_in_the_way(flight, data.object, context, uncertain=uncertain)
    if finding == "Unclear":
        return _held(data.action_id)
    if finding in ("Label", "Key"):
        return _found(flight, data, finding)
    return failed


def _found(flight: InFlight, data: Reported, found_by: FoundBy) -> ActionSucceeded:
    return ActionSucceeded(
        data.action_id, flight.action.operation, data.attempt, data.object, found_by=found_by
    )


def _held(action_id: str) -> ActionHeld:
    return ActionHeld(
        action_id,
        "whether it was done cannot be told: the API keeps no keys, and the object carries nothing "
        "of ours. Look, then approve with Proceed (it was not done) or Abandon (it was)",
    )


def _record_what_stands_there(
    state: ShapeState, failed: ActionFailed, context: Context, record: Record
) -> None:
    """A conflict is an observation too, if it shows what stands in the way."""
    error_class = failed.error.error_class
    if error_class == "NotFound" or (error_class == "Conflict" and failed.object is not None):
        record_loss_and_drift(state, context, record)
