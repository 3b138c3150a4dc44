"""Fold what was decided, how it went, and what was told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ActionError
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSought,
    ActionSucceeded,
    LogEvent,
    OutcomeName,
    OutcomeRecorded,
    RetryScheduled,
    ShapeEvent,
)
from reconciler.shape.desired import ignored_paths
from reconciler.shape.differences import LABELS, united, without_ignored
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.state import (
    Applied,
    InFlight,
    Owned,
    ShapeState,
)

SETTLED: frozenset[OutcomeName] = frozenset(
    {"Converged", "Failed", "Conflict", "Deleted", "Released", "Drifted", "Paused"}
)
"""Outcomes after which a generation is not superseded by the next, but followed by it."""

_MAY_HAVE_HAPPENED = ("Transient", "Throttled", "Unknown")
NOT_DONE = ActionError("Transient", "the action had no effect: it is called again")


def _decided(state: ShapeState, data: ActionDecided, event: LogEvent) -> ShapeState:
    return replace(
        state,
        version=event.shapeversion,
        in_flight=InFlight(data.action, base=_base(state, data.action)),
        hold_until=None,  # it has waited; the next wait is another
        approved="",
        outcome=None if _is_news(state, data.action) else state.outcome,
    )


def _is_news(state: ShapeState, action: Action) -> bool:
    """Tell whether the end of the action is worth telling, though the outcome may be as before."""
    last = state.outcome
    return last is None or last.outcome in SETTLED or action.operation == "Delete"


def _base(state: ShapeState, action: Action) -> Applied | None:
    """Keep what of the action's content is ours: the base of the next three-way comparison."""
    if state.spec is None or action.operation == "Delete":
        return None
    ignored = ignored_paths(state.spec.policy)
    ours = state.spec.labels.keys() | {OWNER_LABEL}
    labels = {name: value for name, value in action.labels.items() if name in ours}
    return Applied(
        without_ignored(state.spec.fields, ignored),
        without_ignored(labels, ignored, f"{LABELS}."),
        None,
    )


def _perhaps_applied(state: ShapeState) -> Applied | None:
    """Count as ours what an action has perhaps written that is given up with its end unknown."""
    base = None if state.in_flight is None else state.in_flight.base
    applied = state.applied
    if base is None or state.owned is None:
        return applied
    if applied is None:
        return base
    return Applied(
        united(base.fields, applied.fields), united(base.labels, applied.labels), applied.result
    )


def _retried(state: ShapeState, data: ActionRetried | ActionSought, event: LogEvent) -> ShapeState:
    flight = state.in_flight or InFlight(data.action)
    return replace(
        state,
        version=event.shapeversion,
        in_flight=replace(
            flight,
            attempt=data.attempt,
            failed=None,
            retry_at=None,
            seeking=isinstance(data, ActionSought),
        ),
    )


def _not_done(state: ShapeState, _data: ActionNotDone, event: LogEvent) -> ShapeState:
    flight = state.in_flight
    if flight is not None:
        flight = replace(
            flight,
            unknown=0,
            seeking=False,
            failed=NOT_DONE,
            retry_at=event.time,
            retry_seconds=0.0,
        )
    return replace(state, version=event.shapeversion, in_flight=flight)


def _held(state: ShapeState, data: ActionHeld, event: LogEvent) -> ShapeState:
    flight = state.in_flight
    if flight is not None:
        flight = replace(flight, held=data.reason)
    # An approval was of the hold before: this one needs its own.
    return replace(state, version=event.shapeversion, in_flight=flight, approved="")


def _succeeded(state: ShapeState, data: ActionSucceeded, event: LogEvent) -> ShapeState:
    flight = state.ended_create if data.late else state.in_flight
    uncertain = data.redelivered or (flight is not None and flight.uncertain)
    after: dict[str, Any] = {
        "version": event.shapeversion,
        "in_flight": None,
        "ended_create": None,
        # An attempt of unknown result may still be under way where the API keeps no keys.
        "uncertain_create": state.uncertain_create or uncertain,
        "failures": 0,
        "conflicts": 0,
        "failure": None,
        "hold_until": None,
        "effect_position": event.causeposition,
        "effect_at": data.reported_at or event.time,
        "lost_uid": None,
    }
    if data.operation == "Delete":
        after |= {"owned": None, "applied": None, "observed": None, "created_before": False}
        after["listing_disproved"] = False
    elif flight is not None:
        action = flight.action
        shown = data.object or _as_asked(action)
        base = flight.base or Applied(action.fields, action.labels, None)
        after |= {
            "owned": Owned(action.provider_config, action.external_name, shown.uid),
            # Found by its label, it may be what an earlier action of ours made, with other content.
            "applied": replace(base, result=None if data.found_by == "Label" else shown),
            "observed": shown,
            "observed_in": action.provider_config,
            "created_before": True,
            "orphaned": False,
        }
        if data.operation == "Create":
            after["listing_disproved"] = False
    return replace(state, **after)


def _as_asked(action: Action) -> ExternalObject:
    """Take the object as it was asked for, from an API that shows nothing after a write."""
    return ExternalObject(action.external_name, action.fields, action.uid, None, action.labels)


def _failed(state: ShapeState, data: ActionFailed, event: LogEvent) -> ShapeState:
    error_class = data.error.error_class
    after: dict[str, Any] = {
        "version": event.shapeversion,
        "failure": data.error,
        "because": event.id,
    }
    flight = state.in_flight
    if error_class in _MAY_HAVE_HAPPENED:
        after["failures"] = state.failures + data.error.attempted
        if flight is not None:
            is_unknown = error_class == "Unknown" and not flight.seeking
            called = data.error.attempted and error_class != "Throttled"
            after["in_flight"] = replace(
                flight,
                failed=data.error,
                retry_at=None,
                unknown=flight.unknown + is_unknown,
                uncertain=flight.uncertain or called or data.redelivered,
            )
        return replace(state, **after)
    after |= {"in_flight": None, "effect_position": event.causeposition}
    after["effect_at"] = data.reported_at or event.time
    if flight is not None and data.operation == "Create":
        after["ended_create"] = flight
        after["uncertain_create"] = state.uncertain_create or flight.uncertain or data.redelivered
    if flight is not None and flight.attempt > 1:
        after["applied"] = _perhaps_applied(state)
    if error_class == "Permanent":
        if flight is not None and flight.action.generation != state.generation:
            after["failure"] = None  # what was refused is not what is wanted now
            return replace(state, **after)
        after |= {"failed_generation": state.generation, "failures": state.failures + 1}
    else:
        after["conflicts"] = state.conflicts + 1
        if error_class == "NotFound" or data.object is not None:
            after["observed"] = data.object
            if flight is not None:
                after["observed_in"] = flight.action.provider_config
    return replace(state, **after)


def _abandoned(state: ShapeState, data: ActionAbandoned, event: LogEvent) -> ShapeState:
    is_create = data.operation == "Create"
    return replace(
        state,
        version=event.shapeversion,
        in_flight=None,
        ended_create=state.in_flight if is_create else state.ended_create,
        uncertain_create=state.uncertain_create or is_create,
        applied=_perhaps_applied(state),
        failures=0,
        failure=None,
        hold_until=None,
    )


def _scheduled(state: ShapeState, data: RetryScheduled, event: LogEvent) -> ShapeState:
    if data.action_id is not None and state.in_flight is not None:
        return replace(
            state,
            version=event.shapeversion,
            in_flight=replace(state.in_flight, retry_at=data.at, retry_seconds=data.delay_seconds),
        )
    return replace(
        state, version=event.shapeversion, hold_until=data.at, hold_seconds=data.delay_seconds
    )


def _outcome(state: ShapeState, data: OutcomeRecorded, event: LogEvent) -> ShapeState:
    settled = data.generation if data.outcome in SETTLED else state.settled_generation
    return replace(state, version=event.shapeversion, outcome=data, settled_generation=settled)


FOLDS: dict[type[ShapeEvent], Callable[[ShapeState, Any, LogEvent], ShapeState]] = {
    ActionDecided: _decided,
    ActionRetried: _retried,
    ActionSought: _retried,
    ActionHeld: _held,
    ActionNotDone: _not_done,
    ActionSucceeded: _succeeded,
    ActionFailed: _failed,
    ActionAbandoned: _abandoned,
    RetryScheduled: _scheduled,
    OutcomeRecorded: _outcome,
}
