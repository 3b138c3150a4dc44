"""What each event ends: the rules that both folds of the log share (ADR 0066).

``reconciler.resource.evolve`` folds the log into states for decisions, and ``projections.status``
folds it into rows for reading. With separate rules, a row could show a wait or a plan that the next
decision does not find.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from events.hold import A_PLAN_WAITS, Hold
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
    """What an event ends, if the resource has it."""

    action: bool = False  # the action in flight
    wait: bool = False  # the wait of the resource; an action in flight keeps its own
    deadlines: bool = False  # the deadlines of a renewal and of progress
    plan: bool = False  # the plan that waits for approval
    approval: bool = False  # the approval of a hold


NO_ENDINGS: Final = Endings()
_OF_A_GENERATION: Final = Endings(wait=True, deadlines=True, plan=True, approval=True)
_OF_A_DECISION: Final = Endings(wait=True, approval=True)
_OF_A_RESULT: Final = Endings(action=True, wait=True, plan=True)
_OF_A_LATE_RESULT: Final = Endings(wait=True, plan=True)
_OF_A_PLAN: Final = Endings(plan=True)
_OF_AN_END: Final = Endings(action=True, wait=True)
_OF_A_FAILURE: Final = Endings(action=True)
_OF_A_FACT: Final = Endings(approval=True)
_OF_AN_OUTCOME: Final = {
    (wait, plan): Endings(wait=wait, plan=plan) for wait in (True, False) for plan in (True, False)
}


def endings_of(data: ResourceEvent) -> Endings:
    """Return what an event ends, independent of the state."""
    match data:  # the most frequent first
        case OutcomeRecorded(outcome=outcome, reason=reason):
            return _OF_AN_OUTCOME[outcome not in MAY_WAIT, reason not in A_PLAN_WAITS]
        case ActionDecided() | SpecResolved():
            return _OF_A_DECISION
        case ActionSucceeded(late=False):
            return _OF_A_RESULT
        case ActionSucceeded(outdated=False):  # another action may be in flight
            return _OF_A_LATE_RESULT
        case ActionSucceeded() | HoldApproved(hold=Hold.APPROVAL):
            return _OF_A_PLAN
        case SpecDeclared() | SpecWithdrawn():
            return _OF_A_GENERATION
        case ActionFailed(consequence=consequence):
            return NO_ENDINGS if consequence == "Retry" else _OF_A_FAILURE
        case ActionAbandoned():
            return _OF_AN_END
        case DefinitionObserved() | ActionHeld() | TwinDetected():
            return _OF_A_FACT
        case _:
            return NO_ENDINGS
