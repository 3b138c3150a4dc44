"""Build the sentence that answers `why`: the state of a resource or a field, and its reason.

The functions are pure: like the causes listed below it, the sentence depends only on the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from events.log import (
    ActionSucceeded,
    Condition,
    DriftDetected,
    LogEvent,
    OutcomeName,
    OutcomeRecorded,
    OwnershipClaimed,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
)
from events.manifest import Fields
from events.names import ResourceKey
from reconciler.cli.output import single_line
from reconciler.cli.past.summaries import (
    format_actor,
    is_process_actor,
    message_suffix,
    reason_suffix,
)
from reconciler.ports import StoredEvent
from reconciler.resource.difference import LABELS, format_value, value_at
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW, ResourceState
from reconciler.sdk.why import Value, Why

_T = TypeVar("_T")
_SENTENCE_ENDS: Final = (".", "!", "?")
_STATES: Final[Mapping[OutcomeName, str]] = {
    "Converged": "is as declared",
    "Waiting": "is waiting",
    "Degraded": "is degraded",
    "Failed": "has failed",
    "Conflict": "is in conflict",
    "Disputed": "is disputed",
    "Drifted": "has drifted",
    "Held": "is held",
    "Paused": "is paused",
    "Unowned": "is not owned by Reconciler",
    "Deleted": "is deleted",
    "Released": "is released",
    "Rejected": "was rejected",
}
_SOURCES: Final[Mapping[str, str]] = {
    "SpecDeclared": "{who} declared it",
    "SpecWithdrawn": "{who} withdrew the declaration",
    "SpecResolved": "the decider resolved it",
    "ActionSucceeded": "the worker reported it",
    "ActionFailed": "the worker reported it",
    "ExternalObserved": "the observer read it",
    "OwnershipReleased": "Reconciler no longer owns the object",
    "OwnershipClaimed": "Reconciler took ownership of the object",
}


def build_answer(key: ResourceKey, history: Sequence[StoredEvent], why: Why) -> str:
    """Return the sentence that sums up an explanation of a history."""
    if why.field:
        return f"{key}: {_explain_field(why, history)}."
    text = _explain_resource(history, why)
    return f"{key} {text}{'' if text.endswith(_SENTENCE_ENDS) else '.'}"


def describe_source(value: Value) -> str:
    """Return a clause that names the source of a field's value."""
    source = _SOURCES.get(value.event, f"{value.event} changed it")
    return source.format(who=format_actor(value.actor))


# --- resources


def _explain_resource(history: Sequence[StoredEvent], why: Why) -> str:
    state = NEW
    for stored in history:
        state = evolve(state, stored.event)
    by_version = {each.event.resourceversion: each.event for each in history}
    outcome = _last(by_version.values(), OutcomeRecorded)
    if outcome is None or outcome.generation < state.desired.generation:
        pending = f"has no outcome for generation {state.desired.generation} yet"
        return f"{pending}{_action_suffix(state)}"
    causes = [by_version[version] for version in why.chain]
    parent = why.parents[0].resource if why.parents else ""
    text = _explain_converged(outcome, causes, parent) if outcome.outcome == "Converged" else None
    text = text or _explain_deletion(outcome, causes, parent) or _describe_outcome(outcome)
    newest = max(why.chain, default=0)
    later = [each.event for each in history if each.event.resourceversion > newest]
    return _explain_later_drift(later, state) or f"{text}{_action_suffix(state)}"


def _action_suffix(state: ResourceState) -> str:
    in_flight = state.actions.in_flight
    if in_flight is None:
        return ""
    return f". An action is in progress ({in_flight.action.operation}, attempt {in_flight.attempt})"


def _explain_later_drift(later: Sequence[LogEvent], state: ResourceState) -> str:
    """Describe how the object has drifted since the newest outcome, or return ""."""
    drift = _last(later, DriftDetected)
    return f"{_describe_drift(drift)}{_action_suffix(state)}" if drift is not None else ""


def _format_author(event: LogEvent, parent: str) -> str:
    """Return the actor that declared or withdrew a resource. ``parent``: its composed resource."""
    return parent if parent and is_process_actor(event.actor) else format_actor(event.actor)


def _explain_converged(outcome: OutcomeRecorded, causes: Sequence[LogEvent], parent: str) -> str:
    """Explain why a resource is as declared, and if it is not ready, why not."""
    ready = next((each for each in outcome.conditions if each.type == "Ready"), None)
    return f"{_explain_convergence(outcome, causes, parent)}{_unready_suffix(ready)}"


def _explain_convergence(outcome: OutcomeRecorded, causes: Sequence[LogEvent], parent: str) -> str:
    drift, done = _last(causes, DriftDetected), _last(causes, ActionSucceeded)
    if drift is not None and done is not None:
        repaired = "recreated" if drift.missing else "corrected"
        comma = "," if drift.suspected_action else ""
        kept = f"; {drift.renamed_to} still exists" if drift.renamed_to else ""
        return f"{_describe_drift(drift)}{comma} and has been {repaired}{kept}"
    declared = next((each for each in causes if isinstance(each.data, SpecDeclared)), None)
    if declared is None:
        return f"is as declared in generation {outcome.generation}"
    generation = f"{_format_author(declared, parent)} declared generation {outcome.generation}"
    if done is None:
        claimed = _last(causes, OwnershipClaimed)
        how = ", and Reconciler took ownership of the existing object" if claimed else ""
        return f"is as declared: {generation}{how}"
    if done.purpose in ("Replace", "Retire"):
        return f"is as declared: {generation} and the worker replaced the object"
    match done.operation:
        case "Create":
            return f"exists because {generation} and the worker created the object"
        case "Update":
            return f"is as declared: {generation} and the worker updated the object"
        case "Delete":
            return f"does not exist because {generation} and the worker deleted the object"


def _describe_drift(drift: DriftDetected) -> str:
    if drift.renamed_to:
        return f"was renamed to {drift.renamed_to} outside of Reconciler"
    paths = ", ".join(each.path for each in drift.differences)
    if not drift.suspected_action:
        happened = "was deleted" if drift.missing else "was changed"
        return f"{happened} outside of Reconciler{f' ({paths})' if paths else ''}"
    difference = "was missing" if drift.missing else f"differed ({paths})"
    return f"{difference}, possibly because of Reconciler's action {drift.suspected_action}"


def _unready_suffix(ready: Condition | None) -> str:
    if ready is None or ready.status == "True":
        return ""
    why = ": ".join(each for each in (ready.reason, single_line(ready.message)) if each)
    return f", but it is not ready ({why})"


def _explain_deletion(outcome: OutcomeRecorded, causes: Sequence[LogEvent], parent: str) -> str:
    """Explain why a resource was deleted or released, if a withdrawal is the cause."""
    withdrawn = next((each for each in causes if isinstance(each.data, SpecWithdrawn)), None)
    if withdrawn is None or outcome.outcome not in ("Deleted", "Released"):
        return ""
    assert isinstance(withdrawn.data, SpecWithdrawn)
    reason = reason_suffix(withdrawn.data.reason)
    why = f"because {_format_author(withdrawn, parent)} withdrew its declaration{reason}"
    return f"was {outcome.outcome.lower()} {why}{message_suffix(outcome.message)}"


def _describe_outcome(outcome: OutcomeRecorded) -> str:
    reason = f" ({outcome.reason})" if outcome.reason else ""
    return f"{_STATES[outcome.outcome]}{reason}{message_suffix(outcome.message)}"


# --- fields


def _explain_field(why: Why, history: Sequence[StoredEvent]) -> str:
    field, desired, observed = why.field, _newest(why.wanted), _newest(why.observed)
    if desired is None or desired.value is None:
        if observed is None or observed.value is None:
            return f"{field} is not set"
        return f"{field} is {format_value(observed.value)}, and no declaration sets it"
    cause = f"{describe_source(desired)}{_generation_suffix(desired, history)}"
    resolved = {} if field.startswith(f"{LABELS}.") else _resolved_fields(history)
    if resolved and value_at(field, resolved, {}) is None:
        spec = f"the kind resolves the spec to the fields {', '.join(sorted(resolved))}"
        return f"{field} is {format_value(desired.value)} because {cause}; {spec}"
    if observed is None:
        text = format_value(desired.value)
        return f"{field} should be {text}, but no object has been observed: {cause}"
    if observed.value == desired.value:
        applied = _newest(why.applied)
        is_written = applied is not None and applied.value == desired.value
        text = format_value(desired.value)
        return f"{field} is {text}{' because' if is_written else ', as'} {cause}"
    actual, text = format_value(observed.value), format_value(desired.value)
    return f"{field} is {actual}, but should be {text}: {cause}"


def _resolved_fields(history: Sequence[StoredEvent]) -> Fields:
    """Return the fields of the newest spec if it was resolved, or an empty mapping."""
    specs = (each.event.data for each in reversed(history))
    newest = next((each for each in specs if isinstance(each, (SpecDeclared, SpecResolved))), None)
    return newest.fields if isinstance(newest, SpecResolved) else {}


def _newest(values: Sequence[Value]) -> Value | None:
    return values[-1] if values else None


def _generation_suffix(value: Value, history: Sequence[StoredEvent]) -> str:
    for stored in history:
        data = stored.event.data
        is_same = stored.event.resourceversion == value.version
        if is_same and isinstance(data, (SpecDeclared, SpecResolved)):
            return f" in generation {data.generation}"
    return ""


def _last(events: Iterable[LogEvent], data: type[_T]) -> _T | None:
    matches = [event.data for event in events if isinstance(event.data, data)]
    return matches[-1] if matches else None
