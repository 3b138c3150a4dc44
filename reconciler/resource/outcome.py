"""The public outcome and the conditions of a conclusion."""

from __future__ import annotations

from typing import Literal

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
    last = state.outcome
    outcome = OutcomeRecorded(
        outcome=conclusion.outcome,
        generation=state.desired.generation,
        reason=str(conclusion.reason),  # converts a `Hold`
        message=shorten(conclusion.message),
        conditions=conditions(state, conclusion),
        action_id=conclusion.action_id,
    )
    if last is not None:
        last = replace(last, action_id=conclusion.action_id, confirms_write=False)
    return None if last == outcome else outcome


def conditions(state: ResourceState, conclusion: Conclusion) -> tuple[Condition, ...]:
    """Return the conditions of a resource, in the form that Kubernetes uses.

    ``Converged``: the object is as declared. ``Ready``: the object is usable, according to its
    kind. ``Degraded``: calls are failing. ``Paused``: the declaration stops all actions.
    """
    generation = state.desired.generation
    name, reason, message = (
        conclusion.outcome,
        str(conclusion.reason),
        shorten(conclusion.message),
    )
    ready = conclusion.ready or Readiness(name == "Converged", reason, message)
    why = shorten(ready.message)
    result = [
        Condition("Converged", _to_status(name in _CONVERGED), reason, message, generation),
        Condition("Ready", _to_status(ready.is_ready), ready.reason, why, generation),
    ]
    if name in _UNHEALTHY:
        result.append(Condition("Degraded", "True", reason, message, generation))
    if name == "Paused":
        result.append(Condition("Paused", "True", reason, "", generation))
    return tuple(result)


def _to_status(value: bool) -> Literal["True", "False"]:
    return "True" if value else "False"
