"""The public outcome and the conditions of a conclusion."""

from __future__ import annotations

from msgspec.structs import replace

from events.excerpt import shorten
from events.log import Condition, OutcomeName, OutcomeRecorded
from reconciler.provider.kind import Readiness
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Conclusion

_CONVERGED: frozenset[OutcomeName] = frozenset({"Converged", "Deleted", "Released"})
_UNHEALTHY: frozenset[OutcomeName] = frozenset({"Degraded", "Failed"})


def outcome_to_record(state: ResourceState, conclusion: Conclusion) -> OutcomeRecorded | None:
    """Return the outcome to record, or None if it equals the last one."""
    last, generation = state.outcome, state.desired.generation
    reason, message = str(conclusion.reason), shorten(conclusion.message)  # converts a `Hold`
    outcome = OutcomeRecorded(
        outcome=conclusion.outcome,
        generation=generation,
        reason=reason,
        message=message,
        conditions=_conditions(conclusion, generation, reason, message),
        action_id=conclusion.action_id,
    )
    if last is not None:
        last = replace(last, action_id=conclusion.action_id, confirms_write=False)
    return None if last == outcome else outcome


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
