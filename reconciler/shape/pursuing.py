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


def pursue(
    state: ShapeState, flight: InFlight, context: Context, config: ProviderConfigSpec | None
) -> Step:
    """Bring the action in flight to its end: the same key and parameters until it is known."""
    if flight.abandoned:
        return ActionAbandoned(
            flight.action.action_id, flight.action.operation, "a person decided to give it up"
        )
    if flight.held:
        return Standing("Held", UNKNOWN_RESULT, flight.held, flight.action.action_id)
    if flight.failed is None:
        return _degraded_while_trying(state, flight)
    if _is_outdated(state, flight):
        return ActionAbandoned(
            flight.action.action_id,
            flight.action.operation,
            f"generation {state.generation} replaces generation {flight.action.generation}",
        )
    if is_paused(state):
        return PAUSED
    if flight.retry_at is None:
        retry = Retry() if config is None else config.retry
        least = max(flight.failed.retry_after_seconds or 0.0, least_wait_seconds(flight, context))
        wait = delay(retry, state.failures, context.jitter, least)
        return RetryScheduled(
            context.now + wait,
            round(wait.total_seconds(), 3),
            flight.failed.error_class,
            flight.action.action_id,
        )
    if is_over(flight.retry_at, flight.retry_seconds, context.now):
        again = ActionRetried if next_rung(flight, context) == "Repeat" else ActionSought
        return again(flight.action, flight.attempt + 1)
    return _degraded_while_trying(state, flight)


def is_paused(state: ShapeState) -> bool:
    """Tell whether the declaration asks for no action."""
    return state.declared and state.spec is not None and state.spec.policy.paused


def _is_outdated(state: ShapeState, flight: InFlight) -> bool:
    """Tell whether the action has most likely done nothing, and something newer is wanted.

    It may have been done all the same, if a worker died after the call and the redelivered attempt
    was refused. For an update or a deletion the next look tells; a creation would leak, so it is
    pursued to its end.
    """
    assert flight.failed is not None
    nothing_done = flight.failed.error_class in ("Transient", "Throttled") and flight.attempt == 1
    return (
        nothing_done
        and flight.action.operation != "Create"
        and flight.action.generation != state.generation
    )


def _degraded_while_trying(state: ShapeState, flight: InFlight) -> Standing:
    """While an action is under way, only trouble is worth telling."""
    if state.failure is None or (state.failures == 0 and state.failure.attempted):
        return Standing("Converged", "")  # not said: see outcomes.is_worth_recording
    return Standing(
        "Degraded", state.failure.error_class, state.failure.message, flight.action.action_id
    )
