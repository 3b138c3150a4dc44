"""Replacement: another object in the place of one that the API cannot change (ADR 0026)."""

from __future__ import annotations

import hashlib

from events.external import ExternalObject
from events.hold import Hold
from events.log import event_id
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from reconciler.resource.attempt import (
    delete_refused,
    is_refused,
    new_action,
    wait_after_conflicts,
)
from reconciler.resource.difference import labels_of
from reconciler.resource.state import ResourceState, Spec
from reconciler.resource.turn import Context, Settled, Step, on_hold


def replacement(spec: Spec, seen: ExternalObject, state: ResourceState, context: Context) -> Step:
    """Have another object in the place of one that the API cannot change as it is wanted.

    The new one is made first where both can be there at once: it is made ready before the old one
    goes. Else the old one goes first; what is declared, and not there, is made anyway.
    """
    if state.observed.taken_by:
        return Settled(
            "Disputed", "OwnedByAnother", f"the object also belongs to {state.observed.taken_by}"
        )
    held = held_for_its_data(None, state, context)
    if held is not None:
        return held
    name = _second_name(spec, seen.name, state, context)
    if name is None or state.retiring is not None:  # of three, the one that nobody wants goes
        return new_action(state, context, "Delete", {}, {}, purpose="Replace")
    labels = labels_of(state, context)
    return new_action(
        state,
        context,
        "Create",
        state.desired.fields,
        labels,
        purpose="Replace",
        external_name=name,
    )


def retirement(state: ResourceState, context: Context, config: ProviderConfigSpec) -> Step:
    """Remove what was replaced, once its replacement can be used, or nothing is wanted any more."""
    if state.waits.failure is not None and is_refused(state):
        why = state.waits.failure.message
        return delete_refused(state, context, config.retry, why, "Retire")
    waiting = wait_after_conflicts(state, context, config)
    return waiting or new_action(state, context, "Delete", {}, {}, purpose="Retire")


def held_for_its_data(
    fields: Fields | None, state: ResourceState, context: Context
) -> Settled | None:
    """Hold what would lose data, unless a person has approved it; ``fields``: None to delete."""
    seen, kind = state.observed.object, context.kind
    if seen is None or kind is None or state.holds.approved == Hold.DATA_LOSS:
        return None
    lost = kind.loses(fields, seen)
    return (
        on_hold(
            Hold.DATA_LOSS,
            f"the action would lose {lost}; approve the loss, or change the declaration",
        )
        if lost
        else None
    )


def held_for_its_definition(state: ResourceState, config: ProviderConfigSpec) -> Settled | None:
    """Hold a replacement that only a changed definition asks for, if it asks for too many."""
    definition = state.desired.definition
    if (
        definition is None
        or not definition.affected
        or state.holds.approved == Hold.DEFINITION_GUARD
    ):
        return None
    guard = config.deletion_guard
    if guard.allows(definition.affected, definition.total):
        return None
    return on_hold(
        Hold.DEFINITION_GUARD,
        f"the changed definition of its kind affects {definition.affected} of "
        f"{definition.total} resources and would replace this object, more than deletionGuard "
        f"allows ({guard.max_count} objects, {guard.max_percent}%); approve the replacement, "
        "or change the definition",
    )


def held_for_its_parts(
    state: ResourceState, context: Context, config: ProviderConfigSpec
) -> Settled | None:
    """Hold a content that would withdraw too many of the resources that an object is made of."""
    seen, kind = state.observed.object, context.kind
    if seen is None or kind is None or state.holds.approved == Hold.PRUNE_GUARD:
        return None
    removed, total, by = kind.removes(state.desired.fields, seen)
    guard = config.deletion_guard
    if guard.allows(removed, total):
        return None
    return on_hold(
        Hold.PRUNE_GUARD,
        f"{by}{': ' if by else ''}{removed} of its {total} resources would be withdrawn, more "
        f"than deletionGuard allows ({guard.max_count} resources, {guard.max_percent}%); "
        "approve the withdrawal, or add their manifests again",
    )


def _second_name(spec: Spec, taken: str, state: ResourceState, context: Context) -> str | None:
    """Name a replacement that stands beside its predecessor; None where none can."""
    kind = context.kind
    assert kind is not None
    if not context.capabilities.deterministic_names:
        return taken  # the API makes the ids: two may have one name
    tail = hashlib.blake2b(event_id(context.key, state.version + 1).encode(), digest_size=4)
    name = f"{spec.external_name}-{tail.hexdigest()}"
    return name if kind.has_second_name and kind.name_problem(name) is None else None
