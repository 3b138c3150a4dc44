"""The next step of a resource: the next event to record, or a conclusion.

Level-triggered: nothing here depends on the message that triggered the decision (invariant 4).
`decide` folds each step and calls `next_step` again, until no step is left.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import replace

from events.excerpt import list_first
from events.external import ExternalObject
from events.hold import Hold
from events.intake import LossCount
from events.log import (
    ActionDecided,
    ApiSilenceEnded,
    OwnershipClaimed,
    OwnershipReleased,
)
from events.manifest import Policy
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, is_config
from reconciler.provider.kind import Kind, Readiness
from reconciler.resource.api_health import conclude_api_health
from reconciler.resource.approval import approval_command
from reconciler.resource.attempt import (
    MAX_CONFLICTS,
    advance_action,
    has_waited,
    is_paused,
    is_refused,
    new_action,
    rejection,
    retry_refused_deletion,
    wait_after_conflicts,
)
from reconciler.resource.availability import is_available, note_replacement
from reconciler.resource.contention import contention_wait, report_contention
from reconciler.resource.difference import (
    LABELS,
    Comparison,
    describe_differences,
    merge_desired,
    needs_replacement,
)
from reconciler.resource.evolve import is_created_by
from reconciler.resource.inputs import compose, conclude_references, resolve, show_availability
from reconciler.resource.missing_data import describe_lost_data, hold_for_missing_data
from reconciler.resource.new_scope import SCOPE_CLAIMS, hold_for_new_scope
from reconciler.resource.observation import (
    AWAITING_LISTING,
    AWAITING_READ,
    awaits_first_listing,
    compute_grace,
    find_labeled_resource,
    find_owner_namespace,
)
from reconciler.resource.owner_label import OWNER_LABEL, label_in
from reconciler.resource.ownership import (
    ClaimReason,
    describe_restoration,
    references_with_policy,
    verdict,
)
from reconciler.resource.permission import hold_for_host_access, hold_for_namespace
from reconciler.resource.progress import with_progress
from reconciler.resource.renewal import renewal_step
from reconciler.resource.replacement import (
    fields_to_create,
    hold_for_adoption,
    hold_for_data_loss,
    hold_for_definition,
    hold_for_parts,
    replacement,
    retirement,
)
from reconciler.resource.situation import Situation
from reconciler.resource.state import InFlight, ResourceState, Spec
from reconciler.resource.turn import (
    NOTHING_TO_REPORT,
    PAUSED,
    Conclusion,
    Context,
    NothingToReport,
    Step,
    on_hold,
)
from reconciler.resource.withdrawn_config import keep_for_users

_RELEASED: Final = "the object stays in the API, and Reconciler no longer manages it"
_FORGOTTEN: Final = (
    "Reconciler no longer tracks the resource, because its kind or its ProviderConfig no longer "
    "exists; an object that its API still has stays there"
)

MOVE_EXPECTED: Final = "MoveExpected"
"""Reason for an outcome: the resource waits to take over an object, or to hand its object over."""

_AWAITS_FIRST_LISTING = Conclusion(
    "Waiting",
    AWAITING_LISTING,
    "waiting for the first complete listing that begins after the declaration",
)


def next_step(  # noqa: C901, PLR0911, PLR0912 - one guard per step
    state: ResourceState, context: Context, comparison: Comparison
) -> Step:
    """Return the next event to record, or the conclusion if there is nothing to do.

    The order of the guards matters. The comment above each guard explains its position.
    """
    kind, desired = context.kind, state.desired
    # First: all other guards concern an API or an action, and some kinds have neither.
    if kind is not None and not kind.is_external:
        return _conclude_without_object(state, context)
    # Before everything that starts an action: a call that may have been made is tracked to
    # completion, even after a withdrawal or while the kind or configuration is missing.
    if state.actions.in_flight is not None:
        return _continue_action(state.actions.in_flight, state, context)
    # Before the next: there is no object yet, but the end of the move decides what is left.
    if passes_on(state) and state.owned is None:
        former, new = desired.moving_from, state.holds.moving_to
        message = f"waiting to take over the object of {former}, for {new}; {_see(former)}"
        return Conclusion("Waiting", MOVE_EXPECTED, message)
    # Before the kind and the configuration: if nothing is left, neither is necessary.
    if not desired.is_declared and state.observed.object is None and state.owned is None:
        return _conclude_nothing_left(state)
    # Before the configuration: the kind determines which provider it must have.
    if kind is None:
        return _hold_for_unknown_kind(context)
    config_name = state.provider_config
    config = context.configs.get(config_name)
    # Before everything below, which reads the ownership, guards or backoff of this configuration.
    if config is None:
        remedy = "declare it"
        if not desired.is_declared:
            remedy += ", or release the resource with --orphan if the API no longer exists"
        missing = f"ProviderConfig {config_name!r} is not declared; {remedy}"
        return on_hold(Hold.PROVIDER_CONFIG_MISSING, missing)
    # Before ownership: an object of another provider's API proves nothing.
    if config.provider != kind.provider:
        return _hold_for_wrong_provider(config_name, config, kind, state)
    situation = Situation(state, context, kind, config, comparison)
    # Before the pause, waits and holds: this only records known facts, under any policy.
    if state.owned is None:
        known = _claim_known_object(situation)
        if known is not None:
            return known
    # The turn that read the replacement recorded it, unless a crash interrupted that turn.
    elif comparison.is_replaced:
        return OwnershipReleased(
            state.owned.external_name,
            state.owned.uid,
            "Replaced",
            state.owned.provider_config,
            lost_data=describe_lost_data(None, state, context),
        )
    # Before holds and waits: a paused resource does not act, so they could not delay it.
    if is_paused(state):
        return _claim_uncertain_creation(situation) or PAUSED
    # Before the withdrawal: this may be the wrong API. Before the waits: time does not resolve the
    # doubt.
    if state.observed.doubted is not None and state.owned is not None:
        return _hold_for_losses(state.observed.doubted, state, context)
    # Before everything that calls the API, including deletions: the last calls failed, or other
    # clients undid them.
    if state.waits.until is not None:
        waiting = _report_wait(situation)
        if waiting is not None:
            return waiting
    # Before permission and inputs: a withdrawal needs neither.
    if not desired.is_declared:
        return _finish_withdrawal(situation)
    spec = desired.spec
    assert spec is not None
    # Before permission: a deletion requires none.
    if spec.policy.mode == "Absent" and state.owned is not None:
        return _delete(situation)
    # Before adoption and comparison: the desired content depends on the inputs.
    unmet = _check_prerequisites(spec, situation)
    if unmet is not None:
        return unmet
    # After permission: an object that the log does not own is adopted before it is deleted.
    if spec.policy.mode == "Absent":
        return _keep_absent(spec, situation)
    return _keep_present(spec, situation)


def passes_on(state: ResourceState) -> bool:
    """Return whether a withdrawn resource takes an object over for another one (ADR 0083)."""
    desired, holds = state.desired, state.holds
    is_awaited = bool(desired.moving_from and holds.moving_to)
    return is_awaited and not (desired.is_declared or holds.release_forced)


def _see(resource: str) -> str:
    """Return where an operator finds why a resource of the same namespace does not continue."""
    return f"`reconciler why {resource}` shows what it waits for"


# --- prerequisites


def _conclude_without_object(state: ResourceState, context: Context) -> Step:
    """Return the conclusion for a resource without an object, such as a ProviderConfig."""
    if not state.desired.is_declared:
        if state.holds.users is not None:
            return keep_for_users(state.holds.users, state.api)
        if state.api.silence.since is not None:
            return ApiSilenceEnded()
        was_declared = bool(state.desired.generation)
        return Conclusion("Deleted", "Withdrawn") if was_declared else NOTHING_TO_REPORT
    if state.desired.spec is not None and state.desired.spec.references:
        return conclude_references(state.desired.spec, state, context.key)
    return (
        _hold_for_unknown_provider(state, context)
        or conclude_api_health(state.api)
        or Conclusion("Converged", "Declared")
    )


def _hold_for_unknown_provider(state: ResourceState, context: Context) -> Conclusion | None:
    """Hold a ProviderConfig whose provider was known when it was declared, and no longer is."""
    spec = state.desired.spec
    if not is_config(context.key) or context.providers is None or spec is None:
        return None
    provider = spec.fields.get("provider")
    if provider in context.providers:
        return None
    return on_hold(
        Hold.UNKNOWN_PROVIDER,
        f"provider {provider!r} has no kind installed where the roles run; install its package",
    )


def _conclude_nothing_left(state: ResourceState) -> Conclusion | NothingToReport:
    """Return the conclusion for a resource with neither a declaration nor an object.

    It repeats the last outcome, so that only the first one is recorded.
    """
    last, belongs_to = state.outcome, state.observed.belongs_to
    if state.holds.orphan_forced and not state.observed.absent_at:
        message = _FORGOTTEN if state.holds.forgotten else _RELEASED
        return Conclusion("Released", "Orphaned", message)
    if state.moved_to:
        return _conclude_moved(state)
    if state.desired.spec is not None:
        return Conclusion("Deleted", "Gone")
    if last is None:
        had_effect = state.actions.effect_position > 0
        return Conclusion("Deleted", "Gone") if had_effect else NOTHING_TO_REPORT
    if last.outcome == "Deleted":
        return Conclusion("Deleted", last.reason, last.message)
    if belongs_to:
        return Conclusion("Deleted", "Gone", f"{belongs_to} owned the object")
    return Conclusion("Deleted", "GoneByOthers")


def _continue_action(flight: InFlight, state: ResourceState, context: Context) -> Step:
    """Return the next step of the action in flight, unless a precondition has changed."""
    if flight.failed is None:  # the attempt is in progress, or an operator must decide
        return advance_action(flight, state, context)
    config = context.configs.get(state.provider_config)
    blocked = _hold_for_changed_provider(flight.action.provider_config, state, context)
    forbidden = None if blocked else _hold_for_ended_permission(flight, state, context, config)
    return advance_action(flight, state, context, config, blocked, forbidden)


def _hold_for_changed_provider(
    name: str, state: ResourceState, context: Context
) -> Conclusion | None:
    """Hold an action if its configuration has changed providers since the decision."""
    kind, config = context.kind, context.configs.get(name)
    if kind is None or config is None or config.provider == kind.provider:
        return None
    return _hold_for_wrong_provider(name, config, kind, state)


def _hold_for_ended_permission(
    flight: InFlight, state: ResourceState, context: Context, config: ProviderConfigSpec | None
) -> Conclusion | None:
    """Hold the retry of a write that is no longer permitted. Deletions do not need permission."""
    if config is None or flight.action.operation == "Delete":
        return None
    if not state.desired.is_declared:
        return None
    if not config.may_be_used_in(context.key.namespace):
        return hold_for_namespace(flight.action.provider_config, context)
    return hold_for_host_access(state, context, config)


def _hold_for_unknown_kind(context: Context) -> Conclusion:
    """Hold a resource whose kind is not registered."""
    return on_hold(
        Hold.UNKNOWN_KIND,
        f"kind {context.key.kind!r} is not registered; install its package, or declare its "
        "KindDefinition",
    )


def _hold_for_wrong_provider(
    name: str, config: ProviderConfigSpec, kind: Kind, state: ResourceState
) -> Conclusion:
    """Hold a resource whose configuration belongs to another provider.

    No retry can correct that.
    """
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


def _claim_known_object(situation: Situation) -> OwnershipClaimed | None:
    """Claim a known object. A claim is not an action, so every policy allows it.

    Either a listing missed an owned object, or our call created one whose ownership
    has not been recorded yet.
    """
    state, existing = situation.state, situation.comparison.existing
    known = state.observed
    if existing is None or existing.uid is None or known.belongs_to:
        return None
    if existing.uid in state.moved_objects:
        return None
    if existing.uid == known.lost_uid:
        return _claim(existing, "Returned", situation)
    if known.is_released:
        return None  # a creation that becomes known later does not revoke the release
    is_created_by_us = any(is_created_by(each, existing) for each in state.actions.ended)
    return _claim(existing, "Found", situation) if is_created_by_us else None


def would_claim(
    existing: ExternalObject, config_name: str, state: ResourceState, context: Context
) -> bool:
    """Return whether the resource would claim the object that conflicts with its creation.

    The object lacks our owner label. An undeclared resource would not claim it, because the
    deletion guard and the next listing come first.
    """
    kind, config, spec = context.kind, context.configs.get(config_name), state.desired.spec
    if kind is None or config is None or config.provider != kind.provider:
        return False
    if state.owned is not None:
        return False
    comparison = Comparison(state.desired, state.owned, existing, context)
    situation = Situation(state, context, kind, config, comparison)
    if _claim_known_object(situation) is not None:
        return True
    if not state.desired.is_declared or spec is None or is_paused(state):
        return False
    if spec.policy.mode == "ObserveOnly" or _check_prerequisites(spec, situation) is not None:
        return False
    step = _adopt(spec.policy, existing, situation)
    is_claimed_later = isinstance(step, Conclusion) and step.reason in (
        AWAITING_READ,
        Hold.ADOPTION,
    )
    return is_claimed_later or isinstance(step, OwnershipClaimed)


def _hold_for_losses(losses: LossCount, state: ResourceState, context: Context) -> Conclusion:
    """Hold the resource, because too many owned objects are missing from one listing."""
    config = state.provider_config
    verb = "is" if losses.missing == 1 else "are"
    summary = f"{losses.missing} of {losses.owned} owned objects in {config!r} {verb} missing"
    if state.holds.approved == Hold.LOSS_GUARD:
        return on_hold(
            Hold.LOSS_GUARD,
            f"{summary}; the loss is approved and will take effect with the next listing",
        )
    restore_note = describe_restoration(context)
    hint = f"; {restore_note}: repeat the withdrawals made after it" if restore_note else ""
    spec = state.desired.spec
    is_present = state.desired.is_declared and spec is not None and spec.policy.mode == "Present"
    is_recreated = is_present and not describe_lost_data(state.observed.object, state, context)
    effect = "recreate this one" if is_recreated else "record this one as deleted"
    return on_hold(
        Hold.LOSS_GUARD,
        f"{summary} from one listing{hint}; check that the ProviderConfig points to the right API, "
        f"or approve the loss to {effect}",
    )


def _report_wait(situation: Situation) -> Conclusion | None:
    """Return the outcome of a resource that waits to retry, or None after the wait."""
    state = situation.state
    if has_waited(state, situation.context):
        return None
    if state.waits.is_contention:
        return report_contention(situation)
    failure = state.waits.failure
    if failure is not None:
        return Conclusion("Degraded", failure.error_class, failure.message)
    if state.renewal is not None and state.renewal.is_written:
        message = (
            "the object was written again, but is still due for renewal (since "
            f"{state.renewal.time:%Y-%m-%dT%H:%M:%SZ})"
        )
        return Conclusion("Degraded", "RenewalOverdue", message)
    return Conclusion("Degraded", "Waiting")


# --- declared: kept present, or kept absent


def _check_prerequisites(spec: Spec, situation: Situation) -> Step | None:
    """Return the step for an unmet prerequisite (permission, host access, inputs), or None."""
    state, context, kind, config = (
        situation.state,
        situation.context,
        situation.kind,
        situation.config,
    )
    if not config.may_be_used_in(context.key.namespace):
        return hold_for_namespace(state.provider_config, context)
    if spec.policy.mode == "Absent":
        return None
    if kind.composition is not None:
        # Before the composition: the spec determines its host access.
        return hold_for_host_access(state, context, config) or compose(spec, situation)
    if spec.references or spec.secrets or kind.definition is not None:
        unresolved = resolve(spec, situation)
        if unresolved is not None:
            return unresolved
    # After the resolution: the resolved fields determine the host access.
    return hold_for_host_access(state, context, config)


def _keep_present(spec: Spec, situation: Situation) -> Step:
    """Return the step for a declared resource whose object must exist."""
    state, context, kind = situation.state, situation.context, situation.kind
    existing, mode = situation.comparison.existing, spec.policy.mode
    # First: another resource still owns the object, which may also have the declared name.
    former = state.desired.moving_from
    if former and state.owned is None:
        message = (
            f"waiting to take over the object of {former}; withdraw {former}, unless it is "
            f"withdrawn: {_see(former)}"
        )
        return Conclusion("Waiting", MOVE_EXPECTED, message)
    # Before the creation: nothing has proved the absence of the owned object yet.
    if existing is None and state.owned is not None:
        return Conclusion(
            "Degraded", AWAITING_READ, "waiting for the next read of the owned object"
        )
    if existing is None:
        return _create(spec, situation)
    # Before the comparison: a resource must not read the content of an object that it does not own.
    ownership_step = _settle_ownership(spec.policy, existing, situation)
    if ownership_step is not None:
        return ownership_step
    # Before everything about writes: the object is as declared, even if the API rejected a write.
    differences = situation.comparison.differences
    if not differences:
        return _conclude_as_declared(existing, spec, situation)
    # Before the rejection and the waits: they concern writes, and this mode writes nothing.
    if mode != "Present":
        return Conclusion(
            "Drifted",
            mode,
            f"drift not corrected (spec.policy.mode {mode}): {describe_differences(differences)}",
        )
    # Before the waits: only another declaration changes what the API rejects or keeps.
    rejected = rejection(state)
    if rejected is not None:
        return rejected
    if situation.comparison.is_kept_by_api:
        message = "the API accepted the write but keeps " + describe_differences(differences)
        explanation = kind.explain_kept(state.desired.fields, existing)
        message += f"; {explanation}" if explanation else ""
        return Conclusion("Degraded", "NotAccepted", message)
    # Before the data guards: an approval is requested only when the write is the next step.
    waiting = wait_after_conflicts(situation) or contention_wait(situation)
    if waiting is not None:
        return waiting
    if needs_replacement(differences, kind):
        return hold_for_definition(situation) or replacement(spec, existing, situation)
    fields, labels = merge_desired(situation.comparison.wanted, existing, kind)
    held = hold_for_data_loss(fields, situation) or hold_for_parts(situation)
    return held or new_action(state, context, "Update", fields, labels)


def _create(spec: Spec, situation: Situation) -> Step:
    """Return the creation of a missing object, unless the mode or a wait forbids it."""
    state, context, mode = situation.state, situation.context, spec.policy.mode
    if mode == "ObserveOnly":
        return (
            _AWAITS_FIRST_LISTING
            if awaits_first_listing(state, context)
            else Conclusion(
                "Drifted",
                mode,
                "the object does not exist; not created (spec.policy.mode ObserveOnly)",
            )
        )
    if mode == "CreateOnly" and state.actions.has_created:
        return Conclusion(
            "Drifted", mode, "the object is missing; not recreated (spec.policy.mode CreateOnly)"
        )
    # After the modes that create nothing: the other resource is about to create its object again.
    if state.observed.belongs_to:
        return _report_other_owner(situation)
    # Before the creation: a new object would be empty.
    missing = hold_for_missing_data(situation)
    if missing is not None:
        return missing
    rejected = rejection(state)
    if rejected is not None:
        return rejected
    if awaits_first_listing(state, context):
        return _AWAITS_FIRST_LISTING
    labels = situation.comparison.wanted.labels
    waiting = wait_after_conflicts(situation) or contention_wait(situation)
    fields = fields_to_create(state.predecessor, situation)
    return waiting or new_action(
        state, context, "Create", fields, labels, external_name=spec.external_name
    )


def _conclude_as_declared(existing: ExternalObject, spec: Spec, situation: Situation) -> Step:
    """Return the step for an object without differences, such as a renewal or Converged."""
    state, kind = situation.state, situation.kind
    shown = existing
    if kind.composition is not None:
        shown = show_availability(existing, kind.composition, state)
    ready = kind.ready(state.desired.fields, shown)
    if kind.progress is not None:
        noted = with_progress(ready, shown, spec, situation)
        if not isinstance(noted, Readiness):
            return noted
        ready = noted
    is_fixed = LABELS in kind.immutable  # the label cannot be added to an adopted object
    is_missing = state.owned is not None and not is_fixed and label_in(existing.labels) is None
    if is_missing and OWNER_LABEL in situation.comparison.wanted.labels:
        message = "the log records ownership of the object, but the object lost its owner label"
        return Conclusion("Disputed", "LabelMissing", message, ready=ready)
    if state.retiring is not None and spec.policy.mode == "Present":
        is_momentary = kind.may_lose_readiness(existing)
        noted = note_replacement(existing, ready, situation) if is_momentary else None
        if noted is not None:
            return noted
        if ready.is_ready and (not is_momentary or is_available(existing, state.availability)):
            return retirement(situation)
    converged = Conclusion("Converged", "AsDeclared", ready=ready)
    return renewal_step(existing, spec, situation, converged) if kind.renewal_time else converged


def _settle_ownership(
    policy: Policy, existing: ExternalObject, situation: Situation
) -> Step | None:
    """Return the step that settles ownership, or None if the resource clearly owns the object."""
    if situation.state.owned is None and policy.mode != "ObserveOnly":
        return _adopt(policy, existing, situation)
    if situation.state.owned is None:
        # Only the namespace that owns the object may read its content.
        if find_owner_namespace(situation.state, situation.context):
            return _report_other_owner(situation)
        return _claim_uncertain_creation(situation)
    if situation.state.observed.belongs_to:
        return _report_second_owner(situation)
    # Writing our label over another owner's label could start contention.
    return _report_dispute(existing, situation) if situation.verdict.owner == "disputed" else None


def _claim_uncertain_creation(situation: Situation) -> OwnershipClaimed | Conclusion | None:
    """Claim the result of an uncertain creation, or hold it. Neither is an action."""
    state, existing = situation.state, situation.comparison.existing
    if state.owned is not None or existing is None or state.observed.belongs_to:
        return None
    if situation.verdict.claim == "Found":
        return _claim(existing, "Found", situation)
    return _hold_in_doubt(existing, situation)


def _report_other_owner(situation: Situation) -> Conclusion:
    """Report another resource's object, without names from another namespace."""
    state, existing = situation.state, situation.comparison.existing
    uid = "" if existing is None else existing.uid or ""
    resource = state.observed.belongs_to or state.moved_objects.get(uid, "")
    owner_name = _name_other_owner(resource, situation)
    what = "name" if existing is None else "object"
    return Conclusion(
        "Conflict",
        "OwnedByAnother",
        f"the {what} belongs to {owner_name}; use another external name",
    )


def _report_second_owner(situation: Situation) -> Conclusion:
    """Report that another resource also owns the object. Neither of them writes to it."""
    owner_name = _name_other_owner(situation.state.observed.belongs_to, situation)
    message = f"the object also belongs to {owner_name}; Reconciler leaves it unchanged"
    return Conclusion("Disputed", "OwnedByAnother", message)


def _name_other_owner(resource: str, situation: Situation) -> str:
    """Return the name of the resource that owns the object, unless it is in another namespace."""
    is_elsewhere = find_owner_namespace(situation.state, situation.context)
    return "a resource in another namespace" if is_elsewhere else resource


def _adopt(policy: Policy, existing: ExternalObject, situation: Situation) -> Step:
    """Claim an existing object that the log does not own, or wait, hold or report a conflict."""
    state, context = situation.state, situation.context
    # A moved object may still have this resource's label, and a read may not show its new owner.
    if state.observed.belongs_to or existing.uid in state.moved_objects:
        return _report_other_owner(situation)
    # For a declared resource, a reference to it does not contradict the claim.
    evidence = replace(situation.evidence, referenced=False)
    claim = verdict(evidence, situation.config.ownership).claim
    # Before every claim to another object: it does not have the data, whatever the policy permits.
    if claim not in ("Returned", "Found"):
        missing = hold_for_missing_data(situation, existing)
        if missing is not None:
            return missing
    is_stale = state.observed.position < state.desired.position
    may_be_ours = claim is not None or policy.adoption == "Adopt"
    if may_be_ours and is_stale and not context.capabilities.conditional_writes:
        # Other clients may have written since that read. Without conditional writes, our write
        # would undo their changes.
        return Conclusion(
            "Degraded", AWAITING_READ, "Reconciler will adopt the object after the next read"
        )
    has_no_label = not context.capabilities.labels and context.capabilities.listing
    if may_be_ours and has_no_label:
        # Neither the creation nor the response proves ownership, because the object carries no
        # label.
        waiting = _wait_for_next_listing(
            state,
            "Reconciler will adopt the object after the next listing, unless another resource "
            "owns it",
        )
        if waiting is not None:
            return waiting
    if claim is not None:
        # A label shows that the owner of this log created the object, regardless of differences.
        held = hold_for_adoption(existing, situation) if claim in SCOPE_CLAIMS else None
        return held or _claim(existing, claim, situation)
    if policy.adoption != "Adopt":
        held = _hold_in_doubt(existing, situation)
        if held is not None:
            return held
        owner_text = (
            "was released earlier"
            if state.observed.is_released
            else "is not owned by this resource"
        )
        if restore_note := _explain_by_restore(existing, context):
            owner_text = (
                "has the owner label of this resource, but the log never recorded ownership; "
                f"{restore_note}"
            )
        return Conclusion(
            "Conflict",
            "AlreadyExists",
            f"{existing.name!r} exists and {owner_text}; set spec.policy.adoption: Adopt to take "
            "ownership, or use another name",
        )
    if evidence.label == "another's":
        return Conclusion("Conflict", "OwnedByAnother", _describe_label(existing, context))
    return hold_for_adoption(existing, situation) or _claim(existing, "Adopted", situation)


def _keep_absent(spec: Spec, situation: Situation) -> Step:
    """Return the step for a resource with mode Absent whose object the log does not own."""
    if situation.comparison.existing is not None:
        return _adopt(spec.policy, situation.comparison.existing, situation)
    return (
        _AWAITS_FIRST_LISTING
        if awaits_first_listing(situation.state, situation.context)
        else Conclusion("Converged", "Absent")
    )


# --- undeclared: deleted, released or left unchanged


def _finish_withdrawal(situation: Situation) -> Step:
    """Return the step for an undeclared resource: keep, release or delete its object."""
    state = situation.state
    owned, holds = state.owned, state.holds
    if owned is None:
        return _conclude_unowned(situation)
    # Before the finalizers: their holders need not act while the object is kept.
    referrers = references_with_policy(holds.references, "Keep")
    if referrers and not holds.release_forced:
        return on_hold(
            Hold.REFERENCED,
            f"kept because it is referenced by {list_first(referrers)}",
        )
    # Before a release and a deletion: both end what a holder may still use.
    waiting = _hold_for_finalizers(state)
    if waiting is not None:
        return waiting
    # Before the current object: its removal ends the withdrawal, and the replaced object would
    # remain.
    if state.retiring is not None:
        replaced = state.retiring
        if not (holds.orphan_forced or _policy(state).mode == "ObserveOnly"):
            return retirement(situation)  # its deletion is part of the replacement
        return OwnershipReleased(
            replaced.external_name, replaced.uid, "Orphaned", replaced.provider_config
        )
    # After everything that delays the end of the ownership, and in place of that end.
    if holds.moving_to and not holds.release_forced:
        message = f"waiting for {holds.moving_to} to take over the object; {_see(holds.moving_to)}"
        return Conclusion("Waiting", MOVE_EXPECTED, message)
    if is_kept_in_api(state):
        return _remove_owner_label(situation) or OwnershipReleased(
            owned.external_name, owned.uid, "Orphaned", owned.provider_config
        )
    return _delete(situation)


def is_kept_in_api(state: ResourceState) -> bool:
    """Return whether a withdrawn resource releases its object instead of deleting it."""
    policy = _policy(state)
    by_policy = policy.deletion == "Orphan" or policy.mode == "ObserveOnly"
    is_requested = state.holds.orphan_forced or references_with_policy(
        state.holds.references, "Release"
    )
    return bool(state.desired.generation and by_policy) or bool(is_requested)


def _policy(state: ResourceState) -> Policy:
    return Policy() if state.desired.spec is None else state.desired.spec.policy


def _remove_owner_label(situation: Situation) -> ActionDecided | None:
    """Return the action that removes our owner label before a release, or None.

    None if there is no label, if no write is possible, or if the API cannot remove the label or
    refused to. A label must not block the release.
    """
    state, context, kind = situation.state, situation.context, situation.kind
    existing, policy = situation.comparison.existing, _policy(state)
    if existing is None or existing.labels.get(OWNER_LABEL) != context.owner:
        return None
    if LABELS in kind.immutable:
        return None
    may_write = not (state.holds.orphan_forced or state.observed.belongs_to)
    if not may_write or policy.mode == "ObserveOnly" or policy.paused:
        return None
    if state.waits.conflicts > MAX_CONFLICTS or is_refused(state):
        return None
    if situation.verdict.owner == "disputed":
        return None
    labels = {name: value for name, value in existing.labels.items() if name != OWNER_LABEL}
    # All other content stays unchanged, including drift, because nothing declares it.
    return new_action(state, context, "Update", kind.normalize(existing.fields), labels)


def _hold_for_finalizers(state: ResourceState) -> Conclusion | None:
    """Hold a deletion or release while services have finalizers on the resource."""
    if not state.holds.finalizers:
        return None
    holders = list_first([f"{each.name} (set by {each.holder})" for each in state.holds.finalizers])
    return on_hold(Hold.FINALIZERS, f"waiting for these finalizers to be removed: {holders}")


def _conclude_unowned(situation: Situation) -> Step:
    """Return the step for an undeclared resource whose object the log does not own."""
    state, context, existing = situation.state, situation.context, situation.comparison.existing
    if existing is None:
        return Conclusion("Deleted", "Gone")
    if state.observed.is_released:
        # A listing that began before the move may still show the object.
        is_moved = bool(state.moved_to)
        return _conclude_moved(state) if is_moved else _conclude_released(existing, state, context)
    if state.observed.belongs_to:  # the other resource manages the object
        owner_name = _name_other_owner(state.observed.belongs_to, situation)
        return _conclude_never_owned(state) or Conclusion(
            "Unowned", "BelongsToAnother", f"{owner_name} owns or declares the object"
        )
    judgment = situation.verdict
    if judgment.claim in ("Returned", "Found"):
        return _claim(existing, judgment.claim, situation)
    if judgment.claim is not None:
        location, kind_name = state.observed.provider_config, context.key.kind
        # The guard comes second: an approval of the scope takes effect with its next listing.
        held = hold_for_new_scope(
            judgment.claim, location, kind_name, context
        ) or _hold_for_deletion_guard(situation)
        waiting = held or _wait_for_next_listing(
            state,
            "no manifest declares the object; Reconciler will delete it after the next listing, "
            "unless another resource owns it by then",
        )
        return waiting or _claim(existing, judgment.claim, situation)
    if judgment.owner == "disputed":
        return _report_dispute(existing, situation)
    reason, why = judgment.reason, f"no {context.key.kind} declares the object"
    # Two kinds may list the same API, for example a kind that is defined on top of another one.
    if labeled_owner := find_labeled_resource(existing, context):
        owner_name = _name_other_owner(labeled_owner, situation)
        reason, why = "OwnedByAnother", f"the owner label of the object names {owner_name}"
        assigns_ids = not context.capabilities.deterministic_names
        if assigns_ids and ResourceKey.parse(labeled_owner).kind == context.key.kind:
            # Without unique names it may be the lost object of that resource, not a copy.
            why += ", which does not own it; Reconciler leaves it unchanged"
            why += _describe_remedies(_explain_by_backup(context), "that resource")
            return Conclusion("Disputed", reason, why)
    unowned = Conclusion("Unowned", reason, f"{why}; Reconciler leaves it unchanged")
    return _hold_in_doubt(existing, situation) or _conclude_never_owned(state) or unowned


def _conclude_moved(state: ResourceState) -> Conclusion:
    """Return the conclusion for a resource whose object another one took over."""
    return Conclusion("Deleted", "Moved", f"{state.moved_to} took over the object")


def _conclude_released(
    existing: ExternalObject, state: ResourceState, context: Context
) -> Conclusion:
    """Return the conclusion for an object that was released and still exists."""
    message = _RELEASED
    if existing.labels.get(OWNER_LABEL) == context.owner:
        message += "; it still has its owner label"
        if state.waits.failure is not None and is_refused(state):
            message += f", because the API rejected its removal: {state.waits.failure.message}"
    return Conclusion("Released", "Orphaned", message)


def _conclude_never_owned(state: ResourceState) -> Conclusion | None:
    """Return the conclusion for a withdrawn resource that never owned the object with its name."""
    desired = state.desired
    is_reported = state.outcome is not None and state.outcome.reason == "NotOurs"
    if desired.generation and (desired.completed_generation != desired.generation or is_reported):
        return Conclusion(
            "Deleted",
            "NotOurs",
            (
                "the object with that name is not owned by this resource; Reconciler leaves it "
                "unchanged"
            ),
        )
    return None


def _wait_for_next_listing(state: ResourceState, message: str) -> Conclusion | None:
    """Wait for a listing that shows whether another resource owns an unmarked object.

    The last listing may have waited in the intake, while newer ones assigned the object to another
    resource. After this outcome, listings no longer do that (`reconciler.roles.observer.listing`).
    """
    last = state.outcome
    if (
        last is not None
        and (last.reason, last.generation) == (AWAITING_READ, state.desired.generation)
        and state.observed.known_version >= state.outcome_version
    ):
        return None
    return Conclusion("Degraded", AWAITING_READ, message)


def _hold_for_deletion_guard(situation: Situation) -> Conclusion | None:
    """Hold a deletion if it would delete too many objects; None if it is allowed or approved."""
    state, guard = situation.state, situation.config.deletion_guard
    unmanaged, total = state.observed.unmanaged or 0, state.observed.total or 0
    if unmanaged > 0 and guard.allows(unmanaged, total):
        return None
    verb = "is" if unmanaged == 1 else "are"
    summary = f"{unmanaged} of {total} objects in the scope {verb} undeclared and would be deleted"
    if state.holds.approved == Hold.DELETION_GUARD:
        # Another client may since have declared the object. Only a listing after the approval shows
        # that.
        if state.observed.position >= state.holds.approved_position:
            return None
        message = f"{summary}; the deletion is approved and will happen after the next two listings"
        return on_hold(Hold.DELETION_GUARD, message)
    restore_note = describe_restoration(situation.context)
    hint = f"; {restore_note}: repeat the declarations made after it" if restore_note else ""
    return on_hold(
        Hold.DELETION_GUARD,
        f"{summary}, more than deletionGuard allows ({guard.max_count} objects, "
        f"{guard.max_percent}%){hint}; approve the deletion, or declare the object",
    )


# --- declared or not


def _claim(
    existing: ExternalObject, reason: ClaimReason | Literal["Adopted"], situation: Situation
) -> OwnershipClaimed:
    """Return the claim to an existing object. If it had disappeared, the API may lag."""
    state = situation.state
    is_late = reason == "Returned" and not state.observed.found_as
    grace = compute_grace(state, situation.context) if is_late else 0.0
    return OwnershipClaimed(
        existing.name,
        existing.uid,
        reason,
        state.observed.provider_config,
        grace_seconds=grace,
        claims=tuple(situation.kind.find_claims(existing.name, existing.fields)),
    )


def _hold_in_doubt(existing: ExternalObject, situation: Situation) -> Conclusion | None:
    """Hold an unmarked object that a creation in doubt may have created (ADR 0012)."""
    context, evidence = situation.context, situation.evidence
    capabilities = context.capabilities
    shows_key = capabilities.idempotency_keys and capabilities.labels
    if shows_key or not capabilities.deterministic_names:
        return None
    is_in_doubt = any(
        each.action.operation == "Create"
        and each.in_doubt
        and existing.uid not in each.created_uids
        for each in situation.state.actions.ended
    )
    if evidence.label != "nothing" or not evidence.uncertain or not is_in_doubt:
        return None
    remedy = "declare the resource with spec.policy.adoption: Adopt"
    if capabilities.labels:
        remedy = f"add the label {OWNER_LABEL}={context.owner} to it"
    return on_hold(
        Hold.UNKNOWN_RESULT,
        f"{existing.name!r} (uid {existing.uid}) may have been created by this resource (a "
        f"call with an unknown result) or by another client. If this resource created it, "
        f"{remedy}. If not, approve: {approval_command(context.key)}",
    )


def _report_dispute(existing: ExternalObject, situation: Situation) -> Conclusion:
    """Report an object with contradictory evidence of ownership, and leave it unchanged."""
    judgment = situation.verdict
    message = judgment.message
    if judgment.reason == "OwnedByAnother":
        message = f"{_describe_label(existing, situation.context)}; Reconciler leaves it unchanged"
    else:
        message += _describe_remedies(_explain_by_restore(existing, situation.context), "it")
    return Conclusion("Disputed", judgment.reason, message)


def _describe_label(existing: ExternalObject, context: Context) -> str:
    """Describe another owner's label, without names from another namespace."""
    named = find_labeled_resource(existing, context)
    if named and ResourceKey.parse(named).namespace != context.key.namespace:
        return "the owner label of the object names a resource in another namespace"
    return f"the owner label of the object is {existing.labels[OWNER_LABEL]!r}"


def _explain_by_restore(existing: ExternalObject, context: Context) -> str:
    """Describe how a restore may explain an object with our label, or return an empty string."""
    is_labeled = existing.labels.get(OWNER_LABEL) == context.owner
    return _explain_by_backup(context) if is_labeled else ""


def _explain_by_backup(context: Context) -> str:
    """Describe how a restore may explain an unknown object, or return an empty string."""
    restore_note = describe_restoration(context)
    if not restore_note:
        return ""
    return f"{restore_note}, and the object may have been created after it"


def _describe_remedies(restore_note: str, resource: str) -> str:
    """Return the remedies for an object that a restore explains; empty if none does."""
    if not restore_note:
        return ""
    return (
        f"; {restore_note}. To manage it, declare {resource} with spec.policy.adoption: Adopt; to "
        f"release it, remove its label {OWNER_LABEL}; or delete it in the API"
    )


def _delete(situation: Situation) -> Step:
    """Return the deletion of the owned object, or the step that comes before it."""
    state, context = situation.state, situation.context
    # First: no wait or approval permits the deletion of another resource's object.
    if state.observed.belongs_to:
        return _report_second_owner(situation)
    if situation.comparison.existing is not None and situation.verdict.owner == "disputed":
        return _report_dispute(situation.comparison.existing, situation)
    # Checked again, because mode Absent reaches this point without a withdrawal.
    waiting = _hold_for_finalizers(state)
    if waiting is not None:
        return waiting
    if state.waits.failure is not None and is_refused(state):
        return retry_refused_deletion(situation, state.waits.failure.message)
    # Before the wait for conflicts: an approval may take longer.
    held = hold_for_data_loss(None, situation)
    if held is not None:
        return held
    return wait_after_conflicts(situation) or new_action(state, context, "Delete", {}, {})
