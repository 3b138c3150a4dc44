"""Rules whose results are recorded in the events.

`evolve` only assigns. Results of rules that a later release may change are computed here once, and
stored in the event: the declared part of a write, repeated drift, and the meaning of a failure. A
changed rule therefore does not change the meaning of older logs (ADR 0067).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, assert_never

from msgspec.structs import replace

from events.log import (
    Action,
    ActionDecided,
    ActionFailed,
    Base,
    Consequence,
    DriftDetected,
    Effect,
    OutcomeRecorded,
    ResourceEvent,
    SpecResolved,
)
from events.manifest import Fields
from reconciler.resource.contention import count_drift
from reconciler.resource.difference import LABELS, ignored_paths, without_ignored
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.state import InFlight, ResourceState

_RULED_TYPES: Final[frozenset[type[ResourceEvent]]] = frozenset(
    {ActionDecided, OutcomeRecorded, DriftDetected, ActionFailed, SpecResolved}
)


def apply_rules(data: ResourceEvent, state: ResourceState, now: datetime) -> ResourceEvent:
    """Return an event with the results of the rules, computed from the state before it."""
    if type(data) not in _RULED_TYPES:  # faster than the patterns below
        return data
    match data:
        case ActionDecided(action) if action.operation != "Delete":
            fields, labels = _declared_part(action, state)
            if (fields, labels) == (action.fields, action.labels):
                return data
            base = Base(
                None if fields == state.desired.fields else fields,
                None if labels == action.labels else labels,
            )
            return replace(data, base=base)
        case OutcomeRecorded(outcome="Converged"):
            applied = None if state.owned is None else state.owned.applied
            is_confirmed = applied is not None and applied.in_doubt
            is_confirmed = is_confirmed and _is_base(state.desired.fields, state)
            return replace(data, confirms_write=True) if is_confirmed else data
        case DriftDetected():
            return replace(data, recent=count_drift(state.recent_drifts, data, now))
        case ActionFailed():
            flight = state.actions.in_flight
            is_lookup = flight is not None and flight.is_lookup
            effect = _effect(data, is_lookup=is_lookup)
            return replace(data, effect=effect, consequence=_consequence(data, state))
        case SpecResolved(fields=fields):
            applied = None if state.owned is None else state.owned.applied
            is_certain = applied is not None and not applied.in_doubt
            return replace(data, is_applied=is_certain and _is_base(fields, state))
        case _:
            return data


def _declared_part(action: Action, state: ResourceState) -> tuple[Fields, dict[str, str]]:
    """Return the part of the written content that the resource declares, without ignored paths."""
    spec, desired = state.desired.spec, state.desired
    is_wanted = desired.is_declared and spec is not None and spec.policy.mode in _WRITING_MODES
    fields = desired.fields
    if action.operation == "Update" and not is_wanted:  # it only removes the owner label
        applied = None if state.owned is None else state.owned.applied
        fields = {} if applied is None else applied.fields
    declared_labels = {} if spec is None else spec.labels
    labels = {
        name: value
        for name, value in action.labels.items()
        if name == OWNER_LABEL or name in declared_labels
    }
    ignored = () if spec is None else ignored_paths(spec.policy)
    if not ignored:
        return fields, labels
    return without_ignored(fields, ignored), without_ignored(labels, ignored, f"{LABELS}.")


_WRITING_MODES = ("Present", "CreateOnly")


def _is_base(fields: Fields, state: ResourceState) -> bool:
    """Return whether the fields equal those of the last write.

    If so, only another client can have changed them after that write.
    """
    spec, applied = state.desired.spec, None if state.owned is None else state.owned.applied
    if spec is None or applied is None:
        return False
    return without_ignored(fields, ignored_paths(spec.policy)) == applied.fields


def _effect(data: ActionFailed, *, is_lookup: bool) -> Effect:
    """Return what a failed attempt may have changed."""
    error = data.error
    # A refusal does not show whether another worker's call for the same attempt took effect.
    if data.redelivered:
        return Effect.UNKNOWN
    if is_lookup or not error.attempted:
        return Effect.NOT_SENT
    match error.error_class:
        case "Unknown":
            return Effect.UNKNOWN
        case "Throttled":
            return Effect.PARTIAL  # the API may have executed the first of several calls
        case "NotDone" | "Conflict" | "NotFound" | "Refused":
            return Effect.REFUSED
        case _:
            assert_never(error.error_class)


def _consequence(data: ActionFailed, state: ResourceState) -> Consequence:
    """Return what a failure means for the resource."""
    error_class, flight = data.error.error_class, state.actions.in_flight
    match error_class:
        case "NotDone" | "Throttled" | "Unknown":
            return "Retry"
        case "Refused":
            if _needs_lookup(flight, redelivered=data.redelivered):
                return "Retry"
            if data.purpose in ("Retire", "Renew"):
                return "Failed"
            is_old = flight is not None and flight.action.generation != state.desired.generation
            return "Outdated" if is_old else "Refused"
        case "Conflict" | "NotFound":
            if data.purpose == "Retire":
                retiring = state.retiring
                if _is_retired(data, None if retiring is None else retiring.uid):
                    return "Retired"
                return "Conflict" if None in (retiring, data.object) else "Observed"
            is_replacement = data.purpose == "Replace" and data.operation == "Create"
            if is_replacement and state.owned is not None:
                return "Conflict"  # the conflicting object does not have the name of the owned one
            is_shown = error_class == "NotFound" or data.object is not None
            return "Observed" if is_shown else "Conflict"
        case _:
            assert_never(error_class)


def _needs_lookup(flight: InFlight | None, *, redelivered: bool) -> bool:
    """Return whether an earlier attempt may have had an effect, so a lookup must follow a refusal.

    If the lookup was refused too, or was inconclusive, nothing else can settle the action.
    """
    if flight is None or flight.is_lookup:
        return False
    return redelivered or (flight.is_in_doubt and not flight.is_unclear)


def _is_retired(failed: ActionFailed, uid: str | None) -> bool:
    """Return whether a failure shows that the replaced object with this uid no longer exists."""
    existing_uid = None if failed.object is None else failed.object.uid
    is_other = (
        failed.error.error_class == "Conflict"
        and None not in (existing_uid, uid)
        and existing_uid != uid
    )
    return failed.error.error_class == "NotFound" or is_other
