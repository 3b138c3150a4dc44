"""Rules about a resource's holds: finalizers, references, guards and approvals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from events.log import (
    Action,
    ActionDecided,
    FinalizerAdded,
    FinalizerRemoved,
    HoldApproved,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ReleaseForced,
)
from events.manifest import ApprovalLevel, stricter_level
from events.provider_config import ProviderConfigSpec, config_key, is_config
from tests.judge.ledger import PREDECESSOR_DELETED, Resource
from tests.judge.rule import JudgedEvent, on

_LEVELS: tuple[ApprovalLevel, ...] = get_args(ApprovalLevel)


@on(FinalizerAdded, FinalizerRemoved, ReleaseForced)
def finalizers(
    context: JudgedEvent[FinalizerAdded | FinalizerRemoved | ReleaseForced],
) -> Iterator[str]:
    """A finalizer is its holder's; only withdrawn resources are force-released (invariant 14)."""
    actor = context.event.actor
    match context.data:
        case FinalizerAdded(finalizer, holder):
            if holder != actor:
                yield f"{finalizer} belongs to {actor}, not to {holder}"
        case FinalizerRemoved(finalizer):
            holder = context.resource.finalizers.get(finalizer)
            if holder != actor and not context.data.forced:
                yield f"{actor} removed {finalizer}, which belongs to {holder}"
        case ReleaseForced():
            if context.resource.is_declared:
                yield "a declared resource was released by force"


@on(ActionDecided, OwnershipReleased)
def unheeded_hold(context: JudgedEvent[ActionDecided | OwnershipReleased]) -> Iterator[str]:
    """Nothing that a finalizer or a reference keeps is deleted or released (invariant 14)."""
    match context.data:
        case ActionDecided(action) if (action.operation, action.purpose) == ("Delete", "Converge"):
            what, keeping = "deleted", {"Keep", "Release"}
        case OwnershipReleased(reason="Orphaned" | "Forgotten"):
            what, keeping = "released", {"Keep"}
        case _:
            return
    if context.resource.finalizers:
        yield f"{what}, though it has a finalizer"
    is_free = context.resource.is_declared or context.resource.is_forced
    if not is_free and keeping & set(context.resource.references.values()):
        yield f"{what}, though it is referenced"


@on(OutcomeRecorded)
def configuration_in_use(context: JudgedEvent[OutcomeRecorded]) -> Iterator[str]:
    """A configuration ends only when nothing has an object there, or by force (invariant 11)."""
    key, ledger = context.event.key, context.ledger
    is_end = is_config(key) and context.data.outcome == "Deleted"
    if not is_end or context.resource.is_forced:
        return
    for user, each in ledger.resources.items():
        is_used = each.owned or each.retiring or each.in_flight
        if is_used and each.object_config == key.name and user not in ledger.history.damaged:
            yield f"it ended, but {user} still uses it"


@on(HoldApproved)
def approvals(context: JudgedEvent[HoldApproved]) -> Iterator[str]:
    """Only people approve, and only the current hold or requested plan (invariant 17)."""
    people, hold, outcome = (
        context.ledger.history.people,
        context.data.hold,
        context.resource.outcome,
    )
    if people is not None and context.event.actor not in people:
        yield f"{context.event.actor} is not a person, but approved {hold}"
    if hold == "Approval":
        if context.data.plan != context.resource.requested_approval[0]:
            yield "a plan was approved without a request"
    elif outcome is None or (outcome.outcome, outcome.reason) != ("Held", hold):
        yield f"{hold} was approved, but did not hold it"


@on(ActionDecided)
def unapproved_action(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """An action that needs approval has it for the current object (invariants 16, 17)."""
    action, plan = context.data.action, context.resource.plan
    settings = context.settings(action.provider_config)
    min_level = min((_LEVELS.index(each.approve) for each in settings), default=0)
    level = stricter_level(_LEVELS[min_level], context.resource.policy.approve)
    is_deletion = action.operation == "Delete" or action.purpose == "Replace"
    if level == "Never" or action.purpose == "Retire":
        return
    if level == "Deletions" and not is_deletion:
        return
    if action.operation == "Create" and plan == PREDECESSOR_DELETED:
        return
    if plan != context.resource.content_to_approve:
        yield f"{action.operation} that no person approved in its current form"


@on(ActionDecided)
def unapproved_loss(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """Data is given up only with an approval, which a later action repeats (invariants 16, 17)."""
    action = context.data.action
    loses = action.operation == "Delete" or action.purpose == "Replace"
    if not action.data_loss or not loses or "DataLoss" in context.resource.approved:
        return
    key = str(context.event.key)
    earlier = (each.action for each in context.ledger.actions.values())
    if not any(
        each.action_id.startswith(f"{key}@") and each.data_loss == action.data_loss
        for each in earlier
    ):
        yield f"{action.operation} gives up {action.data_loss} without approval"


@on(OwnershipClaimed)
def unmanaged(context: JudgedEvent[OwnershipClaimed]) -> Iterator[str]:
    """Few undeclared objects are claimed for deletion, and none is referenced (invariant 17)."""
    is_stray = context.data.reason in ("ExclusiveScope", "Label", "Prefix")
    if context.resource.is_declared or not is_stray:
        return
    is_allowed = _allows(context.settings(context.data.provider_config), context.resource.unmanaged)
    if not is_allowed and "DeletionGuard" not in context.resource.approved:
        yield f"one of {context.resource.unmanaged} unmanaged objects is deleted without approval"
    if context.resource.references:
        yield "a referenced stray is deleted"
    if context.data.uid in context.ledger.released:
        yield "an object that was released on purpose is deleted as a stray"


@on(OwnershipClaimed)
def unapproved_scope(context: JudgedEvent[OwnershipClaimed]) -> Iterator[str]:
    """Nothing is deleted in a scope that neither was empty nor was approved (invariant 17)."""
    is_stray = context.data.reason in ("ExclusiveScope", "Prefix")
    if context.resource.is_declared or not is_stray:
        return
    config = context.ledger.resource(config_key(context.data.provider_config))
    kind = context.event.key.kind
    if config.version and not config.has_approved_scope and kind not in config.empty_kinds:
        yield f"an undeclared {kind} is deleted in a scope that was not approved"


@on(ActionDecided)
def redefinitions(context: JudgedEvent[ActionDecided]) -> Iterator[str]:
    """A changed definition replaces few objects, or approved ones (invariant 17)."""
    resource, action = context.resource, context.data.action
    is_present = resource.policy.mode == "Present" and resource.retiring is None
    if not is_present or not _is_replacement(action, resource):
        return
    is_allowed = _allows(context.settings(action.provider_config), resource.redefined)
    if not is_allowed and "DefinitionGuard" not in resource.approved:
        yield f"{resource.redefined} are replaced without approval"


def _is_replacement(action: Action, resource: Resource) -> bool:
    if action.operation == "Create":
        return resource.owned is not None
    return action.operation == "Delete" and resource.is_declared


def _allows(settings: list[ProviderConfigSpec], count: int) -> bool:
    return not settings or any(count <= each.deletion_guard.max_count for each in settings)
