"""Events for messages about finalizers, references, approvals, forced releases and inputs."""

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
    OwnershipReleased,
    ReconcileAccepted,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    SecretObserved,
    TargetObserved,
)
from events.names import InvalidNameError, check_finalizer
from events.subjects import USER_SEPARATOR
from reconciler.resource import approval
from reconciler.resource.attempt import OPERATOR_ABANDONED, abandon
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import NOTHING_NEW, Command, CommandResult, Context, accept, refuse

MAX_FINALIZERS = 32


def request_finalizer(
    data: FinalizerRequested, command: Command, state: ResourceState
) -> CommandResult:
    """Add the sender's finalizer to a declared resource, or refuse it."""
    try:
        check_finalizer(data.finalizer)
    except InvalidNameError as error:
        return refuse(state, command, "Invalid", str(error))
    if not state.desired.is_declared:
        message = "the resource is not declared; a finalizer requires a declared resource"
        return refuse(state, command, "NotDeclared", message)
    holder = _holder(data.finalizer, state)
    if holder == command.actor:
        return accept(state, command, reason="Unchanged")
    if holder is not None:
        return refuse(
            state,
            command,
            "HeldByAnother",
            f"finalizer {data.finalizer!r} belongs to {holder}; use another name",
        )
    if len(state.holds.finalizers) >= MAX_FINALIZERS:
        message = (
            f"the resource already has {MAX_FINALIZERS} finalizers, the maximum; remove one first"
        )
        return refuse(state, command, "TooMany", message)
    return accept(state, command, FinalizerAdded(data.finalizer, command.actor))


def release_finalizer(
    data: FinalizerReleased, command: Command, state: ResourceState
) -> CommandResult:
    """Remove a finalizer for its holder or by force, or refuse the message."""
    holder = _holder(data.finalizer, state)
    if holder is None:
        return accept(state, command, reason="Unchanged")
    if not _may_remove(holder, command.actor) and not data.force:
        message = f"finalizer {data.finalizer!r} belongs to {holder}; use force to remove it"
        return refuse(state, command, "HeldByAnother", message)
    is_forced = data.force and not _may_remove(holder, command.actor)
    return accept(state, command, FinalizerRemoved(data.finalizer, is_forced, data.reason))


def _may_remove(holder: str, actor: str) -> bool:
    """Return whether the actor may remove a finalizer of this holder.

    A finalizer that was added before actors were verified (ADR 0042) has a holder without the user
    prefix.
    """
    return holder in (actor, actor.partition(USER_SEPARATOR)[2])


def _holder(finalizer: str, state: ResourceState) -> str | None:
    return next((each.holder for each in state.holds.finalizers if each.name == finalizer), None)


def force_release(
    data: ForcedRelease, command: Command, state: ResourceState, context: Context
) -> CommandResult:
    """Remove all finalizers and references of a withdrawn resource, or refuse the message.

    A ProviderConfig ends immediately, even if resources use it.
    If nothing can read the object's API anymore, a release as an orphan also forgets the object,
    and any that a call may have created. Otherwise, the resource would remain until the API is
    configured again.
    """
    if not data.reason.strip():
        return refuse(
            state, command, "Invalid", "a forced release requires a reason; the log records it"
        )
    if state.desired.is_declared:
        message = "the resource is still declared; withdraw it before you release it"
        return refuse(state, command, "StillDeclared", message)
    holds, flight = state.holds, state.actions.in_flight
    forgotten = data.orphan and _is_unreadable(state, context) and _has_traces(state)
    is_held = state.owned or flight or holds.finalizers or holds.references
    if not (is_held or forgotten or holds.users is not None):
        return accept(state, command, reason="Unchanged")
    finalizers = tuple(each.name for each in holds.finalizers)
    references = tuple(sorted(holds.references))
    owned = (state.retiring, state.owned) if forgotten else ()
    released = (
        OwnershipReleased(each.external_name, each.uid, "Forgotten", each.provider_config)
        for each in owned
        if each is not None
    )
    forced = ReleaseForced(data.reason, data.orphan, finalizers, references, forgotten)
    # First, because the abandoned call may still create an object, which is then forgotten, too.
    ended = (abandon(flight, OPERATOR_ABANDONED, context),) if forgotten and flight else ()
    return accept(state, command, *ended, forced, *released)


def _is_unreadable(state: ResourceState, context: Context) -> bool:
    """Return whether nothing can read the API of the resource's object."""
    if context.kind is None:
        return True
    return context.kind.is_external and state.provider_config not in context.configs


def _has_traces(state: ResourceState) -> bool:
    """Return whether the resource may have an object, unless it was already forgotten.

    An earlier event may be the only trace: a creation in doubt, or the release of an object that
    a listing has omitted since.
    """
    is_known = state.owned is not None or state.observed.object is not None
    is_forgotten = state.version == 0 or state.holds.forgotten
    return is_known or state.actions.uncertain_create or not is_forgotten


def request_reconcile(
    data: ReconcileRequested, command: Command, state: ResourceState, context: Context
) -> CommandResult:
    """Accept a request for an immediate read and decision, or refuse it."""
    if not (state.desired.is_declared or state.owned or state.actions.in_flight):
        return refuse(
            state,
            command,
            "NotDeclared",
            "the resource is not declared and owns no object; there is nothing to reconcile",
        )
    has_object = context.kind is not None and context.kind.is_external
    requested_at = command.stored_at if has_object else None
    accepted = ReconcileAccepted(has_object, data.reason, requested_at)
    return accept(state, command, accepted)


def approve(data: Approved, command: Command, state: ResourceState) -> CommandResult:
    """Approve the named hold, approve or reject the waiting plan, or refuse the message."""
    if data.hold == Hold.APPROVAL:
        return approval.apply_decision(data, command, state)
    outcome = state.outcome
    hold = None if outcome is None else hold_of(outcome.outcome, outcome.reason)
    if outcome is not None and outcome.generation != state.desired.generation:
        hold = None  # the approval is for an outcome of an older generation
    if hold is None or hold != data.hold or not hold.is_approvable:
        message = f"the resource is not held by {data.hold!r}{_describe_current_state(state)}"
        return refuse(state, command, "NotHeld", message)
    if data.generation not in (0, state.desired.generation):
        message = (
            f"the resource was declared again: generation {data.generation} is approved, but "
            f"generation {state.desired.generation} is held; read its message, and approve it"
        )
        return refuse(state, command, "Outdated", message)
    if data.decision == "Abandon" and hold != Hold.UNKNOWN_RESULT:
        return refuse(
            state,
            command,
            "Invalid",
            f"decision Abandon: allowed only for the {Hold.UNKNOWN_RESULT} hold",
        )
    if data.decision == "Reject":
        return refuse(
            state, command, "Invalid", f"decision Reject: allowed only for the {Hold.APPROVAL} hold"
        )
    if hold == Hold.TWIN and not state.api.twin.objects:
        return _refuse_for_resource(hold, command, state)
    if hold == Hold.EXCLUSIVE_SCOPE and state.api.undeclared is None:
        return _refuse_for_resource(hold, command, state)
    message = "" if outcome is None else outcome.message
    is_loss_approved = hold == Hold.DATA_LOSS and state.holds.approved_loss == message
    if state.holds.approved == hold or is_loss_approved:
        return accept(state, command, reason="Unchanged")
    approved = HoldApproved(hold, data.decision, data.reason, approved_at=command.stored_at)
    return accept(state, command, approved)


def _refuse_for_resource(hold: Hold, command: Command, state: ResourceState) -> CommandResult:
    """Refuse the approval of a hold that must be approved for the ProviderConfig."""
    remedy = "approve it for the ProviderConfig that the resource's status message names"
    return refuse(state, command, "Invalid", f"{hold} hold: {remedy}")


def _describe_current_state(state: ResourceState) -> str:
    """Describe the current outcome, for the refusal of an approval."""
    if state.outcome is None:
        return "; the log has no events for it" if state.version == 0 else ""
    if state.outcome.outcome == "Held":
        return f" but by {state.outcome.reason!r}"
    return f"; its outcome is {state.outcome.outcome}"


def add_reference(data: Referenced, state: ResourceState) -> CommandResult:
    """Record a reference to this resource, if it or its policy is new."""
    if state.holds.references.get(data.by) == data.on_withdrawal:
        return NOTHING_NEW
    return CommandResult((ReferenceAdded(data.by, data.on_withdrawal),))


def remove_reference(data: Unreferenced, state: ResourceState) -> CommandResult:
    """Record that a reference to this resource ended, if it is known."""
    if data.by not in state.holds.references:
        return NOTHING_NEW
    return CommandResult((ReferenceRemoved(data.by),))


def record_target(data: TargetReported, state: ResourceState) -> CommandResult:
    """Record the state of a referenced resource, if it is new."""
    desired, spec = state.desired, state.desired.spec
    is_referenced = spec is not None and any(each.target == data.target for each in spec.references)
    if (
        not desired.is_declared
        or not is_referenced
        or desired.targets.get(data.target) == data.state
    ):
        return NOTHING_NEW
    if _is_outdated(data.target, data.known_version, state):
        return NOTHING_NEW
    return CommandResult((TargetObserved(data.target, data.state),))


def record_secret(data: SecretReported, state: ResourceState) -> CommandResult:
    """Record the digest of a secret that the spec names, if it is new."""
    desired, spec = state.desired, state.desired.spec
    is_referenced = desired.is_declared and spec is not None and data.secret in spec.secrets
    if not is_referenced or desired.secrets.get(data.secret) == data.digest:
        return NOTHING_NEW
    if _is_outdated(data.secret, data.known_version, state):
        return NOTHING_NEW
    return CommandResult((SecretObserved(data.secret, data.digest),))


def _is_outdated(name: str, known_version: int, state: ResourceState) -> bool:
    """Return whether the log has a newer report than the reporter had read.

    Reports may be redelivered or delayed. The reporter keeps reading, and reports again if needed.
    """
    return 0 < known_version < state.desired.recorded_by.get(name, 0)


def record_definition(data: DefinitionReported, state: ResourceState) -> CommandResult:
    """Record that the definition of the kind has changed. Older definitions are ignored."""
    known = state.desired.definition
    if not state.desired.is_declared or (known is not None and known.generation >= data.generation):
        return NOTHING_NEW
    newer = DefinitionRef(data.generation, data.digest, data.affected, data.total)
    return CommandResult((DefinitionObserved(newer),))
