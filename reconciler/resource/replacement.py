"""Replacement of an object that the API cannot change as declared (ADR 0026)."""

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
from reconciler.resource.difference import describe_differences, needs_replacement
from reconciler.resource.situation import Situation
from reconciler.resource.state import Spec
from reconciler.resource.turn import Conclusion, Step, on_hold


def replacement(spec: Spec, existing: ExternalObject, situation: Situation) -> Step:
    """Return the action that replaces an object, or the conclusion that holds it.

    If both objects can exist at the same time, the new one is created first, and must be ready
    before the old one is deleted. Otherwise the old one is deleted first, and its absence causes
    the creation.
    """
    state, context = situation.state, situation.context
    hold = _hold_for_loss_by_replacement(existing, situation)
    if hold is not None:
        return hold
    name = _second_name(spec, existing.name, situation)
    fields, labels = fields_to_create(existing, situation), situation.comparison.wanted.labels
    # Otherwise there would be three objects: delete the one that is neither kept nor replaced.
    if name is None or state.retiring is not None:
        # With the new content: the provider checks what it needs before it deletes the old object.
        return new_action(state, context, "Delete", fields, labels, purpose="Replace")
    return new_action(
        state, context, "Create", fields, labels, purpose="Replace", external_name=name
    )


def retirement(situation: Situation) -> Step:
    """Return the action that deletes the replaced object, or a wait.

    The replacement must be ready, or the resource must be withdrawn.
    """
    state, context = situation.state, situation.context
    if state.waits.failure is not None and is_refused(state):
        return retry_refused_deletion(situation, state.waits.failure.message, "Retire")
    # Before the wait for conflicts: an approval may take longer.
    held = _hold_for_loss_by_retirement(situation)
    if held is not None:
        return held
    waiting = wait_after_conflicts(situation)
    return waiting or new_action(state, context, "Delete", {}, {}, purpose="Retire")


def hold_for_adoption(existing: ExternalObject, situation: Situation) -> Conclusion | None:
    """Return a hold if an object that another client created would be replaced, unless approved."""
    spec, kind = situation.state.desired.spec, situation.kind
    if spec is None or spec.policy.mode != "Present":
        return None
    differences = situation.comparison.differences
    immutable = needs_replacement(differences, kind)
    if not immutable or situation.state.holds.approved == Hold.ADOPTION:
        return None
    described = describe_differences([each for each in differences if each.path in immutable])
    return on_hold(
        Hold.ADOPTION,
        f"the adoption of {existing.name!r} would delete and recreate it, because these fields "
        f"cannot change in place: {described}; declare what the object has, or approve the "
        "replacement",
    )


def hold_for_data_loss(fields: Fields | None, situation: Situation) -> Conclusion | None:
    """Return a hold if a write would destroy data, unless it is approved.

    ``fields`` is None for a deletion.
    """
    existing, kind = situation.comparison.existing, situation.kind
    if existing is None:
        return None
    if fields is None and not kind.guards_data(situation.state.desired.fields):
        return None
    return _hold_for_loss(kind.describe_data_loss(fields, existing), situation)


def fields_to_create(replaced: ExternalObject | None, situation: Situation) -> Fields:
    """Return the desired fields, with what the new object takes over from its predecessor."""
    desired, inherit = situation.state.desired.fields, situation.kind.inherit
    if replaced is None or inherit is None:
        return desired
    return {**desired, **inherit(desired, replaced).fields}


def _hold_for_loss_by_replacement(
    existing: ExternalObject, situation: Situation
) -> Conclusion | None:
    """Return a hold for the data that the replacement does not take over, unless approved."""
    inherit = situation.kind.inherit
    if inherit is None:
        return hold_for_data_loss(None, situation)
    return _hold_for_loss(inherit(situation.state.desired.fields, existing).loss, situation)


def _hold_for_loss_by_retirement(situation: Situation) -> Conclusion | None:
    """Return a hold for data that the replaced object received after the replacement began."""
    state, kind, replaced = situation.state, situation.kind, situation.state.retiring
    if replaced is None or replaced.last_observed is None:
        return None
    if not kind.guards_data(state.desired.fields):
        return None
    loss = kind.describe_data_loss(None, replaced.last_observed)
    return None if loss == replaced.data_loss else _hold_for_loss(loss, situation)


def _hold_for_loss(loss: str, situation: Situation) -> Conclusion | None:
    if not loss:
        return None
    message = f"the action would lose {loss}; approve the loss, or change the declaration"
    # The approval covers the data in the message that the operator read, but no later data.
    is_approved = situation.state.holds.approved_loss == message
    return None if is_approved else on_hold(Hold.DATA_LOSS, message)


def hold_for_definition(situation: Situation) -> Conclusion | None:
    """Return a hold if a changed definition would replace too many objects without approval."""
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
    """Return a hold if the new content would withdraw too many parts, unless it is approved."""
    existing, state = situation.comparison.existing, situation.state
    composition = situation.kind.composition
    if existing is None or composition is None or state.holds.approved == Hold.PRUNE_GUARD:
        return None
    removed, total, changed_by = composition.count_removed(state.desired.fields, existing)
    guard = situation.config.deletion_guard
    if guard.allows(removed, total):
        return None
    return on_hold(
        Hold.PRUNE_GUARD,
        f"{changed_by}{': ' if changed_by else ''}{removed} of its {total} resources would be "
        f"withdrawn, more than deletionGuard allows ({guard.max_count} resources, "
        f"{guard.max_percent}%); "
        "approve the withdrawal, or add their manifests again",
    )


def _second_name(spec: Spec, current_name: str, situation: Situation) -> str | None:
    """Return the name of a replacement that coexists with its predecessor; None if it cannot."""
    kind, context = situation.kind, situation.context
    if not context.capabilities.deterministic_names:
        return current_name  # the API assigns ids, so two objects may have the same name
    event = event_id(context.key, situation.state.version + 1)
    suffix = hashlib.blake2b(event.encode(), digest_size=4)
    name = f"{spec.external_name}-{suffix.hexdigest()}"
    return name if kind.has_second_name and kind.name_problem(name) is None else None
