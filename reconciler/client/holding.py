"""Messages about what holds a shape: finalizers, approvals, forced releases."""

from __future__ import annotations

import uuid

from events.intake import (
    ApprovalDecision,
    Approved,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    IntakeData,
)
from events.names import ShapeKey, check_finalizer
from events.subjects import Intake
from reconciler.client.declaring import as_key
from reconciler.ports import IntakeMessageOut


def finalizer_request(shape: ShapeKey | str, finalizer: str) -> IntakeMessageOut:
    """Make the message that holds a shape; raises ``InvalidNameError``."""
    return _message("finalizer", shape, FinalizerRequested(check_finalizer(finalizer)))


def finalizer_release(
    shape: ShapeKey | str, finalizer: str, *, force: bool, reason: str
) -> IntakeMessageOut:
    """Make the message that takes a finalizer off; raises ``InvalidNameError``."""
    released = FinalizerReleased(check_finalizer(finalizer), force, reason)
    return _message("finalizer", shape, released)


def approval(
    shape: ShapeKey | str, hold: str, decision: ApprovalDecision, reason: str
) -> IntakeMessageOut:
    """Make the message that decides about a hold; raises ``InvalidNameError``."""
    return _message("approval", shape, Approved(hold, decision, reason))


def forced_release(shape: ShapeKey | str, reason: str, *, orphan: bool) -> IntakeMessageOut:
    """Make the message that takes off all that keeps a shape; raises ``InvalidNameError``."""
    return _message("approval", shape, ForcedRelease(reason, orphan))


def _message(what: Intake, shape: ShapeKey | str, data: IntakeData) -> IntakeMessageOut:
    return IntakeMessageOut(what, as_key(shape), data, uuid.uuid4().hex)
