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
    ActionDoubted,
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
    REMEMBERED_ACTIONS,
    Applied,
    Ended,
    InFlight,
    Owned,
    ShapeState,
)

SETTLED: frozenset[OutcomeName] = frozenset(
    {"Converged", "Failed", "Conflict", "Deleted", "Released", "Drifted", "Paused"}
)
"""Outcomes after which a generation is not superseded by the next, but followed by it."""

_MAY_HAVE_HAPPENED = ("Transient", "Throttled", "Unknown")
LABEL_KEPT = ActionError("Permanent", "it took the write, and kept the label")
NOT_DONE = ActionError("Transient", "a look shows nothing of it: it is called again")


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


def _perhaps_applied(state: ShapeState, flight: InFlight | Ended | None) -> Applied | None:
    """Count as ours what an action has perhaps written whose end is not known."""
    base = None if flight is None else flight.base
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


def _doubted(state: ShapeState, data: ActionDoubted, event: LogEvent) -> ShapeState:
    """Look before anything else is decided, if it is under way; else remember what it may do."""
    flight = state.in_flight
    after: dict[str, Any] = {"version": event.shapeversion}
    if flight is not None and flight.action.action_id == data.action_id:
        after["in_flight"] = replace(
            flight, unknown=flight.unknown + 1, in_doubt=True, uncertain=True
        )
        return replace(state, **after)
    after["ended"] = tuple(
        replace(each, in_doubt=True) if each.action.action_id == data.action_id else each
        for each in state.ended
    )
    after["uncertain_create"] = state.uncertain_create or data.operation == "Create"
    return replace(state, **after)


def _held(state: ShapeState, data: ActionHeld, event: LogEvent) -> ShapeState:
    flight = state.in_flight
    if flight is not None:
        flight = replace(flight, held=data.reason, in_doubt=True)
    # An approval was of the hold before: this one needs its own.
    return replace(state, version=event.shapeversion, in_flight=flight, approved="")


def _succeeded(state: ShapeState, data: ActionSucceeded, event: LogEvent) -> ShapeState:
    if data.late:
        return _succeeded_late(state, data, event)
    flight = state.in_flight
    perhaps_twice = data.redelivered and data.operation == "Create"
    uncertain = perhaps_twice or (flight is not None and flight.uncertain)
    after = {
        **_settled(state, data, event),
        "in_flight": None,
        # An attempt of unknown result may still be under way where the API keeps no keys.
        "uncertain_create": state.uncertain_create or uncertain,
        "lost_uid": None,
        **_result(state, flight, data),
    }
    if flight is not None and data.operation != "Create" and (data.redelivered or flight.in_doubt):
        # A worker that stands still before its call may make it yet, and meet another object.
        after["ended"] = _remembered(state, flight, in_doubt=True, known_by=event.causeid)
    return replace(state, **after)


def _succeeded_late(state: ShapeState, data: ActionSucceeded, event: LogEvent) -> ShapeState:
    """Take an action for done that had ended without success; another may be under way by now."""
    ended = next((each for each in state.ended if each.action.action_id == data.action_id), None)
    after: dict[str, Any] = {
        "version": event.shapeversion,
        "ended": tuple(
            replace(each, told_late=True) if each is ended else each for each in state.ended
        ),
        "uncertain_create": state.uncertain_create or data.operation == "Create",
        **_effect(state, data, event),
    }
    if data.outdated:
        after["applied"] = _perhaps_applied(state, ended)
    else:
        settled = {} if state.in_flight is not None else _settled(state, data, event)
        after |= {**settled, **_result(state, ended, data), "because": event.id}
        if data.operation == "Update":
            after["applied"] = _perhaps_applied(state, ended)  # what came after it is ours as well
    return replace(state, **after)


def _effect(
    state: ShapeState, data: ActionSucceeded | ActionFailed, event: LogEvent
) -> dict[str, Any]:
    """An observation that began before the newest report is stale."""
    if event.causeposition < state.effect_position:
        return {}  # it was overtaken: the newest effect stays the newest
    return {
        "effect_position": event.causeposition,
        "effect_at": data.reported_at or event.time,
    }


def _settled(state: ShapeState, data: ActionSucceeded, event: LogEvent) -> dict[str, Any]:
    """Nothing is wrong any more, as of this report."""
    return {
        "version": event.shapeversion,
        "failures": 0,
        "conflicts": 0,
        "failure": None,
        "hold_until": None,
        **_effect(state, data, event),
    }


def _result(
    state: ShapeState, flight: InFlight | Ended | None, data: ActionSucceeded
) -> dict[str, Any]:
    """What an action that was done has left behind."""
    if data.operation == "Delete":
        return {
            "owned": None,
            "applied": None,
            "observed": None,
            "created_before": False,
            "listing_disproved": False,
        }
    if flight is None:
        return {}
    action = flight.action
    shown = data.object or _as_asked(action)
    base = flight.base or Applied(action.fields, action.labels, None)
    after: dict[str, Any] = {
        "owned": Owned(
            action.provider_config, action.external_name, _owned_uid(state, action, shown)
        ),
        # Found by its label, it may be what an earlier action of ours made, with other content.
        "applied": replace(base, result=None if data.found_by == "Label" else shown),
        "observed": shown,
        "observed_in": action.provider_config,
        "created_before": True,
        "orphaned": False,
    }
    if data.operation == "Create":
        after["listing_disproved"] = False
    elif not state.declared and OWNER_LABEL in shown.labels.keys() - action.labels.keys():
        after["failure"] = LABEL_KEPT
    return after


def _owned_uid(state: ShapeState, action: Action, shown: ExternalObject) -> str | None:
    """Give the uid of what is ours: another object that a write has met is not, by that."""
    if action.operation == "Update" and state.owned is not None and state.owned.uid is not None:
        return state.owned.uid
    return shown.uid


def _as_asked(action: Action) -> ExternalObject:
    """Take the object as it was asked for, from an API that shows nothing after a write."""
    return ExternalObject(action.external_name, action.fields, action.uid, None, action.labels)


def _failed(state: ShapeState, data: ActionFailed, event: LogEvent) -> ShapeState:
    flight = None if state.in_flight is None else _with_failure(state.in_flight, data)
    after: dict[str, Any] = {
        "version": event.shapeversion,
        "failure": data.error,
        "because": event.id,
        "in_flight": flight,
    }
    error_class = data.error.error_class
    if error_class in _MAY_HAVE_HAPPENED:
        after["failures"] = state.failures + data.error.attempted
        return replace(state, **after)
    after |= {
        "in_flight": None,
        "ended": _remembered(state, flight, in_doubt=flight is not None and flight.in_doubt),
        **_effect(state, data, event),
    }
    if flight is not None and data.operation == "Create":
        after["uncertain_create"] = state.uncertain_create or flight.uncertain or data.redelivered
    if flight is not None and (flight.attempt > 1 or flight.in_doubt):
        after["applied"] = _perhaps_applied(state, flight)
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


def _with_failure(flight: InFlight, data: ActionFailed) -> InFlight:
    """Count an attempt that did not succeed: what is known of the action after it."""
    error = data.error
    # A refusal says nothing of the call that another worker may have made, or may still make.
    is_unknown = data.redelivered or (error.error_class == "Unknown" and not flight.seeking)
    left_behind = error.error_class in ("Transient", "Unknown") and error.attempted
    return replace(
        flight,
        failed=error,
        retry_at=None,
        unknown=flight.unknown + is_unknown,
        in_doubt=flight.in_doubt or is_unknown,
        uncertain=flight.uncertain or left_behind or data.redelivered,
    )


def _remembered(
    state: ShapeState, flight: InFlight | None, *, in_doubt: bool, known_by: str = ""
) -> tuple[Ended, ...]:
    """Give the newest actions of which a call may still arrive or be told of, with this one."""
    if flight is None:
        return state.ended
    ended = Ended(flight.action, flight.base, in_doubt, known_by)
    return (*state.ended, ended)[-REMEMBERED_ACTIONS:]


def _abandoned(state: ShapeState, data: ActionAbandoned, event: LogEvent) -> ShapeState:
    flight = state.in_flight
    return replace(
        state,
        version=event.shapeversion,
        in_flight=None,
        ended=_remembered(state, flight, in_doubt=data.in_doubt),
        uncertain_create=state.uncertain_create or data.operation == "Create",
        applied=_perhaps_applied(state, flight),
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
    ActionDoubted: _doubted,
    ActionSucceeded: _succeeded,
    ActionFailed: _failed,
    ActionAbandoned: _abandoned,
    RetryScheduled: _scheduled,
    OutcomeRecorded: _outcome,
}
