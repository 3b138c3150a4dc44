"""The level-triggered part: the next step, from the folded state alone.

``next_step`` never asks which message woke the shape (invariant 4). It gives one step;
``take_turn`` folds that step and asks again until there is none.
"""

from __future__ import annotations

from events.intake import LossCount
from events.log import OwnershipClaimed
from events.manifest import PROVIDER_CONFIG_KIND, SHAPE_REF_KIND, ProviderConfigSpec, target_of
from reconciler.kinds import Kind
from reconciler.shape.api_health import standing_of_api
from reconciler.shape.desired import config_name, config_of
from reconciler.shape.inputs import Context
from reconciler.shape.keeping import keep_away, keep_present
from reconciler.shape.letting_go import claimed, let_go
from reconciler.shape.observing import LOSS_GUARD
from reconciler.shape.pursuing import is_paused, pursue
from reconciler.shape.standing import NOTHING_TO_SAY, PAUSED, Standing, Step
from reconciler.shape.state import InFlight, ShapeState
from reconciler.shape.waiting import has_waited


def next_step(state: ShapeState, context: Context) -> Step:
    """Give the next event to record, or how the shape stands if there is nothing to do now."""
    if context.kind is not None and not context.kind.is_external:
        return _internal(state, context)
    config = config_of(state, context)
    if state.in_flight is not None:
        held = _no_calls(state, state.in_flight, context)
        return pursue(state, state.in_flight, context, config, held)
    if not state.declared and state.observed is None and state.owned is None:
        return _nothing_left(state)  # whether its API is known does not matter any more
    if context.kind is None:
        return Standing("Held", "UnknownKind", f"kind {context.key.kind!r} is not registered here")
    if config is None or config.provider != context.kind.provider:
        return _no_usable_config(state, context.kind, config)
    returned = _returned(state)
    if returned is not None:
        return returned
    if is_paused(state):
        return PAUSED
    if state.doubted is not None and state.owned is not None:
        return _doubted(state, state.doubted)
    if state.hold_until is not None and not has_waited(state, context):
        return _waiting(state)
    if state.declared and state.spec is not None:
        if state.spec.policy.mode == "Absent":
            return keep_away(state, context, config)
        return keep_present(state, context, config)
    return let_go(state, context, config)


def _nothing_left(state: ShapeState) -> Standing:
    """Nobody declares it, and nothing is there: say so once, if anything was ever said."""
    if state.spec is not None:
        return Standing("Deleted", "Gone")
    if state.outcome is None:
        return Standing("Deleted", "Gone") if state.effect_at is not None else NOTHING_TO_SAY
    if state.taken_by and state.outcome.outcome != "Deleted":
        return Standing("Deleted", "Gone", f"{state.taken_by} had it")
    if state.outcome.outcome == "Deleted":
        return Standing("Deleted", state.outcome.reason, state.outcome.message)
    return Standing("Deleted", "GoneByOthers")


def _returned(state: ShapeState) -> OwnershipClaimed | None:
    """That a listing was wrong is knowledge and no action: it is recorded whatever the policy."""
    found = state.observed
    if state.owned is not None or found is None or found.uid is None or state.taken_by:
        return None
    return claimed(state, found, "Returned") if found.uid == state.lost_uid else None


def _doubted(state: ShapeState, losses: LossCount) -> Standing:
    """Too many of our objects are missing at once: nothing is done before people are asked."""
    what = f"{losses.missing} of our {losses.owned} objects in {config_name(state)!r} are missing"
    if state.approved == LOSS_GUARD:
        return Standing("Held", LOSS_GUARD, f"{what}: approved, the next listing is believed")
    return Standing(
        "Held",
        LOSS_GUARD,
        f"{what} from one listing: is it another API, or an empty one? Approve it to have them "
        "made again",
    )


def _internal(state: ShapeState, context: Context) -> Step:
    """Shapes that live in the log alone, such as a ProviderConfig, are what they are declared."""
    if state.declared and context.key.kind == SHAPE_REF_KIND:
        return _reference(state)
    if state.declared:
        return (
            _unknown_provider(state, context)
            or standing_of_api(state.api)
            or Standing("Converged", "Declared")
        )
    return Standing("Deleted", "Withdrawn") if state.generation else NOTHING_TO_SAY


def _unknown_provider(state: ShapeState, context: Context) -> Standing | None:
    """Tell of a configuration whose provider was known when it was declared, and is no more."""
    if context.key.kind != PROVIDER_CONFIG_KIND or context.providers is None or state.spec is None:
        return None
    provider = state.spec.fields.get("provider")
    if provider in context.providers:
        return None
    return Standing(
        "Held", "UnknownProvider", f"no kind of provider {provider!r} is installed here"
    )


def _reference(state: ShapeState) -> Step:
    if state.target_declared is None:
        return NOTHING_TO_SAY  # the next sweep tells
    if state.target_declared:
        return Standing("Converged", "Resolved")
    assert state.spec is not None
    target = target_of(state.spec.fields)
    return Standing("Held", "Dangling", f"{target} is not declared")


def _no_usable_config(state: ShapeState, kind: Kind, config: ProviderConfigSpec | None) -> Standing:
    name = config_name(state)
    if config is not None:
        return _wrong_provider(state, kind, name, config)
    return Standing(
        "Held", "ProviderConfigMissing", f"ProviderConfig {name!r} is not declared: declare it"
    )


def _no_calls(state: ShapeState, flight: InFlight, context: Context) -> Standing | None:
    """Hold an action whose configuration became one of another provider after it was decided."""
    name = flight.action.provider_config
    kind, config = context.kind, context.configs.get(name)
    if kind is None or config is None or config.provider == kind.provider:
        return None
    return _wrong_provider(state, kind, name, config)


def _wrong_provider(
    state: ShapeState, kind: Kind, name: str, config: ProviderConfigSpec
) -> Standing:
    """Hold what no worker can call in the API that its configuration names: no retry mends that."""
    remedy = f"declare {name!r} with provider {kind.provider!r}"
    if state.owned is not None or state.in_flight is not None:
        remedy += "; until then what was made there stays as it is"
    elif state.declared:
        remedy += ", or name another one in spec.providerConfigRef"
    return Standing(
        "Held",
        "WrongProvider",
        f"ProviderConfig {name!r} is of provider {config.provider!r}, but {kind.name} needs "
        f"{kind.provider!r}: {remedy}",
    )


def _waiting(state: ShapeState) -> Standing:
    message = "" if state.failure is None else state.failure.message
    reason = "Waiting" if state.failure is None else state.failure.error_class
    return Standing("Degraded", reason, message)
