"""What holds a shape, and who lets it go: finalizers, references, approvals, forced releases."""

from __future__ import annotations

from events.intake import (
    Answer,
    Approved,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    Referenced,
    TargetSeen,
    Unreferenced,
)
from events.log import (
    FinalizerAdded,
    FinalizerRemoved,
    HoldApproved,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    TargetObserved,
)
from events.names import InvalidNameError, check_finalizer
from reconciler.shape.answering import accepted, known_already, refused
from reconciler.shape.inputs import Command, Context, Record
from reconciler.shape.observing import DELETION_GUARD, LOSS_GUARD
from reconciler.shape.pursuing import UNKNOWN_RESULT
from reconciler.shape.state import ShapeState

APPROVABLE = (DELETION_GUARD, LOSS_GUARD, UNKNOWN_RESULT)
MOST_FINALIZERS = 32


def request_finalizer(
    state: ShapeState, command: Command, _context: Context, record: Record
) -> Answer:
    """Put a finalizer on a declared shape, held by who asks."""
    data: FinalizerRequested = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = known_already(state, command)
    if known is not None:
        return known
    try:
        check_finalizer(data.finalizer)
    except InvalidNameError as error:
        return refused(state, command, "Invalid", str(error))
    if not state.declared:
        return refused(
            state, command, "NotDeclared", "a finalizer can be put on a declared shape only"
        )
    holder = next((each.holder for each in state.finalizers if each.name == data.finalizer), None)
    if holder == command.actor:
        return accepted(state, command, "Unchanged")
    if holder is not None:
        return refused(state, command, "HeldByAnother", f"{data.finalizer!r} is of {holder}")
    if len(state.finalizers) >= MOST_FINALIZERS:
        return refused(
            state, command, "TooMany", f"a shape has at most {MOST_FINALIZERS} finalizers"
        )
    record(FinalizerAdded(data.finalizer, command.actor))
    return accepted(state, command)


def release_finalizer(
    state: ShapeState, command: Command, _context: Context, record: Record
) -> Answer:
    """Take a finalizer off: by its holder, or by force."""
    data: FinalizerReleased = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = known_already(state, command)
    if known is not None:
        return known
    holder = next((each.holder for each in state.finalizers if each.name == data.finalizer), None)
    if holder is None:
        return accepted(state, command, "Unchanged")
    if holder != command.actor and not data.force:
        return refused(
            state,
            command,
            "HeldByAnother",
            f"{data.finalizer!r} is of {holder}: force takes it off",
        )
    record(FinalizerRemoved(data.finalizer, data.force and holder != command.actor, data.reason))
    return accepted(state, command)


def force_release(state: ShapeState, command: Command, _context: Context, record: Record) -> Answer:
    """Take off all that keeps a withdrawn shape."""
    data: ForcedRelease = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = known_already(state, command)
    if known is not None:
        return known
    if not data.reason.strip():
        return refused(state, command, "Invalid", "a forced release needs a reason: it is kept")
    if state.declared:
        return refused(
            state, command, "StillDeclared", "only a withdrawn shape is released: withdraw it first"
        )
    if not (state.owned or state.in_flight or state.finalizers or state.references):
        return accepted(state, command, "Unchanged")
    finalizers = tuple(each.name for each in state.finalizers)
    record(ReleaseForced(data.reason, data.orphan, finalizers, tuple(sorted(state.references))))
    return accepted(state, command)


def approve(state: ShapeState, command: Command, _context: Context, record: Record) -> Answer:
    """Lift the hold that an approval names."""
    data: Approved = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = known_already(state, command)
    if known is not None:
        return known
    held = state.outcome is not None and state.outcome.outcome == "Held"
    hold = state.outcome.reason if held and state.outcome is not None else ""
    if hold != data.hold or hold not in APPROVABLE:
        return refused(
            state,
            command,
            "NotHeld",
            f"it is not held by {data.hold!r}{_but(state)}",
        )
    if data.decision == "Abandon" and hold != UNKNOWN_RESULT:
        return refused(state, command, "Invalid", f"Abandon decides about {UNKNOWN_RESULT} only")
    if state.approved == hold:
        return accepted(state, command, "Unchanged")
    record(HoldApproved(hold, data.decision, data.reason))
    return accepted(state, command)


def _but(state: ShapeState) -> str:
    """Say how it stands, for those who thought that it stood otherwise."""
    if state.outcome is None:
        return ": nothing is known of it" if state.version == 0 else ""
    if state.outcome.outcome == "Held":
        return f" but by {state.outcome.reason!r}"
    return f": it is {state.outcome.outcome}"


def add_reference(state: ShapeState, command: Command, _context: Context, record: Record) -> None:
    """Know of a reference, with its newest policy."""
    data: Referenced = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    if state.references.get(data.by) != data.on_withdrawal:
        record(ReferenceAdded(data.by, data.on_withdrawal))


def remove_reference(
    state: ShapeState, command: Command, _context: Context, record: Record
) -> None:
    """Forget a reference."""
    data: Unreferenced = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    if data.by in state.references:
        record(ReferenceRemoved(data.by))


def see_target(state: ShapeState, command: Command, _context: Context, record: Record) -> None:
    """Let a reference know whether its target is declared."""
    data: TargetSeen = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    if state.declared and state.target_declared != data.declared:
        record(TargetObserved(data.target, data.declared))
