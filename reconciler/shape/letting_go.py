"""What nobody declares (any more): removed, released or left alone."""

from __future__ import annotations

from events.external import ExternalObject
from events.log import OwnershipClaimed, OwnershipReleased
from events.manifest import DeletionGuard, Policy, ProviderConfigSpec
from reconciler.shape.actions import new_action
from reconciler.shape.inputs import Context
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.standing import Standing, Step
from reconciler.shape.state import ShapeState
from reconciler.shape.waiting import hold_deletion, wait_after_conflicts

_GUARD_PERCENT_FROM = 10
"""In smaller scopes a percentage means little: there the count alone guards."""


def let_go(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    """Nobody declares it (any more)."""
    if state.owned is None:
        return _not_ours(state, context, config)
    policy = Policy() if state.spec is None else state.spec.policy
    stays = policy.deletion == "Orphan" or policy.mode == "ObserveOnly"
    if stays and state.generation:
        owned = state.owned
        return OwnershipReleased(owned.external_name, owned.uid, "Orphaned", owned.provider_config)
    return remove(state, context, config)


def _not_ours(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    found = state.observed
    if found is None:
        return Standing("Deleted", "Gone")
    if state.orphaned:
        return Standing("Released", "Orphaned", "the object stays in the API, and is not ours")
    if has_returned(state, found):
        return OwnershipClaimed(found.name, found.uid, "Returned", state.observed_in)
    label = found.labels.get(OWNER_LABEL)
    if label == context.owner:
        if config.ownership == "Label":
            return OwnershipClaimed(found.name, found.uid, "Label", state.observed_in)
        return Standing(
            "Disputed", "LabelSaysOurs", "its label says that it is ours, the log never"
        )
    if label is not None and config.scope.mode == "Exclusive":
        return owned_by_another(label)
    if config.scope.mode == "Exclusive":
        return _stray(state, found, config.deletion_guard)
    told_so = state.outcome is not None and state.outcome.reason == "NotOurs"
    if state.generation and (state.settled_generation != state.generation or told_so):
        return Standing("Deleted", "NotOurs", "an object of that name is not ours: left alone")
    return Standing("Unowned", "NotDeclared", "nobody declared it here: left alone")


def owned_by_another(label: str) -> Standing:
    """Tell that somebody else's label is on the object."""
    return Standing("Disputed", "OwnedByAnother", f"its owner label is {label!r}: it is left alone")


def _stray(state: ShapeState, found: ExternalObject, guard: DeletionGuard) -> Step:
    strays, total = state.strays or 0, state.total or 0
    too_many = strays > guard.max_count
    too_much = total >= _GUARD_PERCENT_FROM and strays * 100 > total * guard.max_percent
    if strays == 0 or too_many or too_much:
        return Standing(
            "Held",
            "DeletionGuard",
            f"{strays} of {total} objects of the exclusive scope are undeclared; the guard lets "
            f"{guard.max_count} or {guard.max_percent} % go at a time",
        )
    return OwnershipClaimed(found.name, found.uid, "ExclusiveScope", state.observed_in)


def remove(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    """Delete what is ours, unless another owner took it."""
    if state.observed is not None and not has_no_other_owner(state.observed, context):
        return owned_by_another(state.observed.labels[OWNER_LABEL])
    if state.failure is not None and state.failure.error_class == "Permanent":
        return hold_deletion(state, context, config.retry, state.failure.message)
    return wait_after_conflicts(state, context, config) or new_action(
        state, context, "Delete", {}, {}, state.observed
    )


def has_no_other_owner(found: ExternalObject, context: Context) -> bool:
    """Tell whether the object carries no label, or ours."""
    return found.labels.get(OWNER_LABEL, context.owner) == context.owner


def has_returned(state: ShapeState, found: ExternalObject) -> bool:
    """Tell whether the object is the one that we held for gone: the listing was wrong, or late.

    Nobody else can have made an object with that uid, so it is ours as it was before.
    """
    return found.uid is not None and found.uid == state.lost_uid
