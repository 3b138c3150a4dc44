"""The state that the judge derives from the log and the API's effects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from events import log as e
from events.external import ExternalObject
from events.intake import LossCount, Observed, OnWithdrawal
from events.manifest import Fields, Policy
from events.names import ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, ProviderConfigSpec
from tests.judge.history import Effect, History

OWNER_LABEL = "reconciler/owner"
FINAL_ERROR_CLASSES = ("Conflict", "NotFound", "Refused")
PREDECESSOR_DELETED = "predecessor deleted"
"""The approved content once the object that it replaces has been deleted."""

_SETTLED_OUTCOMES = {"Converged", "Failed", "Conflict", "Deleted", "Released", "Drifted", "Paused"}


class Owned(NamedTuple):
    """An object that the log owns; ``written`` has the desired fields as of its last write."""

    name: str
    uid: str | None
    written: Fields
    shown: ExternalObject | None = None


@dataclass
class DecidedAction:
    """An action of the log, and its progress."""

    key: ResourceKey
    action: e.Action
    expected: Fields
    progress: str = "under way"
    has_failed: bool = False
    is_lookup: bool = False
    in_doubt: bool = False
    is_open: bool = False
    """Whether an attempt may have done it, and no later lookup has disproved that."""
    is_unclear: bool = False
    """Whether a later lookup could not show whether it was done."""
    is_checked: bool = False
    """Whether a person has approved another call."""
    has_succeeded: bool = False
    may_be_done: bool = False
    is_given_up: bool = False
    """Whether a person abandoned it regardless of its result; the log records its end later."""
    found_other_owner: bool = False
    """Whether a lookup found that another resource owns the name of the object."""
    effects: set[str] = field(default_factory=set[str])
    created: set[str] = field(default_factory=set[str])
    """Ids of the objects that it created according to the log; a redelivery may create another."""

    @property
    def has_ended(self) -> bool:
        """Whether the log records its end."""
        return self.progress == "ended"


@dataclass
class Resource:
    """One resource as the log records it."""

    key: ResourceKey
    version: int = 0
    generation: int = 0
    position: int = 0
    is_declared: bool = False
    spec: e.SpecDeclared | None = None
    resolved: Fields | None = None
    definition: str = ""
    redefined: int = 0
    in_flight: DecidedAction | None = None
    object_config: str = ""
    """The configuration of its newest action or owned object."""
    owned: Owned | None = None
    retiring: Owned | None = None
    released: Owned | None = None
    observed: ExternalObject | None = None
    absent_at: int = 0
    """The intake position at which the newest proof of absence began."""
    unmanaged: int = 0
    doubted: LossCount | None = None
    effect_position: int = 0
    effect_at: datetime | None = None
    is_troubled: bool = False
    outcome: e.OutcomeRecorded | None = None
    has_news: bool = False
    is_in_effect: bool = False
    """Whether its newest declaration's references count, which they do while it has an object."""
    finalizers: dict[str, str] = field(default_factory=dict[str, str])
    references: dict[str, OnWithdrawal] = field(default_factory=dict[str, OnWithdrawal])
    is_forced: bool = False
    is_orphaned: bool = False
    approved: frozenset[str] = frozenset()
    requested_approval: tuple[str, object] = ("", None)
    plan: object = None
    held_by: e.LogEvent | None = None  # for a configuration: its API has objects newer than the log
    has_been_held: bool = False
    # For a configuration: whether a person ever approved a scope, and the kinds that were empty.
    has_approved_scope: bool = False
    empty_kinds: frozenset[str] = frozenset()

    @property
    def policy(self) -> Policy:
        """The policy of the newest declaration."""
        return Policy() if self.spec is None else self.spec.policy

    @property
    def is_paused(self) -> bool:
        """Whether no action may be taken."""
        return self.is_declared and self.policy.paused

    @property
    def outcome_name(self) -> str:
        """The name of the newest outcome, empty without one."""
        return "" if self.outcome is None else self.outcome.outcome

    @property
    def is_held_for_a_person(self) -> bool:
        """Whether its newest outcome is waiting for approval."""
        reasons = (
            *("DeletionGuard", "LossGuard", "DefinitionGuard", "Approval"),
            *("DataLoss", "DataMissing", "Adoption"),
        )
        return (
            self.outcome_name == "Held"
            and self.outcome is not None
            and self.outcome.reason in reasons
        )

    @property
    def expected(self) -> Fields:
        """The desired fields with the values of references, without ignored fields."""
        spec = {} if self.spec is None else self.spec.fields
        fields = spec if self.resolved is None else self.resolved
        return {
            name: each for name, each in fields.items() if name not in self.policy.ignore_fields
        }

    @property
    def content_to_approve(self) -> object:
        """The basis of an approval: the object, and the fields to change."""
        observed_object, there = self.observed, None
        if observed_object is not None:
            there = (observed_object.fields, observed_object.labels, observed_object.uid)
        changed = {
            name: each
            for name, each in self.expected.items()
            if observed_object is None or not is_as_expected(each, observed_object.fields.get(name))
        }
        return (self.generation, self.is_declared, changed, there)


def is_as_expected(expected: Any, found: Any) -> bool:
    """Return whether a value is as expected; additional keys of a mapping are ignored."""
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return expected == found
    named, there = cast("Fields", expected), cast("Fields", found)
    return all(is_as_expected(each, there.get(name)) for name, each in named.items())


class Ledger:
    """All records so far. Rules are applied before a record is added."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.resources: dict[ResourceKey, Resource] = {}
        self.actions: dict[str, DecidedAction] = {}
        self.by_key: dict[str, DecidedAction] = {}
        self.sent: dict[str, e.Action] = {}
        self.generations: dict[tuple[ResourceKey, str, str], int] = {}
        self.causes: set[tuple[ResourceKey, str]] = set()
        self.effects: list[Effect] = []
        self.configs: defaultdict[str, list[ProviderConfigSpec]] = defaultdict(list)
        self.creation_keys: dict[str, str] = {}
        """The idempotency key of each object's creation, by the object's id."""
        self.ours: set[str] = set()
        self.released: set[str] = set()
        self.given_up: set[str] = set()
        """Actions that a person abandoned along with their objects."""
        self.adopted_twice: set[str] = set()
        self.moving: dict[ResourceKey, str] = {}
        """Former owners of released objects that the new owners have not claimed yet."""
        self.late: set[str] = set()
        """Objects created by a call after its action had failed permanently; the log lacks them."""

    def resource(self, key: ResourceKey) -> Resource:
        """Return the recorded resource; an empty one if there is none."""
        return self.resources.get(key) or Resource(key)

    def action_of(self, key: str | None) -> DecidedAction | None:
        """Return the action of an effect; the keys of later calls begin with the action's key."""
        return self.by_key.get((key or "").partition("/")[0])

    def observation(self, event: e.LogEvent) -> Observed | None:
        """Return the observation that caused an event, if it was recorded."""
        message = self.history.message(event.causationposition)
        return message.data if message and isinstance(message.data, Observed) else None

    def live(self) -> Iterator[tuple[ExternalObject, DecidedAction | None]]:
        """Return the objects at the end that were created under a key, with their actions."""
        for existing in self.history.objects or ():
            if existing.uid in self.creation_keys:
                yield existing, self.action_of(self.creation_keys[existing.uid])

    # --- adding records

    def add_effect(self, effect: Effect) -> None:
        """Add an effect."""
        self.effects.append(effect)
        if effect.key is None:
            return
        action = self.action_of(effect.key)
        if action is not None:
            action.effects.add(effect.key)
        if effect.operation == "Create":
            if action is not None and action.has_failed:
                self.late.add(effect.uid)
            self.creation_keys[effect.uid] = effect.key
            self.ours.add(effect.uid)

    def _explain_by_key(self, resource: Resource, uid: str) -> None:
        """Mark as possibly done the action whose key a claimed object has."""
        observed_object = resource.observed
        if (
            observed_object is not None
            and observed_object.uid == uid
            and observed_object.written_by in self.by_key
        ):
            self.by_key[observed_object.written_by].may_be_done = True

    def add_event(self, event: e.LogEvent) -> None:  # noqa: C901, PLR0912 - one match
        """Add an event."""
        key, data = event.key, event.data
        resource = self.resources.setdefault(key, Resource(key))
        resource.version = event.resourceversion
        self.causes.add((key, event.causationid))
        match data:
            case e.SpecDeclared() if key.kind == PROVIDER_CONFIG_KIND:
                self.configs[key.name].append(msgspec.convert(data.fields, ProviderConfigSpec))
            case e.ActionDecided(action):
                new = DecidedAction(key, action, resource.expected)
                resource.object_config = action.provider_config
                self.actions.setdefault(action.action_id, new)
                self.by_key.setdefault(action.idempotency_key, new)
            case e.OwnershipReleased(reason="Moved", moved_to=moved_to):
                self.moving[key] = moved_to
            case e.OwnershipClaimed(uid=str(uid), provider_config=config, moved=moved):
                resource.object_config = config
                if moved is not None:
                    self.moving.pop(ResourceKey.parse(moved.moved_from), None)
                self._explain_by_key(resource, uid)
                self.ours.add(uid)
                self.released.discard(uid)
            case e.OwnershipReleased(uid=str(uid), reason="Orphaned" | "Forgotten"):
                self.ours.discard(uid)
                self.released.add(uid)
            case e.ActionSucceeded(ended, object=ExternalObject(uid=str(uid))):
                # A write that found a different object does not make that object ours (ADR 0009).
                is_different_object = ended in self.actions and self.actions[
                    ended
                ].action.uid not in (None, uid)
                if not (is_different_object or (data.outdated and uid in self.released)):
                    self.ours.add(uid)
            case e.ActionAbandoned(action_id=ended):
                if ended in self.actions and self.actions[ended].is_given_up:
                    self.given_up.add(ended)
            case _:
                pass
        if isinstance(data, e.SpecDeclared | e.SpecWithdrawn):
            name = (key, event.actor, event.causationid)
            self.generations.setdefault(name, data.generation)
        decided = self.actions.get(_action_of(data))
        if decided is not None:
            _fold_action_event(resource, event, decided)
        else:
            _fold_resource_event(resource, event)
        exists = bool(resource.is_declared or resource.owned or resource.in_flight)
        resource.is_in_effect = exists and (resource.is_in_effect or resource.is_declared)


def _action_of(data: e.ResourceEvent) -> str:
    """Return the id of the action that an event is about, empty if it is about none."""
    match data:
        case e.ActionDecided(action) | e.ActionRetried(action) | e.LookupDecided(action):
            return action.action_id
        case e.ActionHeld(action_id) | e.ActionNotDone(action_id) | e.ActionDoubted(action_id):
            return action_id
        case (
            e.ActionSucceeded(action_id) | e.ActionFailed(action_id) | e.ActionAbandoned(action_id)
        ):
            return action_id
        case _:
            return ""


# --- one resource


def _fold_resource_event(resource: Resource, event: e.LogEvent) -> None:  # noqa: C901, PLR0912, PLR0915 - one match
    match event.data:
        case e.SpecDeclared() as data:
            _declare(resource, event, data)
        case e.SpecWithdrawn(generation):
            resource.generation, resource.is_declared = generation, False
            resource.position = event.causationposition
            resource.is_troubled, resource.has_news, resource.approved = False, True, frozenset()
        case e.SpecResolved(fields=fields):
            resource.resolved, resource.is_troubled, resource.approved = fields, False, frozenset()
            if resource.owned is not None and resource.expected == resource.owned.written:
                resource.redefined = 0
        case e.DefinitionObserved(definition):
            resource.definition, resource.redefined = definition.digest, definition.affected
            resource.approved = frozenset()
        case e.ExternalObserved(object=found, unmanaged=unmanaged, as_of=as_of):
            observed_object = resource.observed
            resource.absent_at = as_of if found is None else 0
            if observed_object is None or found is None or observed_object.uid != found.uid:
                resource.approved = frozenset()
            resource.observed, resource.unmanaged, resource.doubted = found, unmanaged or 0, None
        case e.AbsenceDoubted(missing=missing, owned=owned):
            resource.doubted = LossCount(missing, owned)
        case e.TwinDetected():
            resource.held_by, resource.has_been_held = event, True
        case e.HoldApproved(hold="Twin"):
            resource.held_by = None
        case e.UndeclaredCounted(undeclared):
            empty = {kind for kind, each in undeclared.items() if each.count == 0}
            resource.empty_kinds |= empty
        case e.HoldApproved(hold="ExclusiveScope"):
            resource.has_approved_scope = True
        case e.DriftDetected():
            resource.outcome = None
        case e.OwnershipClaimed(external_name, uid, object=ExternalObject() as second):
            resource.retiring = Owned(external_name, uid, {}, second)
        case e.OwnershipClaimed(external_name, uid, moved=moved):
            resource.owned, resource.released = Owned(external_name, uid, {}), None
            if moved is not None:
                resource.observed = moved.object
        case e.OwnershipReleased() as data:
            _release(resource, data)
        case e.OutcomeRecorded() as data:
            resource.outcome, resource.has_news = data, False
        case e.RetryScheduled(action_id=str(name)) if resource.in_flight is not None:
            if resource.in_flight.action.action_id == name:
                resource.in_flight.progress = "scheduled"
        case e.FinalizerAdded(finalizer, holder):
            resource.finalizers[finalizer] = holder
        case e.FinalizerRemoved(finalizer):
            resource.finalizers.pop(finalizer, None)
        case e.ReleaseForced(orphan=orphan, forgotten=forgotten):
            resource.finalizers.clear()
            resource.is_forced, resource.is_orphaned = True, orphan
            if forgotten:  # the resource knows no object anymore
                resource.observed = None
            if orphan and resource.in_flight is not None:
                resource.in_flight.is_given_up = True
        case e.ReferenceAdded(by, on_withdrawal):
            resource.references[by] = on_withdrawal
        case e.ReferenceRemoved(by):
            resource.references.pop(by, None)
        case e.ApprovalRequested(plan):
            resource.requested_approval, resource.plan = (plan, resource.content_to_approve), None
        case e.ApprovalRefused():
            resource.plan = None
        case e.HoldApproved(hold="Approval"):
            resource.plan = resource.requested_approval[1]
        case e.HoldApproved(hold, decision):
            resource.approved |= {hold}
            if decision == "Abandon" and resource.in_flight is not None:
                resource.in_flight.is_given_up = True
            elif resource.in_flight is not None and resource.in_flight.progress == "held":
                resource.in_flight.is_checked, resource.in_flight.is_open = True, False
        case _:
            pass


def _declare(resource: Resource, event: e.LogEvent, data: e.SpecDeclared) -> None:
    observed_object, previous_declaration = resource.observed, resource.spec
    if previous_declaration is None or previous_declaration.external_name != data.external_name:
        resource.released = None
    known_ownership = resource.owned or resource.released
    if (
        known_ownership is None
        and observed_object is not None
        and observed_object.name != data.external_name
    ):
        resource.observed = None  # it was observed under another name
    resource.spec, resource.resolved, resource.is_declared = data, None, True
    resource.generation, resource.position = data.generation, event.causationposition
    resource.is_troubled, resource.has_news, resource.approved = False, True, frozenset()
    resource.is_forced = resource.is_orphaned = False
    resource.definition = "" if data.definition is None else data.definition.digest
    resource.redefined = 0 if data.definition is None else data.definition.affected


def _release(resource: Resource, data: e.OwnershipReleased) -> None:
    owned, retiring, identity = resource.owned, resource.retiring, (data.external_name, data.uid)
    is_owned = owned is not None and (owned.name, owned.uid) == identity
    if retiring is not None and not is_owned and (retiring.name, retiring.uid) == identity:
        resource.retiring = None
        return
    resource.owned = None
    if data.reason == "Moved":
        resource.observed = None  # only the new owner observes it
    elif data.reason == "Orphaned":
        resource.released = owned
    elif data.reason != "Forgotten":
        _restore_replaced(resource)


def _restore_replaced(resource: Resource) -> None:
    if resource.retiring is not None:
        resource.owned, resource.observed = resource.retiring, resource.retiring.shown
        resource.retiring = None


# --- its actions


def _fold_action_event(resource: Resource, event: e.LogEvent, decided: DecidedAction) -> None:
    match event.data:
        case e.ActionDecided(action):
            resource.in_flight, resource.approved = decided, frozenset()
            if resource.outcome_name in _SETTLED_OUTCOMES or action.operation == "Delete":
                resource.outcome = None
        case e.ActionRetried() | e.LookupDecided():
            resource.in_flight, decided.progress = decided, "under way"
            decided.is_lookup = isinstance(event.data, e.LookupDecided)
        case e.ActionHeld() as data:
            decided.progress, resource.approved = "held", frozenset()
            decided.found_other_owner = bool(data.name_owner)
            decided.in_doubt = decided.may_be_done = True
        case e.ActionNotDone():
            decided.progress, decided.is_open = "not done", False
        case e.ActionDoubted():
            decided.in_doubt = decided.may_be_done = decided.is_open = True
        case e.ActionSucceeded() as data:
            _fold_success(resource, event, data, decided)
        case e.ActionFailed() as data:
            _fold_failure(resource, event, data, decided)
        case e.ActionAbandoned(in_doubt=in_doubt):
            decided.progress, resource.in_flight, resource.is_troubled = "ended", None, False
            decided.in_doubt |= in_doubt
            decided.may_be_done |= in_doubt
        case _:
            pass


def _record_effect_time(
    resource: Resource, event: e.LogEvent, reported_at: datetime | None
) -> None:
    if event.causationposition >= resource.effect_position:
        resource.effect_position = event.causationposition
        resource.effect_at = reported_at or event.time


def _fold_success(
    resource: Resource, event: e.LogEvent, data: e.ActionSucceeded, decided: DecidedAction
) -> None:
    _record_effect_time(resource, event, data.reported_at)
    decided.progress, decided.has_succeeded, decided.may_be_done = "ended", True, True
    decided.in_doubt |= data.redelivered
    if data.operation == "Create" and data.object is not None and data.object.uid is not None:
        decided.created.add(data.object.uid)
    is_predecessor_deleted = (data.operation, data.purpose, data.late) == (
        "Delete",
        "Replace",
        False,
    )
    resource.plan = (
        PREDECESSOR_DELETED if is_predecessor_deleted and resource.plan is not None else None
    )
    if not data.late:
        resource.in_flight, resource.is_troubled = None, False
    if data.outdated:
        return
    action, owned = decided.action, resource.owned
    if data.operation == "Delete":
        if data.purpose == "Retire":
            resource.retiring = None
        else:
            resource.owned = resource.observed = None
            resource.absent_at = event.causationposition
            _restore_replaced(resource)
        return
    if action.definition and action.definition == resource.definition:
        resource.redefined = 0
    observed_object = data.object or ExternalObject(
        action.external_name, action.fields, action.uid, None, action.labels
    )
    is_label_kept = bool(observed_object.labels.get(OWNER_LABEL)) and (
        OWNER_LABEL not in action.labels
    )
    if action.operation == "Update" and not resource.is_declared and is_label_kept:
        resource.is_troubled = True
    if action.operation == "Create" and action.purpose == "Replace" and owned is not None:
        resource.retiring = owned._replace(shown=resource.observed)
    is_bound = action.operation == "Update" and owned is not None and owned.uid is not None
    uid = owned.uid if is_bound and owned is not None else observed_object.uid
    resource.owned, resource.released = Owned(action.external_name, uid, decided.expected), None
    resource.observed = observed_object


def _fold_failure(
    resource: Resource, event: e.LogEvent, data: e.ActionFailed, decided: DecidedAction
) -> None:
    is_unknown = data.error.error_class == "Unknown"
    is_gone = data.operation == "Create" and data.error.error_class == "NotFound"
    decided.in_doubt |= data.redelivered or (is_unknown and not decided.is_lookup)
    # If a creation fails with NotFound, its first call created an object that the next did not see.
    decided.may_be_done |= data.redelivered or is_unknown or is_gone
    resource.is_troubled = True
    is_looked_up = data.error.error_class == "Refused" and not decided.is_lookup
    is_looked_up &= (decided.is_open and not decided.is_unclear) or data.redelivered
    if decided.is_lookup and is_unknown:
        decided.is_unclear = True
    is_partly_done = data.operation == "Create" and data.error.error_class == "Throttled"
    if not decided.is_lookup and data.error.attempted:
        decided.is_open |= is_unknown or is_partly_done
        decided.is_unclear &= not (is_unknown or is_partly_done)
    decided.is_open |= data.redelivered
    if data.error.error_class not in FINAL_ERROR_CLASSES or is_looked_up:
        decided.progress = "failed"
        return
    decided.progress, decided.has_failed, resource.in_flight = "ended", True, None
    _record_effect_time(resource, event, data.reported_at)
    if data.error.error_class == "Refused":
        is_current_generation = decided.action.generation == resource.generation
        resource.is_troubled = is_current_generation or data.purpose in ("Retire", "Renew")
    elif data.purpose == "Retire":
        object_uid = None if data.object is None else data.object.uid
        uid = None if resource.retiring is None else resource.retiring.uid
        is_other = None not in (object_uid, uid) and object_uid != uid
        if data.error.error_class == "NotFound" or is_other:
            resource.retiring = None
    else:
        is_added = data.purpose == "Replace" and data.operation == "Create" and resource.owned
        if not is_added and (data.error.error_class == "NotFound" or data.object is not None):
            resource.observed = data.object


def has_rival(ledger: Ledger, resource: Resource, *, only_now: bool = True) -> bool:
    """Return whether another resource owns or declares the name of a resource's object.

    Without ``only_now``: or declared it earlier.
    """
    if resource.spec is None:
        return False
    return any(
        (each.owned is not None and each.owned.name == resource.spec.external_name)
        or (
            (each.is_declared or not only_now)
            and each.spec is not None
            and each.spec.external_name == resource.spec.external_name
        )
        for each in ledger.resources.values()
        if each is not resource
    )
