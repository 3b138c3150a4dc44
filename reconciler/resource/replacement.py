"""Replacement: another object in the place of one that the API cannot change (ADR 0026)."""

from __future__ import annotations

import hashlib

from events.external import ExternalObject
from events.hold import Hold
from events.log import event_id
from events.manifest import Fields
from reconciler.resource.attempt import (
    is_refused,
    new_action,
    retry_refused_deletion,
    wait_after_conflicts,
)
from reconciler.resource.situation import Situation
from reconciler.resource.state import Spec
from reconciler.resource.turn import Conclusion, Step, on_hold


def replacement(spec: Spec, existing: ExternalObject, situation: Situation) -> Step:
    """Have another object in the place of one that the API cannot change as it is wanted.

    The new one is made first where both can be there at once: it is made ready before the old one
    goes. Else the old one goes first; what is declared, and not there, is made anyway.
    """
    state, context = situation.state, situation.context
    if state.observed.belongs_to:
        return Conclusion(
            "Disputed", "OwnedByAnother", f"the object also belongs to {state.observed.belongs_to}"
        )
    held = hold_for_data_loss(None, situation)
    if held is not None:
        return held
    name = _second_name(spec, existing.name, situation)
    if name is None or state.retiring is not None:  # of three, the one that nobody wants goes
        return new_action(state, context, "Delete", {}, {}, purpose="Replace")
    return new_action(
        state,
        context,
        "Create",
        state.desired.fields,
        situation.compared.wanted.labels,
        purpose="Replace",
        external_name=name,
    )


def retirement(situation: Situation) -> Step:
    """Remove what was replaced, once its replacement can be used, or nothing is wanted any more."""
    state, context = situation.state, situation.context
    if state.waits.failure is not None and is_refused(state):
        return retry_refused_deletion(situation, state.waits.failure.message, "Retire")
    waiting = wait_after_conflicts(situation)
    return waiting or new_action(state, context, "Delete", {}, {}, purpose="Retire")


def hold_for_data_loss(fields: Fields | None, situation: Situation) -> Conclusion | None:
    """Hold what would lose data, unless a person has approved it; ``fields``: None to delete."""
    existing = situation.compared.existing
    if existing is None or situation.state.holds.approved == Hold.DATA_LOSS:
        return None
    lost = situation.kind.loses(fields, existing)
    return (
        on_hold(
            Hold.DATA_LOSS,
            f"the action would lose {lost}; approve the loss, or change the declaration",
        )
        if lost
        else None
    )


def hold_for_definition(situation: Situation) -> Conclusion | None:
    """Hold a replacement that only a changed definition asks for, if it asks for too many."""
    definition = situation.state.desired.definition
    is_approved = situation.state.holds.approved == Hold.DEFINITION_GUARD
    if definition is None or not definition.affected or is_approved:
        return None
    guard = situation.config.deletion_guard
    if guard.allows(definition.affected, definition.total):
        return None
    return on_hold(
        Hold.DEFINITION_GUARD,
        f"the changed definition of its kind affects {definition.affected} of "
        f"{definition.total} resources and would replace this object, more than deletionGuard "
        f"allows ({guard.max_count} objects, {guard.max_percent}%); approve the replacement, "
        "or change the definition",
    )


def hold_for_parts(situation: Situation) -> Conclusion | None:
    """Hold a content that would withdraw too many of the resources that an object is made of."""
    existing, state = situation.compared.existing, situation.state
    composed = situation.kind.composition
    if existing is None or composed is None or state.holds.approved == Hold.PRUNE_GUARD:
        return None
    removed, total, by = composed.removes(state.desired.fields, existing)
    guard = situation.config.deletion_guard
    if guard.allows(removed, total):
        return None
    return on_hold(
        Hold.PRUNE_GUARD,
        f"{by}{': ' if by else ''}{removed} of its {total} resources would be withdrawn, more "
        f"than deletionGuard allows ({guard.max_count} resources, {guard.max_percent}%); "
        "approve the withdrawal, or add their manifests again",
    )


def _second_name(spec: Spec, taken: str, situation: Situation) -> str | None:
    """Name a replacement that stands beside its predecessor; None where none can."""
    kind, context = situation.kind, situation.context
    if not context.capabilities.deterministic_names:
        return taken  # the API makes the ids: two may have one name
    event = event_id(context.key, situation.state.version + 1)
    tail = hashlib.blake2b(event.encode(), digest_size=4)
    name = f"{spec.external_name}-{tail.hexdigest()}"
    return name if kind.has_second_name and kind.name_problem(name) is None else None
