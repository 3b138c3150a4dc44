"""An action in flight: brought to its end, with the same key and parameters."""

from __future__ import annotations

from events.log import ActionAbandoned, ActionRetried, ActionSought, RetryScheduled
from events.manifest import ProviderConfigSpec, Retry
from reconciler.shape.backoff import delay, is_over
from reconciler.shape.inputs import Context
from reconciler.shape.ladder import least_wait_seconds, next_rung
from reconciler.shape.standing import PAUSED, Standing, Step
from reconciler.shape.state import InFlight, ShapeState

UNKNOWN_RESULT = "UnknownResult"
"""Reason of the outcome of an action that waits for a person, and what an approval names."""


_ROUNDED_SECONDS = 0.001
"""Waits are recorded in milliseconds."""


def pursue(
    state: ShapeState,
    flight: InFlight,
    context: Context,
    config: ProviderConfigSpec | None,
    held: Standing | None = None,
) -> Step:
    """Bring the action in flight to its end: the same key and parameters until it is known.

    ``held`` is how it stands while nothing can be called for it.
    """
    if flight.abandoned:
        reason = "a person decided to give it up"
        action = flight.action
        return ActionAbandoned(
            action.action_id, action.operation, reason, in_doubt=_may_be_under_way(flight)
        )
    if flight.held:
        return Standing("Held", UNKNOWN_RESULT, flight.held, flight.action.action_id)
    if flight.failed is None:
        return _degraded_while_trying(state, flight)
    is_wanted = not _is_outdated(state, flight)
    if not is_wanted and not flight.unknown:
        return ActionAbandoned(
            flight.action.action_id,
            flight.action.operation,
            f"generation {state.generation} replaces generation {flight.action.generation}",
            in_doubt=flight.in_doubt,
        )
    if held is not None:
        return held
    if is_paused(state):
        return PAUSED
    rung = next_rung(flight, context, is_wanted=is_wanted)
    least = least_wait_seconds(flight, rung, context)
    # What was timed as a call may be too early for a look, which has to see what the call did.
    is_too_early = flight.retry_seconds < least - _ROUNDED_SECONDS
    if flight.retry_at is None or is_too_early:
        retry = Retry() if config is None else config.retry
        least = max(flight.failed.retry_after_seconds or 0.0, least)
        wait = delay(retry, state.failures, context.jitter, least)
        return RetryScheduled(
            context.now + wait,
            round(wait.total_seconds(), 3),
            flight.failed.error_class,
            flight.action.action_id,
        )
    if is_over(flight.retry_at, flight.retry_seconds, context.now):
        again = ActionRetried if rung == "Repeat" else ActionSought
        return again(flight.action, flight.attempt + 1)
    return _degraded_while_trying(state, flight)


def is_paused(state: ShapeState) -> bool:
    """Tell whether the declaration asks for no action."""
    return state.declared and state.spec is not None and state.spec.policy.paused


def _is_outdated(state: ShapeState, flight: InFlight) -> bool:
    """Tell whether something newer is wanted. A creation would leak: it is pursued to its end."""
    is_older = flight.action.generation != state.generation
    return is_older and flight.action.operation != "Create"


def _may_be_under_way(flight: InFlight) -> bool:
    return flight.in_doubt or flight.failed is None


def _degraded_while_trying(state: ShapeState, flight: InFlight) -> Standing:
    """While an action is under way, only trouble is worth telling."""
    if state.failure is None or (state.failures == 0 and state.failure.attempted):
        return Standing("Converged", "")  # not said: see outcomes.is_worth_recording
    return Standing(
        "Degraded", state.failure.error_class, state.failure.message, flight.action.action_id
    )
