"""Rules about what holds a resource: finalizers, references, guards and approvals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from events.log import (
    Action,
    ActionDecided,
    FinalizerAdded,
    FinalizerRemoved,
    HoldApproved,
    OwnershipClaimed,
    OwnershipReleased,
    ReleaseForced,
)
from events.manifest import ApprovalLevel, stricter
from events.provider_config import ProviderConfigSpec
from tests.judge.history import Recorded
from tests.judge.ledger import MADE_WAY, Ledger, Resource
from tests.judge.rule import Breach, on_event

_LEVELS: tuple[ApprovalLevel, ...] = get_args(ApprovalLevel)


@on_event()
def finalizers(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A finalizer is its holder's, and only a withdrawn resource is forced (invariant 14)."""
    event = recorded.event
    match event.data:
        case FinalizerAdded(finalizer, holder) if holder != event.actor:
            yield event.key, f"{event.id}: {finalizer} is of {event.actor}, not of {holder}"
        case FinalizerRemoved(finalizer, forced=False):
            holder = resource.finalizers.get(finalizer)
            if holder != event.actor:
                text = f"{event.actor} removed {finalizer}, which is of {holder}"
                yield event.key, f"{event.id}: {text}"
        case ReleaseForced() if resource.is_declared:
            yield event.key, f"{event.id}: a declared resource was released by force"
        case _:
            pass


@on_event()
def kept(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """Nothing is deleted or released that a finalizer or a reference keeps (invariant 14)."""
    event = recorded.event
    match event.data:
        case ActionDecided(action) if (action.operation, action.purpose) == ("Delete", "Converge"):
            what, keeping = "deleted", {"Keep", "Release"}
        case OwnershipReleased(reason="Orphaned"):
            what, keeping = "released", {"Keep"}
        case _:
            return
    if resource.finalizers:
        yield event.key, f"{event.id}: {what}, though a finalizer stands"
    if resource.is_declared or resource.is_forced:
        return
    if keeping & set(resource.references.values()):
        yield event.key, f"{event.id}: {what}, though it is referenced"


@on_event()
def approvals(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A person approves, and only the hold or the plan that was asked about (invariant 17)."""
    event, outcome = recorded.event, resource.outcome
    if not isinstance(event.data, HoldApproved):
        return
    people, hold = ledger.history.people, event.data.hold
    if people is not None and event.actor not in people:
        yield event.key, f"{event.id}: {event.actor} is no person, and approved {hold}"
    if hold == "Approval":
        if event.data.plan != resource.asked[0]:
            yield event.key, f"{event.id}: a plan was approved that was not asked for"
    elif outcome is None or (outcome.outcome, outcome.reason) != ("Held", hold):
        yield event.key, f"{event.id}: {hold} was approved, which did not hold it"


@on_event()
def unapproved(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An action that needs an approval has one, for what exists now (invariants 16, 17)."""
    event = recorded.event
    if not isinstance(event.data, ActionDecided):
        return
    action, plan = event.data.action, resource.plan
    is_deletion = action.operation == "Delete" or action.purpose == "Replace"
    settings = ledger.configs[action.provider_config]
    levels: list[ApprovalLevel] = sorted((each.approve for each in settings), key=_LEVELS.index)
    level = stricter(levels[0] if levels else _LEVELS[0], resource.policy.approve)
    if level == "Never" or action.purpose == "Retire":
        return
    if level == "Deletions" and not is_deletion:
        return
    if action.operation == "Create" and plan == MADE_WAY:
        return
    if plan != resource.content_to_approve:
        yield event.key, f"{event.id}: {action.operation} that no person approved as it is"


@on_event()
def strays(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """Only a few undeclared objects are claimed to be deleted, none referenced (invariant 17)."""
    event = recorded.event
    if not isinstance(event.data, OwnershipClaimed) or resource.is_declared:
        return
    if event.data.reason not in ("ExclusiveScope", "Label", "Prefix"):
        return
    settings = ledger.configs[event.data.provider_config]
    is_approved = resource.approved == "DeletionGuard"
    if not _allows(settings, resource.strays) and not is_approved:
        yield event.key, f"{event.id}: one of {resource.strays} strays is deleted without approval"
    if resource.references:
        yield event.key, f"{event.id}: a referenced stray is deleted"


@on_event()
def redefinitions(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A changed definition replaces a few objects, or what was approved (invariant 17)."""
    event = recorded.event
    if not isinstance(event.data, ActionDecided) or not _is_replacement(
        event.data.action, resource
    ):
        return
    if resource.policy.mode != "Present" or resource.retiring is not None:
        return
    settings = ledger.configs[event.data.action.provider_config]
    is_approved = resource.approved == "DefinitionGuard"
    if not _allows(settings, resource.redefined) and not is_approved:
        yield event.key, f"{event.id}: {resource.redefined} are replaced without approval"


def _is_replacement(action: Action, resource: Resource) -> bool:
    if action.operation == "Create":
        return resource.owned is not None
    return action.operation == "Delete" and resource.is_declared


def _allows(settings: list[ProviderConfigSpec], count: int) -> bool:
    """Return whether any configuration so far lets as many go: a decider may have read an older."""
    return not settings or any(count <= each.deletion_guard.max_count for each in settings)
