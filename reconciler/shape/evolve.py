"""Fold one event of the log into the state of its shape: pure and total."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from events.log import (
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    LogEvent,
    ShapeEvent,
)
from reconciler.shape.api_health import closed, opened, probed, throttled
from reconciler.shape.folds import actions, declarations, holds, observations
from reconciler.shape.state import (
    NEW,
    ShapeState,
)


class HistoryGapError(ValueError):
    """A shape's events are not gapless: one is missing, doubled or out of order."""


def evolve(state: ShapeState, event: LogEvent) -> ShapeState:
    """Return the state after one event.

    Raises ``HistoryGapError`` when the event is not the next one: a hole must be found, never
    folded over.
    """
    if event.shapeversion != state.version + 1:
        raise HistoryGapError(
            f"{event.subject}: event {event.shapeversion} follows event {state.version}"
        )
    return _FOLDS[type(event.data)](state, event.data, event)


def fold(events: Iterable[LogEvent], state: ShapeState = NEW) -> ShapeState:
    """Fold a whole history; raises ``HistoryGapError``."""
    for event in events:
        state = evolve(state, event)
    return state


_FOLDS: dict[type[ShapeEvent], Callable[[ShapeState, Any, LogEvent], ShapeState]] = {
    **declarations.FOLDS,
    **observations.FOLDS,
    **holds.FOLDS,
    **actions.FOLDS,
    ApiThrottled: throttled,
    BreakerOpened: opened,
    BreakerProbed: probed,
    BreakerClosed: closed,
}
