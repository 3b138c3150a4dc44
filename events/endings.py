"""What each event ends of its resource: the rules that both folds of the log share (ADR 0066).

``reconciler.resource.evolve`` folds the log into the states that decisions rest on, and
``projections.status`` into the rows that are shown. If only one of them ended a wait or a plan, a
row would show what the next decision does not find, or leave out what it finds.
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
    """What an event ends, where the resource has it."""

    action: bool = False  # the action in flight
    wait: bool = False  # the wait of the resource; an action in flight keeps its own
    deadlines: bool = False  # for a renewal, and for progress
    plan: bool = False  # that waits for approval
    approval: bool = False  # of a hold


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
    """Return what an event ends, whatever else is known of its resource."""
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
