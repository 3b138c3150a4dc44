"""From how a shape stands to its public outcome and conditions."""

from __future__ import annotations

from typing import Literal

from events.log import Condition, OutcomeName, OutcomeRecorded
from reconciler.shape.standing import NOTHING_TO_SAY, Standing
from reconciler.shape.state import ShapeState

_READY: frozenset[OutcomeName] = frozenset({"Converged"})
_IN_STEP: frozenset[OutcomeName] = frozenset({"Converged", "Deleted", "Released"})
_TROUBLED: frozenset[OutcomeName] = frozenset({"Degraded", "Failed"})


def outcome_to_record(state: ShapeState, standing: Standing) -> OutcomeRecorded | None:
    """Give the outcome to record, or None when nobody would learn anything new from it."""
    if standing is NOTHING_TO_SAY or (not standing.reason and standing.outcome == "Converged"):
        return None
    last = state.outcome
    if last is not None and (last.outcome, last.generation, last.reason, last.message) == (
        standing.outcome,
        state.generation,
        standing.reason,
        standing.message,
    ):
        return None
    return OutcomeRecorded(
        outcome=standing.outcome,
        generation=state.generation,
        reason=standing.reason,
        message=standing.message,
        conditions=conditions(state, standing),
        action_id=standing.action_id,
    )


def conditions(state: ShapeState, standing: Standing) -> tuple[Condition, ...]:
    """Give the conditions as Kubernetes users know them.

    ``Ready``: the object is as declared. ``Synced``: nothing is left to do. ``Degraded``: calls
    fail. ``Paused``: the declaration asks for no action.
    """
    generation = state.generation
    name, reason, message = standing.outcome, standing.reason, standing.message
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
