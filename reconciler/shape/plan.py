"""The level-triggered part: the next step, from the folded state alone.

``next_step`` never asks which message woke the shape (invariant 4). It gives one step;
``take_turn`` folds that step and asks again until there is none.
"""

from __future__ import annotations

from reconciler.shape.api_health import standing_of_api
from reconciler.shape.desired import config_name, config_of
from reconciler.shape.inputs import Context
from reconciler.shape.keeping import keep_away, keep_present
from reconciler.shape.letting_go import let_go
from reconciler.shape.pursuing import is_paused, pursue
from reconciler.shape.standing import NOTHING_TO_SAY, PAUSED, Standing, Step
from reconciler.shape.state import ShapeState


def next_step(state: ShapeState, context: Context) -> Step:
    """Give the next event to record, or how the shape stands if there is nothing to do now."""
    if context.kind is not None and not context.kind.is_external:
        return _internal(state)
    config = config_of(state, context)
    if state.in_flight is not None:
        return pursue(state, state.in_flight, context, config)
    if state.spec is None and state.observed is None and state.owned is None:
        return _nothing_left(state)
    if context.kind is None:
        return Standing("Held", "UnknownKind", f"kind {context.key.kind!r} is not registered here")
    if config is None:
        return _no_config(state)
    if is_paused(state):
        return PAUSED
    if state.hold_until is not None and state.hold_until > context.now:
        return _waiting(state)
    if state.declared and state.spec is not None:
        if state.spec.policy.mode == "Absent":
            return keep_away(state, context, config)
        return keep_present(state, context, config)
    return let_go(state, context, config)


def _nothing_left(state: ShapeState) -> Standing:
    """Nobody declares it, and nothing is there: say so once, if anything was ever said."""
    if state.outcome is None:
        return Standing("Deleted", "Gone") if state.effect_at is not None else NOTHING_TO_SAY
    if state.outcome.outcome == "Deleted":
        return Standing("Deleted", state.outcome.reason, state.outcome.message)
    return Standing("Deleted", "GoneByOthers")


def _internal(state: ShapeState) -> Step:
    """Shapes that live in the log alone, such as a ProviderConfig, are what they are declared."""
    if state.declared:
        return standing_of_api(state.api) or Standing("Converged", "Declared")
    return Standing("Deleted", "Withdrawn") if state.generation else NOTHING_TO_SAY


def _no_config(state: ShapeState) -> Standing:
    return Standing(
        "Held",
        "ProviderConfigMissing",
        f"ProviderConfig {config_name(state)!r} is not declared: declare it",
    )


def _waiting(state: ShapeState) -> Standing:
    message = "" if state.failure is None else state.failure.message
    reason = "Waiting" if state.failure is None else state.failure.error_class
    return Standing("Degraded", reason, message)
