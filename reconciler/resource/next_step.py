"""What follows from the state: the next event to record, or how the resource stands.

Level-triggered: nothing here knows which message woke the resource (invariant 4). `decide` folds
the step and asks again, until there is none.
"""

from __future__ import annotations

from msgspec.structs import replace

from events.excerpt import some
from events.external import ExternalObject
from events.hold import Hold
from events.intake import LossCount
from events.log import (
    ActionDecided,
    FieldDifference,
    OwnershipClaimed,
    OwnershipReleased,
)
from events.manifest import Policy
from events.names import ResourceKey
from events.provider_config import DeletionGuard, ProviderConfigSpec, is_config
from reconciler.provider.kind import Kind, Readiness
from reconciler.resource.api_health import standing_of_api
from reconciler.resource.approval import approval_command
from reconciler.resource.attempt import (
    MAX_CONFLICTS,
    delete_refused,
    has_waited,
    is_paused,
    is_refused,
    new_action,
    pursue,
    settle_rejected,
    wait_after_conflicts,
)
from reconciler.resource.difference import (
    LABELS,
    api_keeps_its_own,
    labels_of,
    merged,
    needs_replacement,
    open_differences,
    shown,
    wanted,
)
from reconciler.resource.due import when_due
from reconciler.resource.evolve import is_made_by
from reconciler.resource.fights import wait_in_fight, waiting_in_fight
from reconciler.resource.inputs import compose, reliance, resolve
from reconciler.resource.observation import (
    AWAITING_READ,
    LOOKING,
    awaits_first_look,
    labelled,
    namespace_that_has,
    raised_grace,
    release_of_replaced,
)
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.ownership import (
    ClaimReason,
    Evidence,
    Verdict,
    evidence,
    keepers,
    restoration,
    verdict,
)
from reconciler.resource.permission import host_access_not_permitted, use_not_permitted
from reconciler.resource.progress import with_progress
from reconciler.resource.replacement import (
    held_for_its_data,
    held_for_its_definition,
    held_for_its_parts,
    replacement,
    retirement,
)
from reconciler.resource.state import ResourceState, Spec
from reconciler.resource.turn import NEVER_THERE, PAUSED, Context, Settled, Step, on_hold

_FIRST_LOOK = Settled(
    "Waiting", LOOKING, "waits for the first complete listing that begins after the declaration"
)


def next_step(  # noqa: C901, PLR0911, PLR0912 - the ladder: one guard a step
    state: ResourceState, context: Context
) -> Step:
    """Return the next event to record, or how the resource stands if there is nothing to do."""
    kind, desired = context.kind, state.desired
    if kind is not None and not kind.is_external:
        return _in_the_log_alone(state, context)
    config = context.configs.get(state.provider_config)
    if state.actions.in_flight is not None:
        flight = state.actions.in_flight
        blocked = _wrong_provider_meanwhile(flight.action.provider_config, state, context)
        forbidden = None if blocked else _forbidden_meanwhile(state, context, config)
        return pursue(flight, state, context, config, blocked, forbidden)
    if not desired.is_declared and state.observed.object is None and state.owned is None:
        return _nothing_left(state)  # whether its API is known does not matter any more
    if kind is None:
        return on_hold(
            Hold.UNKNOWN_KIND,
            (
                f"kind {context.key.kind!r} is not registered; install its package, or declare its "
                "KindDefinition"
            ),
        )
    if config is None:
        missing = f"ProviderConfig {state.provider_config!r} is not declared; declare it"
        return on_hold(Hold.PROVIDER_CONFIG_MISSING, missing)
    if config.provider != kind.provider:
        return _wrong_provider(state.provider_config, config, kind, state)
    # The second comes with the look that shows it, unless a crash has left half of that turn.
    known = _known_again(state, context) or release_of_replaced(state)
    if known is not None:
        return known
    if is_paused(state):
        return _found(state, context, config) or PAUSED
    if state.observed.doubted is not None and state.owned is not None:
        return _doubted(state.observed.doubted, state, context)
    is_waiting = state.waits.until is not None and not has_waited(state, context)
    if is_waiting and state.waits.is_fight:
        fight = waiting_in_fight(state, context)
        if fight is not None:
            return fight
    elif is_waiting:
        failure = state.waits.failure
        if failure is None and state.due is not None and state.due.is_written:
            late = (
                "the object was written again, but is still due for renewal (since "
                f"{state.due.due:%Y-%m-%dT%H:%M:%SZ})"
            )
            return Settled("Degraded", "StillDue", late)
        reason, why = ("Waiting", "") if failure is None else (failure.error_class, failure.message)
        return Settled("Degraded", reason, why)
    if not desired.is_declared:
        return _let_go(state, context, config)
    assert desired.spec is not None
    if desired.spec.policy.mode == "Absent" and state.owned is not None:
        return _keep_away(state, context, config)
    forbidden = use_not_permitted(state.provider_config, context, config)
    if forbidden is not None:
        return forbidden
    if desired.spec.policy.mode == "Absent":
        return _keep_away(state, context, config)
    if kind.composes is not None:
        forbidden = host_access_not_permitted(state, context, config)
        if forbidden is not None:
            return forbidden
        composed = compose(desired.spec, state, context)
        if composed is not None:
            return composed
    elif desired.spec.references or desired.spec.secrets or kind.definition is not None:
        unresolved = resolve(desired.spec, state, context)
        if unresolved is not None:
            return unresolved
    forbidden = host_access_not_permitted(state, context, config)
    return forbidden or _keep_present(desired.spec, state, context, config)


# --- before anything is done


def _in_the_log_alone(state: ResourceState, context: Context) -> Step:
    """Resources without an object, such as a ProviderConfig, are what they are declared."""
    if not state.desired.is_declared:
        return Settled("Deleted", "Withdrawn") if state.desired.generation else NEVER_THERE
    if state.desired.spec is not None and state.desired.spec.references:
        return reliance(state.desired.spec, state, context.key)
    return (
        _unknown_provider(state, context)
        or standing_of_api(state.api)
        or Settled("Converged", "Declared")
    )


def _unknown_provider(state: ResourceState, context: Context) -> Settled | None:
    """Report a configuration whose provider was known when it was declared, and is no more."""
    spec = state.desired.spec
    if not is_config(context.key) or context.providers is None or spec is None:
        return None
    provider = spec.fields.get("provider")
    if provider in context.providers:
        return None
    return on_hold(
        Hold.UNKNOWN_PROVIDER,
        f"no kind of provider {provider!r} is installed where the roles run; install its package",
    )


def _nothing_left(state: ResourceState) -> Settled:
    """Nobody declares it, and nothing is there: say so once, if anything was ever said."""
    last, taken_by = state.outcome, state.observed.taken_by
    if state.desired.spec is not None:
        return Settled("Deleted", "Gone")
    if last is None:
        had_effect = state.actions.effect_at is not None
        return Settled("Deleted", "Gone") if had_effect else NEVER_THERE
    if last.outcome == "Deleted":
        return Settled("Deleted", last.reason, last.message)
    if taken_by:
        return Settled("Deleted", "Gone", f"{taken_by} owned the object")
    return Settled("Deleted", "GoneByOthers")


def _wrong_provider_meanwhile(name: str, state: ResourceState, context: Context) -> Settled | None:
    """Hold an action whose configuration became one of another provider after it was decided."""
    kind, config = context.kind, context.configs.get(name)
    if kind is None or config is None or config.provider == kind.provider:
        return None
    return _wrong_provider(name, config, kind, state)


def _forbidden_meanwhile(
    state: ResourceState, context: Context, config: ProviderConfigSpec | None
) -> Settled | None:
    """Hold the repetition of a write whose permission has ended; deletions need none."""
    flight = state.actions.in_flight
    if config is None or flight is None or flight.action.operation == "Delete":
        return None
    if not state.desired.is_declared:
        return None
    return use_not_permitted(
        flight.action.provider_config, context, config
    ) or host_access_not_permitted(state, context, config)


def _wrong_provider(
    name: str, config: ProviderConfigSpec, kind: Kind, state: ResourceState
) -> Settled:
    """Hold what no worker can call in the API that its configuration names: no retry mends that."""
    remedy = f"declare {name!r} with provider {kind.provider!r}"
    if state.owned is not None or state.actions.in_flight is not None:
        remedy += "; existing objects stay unchanged until then"
    elif state.desired.is_declared:
        remedy = f"set spec.providerConfigRef.name to a ProviderConfig with {kind.provider!r}"
    return on_hold(
        Hold.WRONG_PROVIDER,
        f"ProviderConfig {name!r} has provider {config.provider!r}, but {kind.name} requires "
        f"{kind.provider!r}; {remedy}",
    )


def _known_again(state: ResourceState, context: Context) -> OwnershipClaimed | None:
    """Claim an object that the log knows: this is no action, so it is recorded under any policy.

    Either a listing missed an object of ours, or a call of ours created one that no event owns.
    """
    seen = state.observed
    found = seen.object
    if state.owned is not None or found is None or found.uid is None or seen.taken_by:
        return None
    if found.uid == seen.lost_uid:
        return _claimed(found, "Returned", state, context)
    if seen.was_let_go:
        return None  # a creation that is known later changes nothing of its release
    is_made_by_us = any(is_made_by(each, found) for each in state.actions.ended)
    return _claimed(found, "Found", state, context) if is_made_by_us else None


def _doubted(losses: LossCount, state: ResourceState, context: Context) -> Settled:
    """Too many of our objects are missing at once: nothing is done before people are asked."""
    config = state.provider_config
    what = f"{losses.missing} of {losses.owned} owned objects in {config!r} are missing"
    if state.holds.approved == Hold.LOSS_GUARD:
        return on_hold(
            Hold.LOSS_GUARD,
            f"{what}; the loss is approved and takes effect with the next listing",
        )
    restored = restoration(context)
    hint = f"; {restored}: repeat the withdrawals made after it" if restored else ""
    return on_hold(
        Hold.LOSS_GUARD,
        f"{what} from one listing{hint}; check that the ProviderConfig points to the right API, or "
        "approve the loss to recreate them",
    )


# --- declared: kept present, or kept away


def _keep_present(
    spec: Spec, state: ResourceState, context: Context, config: ProviderConfigSpec
) -> Step:
    seen, mode = state.observed.object, spec.policy.mode
    if seen is None and state.owned is not None:
        return Settled("Degraded", AWAITING_READ, "waiting for the next read of the owned object")
    if seen is None:
        return _make(spec, state, context, config)
    unclear = _whose(spec.policy, seen, state, context, config)
    if unclear is not None:
        return unclear
    found = open_differences(state, context)
    if not found:
        return _as_declared(seen, state, context, config)
    if mode != "Present":
        return Settled(
            "Drifted", mode, f"drift not corrected (spec.policy.mode {mode}): {_described(found)}"
        )
    rejected = settle_rejected(state)
    if rejected is not None:
        return rejected
    if api_keeps_its_own(state, context):
        keeps = "the API accepted the write but keeps " + _described(found)
        return Settled("Degraded", "NotAccepted", keeps)
    waiting = wait_after_conflicts(state, context, config) or wait_in_fight(state, context, config)
    if waiting is not None:
        return waiting
    assert context.kind is not None
    if needs_replacement(found, context.kind):
        return held_for_its_definition(state, config) or replacement(spec, seen, state, context)
    fields, labels = merged(wanted(state, context), seen, context.kind.normalize)
    held = held_for_its_data(fields, state, context) or held_for_its_parts(state, context, config)
    return held or new_action(state, context, "Update", fields, labels)


def _make(spec: Spec, state: ResourceState, context: Context, config: ProviderConfigSpec) -> Step:
    mode = spec.policy.mode
    if mode == "ObserveOnly":
        return (
            _FIRST_LOOK
            if awaits_first_look(state)
            else Settled(
                "Drifted",
                mode,
                "the object does not exist; not created (spec.policy.mode ObserveOnly)",
            )
        )
    if mode == "CreateOnly" and state.actions.has_created:
        return Settled(
            "Drifted", mode, "the object is missing; not recreated (spec.policy.mode CreateOnly)"
        )
    rejected = settle_rejected(state)
    if rejected is not None:
        return rejected
    labels = labels_of(state, context)
    waiting = wait_after_conflicts(state, context, config) or wait_in_fight(state, context, config)
    return waiting or new_action(
        state, context, "Create", state.desired.fields, labels, external_name=spec.external_name
    )


def _as_declared(
    seen: ExternalObject, state: ResourceState, context: Context, config: ProviderConfigSpec
) -> Step:
    """Nothing differs; a label that shall not be put back may still be missing."""
    is_expected = OWNER_LABEL in labels_of(state, context)
    spec, kind = state.desired.spec, context.kind
    assert spec is not None
    assert kind is not None
    ready = kind.ready(state.desired.fields, seen)
    if kind.progress is not None:
        noted = with_progress(ready, seen, state, context)
        if not isinstance(noted, Readiness):
            return noted
        ready = noted
    is_fixed = LABELS in kind.immutable  # one that was adopted cannot get it
    if state.owned is not None and is_expected and not is_fixed and OWNER_LABEL not in seen.labels:
        stripped = "the log records ownership of the object, but the object lost its owner label"
        return Settled("Disputed", "LabelMissing", stripped, ready=ready)
    if state.retiring is not None and ready.is_ready and spec.policy.mode == "Present":
        return retirement(state, context, config)
    converged = Settled("Converged", "AsDeclared", ready=ready)
    return when_due(seen, state, context, config, converged) if kind.due else converged


def _whose(
    policy: Policy,
    seen: ExternalObject,
    state: ResourceState,
    context: Context,
    config: ProviderConfigSpec,
) -> Step | None:
    """Return what comes first where the log does not own the object, or another contradicts it."""
    if state.owned is None and policy.mode != "ObserveOnly":
        return _take_over(policy, seen, state, context, config)
    if state.owned is None:
        # What the object contains is the business of the namespace that has it.
        if namespace_that_has(state, context):
            return _taken(state, context)
        return _found(state, context, config)
    judged = verdict(evidence(seen, state, context, config), config.ownership)
    # Writing our label over another's would be a fight, if its owner does the same.
    return _disputed(judged, seen, context) if judged.owner == "disputed" else None


def _found(
    state: ResourceState, context: Context, config: ProviderConfigSpec
) -> OwnershipClaimed | Settled | None:
    """Claim what a creation of ours has made, or ask whether one has: neither is an action."""
    found = state.observed.object
    if state.owned is not None or found is None or state.observed.taken_by:
        return None
    said = evidence(found, state, context, config)
    if verdict(said, config.ownership).claim == "Found":
        return _claimed(found, "Found", state, context)
    return _held_in_doubt(found, said, state, context)


def _taken(state: ResourceState, context: Context) -> Settled:
    """Leave an object to the resource that has it, without a name from another namespace."""
    whose = _without_namespace(state.observed.taken_by, state, context)
    return Settled(
        "Conflict",
        "OwnedByAnother",
        f"the object belongs to {whose}; use another external name",
    )


def _without_namespace(resource: str, state: ResourceState, context: Context) -> str:
    """Name the resource that has the object, unless it is in another namespace."""
    is_elsewhere = namespace_that_has(state, context)
    return "a resource in another namespace" if is_elsewhere else resource


def _take_over(
    policy: Policy,
    seen: ExternalObject,
    state: ResourceState,
    context: Context,
    config: ProviderConfigSpec,
) -> Step:
    """An object of that name is there, and the log does not say that it is ours."""
    if state.observed.taken_by:
        return _taken(state, context)
    said = replace(evidence(seen, state, context, config), referenced=False)
    judged = verdict(said, config.ownership)
    is_old = state.observed.position < state.desired.position
    may_be_ours = judged.claim is not None or policy.adoption == "Adopt"
    if may_be_ours and is_old and not context.capabilities.conditional_writes:
        # Others may have written to it since, and nothing would keep us from undoing that.
        return Settled(
            "Degraded", AWAITING_READ, "Reconciler adopts the object after the next read"
        )
    if judged.claim is not None:
        return _claimed(seen, judged.claim, state, context)
    if policy.adoption != "Adopt":
        held = _held_in_doubt(seen, said, state, context)
        if held is not None:
            return held
        whose = (
            "was released earlier" if state.observed.was_let_go else "is not owned by this resource"
        )
        if restored := _created_after_backup(seen, context):
            whose = (
                "has the owner label of this resource, but the log never recorded ownership; "
                f"{restored}"
            )
        return Settled(
            "Conflict",
            "AlreadyExists",
            f"{seen.name!r} exists and {whose}; set spec.policy.adoption: Adopt to take ownership, "
            "or use another name",
        )
    if said.label == "another's":
        label = f"the owner label of the object is {seen.labels[OWNER_LABEL]!r}"
        return Settled("Conflict", "OwnedByAnother", label)
    return OwnershipClaimed(seen.name, seen.uid, "Adopted", state.observed.provider_config)


def _keep_away(state: ResourceState, context: Context, config: ProviderConfigSpec) -> Step:
    """It is declared absent."""
    spec, seen = state.desired.spec, state.observed.object
    assert spec is not None
    if state.owned is not None:
        return _remove(state, context, config)
    if seen is not None:
        return _take_over(spec.policy, seen, state, context, config)
    return _FIRST_LOOK if awaits_first_look(state) else Settled("Converged", "Absent")


def _described(found: tuple[FieldDifference, ...]) -> str:
    return some(
        [f"{each.path}: {shown(each.observed)} (declared {shown(each.desired)})" for each in found]
    )


# --- not declared (any more): removed, released or left alone


def _let_go(state: ResourceState, context: Context, config: ProviderConfigSpec) -> Step:
    owned, holds = state.owned, state.holds
    if owned is None:
        return _not_ours(state, context, config)
    kept_for = keepers(holds.references, "Keep")
    if kept_for and not holds.release_forced:
        return on_hold(
            Hold.REFERENCED,
            f"kept because it is referenced by {some(kept_for)}",
        )
    waiting = _waiting_for_finalizers(state)
    if waiting is not None:
        return waiting
    if state.retiring is not None:
        before = state.retiring
        if not (holds.orphan_forced or _policy(state).mode == "ObserveOnly"):
            return retirement(state, context, config)  # that it goes was decided before
        return OwnershipReleased(
            before.external_name, before.uid, "Orphaned", before.provider_config
        )
    if stays_in_the_api(state):
        return _unlabel(state, context, config) or OwnershipReleased(
            owned.external_name, owned.uid, "Orphaned", owned.provider_config
        )
    return _remove(state, context, config)


def stays_in_the_api(state: ResourceState) -> bool:
    """Return whether the object of a withdrawn resource is let go and not deleted."""
    policy = _policy(state)
    stays = policy.deletion == "Orphan" or policy.mode == "ObserveOnly"
    asked = state.holds.orphan_forced or keepers(state.holds.references, "Release")
    return bool(state.desired.generation and stays) or bool(asked)


def _policy(state: ResourceState) -> Policy:
    return Policy() if state.desired.spec is None else state.desired.spec.policy


def _unlabel(
    state: ResourceState, context: Context, config: ProviderConfigSpec
) -> ActionDecided | None:
    """Take our label off an object that stays: it would go on saying that the object is ours.

    None where there is nothing to take off, where nothing may be written, and where the API cannot
    or has refused: a label must not hold the release for ever.
    """
    found, policy = state.observed.object, _policy(state)
    if found is None or found.labels.get(OWNER_LABEL) != context.owner or context.kind is None:
        return None
    if LABELS in context.kind.immutable:
        return None
    is_ours_to_write = not (state.holds.orphan_forced or state.observed.taken_by)
    if not is_ours_to_write or policy.mode == "ObserveOnly" or policy.paused:
        return None
    if state.waits.conflicts > MAX_CONFLICTS or is_refused(state):
        return None
    if verdict(evidence(found, state, context, config), config.ownership).owner == "disputed":
        return None
    labels = {name: value for name, value in found.labels.items() if name != OWNER_LABEL}
    # Everything else stays as it is, drift too: what nobody declares is not corrected.
    return new_action(state, context, "Update", context.kind.normalize(found.fields), labels)


def _waiting_for_finalizers(state: ResourceState) -> Settled | None:
    if not state.holds.finalizers:
        return None
    holders = some([f"{each.name} (set by {each.holder})" for each in state.holds.finalizers])
    return on_hold(Hold.FINALIZERS, f"waits for the removal of these finalizers: {holders}")


def _not_ours(state: ResourceState, context: Context, config: ProviderConfigSpec) -> Step:
    seen = state.observed
    found = seen.object
    if found is None:
        return Settled("Deleted", "Gone")
    if seen.was_let_go:
        return _orphaned(found, state, context)
    if seen.taken_by:  # that one knows what shall become of it
        whose = _without_namespace(seen.taken_by, state, context)
        return _never_ours(state) or Settled("Unowned", "Taken", f"the object belongs to {whose}")
    said = evidence(found, state, context, config)
    judged = verdict(said, config.ownership)
    if judged.claim in ("Returned", "Found"):
        return _claimed(found, judged.claim, state, context)
    if judged.claim is not None:
        guarded = _guarded(config.deletion_guard, state, context)
        return (
            guarded or _until_listed_again(state) or _claimed(found, judged.claim, state, context)
        )
    if judged.owner == "disputed":
        return _disputed(judged, found, context)
    reason, why = judged.reason, f"no {context.key.kind} declares the object"
    # Two kinds may list one API, as a kind that is defined over another one does.
    if named := labelled(found, context):
        whose = _without_namespace(named, state, context)
        reason, why = "OwnedByAnother", f"the owner label of the object names {whose}"
        is_by_id = not context.capabilities.deterministic_names
        if is_by_id and ResourceKey.parse(named).kind == context.key.kind:
            # No name shows that it is a copy: that resource may have created it, and lost it.
            why += ", which does not own it"
            return Settled("Disputed", reason, f"{why}; Reconciler leaves it unchanged")
    left_alone = Settled("Unowned", reason, f"{why}; Reconciler leaves it unchanged")
    return _held_in_doubt(found, said, state, context) or _never_ours(state) or left_alone


def _orphaned(found: ExternalObject, state: ResourceState, context: Context) -> Settled:
    message = "the object stays in the API, and Reconciler no longer manages it"
    if found.labels.get(OWNER_LABEL) == context.owner:
        message += "; it still has its owner label"
        if state.waits.failure is not None and is_refused(state):
            message += f", because the API rejected its removal: {state.waits.failure.message}"
    return Settled("Released", "Orphaned", message)


def _never_ours(state: ResourceState) -> Settled | None:
    """Report the object that a withdrawn resource has met and never had."""
    desired = state.desired
    was_said = state.outcome is not None and state.outcome.reason == "NotOurs"
    if desired.generation and (desired.settled_generation != desired.generation or was_said):
        return Settled(
            "Deleted",
            "NotOurs",
            (
                "the object with that name is not owned by this resource; Reconciler leaves it "
                "unchanged"
            ),
        )
    return None


def _until_listed_again(state: ResourceState) -> Settled | None:
    """Wait for a listing that shows whether another resource has the undeclared object.

    The listing that showed it may have waited in the intake, while newer ones gave the object to
    another resource. From this outcome on, listings give it to no other one (`roles/listing.py`).
    """
    last = state.outcome
    if (
        last is not None
        and (last.reason, last.generation) == (AWAITING_READ, state.desired.generation)
        and state.observed.known_version >= state.outcome_version
    ):
        return None
    return Settled(
        "Degraded",
        AWAITING_READ,
        "no manifest declares the object; Reconciler deletes it after the next listing, unless "
        "another resource owns it by then",
    )


def _guarded(guard: DeletionGuard, state: ResourceState, context: Context) -> Settled | None:
    """Hold the object if too many would go with it, and nobody has approved that."""
    strays, total = state.observed.strays or 0, state.observed.total or 0
    if strays > 0 and guard.allows(strays, total):
        return None
    what = f"{strays} of {total} objects in the scope are undeclared and would be deleted"
    if state.holds.approved == Hold.DELETION_GUARD:
        # Somebody may have declared it since it was seen: only a later listing shows that.
        if state.observed.position >= state.holds.approved_position:
            return None
        later = f"{what}; the deletion is approved and happens after the next listing"
        return on_hold(Hold.DELETION_GUARD, later)
    restored = restoration(context)
    hint = f"; {restored}: repeat the declarations made after it" if restored else ""
    return on_hold(
        Hold.DELETION_GUARD,
        f"{what}, more than deletionGuard allows ({guard.max_count} objects, "
        f"{guard.max_percent}%){hint}; approve the deletion, or declare the object",
    )


# --- whichever it is


def _claimed(
    found: ExternalObject, reason: ClaimReason, state: ResourceState, context: Context
) -> OwnershipClaimed:
    """Make an object that is there ours; its return may prove that the API shows it late."""
    grace = raised_grace(state, context) if reason == "Returned" else 0.0
    place = state.observed.provider_config
    return OwnershipClaimed(found.name, found.uid, reason, place, grace_seconds=grace)


def _held_in_doubt(
    found: ExternalObject, said: Evidence, state: ResourceState, context: Context
) -> Settled | None:
    """Hold an object without a mark that a creation in doubt may have created (ADR 0012)."""
    capabilities = context.capabilities
    if capabilities.idempotency_keys or not capabilities.deterministic_names:
        return None
    is_in_doubt = any(
        each.action.operation == "Create" and each.in_doubt and found.uid not in each.made
        for each in state.actions.ended
    )
    if said.label != "nothing" or not said.uncertain or not is_in_doubt:
        return None
    remedy = "declare the resource with spec.policy.adoption: Adopt"
    if capabilities.labels:
        remedy = f"give it the label {OWNER_LABEL}={context.owner}"
    return on_hold(
        Hold.UNKNOWN_RESULT,
        f"{found.name!r} (uid {found.uid}) may have been created by this resource (a call with an "
        f"unknown result) or by another client. If this resource created it, {remedy}. If not, "
        "approve: "
        f"{approval_command(context.key)}",
    )


def _disputed(judged: Verdict, found: ExternalObject, context: Context) -> Settled:
    """Report that the witnesses disagree, and that the object is left alone."""
    message = judged.message
    if judged.reason == "OwnedByAnother":
        message = (
            f"the owner label of the object is {found.labels[OWNER_LABEL]!r}; Reconciler leaves it "
            "unchanged"
        )
    elif restored := _created_after_backup(found, context):
        message += (
            f"; {restored}. To manage it, declare it with spec.policy.adoption: Adopt; to release "
            f"it, remove its label {OWNER_LABEL}; or delete it in the API"
        )
    return Settled("Disputed", judged.reason, message)


def _created_after_backup(found: ExternalObject, context: Context) -> str:
    """Explain by a restoration why the log lacks an object with our label; empty if it cannot."""
    restored = restoration(context)
    if not restored or found.labels.get(OWNER_LABEL) != context.owner:
        return ""
    return f"{restored}, and the object may have been created after it"


def _remove(state: ResourceState, context: Context, config: ProviderConfigSpec) -> Step:
    """Delete what is ours, unless that is disputed, or a service is not finished with it."""
    seen = state.observed
    if seen.taken_by:
        taken = f"the object also belongs to {seen.taken_by}; Reconciler leaves it unchanged"
        return Settled("Disputed", "OwnedByAnother", taken)
    if seen.object is not None:
        judged = verdict(evidence(seen.object, state, context, config), config.ownership)
        if judged.owner == "disputed":
            return _disputed(judged, seen.object, context)
    waiting = _waiting_for_finalizers(state)
    if waiting is not None:
        return waiting
    if state.waits.failure is not None and is_refused(state):
        return delete_refused(state, context, config.retry, state.waits.failure.message)
    held = held_for_its_data(None, state, context)
    if held is not None:
        return held
    return wait_after_conflicts(state, context, config) or new_action(
        state, context, "Delete", {}, {}
    )
