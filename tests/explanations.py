"""What the log says of the end of an action: an effect must never be one that was "not done"."""

from __future__ import annotations

from collections.abc import Iterable

from events.log import (
    ActionAbandoned,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionSucceeded,
    LogEvent,
    ResourceEvent,
)


def explained(events: Iterable[LogEvent]) -> set[str]:
    """Name the actions that may have had an effect, by the log (invariant 13)."""
    return {name for event in events if (name := _may_be_done(event.data)) is not None}


def _may_be_done(event: ResourceEvent) -> str | None:
    """Name the action of which an event says that it was done, or that this is not known."""
    match event:
        case (
            ActionSucceeded(action_id=name)
            | ActionHeld(action_id=name)
            | ActionDoubted(action_id=name)
        ):
            return name
        case ActionAbandoned(action_id=name, in_doubt=True):
            return name
        case ActionFailed(action_id=name) if event.redelivered or _is_unknown(event):
            return name
        case ActionFailed(action_id=name, operation="Create") if _is_gone(event):
            return name  # the first of its calls made it, and the next one met nothing
        case _:
            return None


def _is_gone(event: ActionFailed) -> bool:
    return event.error.error_class == "NotFound"


def _is_unknown(event: ActionFailed) -> bool:
    return event.error.error_class == "Unknown"
