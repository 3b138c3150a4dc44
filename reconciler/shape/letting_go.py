"""What nobody declares (any more): removed, released or left alone."""

from __future__ import annotations

from events.external import ExternalObject
from events.log import ActionDecided, OwnershipClaimed, OwnershipReleased
from events.manifest import DeletionGuard, Policy, ProviderConfigSpec
from reconciler.shape.actions import new_action
from reconciler.shape.inputs import Context
from reconciler.shape.observing import DELETION_GUARD
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.ownership import ClaimReason, Verdict, evidence, keepers, verdict
from reconciler.shape.standing import Standing, Step
from reconciler.shape.state import ShapeState
from reconciler.shape.waiting import (
    CONFLICTS_BEFORE_WAITING,
    hold_deletion,
    wait_after_conflicts,
)

_GUARD_PERCENT_FROM = 10
"""In smaller scopes a percentage means little: there the count alone guards."""


def let_go(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    """Nobody declares it (any more)."""
    if state.owned is None:
        return _not_ours(state, context, config)
    kept = keepers(state.references, "Keep")
    if kept and not state.release_forced:
        return Standing("Held", "Referenced", f"kept for {', '.join(kept)}")
    waiting = _waiting_for_finalizers(state)
    if waiting is not None:
        return waiting
    if stays_in_the_api(state):
        owned = state.owned
        return _unlabel(state, context, config) or OwnershipReleased(
            owned.external_name, owned.uid, "Orphaned", owned.provider_config
        )
    return remove(state, context, config)


def stays_in_the_api(state: ShapeState) -> bool:
    """Tell whether the object of a withdrawn shape is let go and not deleted."""
    policy = Policy() if state.spec is None else state.spec.policy
    stays = policy.deletion == "Orphan" or policy.mode == "ObserveOnly"
    asked = state.orphan_forced or keepers(state.references, "Release")
    return bool(state.generation and stays) or bool(asked)


def _unlabel(
    state: ShapeState, context: Context, config: ProviderConfigSpec
) -> ActionDecided | None:
    """Take our label off an object that stays: it would go on saying that the object is ours.

    None where there is nothing to take off, where nothing may be written, and where the API has
    refused: a label must not hold the release for ever.
    """
    found, policy = state.observed, Policy() if state.spec is None else state.spec.policy
    if found is None or found.labels.get(OWNER_LABEL) != context.owner or context.kind is None:
        return None
    if state.orphan_forced or state.taken_by or policy.mode == "ObserveOnly" or policy.paused:
        return None
    if state.conflicts > CONFLICTS_BEFORE_WAITING or _is_refused(state):
        return None
    if verdict(evidence(state, found, context, config), config.ownership).owner == "disputed":
        return None
    labels = {name: value for name, value in found.labels.items() if name != OWNER_LABEL}
    # Everything else stays as it is, drift too: what nobody declares is not corrected.
    fields = context.kind.normalize(found.fields)
    return new_action(state, context, "Update", fields, labels, found)


def _is_refused(state: ShapeState) -> bool:
    return state.failure is not None and state.failure.error_class == "Permanent"


def _orphaned(found: ExternalObject, state: ShapeState, context: Context) -> Standing:
    message = "the object stays in the API, and is not ours"
    if found.labels.get(OWNER_LABEL) == context.owner:
        message += "; it still carries our owner label"
        if state.failure is not None and _is_refused(state):
            message += f", which the API does not let us take off: {state.failure.message}"
    return Standing("Released", "Orphaned", message)


def _waiting_for_finalizers(state: ShapeState) -> Standing | None:
    if not state.finalizers:
        return None
    holders = ", ".join(f"{each.name} (of {each.holder})" for each in state.finalizers)
    return Standing("Held", "Finalizers", f"waits until these are taken off: {holders}")


def _not_ours(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    found = state.observed
    if found is None:
        return Standing("Deleted", "Gone")
    if state.orphaned:
        return _orphaned(found, state, context)
    if state.taken_by:
        return _anothers(state)
    judged = verdict(evidence(state, found, context, config), config.ownership)
    if judged.claim in ("Returned", "Found"):
        return claimed(state, found, judged.claim)
    if judged.claim is not None:
        guarded = _guard(state, config.deletion_guard)
        return guarded or claimed(state, found, judged.claim)
    if judged.owner == "disputed":
        return disputed(judged, found)
    return _never_ours(state) or Standing(
        "Unowned", judged.reason, "nobody declared it here: left alone"
    )


def _never_ours(state: ShapeState) -> Standing | None:
    """Tell of the object that a withdrawn shape has met and never had."""
    told_so = state.outcome is not None and state.outcome.reason == "NotOurs"
    if state.generation and (state.settled_generation != state.generation or told_so):
        return Standing("Deleted", "NotOurs", "an object of that name is not ours: left alone")
    return None


def _anothers(state: ShapeState) -> Standing:
    """Leave to another shape what it has: it knows what shall become of it."""
    return _never_ours(state) or Standing("Unowned", "Taken", f"{state.taken_by} has it")


def claimed(state: ShapeState, found: ExternalObject, reason: ClaimReason) -> OwnershipClaimed:
    """Make an object that is there ours."""
    return OwnershipClaimed(found.name, found.uid, reason, state.observed_in)


def disputed(judged: Verdict, found: ExternalObject) -> Standing:
    """Tell that the witnesses disagree, and that the object is left alone."""
    message = judged.message
    if judged.reason == "OwnedByAnother":
        message = f"its owner label is {found.labels[OWNER_LABEL]!r}: it is left alone"
    return Standing("Disputed", judged.reason, message)


def _guard(state: ShapeState, guard: DeletionGuard) -> Standing | None:
    """Hold the object if too many would go with it, and nobody has approved that."""
    strays, total = state.strays or 0, state.total or 0
    too_many = strays > guard.max_count
    too_much = total >= _GUARD_PERCENT_FROM and strays * 100 > total * guard.max_percent
    if strays > 0 and not too_many and not too_much:
        return None
    what = f"{strays} of {total} objects of the scope are undeclared, and would be deleted"
    if state.approved == DELETION_GUARD:
        # Somebody may have declared it since it was seen: only a later listing shows that.
        if state.observed_position >= state.approved_position:
            return None
        return Standing(
            "Held", DELETION_GUARD, f"{what}: approved, with the next listing this one goes"
        )
    return Standing(
        "Held",
        DELETION_GUARD,
        f"{what}; the guard lets {guard.max_count} or {guard.max_percent} % go at a time: "
        "approve it, or declare it",
    )


def remove(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    """Delete what is ours, unless that is disputed, or a service is not finished with it."""
    if state.taken_by:
        return Standing("Disputed", "OwnedByAnother", f"{state.taken_by} has it too: left alone")
    if state.observed is not None:
        judged = verdict(evidence(state, state.observed, context, config), config.ownership)
        if judged.owner == "disputed":
            return disputed(judged, state.observed)
    waiting = _waiting_for_finalizers(state)
    if waiting is not None:
        return waiting
    if state.failure is not None and _is_refused(state):
        return hold_deletion(state, context, config.retry, state.failure.message)
    return wait_after_conflicts(state, context, config) or new_action(
        state, context, "Delete", {}, {}, state.observed
    )
