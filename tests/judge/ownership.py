"""Rules about whose an object is, and what may be done to it by that."""

from __future__ import annotations

from collections.abc import Iterator

from events.external import ExternalObject
from events.log import ActionSucceeded, OwnershipClaimed, OwnershipReleased
from tests.judge.history import Effect, Recorded
from tests.judge.ledger import OWNER_LABEL, DecidedAction, Ledger, Resource
from tests.judge.rule import Breach, on_effect, on_event


@on_effect()
def stranger(ledger: Ledger, effect: Effect) -> Iterator[Breach]:
    """Only an object that is ours is updated or deleted (invariant 7).

    Not judged: an API without conditional writes, whose object may be another one by then; a call
    that was under way when a person gave up its object, or when the object was released while the
    log recorded the call as possibly under way.
    """
    decided = ledger.action_of(effect.key)
    if effect.operation == "Create" or decided is None or effect.uid in ledger.ours:
        return
    if not ledger.history.promises.conditional_writes:
        return
    if decided.action.action_id in ledger.given_up:
        return
    if effect.uid in ledger.released and _may_still_arrive(decided):
        return
    text = f"{effect.operation} of {effect.uid}, which is not ours"
    yield effect.name, f"{decided.action.action_id}: {text}"


def _may_still_arrive(decided: DecidedAction) -> bool:
    return decided.has_ended and decided.in_doubt


@on_event()
def claim(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An object becomes ours only as the policy or the configuration allows (invariant 7)."""
    event = recorded.event
    if not isinstance(event.data, OwnershipClaimed) or event.data.uid is None:
        return
    uid, config = event.data.uid, event.data.provider_config
    settings = ledger.configs[config or (resource.spec.provider_config if resource.spec else "")]
    match event.data.reason:
        case "Adopted":
            is_allowed = resource.policy.adoption == "Adopt"
        case "ExclusiveScope":
            is_allowed = any(each.scope.mode == "Exclusive" for each in settings)
        case "Label" | "Prefix" as reason:
            is_allowed = any(each.ownership in (reason, "Union") for each in settings)
        case "Returned":
            is_allowed = uid in ledger.ours
        case "Found":
            # Another client may have copied our label onto it.
            is_known = ledger.history.objects is not None and ledger.history.log_id is not None
            is_labeled_ours = is_labeled(ledger, resource, resource.observed)
            is_allowed = not is_known or uid in ledger.made or is_labeled_ours
    if not is_allowed:
        yield event.key, f"{event.id}: {uid} was claimed as {event.data.reason}"


@on_event("effects", "objects")
def success(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An object that an action is said to have created was created by us (invariants 7, 13).

    One that a lookup found may carry a copy of our label.
    """
    data = recorded.event.data
    if not isinstance(data, ActionSucceeded) or data.operation != "Create" or data.found_by:
        return
    uid = None if data.object is None else data.object.uid
    if uid is not None and uid not in ledger.ours and uid not in ledger.made:
        yield resource.key, f"{recorded.event.id}: {uid} was not created by us"


@on_event()
def label_left(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A released object keeps our label only if nothing may be written to it (invariant 7)."""
    data, policy, found = recorded.event.data, resource.policy, resource.observed
    if not isinstance(data, OwnershipReleased) or data.reason != "Orphaned" or data.uid is None:
        return
    may_write = not (resource.is_orphaned or policy.paused or policy.mode == "ObserveOnly")
    if may_write and not resource.is_troubled and is_labeled(ledger, resource, found):
        yield resource.key, f"{recorded.event.id}: {data.uid} is released with our label on it"


def is_labeled(ledger: Ledger, resource: Resource, found: ExternalObject | None) -> bool:
    """Return whether an object carries the label of a resource; the log's name begins it."""
    log_id = ledger.history.log_id
    if found is None or log_id is None:
        return False
    return found.labels.get(OWNER_LABEL) == owner_label(log_id, resource)


def owner_label(log_id: str, resource: Resource) -> str:
    """Return the value of the owner label (docs/ownership.md)."""
    return f"{log_id}.{resource.key.namespace}.{resource.key.kind}.{resource.key.name}"
