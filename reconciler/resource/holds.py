"""What keeps a resource, and who lets it go: finalizers, references, approvals, releases."""

from __future__ import annotations

from events.hold import Hold, hold_of
from events.intake import (
    Approved,
    DefinitionReported,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    ReconcileRequested,
    Referenced,
    SecretReported,
    TargetReported,
    Unreferenced,
)
from events.kind_definition import DefinitionRef
from events.log import (
    DefinitionObserved,
    FinalizerAdded,
    FinalizerRemoved,
    HoldApproved,
    ReconcileAccepted,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    SecretObserved,
    TargetObserved,
)
from events.names import InvalidNameError, check_finalizer
from events.subjects import USER_SIGN
from reconciler.resource import approval
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import NOTHING_NEW, Command, Context, Facts, accepted, refused

MAX_FINALIZERS = 32


def request_finalizer(said: FinalizerRequested, command: Command, state: ResourceState) -> Facts:
    """Put a finalizer on a declared resource, held by who asks."""
    try:
        check_finalizer(said.finalizer)
    except InvalidNameError as error:
        return refused(state, command, "Invalid", str(error))
    if not state.desired.is_declared:
        undeclared = "the resource is not declared; a finalizer requires a declared resource"
        return refused(state, command, "NotDeclared", undeclared)
    holder = _holder(said.finalizer, state)
    if holder == command.actor:
        return accepted(state, command, reason="Unchanged")
    if holder is not None:
        return refused(
            state,
            command,
            "HeldByAnother",
            f"finalizer {said.finalizer!r} belongs to {holder}; use another name",
        )
    if len(state.holds.finalizers) >= MAX_FINALIZERS:
        too_many = (
            f"the resource already has {MAX_FINALIZERS} finalizers, the maximum; remove one first"
        )
        return refused(state, command, "TooMany", too_many)
    return accepted(state, command, FinalizerAdded(said.finalizer, command.actor))


def release_finalizer(said: FinalizerReleased, command: Command, state: ResourceState) -> Facts:
    """Take a finalizer off: by its holder, or by force."""
    holder = _holder(said.finalizer, state)
    if holder is None:
        return accepted(state, command, reason="Unchanged")
    if not _may_take_off(holder, command.actor) and not said.force:
        by_force = f"finalizer {said.finalizer!r} belongs to {holder}; use force to remove it"
        return refused(state, command, "HeldByAnother", by_force)
    is_forced = said.force and not _may_take_off(holder, command.actor)
    return accepted(state, command, FinalizerRemoved(said.finalizer, is_forced, said.reason))


def _may_take_off(holder: str, actor: str) -> bool:
    """A service is its finalizers' holder; also of those from before the server vouched for it."""
    return holder in (actor, actor.partition(USER_SIGN)[2])


def _holder(finalizer: str, state: ResourceState) -> str | None:
    return next((each.holder for each in state.holds.finalizers if each.name == finalizer), None)


def force_release(said: ForcedRelease, command: Command, state: ResourceState) -> Facts:
    """Take off all that keeps a withdrawn resource."""
    if not said.reason.strip():
        return refused(
            state, command, "Invalid", "a forced release requires a reason; the log records it"
        )
    if state.desired.is_declared:
        declared = "the resource is still declared; withdraw it before you release it"
        return refused(state, command, "StillDeclared", declared)
    holds = state.holds
    if not (state.owned or state.actions.in_flight or holds.finalizers or holds.references):
        return accepted(state, command, reason="Unchanged")
    finalizers = tuple(each.name for each in holds.finalizers)
    references = tuple(sorted(holds.references))
    forced = ReleaseForced(said.reason, said.orphan, finalizers, references)
    return accepted(state, command, forced)


def request_look(
    said: ReconcileRequested, command: Command, state: ResourceState, context: Context
) -> Facts:
    """Let a resource be looked at now, and wait for nothing."""
    if not (state.desired.is_declared or state.owned or state.actions.in_flight):
        return refused(
            state,
            command,
            "NotDeclared",
            "the resource is not declared and owns no object; there is nothing to reconcile",
        )
    reads = context.kind is not None and context.kind.is_external
    return accepted(state, command, ReconcileAccepted(reads, said.reason))


def approve(said: Approved, command: Command, state: ResourceState) -> Facts:
    """Lift the hold that an approval names, or decide about the plan that waits."""
    if said.hold == Hold.APPROVAL:
        return approval.decide_about(said, command, state)
    outcome = state.outcome
    hold = None if outcome is None else hold_of(outcome.outcome, outcome.reason)
    if outcome is not None and outcome.generation != state.desired.generation:
        hold = None  # something newer is declared, which nobody has looked at
    if hold is None or hold != said.hold or not hold.is_approvable:
        otherwise = f"the resource is not held by {said.hold!r}{_but(state)}"
        return refused(state, command, "NotHeld", otherwise)
    if said.decision == "Abandon" and hold != Hold.UNKNOWN_RESULT:
        return refused(
            state,
            command,
            "Invalid",
            f"decision Abandon: allowed only for hold {Hold.UNKNOWN_RESULT}",
        )
    if said.decision == "Reject":
        return refused(
            state, command, "Invalid", f"decision Reject: allowed only for hold {Hold.APPROVAL}"
        )
    if hold == Hold.TWIN and not state.api.twin.objects:
        of_api = "approve it for the ProviderConfig that the resource's status message names"
        return refused(state, command, "Invalid", f"hold {Hold.TWIN}: {of_api}")
    if state.holds.approved == hold:
        return accepted(state, command, reason="Unchanged")
    return accepted(state, command, HoldApproved(hold, said.decision, said.reason))


def _but(state: ResourceState) -> str:
    """Describe how it stands, for those who thought that it stood otherwise."""
    if state.outcome is None:
        return "; the log has no events for it" if state.version == 0 else ""
    if state.outcome.outcome == "Held":
        return f" but by {state.outcome.reason!r}"
    return f"; its outcome is {state.outcome.outcome}"


def add_reference(said: Referenced, state: ResourceState) -> Facts:
    """Know of a reference, with its newest policy."""
    if state.holds.references.get(said.by) == said.on_withdrawal:
        return NOTHING_NEW
    return Facts((ReferenceAdded(said.by, said.on_withdrawal),))


def remove_reference(said: Unreferenced, state: ResourceState) -> Facts:
    """Forget a reference."""
    if said.by not in state.holds.references:
        return NOTHING_NEW
    return Facts((ReferenceRemoved(said.by),))


def see_target(said: TargetReported, state: ResourceState) -> Facts:
    """Let a resource know how another one stands that it refers to."""
    desired, spec = state.desired, state.desired.spec
    is_meant = spec is not None and any(each.target == said.target for each in spec.references)
    if not desired.is_declared or not is_meant or desired.targets.get(said.target) == said.state:
        return NOTHING_NEW
    if _is_overtaken(said.target, said.known_version, state):
        return NOTHING_NEW
    return Facts((TargetObserved(said.target, said.state),))


def see_secret(said: SecretReported, state: ResourceState) -> Facts:
    """Let a resource know the digest of a secret that it names."""
    desired, spec = state.desired, state.desired.spec
    is_meant = desired.is_declared and spec is not None and said.secret in spec.secrets
    if not is_meant or desired.secrets.get(said.secret) == said.digest:
        return NOTHING_NEW
    if _is_overtaken(said.secret, said.known_version, state):
        return NOTHING_NEW
    return Facts((SecretObserved(said.secret, said.digest),))


def _is_overtaken(name: str, known_version: int, state: ResourceState) -> bool:
    """Return whether a newer report was recorded, which the reporter had not read.

    A report may be delivered again, or be delayed. Its reporter reads on, and reports again.
    """
    return 0 < known_version < state.desired.recorded_by.get(name, 0)


def see_definition(said: DefinitionReported, state: ResourceState) -> Facts:
    """Let a resource know that its kind is defined otherwise by now; never backwards."""
    known = state.desired.definition
    if not state.desired.is_declared or (known is not None and known.generation >= said.generation):
        return NOTHING_NEW
    newer = DefinitionRef(said.generation, said.digest, said.affected, said.total)
    return Facts((DefinitionObserved(newer),))
