"""From how a resource stands to its public outcome and conditions."""

from __future__ import annotations

from typing import Literal

from events.log import Condition, OutcomeName, OutcomeRecorded
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import NOTHING_TO_SAY, Settled

_READY: frozenset[OutcomeName] = frozenset({"Converged"})
_IN_STEP: frozenset[OutcomeName] = frozenset({"Converged", "Deleted", "Released"})
_TROUBLED: frozenset[OutcomeName] = frozenset({"Degraded", "Failed"})


def outcome_to_record(state: ResourceState, settled: Settled) -> OutcomeRecorded | None:
    """Return the outcome to record, or None when nobody would learn anything new from it."""
    if settled is NOTHING_TO_SAY or (not settled.reason and settled.outcome == "Converged"):
        return None
    last = state.outcome
    if last is not None and (last.outcome, last.generation, last.reason, last.message) == (
        settled.outcome,
        state.desired.generation,
        settled.reason,
        settled.message,
    ):
        return None
    return OutcomeRecorded(
        outcome=settled.outcome,
        generation=state.desired.generation,
        reason=settled.reason,
        message=settled.message,
        conditions=conditions(state, settled),
        action_id=settled.action_id,
    )


def conditions(state: ResourceState, settled: Settled) -> tuple[Condition, ...]:
    """Return the conditions as Kubernetes users know them.

    ``Ready``: the object is as declared. ``Synced``: nothing is left to do. ``Degraded``: calls
    fail. ``Paused``: the declaration asks for no action.
    """
    generation = state.desired.generation
    name, reason, message = settled.outcome, settled.reason, settled.message
    shown = [
        Condition("Ready", _truth(name in _READY), reason, message, generation),
        Condition("Synced", _truth(name in _IN_STEP), reason, "", generation),
    ]
    if name in _TROUBLED:
        shown.append(Condition("Degraded", "True", reason, message, generation))
    if name == "Paused":
        shown.append(Condition("Paused", "True", reason, "", generation))
    return tuple(shown)


def _truth(value: bool) -> Literal["True", "False"]:
    return "True" if value else "False"
