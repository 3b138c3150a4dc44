"""What each event ends: rules that both folds of the log share (ADR 0066).

``reconciler.resource.evolve`` folds the log into states for decisions, and ``projections.status``
folds it into rows for queries. With separate rules, a row could show a wait or a plan that the next
decision no longer sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from events.hold import PLAN_HOLDS, Hold
from events.log import (
    MAY_WAIT,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionSucceeded,
    DefinitionObserved,
    HoldApproved,
    OutcomeRecorded,
    ResourceEvent,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    TwinDetected,
)


class Endings(NamedTuple):
    """What an event ends, where the resource has one."""

    action: bool = False  # the action in flight
    wait: bool = False  # the wait of the resource; an action in flight keeps its own
    deadlines: bool = False  # the deadlines for renewal and for progress
    plan: bool = False  # the plan waiting for approval
    approval: bool = False  # the approval of a hold


NO_ENDINGS: Final = Endings()
_GENERATION_ENDINGS: Final = Endings(wait=True, deadlines=True, plan=True, approval=True)
_DECISION_ENDINGS: Final = Endings(wait=True, approval=True)
_RESULT_ENDINGS: Final = Endings(action=True, wait=True, plan=True)
_LATE_RESULT_ENDINGS: Final = Endings(wait=True, plan=True)
_PLAN_ENDINGS: Final = Endings(plan=True)
_ABANDONMENT_ENDINGS: Final = Endings(action=True, wait=True)
_FAILURE_ENDINGS: Final = Endings(action=True)
_FACT_ENDINGS: Final = Endings(approval=True)
_OUTCOME_ENDINGS: Final = {
    (wait, plan): Endings(wait=wait, plan=plan) for wait in (True, False) for plan in (True, False)
}
_ENDINGS_BY_TYPE: Final[Mapping[type[ResourceEvent], Endings]] = {
    SpecDeclared: _GENERATION_ENDINGS,
    SpecWithdrawn: _GENERATION_ENDINGS,
    SpecResolved: _DECISION_ENDINGS,
    DefinitionObserved: _FACT_ENDINGS,
    ActionDecided: _DECISION_ENDINGS,
    ActionHeld: _FACT_ENDINGS,
    ActionAbandoned: _ABANDONMENT_ENDINGS,
    TwinDetected: _FACT_ENDINGS,
}


def endings_of(data: ResourceEvent) -> Endings:
    """Return what an event ends, independently of the state."""
    if type(data) in _ENDINGS_BY_TYPE:  # faster than a pattern for each type
        return _ENDINGS_BY_TYPE[type(data)]
    match data:
        case OutcomeRecorded(outcome=outcome, reason=reason):
            return _OUTCOME_ENDINGS[outcome not in MAY_WAIT, reason not in PLAN_HOLDS]
        case ActionSucceeded(late=False):
            return _RESULT_ENDINGS
        case ActionSucceeded(outdated=False):  # another action may be in flight
            return _LATE_RESULT_ENDINGS
        case ActionSucceeded() | HoldApproved(hold=Hold.APPROVAL):
            return _PLAN_ENDINGS
        case ActionFailed(consequence=consequence):
            return NO_ENDINGS if consequence == "Retry" else _FAILURE_ENDINGS
        case _:
            return NO_ENDINGS
