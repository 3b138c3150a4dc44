"""The public outcome and the conditions of a conclusion."""

from __future__ import annotations

from msgspec.structs import replace

from events.excerpt import shorten
from events.log import Condition, OutcomeName, OutcomeRecorded
from reconciler.provider.kind import Kind, Readiness
from reconciler.resource.availability import note_own_availability
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Conclusion, Context

_CONVERGED: frozenset[OutcomeName] = frozenset({"Converged", "Deleted", "Released"})
_INACTIVE: frozenset[OutcomeName] = frozenset({"Waiting", "Held", "Paused", "Drifted", "Failed"})
"""Outcomes whose reason concerns the declaration, so that they could hide one of the object."""

_UNHEALTHY: frozenset[OutcomeName] = frozenset({"Degraded", "Failed"})


def outcome_to_record(
    state: ResourceState, conclusion: Conclusion, context: Context
) -> OutcomeRecorded | None:
    """Return the outcome to record, or None if it equals the last one."""
    conclusion = _with_readiness(conclusion, state, context.kind)
    last, generation = state.outcome, state.desired.generation
    reason, message = str(conclusion.reason), shorten(conclusion.message)  # converts a `Hold`
    outcome = OutcomeRecorded(
        outcome=conclusion.outcome,
        generation=generation,
        reason=reason,
        message=message,
        conditions=_conditions(conclusion, generation, reason, message),
        action_id=conclusion.action_id,
        provider_config=state.provider_config,
    )
    outcome = replace(outcome, availability=note_own_availability(outcome, state, context))
    if last is not None:
        last = replace(
            last,
            action_id=conclusion.action_id,
            confirms_write=False,
            provider_config=outcome.provider_config,
        )
    return None if last == outcome else outcome


def _with_readiness(conclusion: Conclusion, state: ResourceState, kind: Kind | None) -> Conclusion:
    """Add why the owned object is not ready to a conclusion that has another reason."""
    existing = state.observed.object
    if conclusion.outcome not in _INACTIVE or conclusion.ready is not None:
        return conclusion
    if kind is None or kind.composition is not None or existing is None or state.owned is None:
        return conclusion  # the parts of a composed object have their own conditions
    if state.owned.uid is not None and existing.uid != state.owned.uid:
        return conclusion
    desired, applied = state.desired, state.owned.applied
    spec, fields = desired.spec, desired.fields
    if desired.resolved is None and spec is not None and (spec.references or spec.secrets):
        if applied is None:
            return conclusion
        fields = applied.fields  # the declared ones have no values yet
    ready = kind.ready(fields, existing)
    if ready.is_ready:
        return conclusion
    message = conclusion.message
    if conclusion.outcome == "Waiting":
        message += f"; the object is not ready, {ready.reason}: {ready.message}"
    return replace(conclusion, ready=ready, message=message)


def _conditions(
    conclusion: Conclusion, generation: int, reason: str, message: str
) -> tuple[Condition, ...]:
    """Return the conditions of a resource, in the form that Kubernetes uses.

    ``Converged``: the object is as declared. ``Ready``: the object is usable, according to its
    kind. ``Degraded``: calls are failing. ``Paused``: the declaration stops all actions.
    """
    name = conclusion.outcome
    ready = conclusion.ready or Readiness(name == "Converged", reason, message)
    why = shorten(ready.message) if ready.message else ""
    converged, is_ready = name in _CONVERGED, ready.is_ready
    result = [
        Condition("Converged", "True" if converged else "False", reason, message, generation),
        Condition("Ready", "True" if is_ready else "False", ready.reason, why, generation),
    ]
    if name in _UNHEALTHY:
        result.append(Condition("Degraded", "True", reason, message, generation))
    if name == "Paused":
        result.append(Condition("Paused", "True", reason, "", generation))
    return tuple(result)
