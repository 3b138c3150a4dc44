"""What a command adds to the history, before anything is decided.

A command that says nothing new gives no event: duplicates, stale observations and results of
actions that are already settled end here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from events.intake import (
    Answer,
    ApiReported,
    Approved,
    Declared,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    IntakeData,
    Observed,
    Referenced,
    Reported,
    TargetSeen,
    TimerFired,
    Unreferenced,
    Withdrawn,
)
from reconciler.shape.api_health import news
from reconciler.shape.declaring import declare, withdraw
from reconciler.shape.holding import (
    add_reference,
    approve,
    force_release,
    release_finalizer,
    remove_reference,
    request_finalizer,
    see_target,
)
from reconciler.shape.inputs import Command, Context, Record
from reconciler.shape.observing import observe
from reconciler.shape.reporting import report
from reconciler.shape.state import ShapeState


def record_facts(
    state: ShapeState, command: Command, context: Context, record: Record
) -> Answer | None:
    """Record what a command says; answer it if somebody asked for something."""
    return _HANDLERS[type(command.data)](state, command, context, record)


def _api(state: ShapeState, command: Command, context: Context, record: Record) -> None:
    """Record how an API answers as a whole, if that is news."""
    data: ApiReported = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    event = news(state, data, context)
    if event is not None:
        record(event)


def _timer(_state: ShapeState, _command: Command, _context: Context, _record: Record) -> None:
    """A timer is a hint: that the shape is looked at is all it does."""


_HANDLERS: dict[type[IntakeData], Callable[[ShapeState, Command, Context, Record], Any]] = {
    Declared: declare,
    Withdrawn: withdraw,
    FinalizerRequested: request_finalizer,
    FinalizerReleased: release_finalizer,
    ForcedRelease: force_release,
    Approved: approve,
    Referenced: add_reference,
    Unreferenced: remove_reference,
    TargetSeen: see_target,
    Observed: observe,
    Reported: report,
    ApiReported: _api,
    TimerFired: _timer,
}
