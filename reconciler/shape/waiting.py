"""Waits that the aggregate decides: after conflicts, and for a deletion that is refused."""

from __future__ import annotations

from msgspec.structs import replace

from events.log import RetryScheduled
from events.manifest import ProviderConfigSpec, Retry
from reconciler.shape.actions import new_action
from reconciler.shape.backoff import delay, is_over
from reconciler.shape.inputs import Context
from reconciler.shape.standing import Step
from reconciler.shape.state import ShapeState

CONFLICTS_BEFORE_WAITING = 3
"""So many conflicts in a row are answered at once; then each waits like a failure."""


def has_waited(state: ShapeState, context: Context) -> bool:
    """Tell whether the shape has waited as long as it should."""
    until = state.hold_until
    return until is not None and is_over(until, state.hold_seconds, context.now)


def wait_after_conflicts(
    state: ShapeState, context: Context, config: ProviderConfigSpec
) -> RetryScheduled | None:
    """Let a shape wait whose knowledge is out of date again and again: no hot loop."""
    if state.conflicts <= CONFLICTS_BEFORE_WAITING:
        return None
    if has_waited(state, context):
        return None  # it has waited
    wait = delay(config.retry, state.conflicts - CONFLICTS_BEFORE_WAITING, context.jitter)
    return RetryScheduled(context.now + wait, round(wait.total_seconds(), 3), "Conflict")


def hold_deletion(state: ShapeState, context: Context, retry: Retry, reason: str) -> Step:
    """A deletion that the API refuses for good is tried again at the longest interval."""
    if has_waited(state, context):
        return new_action(state, context, "Delete", {}, {}, state.observed)
    wait = delay(replace(retry, initial_seconds=retry.max_seconds), 1, context.jitter)
    return RetryScheduled(context.now + wait, round(wait.total_seconds(), 3), reason)
