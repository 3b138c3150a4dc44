"""Status: one row for each resource."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

import msgspec
from msgspec.structs import replace

from events.endings import Endings, endings_of
from events.external import ExternalObject, digest, identity
from events.hold import Hold, hold_of
from events.intake import ListingFailure, OnWithdrawal, TargetState
from events.integrity import LogDamage
from events.log import (
    AbsenceDoubted,
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    ApiFellSilent,
    ApiSilenceEnded,
    ApiThrottled,
    ApprovalRefused,
    ApprovalRequested,
    AvailabilityNoted,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    Condition,
    DeclarationSuperseded,
    DefinitionObserved,
    DriftDetected,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    GenerationSuperseded,
    HoldApproved,
    ListingsFailed,
    ListingsResumed,
    LogEvent,
    LookupDecided,
    MovedObject,
    MoveEnded,
    MoveExpected,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    PartAvailability,
    ProgressNoted,
    ReconcileAccepted,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    RenewalScheduled,
    RetryScheduled,
    SecretObserved,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    TargetObserved,
    TwinDetected,
    UndeclaredCounted,
    UsersCounted,
)
from events.manifest import ApprovalLevel, Fields
from events.names import PROVIDER_CONFIG_KIND, ResourceKey, name_for_external
from events.reference import Reference

_NEED_LISTING = frozenset(each for each in Hold if each.needs_listing)

_GOOD_IF_FALSE = ("Degraded", "Paused")

MAX_RELEASED = 16
"""Maximum number of remembered released objects per resource."""

MAX_UNCERTAIN_NAMES = 4
"""Maximum number of remembered names of possible late creations, one per replacement."""


class StatusRow(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """Status of a resource after the event at ``position`` of the log."""

    namespace: str
    kind: str
    name: str
    version: int = 0
    position: int = 0
    since: datetime | None = None  # time of the first declaration or observation
    changed_at: datetime | None = None

    # The declaration. ``outcome`` describes ``observed_generation``.
    generation: int = 0
    observed_generation: int = 0
    declared: bool = False
    paused: bool = False  # the declaration stops all actions, so the row is never overdue
    labels: dict[str, str] = {}
    approve: ApprovalLevel = "Never"
    definition: int = 0  # generation of the kind's definition that the declaration used
    refers: tuple[Reference, ...] = ()  # kept after a withdrawal, until the object is deleted
    targets: dict[str, TargetState] = {}  # recorded states of the referenced resources
    secrets: dict[str, str] = {}  # recorded digests by name; empty: unknown

    # The location and the owner of the object. ``owned_by`` is the event that began the ownership.
    provider_config: str = ""
    external_name: str = ""
    declared_config: str = ""  # ProviderConfig of the next creation, if the object is elsewhere
    declared_name: str = ""  # name of the next creation, if the object has a second name
    owned: bool = False
    owned_by: str = ""
    owned_since: datetime | None = None
    owned_reason: str = ""
    uid: str | None = None
    belongs_to: str = ""  # another resource to which the object or its name belongs
    # claims of the object, and of the write in flight (`Kind.find_claims`)
    claims: tuple[str, ...] = ()
    pending_claims: tuple[str, ...] = ()
    # whether the resource owned an object with its declared name, and has not given the name up
    reserves_name: bool = False

    # The last recorded state of the object. Observers report it only if its digest differs. For an
    # object that no resource declares or owns, they compare ``foreign_identity`` instead.
    # time of the last recorded read; unchanged reads are not recorded
    observed_at: datetime | None = None
    observed_uid: str | None = None  # uid of an object that is not owned
    observed_digest: str = ""
    foreign_identity: str = ""
    outputs: Fields = {}
    drifts: int = 0
    # a listing once missed the owned object, so only a read proves its absence
    listing_disproved: bool = False
    grace_seconds: float = 0.0  # consistency grace of the API, learned from a reappeared object
    # ProviderConfig and uid of an object that vanished with its data
    lost: tuple[str, str | None] | None = None
    found_as: str = ""  # name under which a listing showed the object that is missing
    # whether the next listing or read is recorded even if it shows nothing new
    doubted: bool = False
    unmanaged: int | None = None  # counts that the guard last used
    total: int | None = None

    # The replaced object, until it is deleted.
    retiring: str = ""
    retiring_uid: str | None = None
    retiring_digest: str = ""
    retiring_outputs: Fields | None = None

    # Names and uids of released objects, until a read shows their absence.
    released: tuple[tuple[str, str | None], ...] = ()

    # Names of objects that creations with unknown results may have created, or may still create.
    uncertain_names: tuple[str, ...] = ()

    # Whether a creation may have created, or may still create, an object that no read has shown.
    # ``uncertain_names`` cannot identify it, because the API assigns the ids, or cannot list.
    is_unconfirmed: bool = False

    # The action in flight. ``pending_digest`` is the digest of the written content, which counts as
    # observed if the API does not return the object. ``pending_name`` is the name of the created
    # object.
    action_id: str = ""
    operation: str = ""
    attempt: int = 0
    pending_name: str = ""
    pending_digest: str = ""

    # The outcome, and the current waits.
    outcome: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    # how long the object has been ready, if its kind may stop being ready by itself (ADR 0085)
    availability: PartAvailability | None = None
    # time since which each condition has been unmet
    unmet_since: dict[str, datetime] | None = None
    retry_at: datetime | None = None
    retry_seconds: float = 0.0
    renewal_at: datetime | None = None  # time of the next renewal
    progress_at: datetime | None = None  # deadline for the next progress
    # time at which the next part becomes available, or a withheld withdrawal is made
    available_at: datetime | None = None
    pending_plan: str = ""  # plan waiting for approval
    pending_level: ApprovalLevel = "Never"  # least strict level that requires this approval

    # Dependencies of other services and resources on this one.
    finalizers: dict[str, str] = {}
    references: dict[str, OnWithdrawal] = {}
    until_unused: bool = False  # a withdrawn ProviderConfig that is still in effect
    referenced_from: tuple[str, ...] = ()

    # Health of the API, for a ``ProviderConfig``.
    throttled_until: datetime | None = None
    throttled_seconds: float = 0.0
    breaker_until: datetime | None = None
    failed_listings: dict[str, ListingFailure] | None = None  # by kind; None: no failures
    systems: dict[str, str] | None = None  # ids of the listed systems, by kind
    silent_since: datetime | None = None  # time of the last response; None while it responds
    # version of the declaration, or of the event that last began or ended a silence
    silence_version: int = 0
    silence_event: str = ""  # id of the last event that began or ended one

    @property
    def key(self) -> ResourceKey:
        """Identity of the resource."""
        return ResourceKey(self.namespace, self.kind, self.name)

    def read_uid(self, *, unique_names: bool) -> str | None:
        """Return the uid by which to read the object, or None to read it by name.

        Without unique names, an object that is not owned can only be read by its uid.
        """
        return self.uid if unique_names else self.uid or self.observed_uid

    @property
    def is_foreign(self) -> bool:
        """Whether the resource was never declared and never owned its object."""
        return not (self.generation or self.owned)

    @property
    def is_gone(self) -> bool:
        """Whether only the history of the resource is left.

        A finalizer is kept longer than its object, because it would also block the next one.
        """
        return not (
            self.declared
            or self.owned
            or self.observed_digest
            or self.action_id
            or self.retry_at
            or self.references
            or self.until_unused
            or self.finalizers
            or self.released
            or self.is_unconfirmed
            # A listing would create another resource for the object that a late call creates.
            or any(name_for_external(each) != self.name for each in self.uncertain_names)
        )

    @property
    def used_configs(self) -> tuple[str, ...]:
        """ProviderConfigs that the resource uses: those of its declaration, object and action."""
        if not (self.declared or self.owned or self.action_id):
            return ()
        return tuple(filter(None, (self.provider_config, self.declared_config)))

    @property
    def not_ready(self) -> Condition | None:
        """Condition ``Ready`` of an object that is as declared but not ready; None otherwise."""
        if self.outcome != "Converged":
            return None
        for each in self.conditions:
            if each.type == "Ready" and each.status != "True":
                return each
        return None

    @property
    def is_momentary(self) -> bool:
        """Whether the object is ready, but no read has shown yet that it stays ready."""
        return self.availability is not None and not self.availability.available

    @property
    def is_settled_ready(self) -> bool:
        """Whether the object is as declared and ready.

        During an action, the outcome and the readiness are those of an earlier object or content.
        """
        return self.outcome == "Converged" and not self.action_id and self.not_ready is None

    @property
    def is_available(self) -> bool:
        """Whether the object, of a kind that may stop being ready, has stayed ready."""
        return self.availability is not None and self.availability.available

    @property
    def waiting_since(self) -> datetime | None:
        """Time since which the unmet condition has had its current reason."""
        unmet_type = "Ready" if self.outcome == "Converged" else "Converged"
        return (self.unmet_since or {}).get(unmet_type)

    @property
    def is_linked(self) -> bool:
        """Whether the resource has references or secrets, or other resources reference it."""
        return bool(self.refers or self.references or self.secrets)

    @property
    def hold(self) -> Hold | None:
        """Hold of a resource with the outcome ``Held``; None for a hold from a newer release."""
        return hold_of(self.outcome, self.reason)

    @property
    def next_deadline(self) -> datetime | None:
        """Earliest time of the next renewal, progress deadline or availability of a part."""
        deadlines = (self.renewal_at, self.progress_at, self.available_at)
        return min(filter(None, deadlines), default=None)

    @property
    def is_swept(self) -> bool:
        """Whether the sweeper must check the resource: it waits, or is held."""
        return self.outcome == "Held" or bool(self.retry_at or self.next_deadline)

    def hold_for_damage(self, damage: LogDamage) -> None:
        """Mark the resource as held, because its history must not be folded further."""
        self.outcome, self.reason, self.message = "Held", Hold.LOG_DAMAGED, str(damage)
        self.conditions = (
            Condition("Converged", "Unknown", Hold.LOG_DAMAGED, str(damage), self.generation),
            Condition("Ready", "Unknown", Hold.LOG_DAMAGED, "", self.generation),
        )


def fold_status(  # noqa: C901, PLR0912, PLR0915 - one exhaustive match
    row: StatusRow, position: int, event: LogEvent
) -> None:
    """Fold one event of the log into the row of its resource, in place."""
    row.version = event.resourceversion
    row.position = position
    row.changed_at = event.time
    if row.since is None:
        row.since = event.time
    match event.data:  # most frequent cases first: each case that does not match costs 50 ns
        case OutcomeRecorded() as data:
            row.unmet_since = _unmet_since(row, data, event.time)
            row.outcome = data.outcome
            row.generation = row.observed_generation = data.generation
            row.reason = data.reason
            row.message = data.message
            row.conditions = data.conditions
            if (data.outcome, data.reason) == ("Conflict", "OwnedByAnother") and not row.owned:
                row.reserves_name = False  # the name belongs to another resource
            row.availability = data.availability
        case ActionDecided(action):
            row.doubted = False  # an approved hold ends with the action
            _start_attempt(row, action, 1)
        case ActionSucceeded() as data:
            row.observed_at = event.time
            _fold_success(row, event, data)
        case SpecDeclared() as data:
            if not row.declared:
                row.since = event.time
            _fold_declaration(row, data)
        case SpecWithdrawn(generation, until_unused=until_unused):
            row.generation, row.until_unused = generation, until_unused
            row.declared = row.paused = row.reserves_name = False
            row.lost = None
        case GenerationSuperseded() | DeclarationSuperseded():
            pass  # the next outcome describes the newer generation
        case ExternalObserved() as data:
            row.observed_at = event.time
            _fold_observation(row, data)
        case AbsenceDoubted():
            row.doubted = True
        case DriftDetected():
            row.drifts += 1
        case OwnershipClaimed(object=ExternalObject() as replaced) as data:
            row.retiring, row.retiring_uid = data.external_name, data.uid
            _set_retiring_content(row, replaced)
            row.is_unconfirmed = False
        case OwnershipClaimed(moved=MovedObject() as moved) as data:
            _set_owned(row, event, data.reason)
            _set_location(row, data.provider_config, data.external_name)
            _set_observed(row, moved.object)
            row.uid, row.observed_at = data.uid, event.time
            row.grace_seconds = data.grace_seconds
        case MoveExpected() | MoveEnded():
            pass  # the outcome describes the move
        case OwnershipClaimed() as data:
            _set_owned(row, event, data.reason)
            _set_location(row, data.provider_config, data.external_name)
            row.uid, row.is_unconfirmed, row.claims = data.uid, False, data.claims
            _forget_release(row, (data.external_name, data.uid))
            row.listing_disproved = data.reason == "Returned" and not row.found_as
            row.lost, row.found_as = None, ""
            row.grace_seconds = data.grace_seconds or row.grace_seconds
        case OwnershipReleased() as data:
            released_object = (data.external_name, data.uid)
            if data.reason == "Moved":
                _clear_ownership(row)
                _set_observed(row, None)
                row.unmanaged = row.total = None
                row.doubted = False  # a requested read concerned the object
                row.grace_seconds = 0.0
                return
            if data.unconfirmed:
                _remember_uncertain(row, data.external_name)
                row.is_unconfirmed = True
            if data.reason == "Orphaned":
                row.released = (*row.released, released_object)[-MAX_RELEASED:]
            if row.retiring and released_object == (row.retiring, row.retiring_uid):
                _clear_retiring(row)
                return
            _clear_ownership(row, keeps_name=data.reason in ("Gone", "Replaced"))
            if data.lost_data:
                row.lost = (data.provider_config, data.uid)
            if data.reason not in ("Orphaned", "Forgotten"):
                _restore_replaced(row)
            elif row.observed_digest:
                # The released object keeps its second name while it exists.
                if row.external_name != data.external_name:
                    row.declared_name, row.external_name = row.external_name, data.external_name
                row.observed_uid = data.uid
        case FinalizerAdded(finalizer, holder):
            row.finalizers = {**row.finalizers, finalizer: holder}
        case FinalizerRemoved(finalizer):
            row.finalizers = {
                name: holder for name, holder in row.finalizers.items() if name != finalizer
            }
        case ReleaseForced(forgotten=forgotten):
            row.finalizers, row.until_unused = {}, False
            if forgotten:
                _set_observed(row, None)
                row.observed_uid, row.belongs_to, row.released = None, "", ()
                row.foreign_identity = ""
                row.is_unconfirmed, row.uncertain_names = False, ()
        case ApprovalRequested() as data:
            row.pending_plan, row.pending_level = data.plan, data.level
            row.approve = data.declared_level or row.approve
        case ApprovalRefused():
            pass  # the outcome describes it
        case HoldApproved() as data:
            if data.hold != Hold.DATA_LOSS:  # it does not replace the approval of another hold
                row.doubted = not row.action_id and data.hold in _NEED_LISTING
            if data.hold == Hold.DATA_MISSING:
                row.lost = None
        case ReconcileAccepted(reads):
            row.doubted = reads and not row.action_id
            row.retry_at = row.retry_at and (event.time if row.action_id else None)
        case ReferenceAdded(by, on_withdrawal):
            row.references = {**row.references, by: on_withdrawal}
        case ReferenceRemoved(by):
            row.references = {name: policy for name, policy in row.references.items() if name != by}
        case TargetObserved() as data:
            row.targets = {**row.targets, data.target: data.state}
        case SecretObserved() as data:
            row.secrets = {**row.secrets, data.secret: data.digest}
        case DefinitionObserved(definition):
            row.definition = definition.generation
        case SpecResolved():
            pass  # later events describe the effect
        case ActionRetried(action, attempt) | LookupDecided(action, attempt):
            _start_attempt(row, action, attempt)
        case ActionHeld():
            row.retry_at = None
        case ActionNotDone():
            pass  # the action continues
        case ActionDoubted(operation="Create") as data:
            names = (row.pending_name, row.declared_name, row.external_name)
            _remember_uncertain(row, *names)
            row.is_unconfirmed |= data.unconfirmed
        case ActionDoubted():
            pass  # a later observation shows the effect
        case ActionFailed() as data:
            _fold_failure(row, data)
        case ActionAbandoned() as data:
            _remember_uncertain(row, row.pending_name)
            row.is_unconfirmed |= data.unconfirmed
        case RetryScheduled(at, seconds):
            row.retry_at = at
            row.retry_seconds = seconds
        case RenewalScheduled(_, at):
            row.renewal_at = at
        case ProgressNoted() as data:
            row.progress_at = data.at
        case AvailabilityNoted() as data:
            row.available_at = data.next_at
        case ApiThrottled(until, seconds):
            row.throttled_until, row.throttled_seconds = until, seconds
        case BreakerOpened(until):
            row.breaker_until = until
        case BreakerProbed():
            pass  # the breaker stays open until the probe ends
        case BreakerClosed():
            row.breaker_until = None
        case TwinDetected() | UndeclaredCounted():
            pass  # the outcome describes it
        case UsersCounted(count):
            row.until_unused = count > 0
        case ListingsFailed(kind, failure):
            row.failed_listings = {**(row.failed_listings or {}), kind: failure}
        case ListingsResumed(kind, system_id):
            if system_id:
                row.systems = {**(row.systems or {}), kind: system_id}
            failed = (row.failed_listings or {}).items()
            row.failed_listings = {name: each for name, each in failed if name != kind} or None
        case ApiFellSilent(since):
            row.silent_since = since
            row.silence_version, row.silence_event = event.resourceversion, event.id
        case ApiSilenceEnded():
            row.silent_since = None
            row.silence_version, row.silence_event = event.resourceversion, event.id
        case _:
            assert_never(event.data)
    _apply_endings(row, endings_of(event.data))
    if not (row.declared or row.owned or row.action_id):
        # References end with the declaration and its object. A resource that claims the object
        # later only deletes or releases it. A row that was deleted has lost its references, too.
        row.refers = row.referenced_from = ()


def _unmet_since(
    row: StatusRow, data: OutcomeRecorded, now: datetime
) -> dict[str, datetime] | None:
    """Return the time since which each unmet condition has had its current reason."""
    unmet: dict[str, datetime] | None = None
    for condition in data.conditions:
        if (condition.status == "True") is not (condition.type in _GOOD_IF_FALSE):
            continue
        since = now
        for previous in row.conditions if row.unmet_since else ():
            if (previous.type, previous.status, previous.reason) != (
                condition.type,
                condition.status,
                condition.reason,
            ):
                continue
            # A waiting resource names its prerequisite in the message. Other messages may contain
            # counters.
            if data.outcome != "Waiting" or previous.message == condition.message:
                since = (row.unmet_since or {}).get(condition.type, now)
        unmet = unmet or {}
        unmet[condition.type] = since
    return unmet


def _fold_declaration(row: StatusRow, data: SpecDeclared) -> None:
    """Fold a new generation of the declaration."""
    name = data.external_name
    is_known = row.provider_config == data.provider_config and name in (
        row.external_name,
        row.declared_name,
    )
    is_moved = (data.provider_config, name) != _declared_location(row)
    if is_moved:
        row.reserves_name = False
    if not is_known and not row.owned:
        _set_observed(row, None)
        row.provider_config, row.external_name, row.observed_uid = data.provider_config, name, None
        row.grace_seconds = 0.0
    row.declared_config = (
        "" if data.provider_config == row.provider_config else data.provider_config
    )
    if not row.observed_digest and (is_moved or not row.declared):
        row.belongs_to = ""
    if row.external_name != name:  # a replacement has a different name
        row.declared_name = name
    elif not row.owned:
        row.declared_name = ""
    is_deleting = row.hold == Hold.DELETION_GUARD or row.reason == "AwaitingRead"
    if is_deleting and not (row.declared or row.owned):
        row.doubted = False  # the new declaration replaces the approved deletion
    row.foreign_identity = ""
    row.generation, row.labels = data.generation, data.labels
    if not row.declared:  # a declaration after a withdrawal starts over
        row.targets, row.secrets = {}, {}
    row.declared, row.until_unused = True, False
    row.throttled_until = row.breaker_until = row.failed_listings = row.systems = None
    if row.kind == PROVIDER_CONFIG_KIND:
        row.silence_version = row.version
    row.refers = data.references
    row.targets = {
        each.target: row.targets[each.target]
        for each in data.references
        if each.target in row.targets
    }
    row.secrets = {name: row.secrets.get(name, "") for name in data.secrets}
    row.definition = 0 if data.definition is None else data.definition.generation
    row.paused = data.policy.paused
    if data.policy.mode == "Absent":
        row.lost, row.reserves_name = None, False
    row.approve = data.policy.approve
    row.referenced_from = data.policy.referenced_from


def _apply_endings(row: StatusRow, endings: Endings) -> None:
    """Clear the state that an event ends. An action's wait ends with the action."""
    if endings.action:
        row.action_id = row.operation = row.pending_name = ""
        row.attempt, row.pending_claims = 0, ()
    if endings.wait and not row.action_id:
        row.retry_at = None
    if endings.deadlines:
        row.renewal_at = row.progress_at = row.available_at = None
    if endings.plan:
        row.pending_plan, row.pending_level = "", "Never"


def _start_attempt(row: StatusRow, action: Action, attempt: int) -> None:
    """Mark an attempt of an action as in flight."""
    row.action_id = action.action_id
    if action.purpose == "Renew":
        row.renewal_at = None
    row.operation = action.operation
    row.attempt, row.pending_claims = attempt, action.claims
    row.pending_digest = row.pending_name = ""
    if action.operation == "Create":
        row.pending_name = action.external_name
        row.provider_config = action.provider_config
    if action.operation != "Delete":
        content = (action.external_name, action.fields, action.uid, None, action.labels)
        row.pending_digest = digest(ExternalObject(*content))
    row.retry_at = None


def _set_location(row: StatusRow, config: str, name: str) -> None:
    """Set the location of the object, and keep the declared one if it differs."""
    declared_config = row.declared_config or row.provider_config
    declared_name = row.declared_name or row.external_name
    row.provider_config, row.external_name = config, name
    row.declared_config = "" if declared_config == config else declared_config
    row.declared_name = "" if declared_name == name else declared_name
    if _has_declared_name(row):
        row.reserves_name = False  # the object itself shows the name


def _set_owned(row: StatusRow, event: LogEvent, reason: str) -> None:
    row.owned = True
    row.foreign_identity, row.observed_uid = "", None
    row.owned_by, row.owned_since, row.owned_reason = event.id, event.time, reason


def _fold_success(row: StatusRow, event: LogEvent, data: ActionSucceeded) -> None:
    """Fold the result of a successful action."""
    if data.operation == "Create" and (data.redelivered or data.late):
        _remember_uncertain(row, data.external_name if data.late else row.pending_name)
    if data.outdated:
        return
    row.is_unconfirmed &= not data.late
    pending_digest = row.pending_digest
    # another action may be in flight when a late success arrives
    if not data.late or not row.action_id:
        row.pending_digest = ""
    if data.operation == "Delete" and data.purpose == "Retire":
        _clear_retiring(row)
        return
    if data.operation == "Delete":
        if data.unconfirmed:
            _remember_uncertain(row, row.external_name)
            row.is_unconfirmed = True
        _clear_ownership(row, keeps_name=data.purpose == "Replace")
        _set_observed(row, None)
        _restore_replaced(row)
        return
    if data.operation == "Create":
        if data.purpose == "Replace" and row.owned:
            row.reserves_name |= _has_declared_name(row)
            row.retiring, row.retiring_uid = row.external_name, row.uid
            row.retiring_digest, row.retiring_outputs = row.observed_digest, row.outputs
        # A late creation may be at the location of an earlier declaration.
        name = data.external_name or row.declared_name or row.external_name
        _set_location(row, data.provider_config or row.provider_config, name)
        row.uid = None
    if data.operation == "Create" or not row.owned:
        _set_owned(row, event, f"{data.operation}d")
    if data.operation == "Create":
        row.listing_disproved = False
        row.lost, row.found_as = None, ""
        # The readiness of the previous object does not apply to the new one.
        row.conditions = tuple(
            replace(each, status="Unknown", reason="Created") if each.type == "Ready" else each
            for each in row.conditions
        )
    row.observed_digest, row.claims = pending_digest, row.pending_claims
    if data.object is not None:
        # an update may have found another object, which is not owned
        row.uid = row.uid or data.object.uid
        _set_observed(row, data.object)


def _fold_failure(row: StatusRow, data: ActionFailed) -> None:
    """Fold what a failed attempt revealed about the object."""
    if data.effect.may_exist:
        _remember_uncertain(row, row.pending_name)
    if data.consequence == "Retry":
        return
    if data.error.belongs_to and not row.owned:
        row.belongs_to = data.error.belongs_to
    if data.consequence == "Retired":
        _clear_retiring(row)
    elif data.consequence == "Observed" and data.purpose == "Retire":
        assert data.object is not None
        _set_retiring_content(row, data.object)
    elif data.consequence == "Observed":
        _set_observed(row, data.object)


def _fold_observation(row: StatusRow, data: ExternalObserved) -> None:
    """Fold a new observation of the object."""
    existing, name = data.object, data.external_name
    is_replaced = existing is not None and existing.uid != row.observed_uid
    # Only a read proves an absence: a later listing may contain the object again (invariant 6).
    if is_replaced or (existing is None and data.evidence == "Read"):
        _forget_release(row, (row.external_name, row.observed_uid))
    if row.declared_name and not row.owned:
        is_same = existing is not None and existing.uid == row.observed_uid
        if not is_same:  # the released object was deleted; another one may have its second name
            existing, name = None, row.declared_name
            row.external_name, row.declared_name = name, ""
    _set_observed(row, existing)
    is_foreign = existing is not None and not (row.declared or row.owned)
    row.foreign_identity = identity(existing) if existing and is_foreign else ""
    row.observed_uid = None if existing is None or row.owned else existing.uid
    row.doubted = False
    row.found_as = row.found_as if existing is not None else data.found_as
    row.unmanaged, row.total = data.unmanaged, data.total
    row.belongs_to = data.belongs_to
    if not row.declared:
        row.provider_config, row.external_name = data.provider_config, name


def _set_observed(row: StatusRow, existing: ExternalObject | None) -> None:
    row.observed_digest = "" if existing is None else digest(existing)
    row.outputs = {} if existing is None else existing.outputs


def _declared_location(row: StatusRow) -> tuple[str, str]:
    """Return the configuration and the name that the declaration gives the object."""
    return row.declared_config or row.provider_config, row.declared_name or row.external_name


def _has_declared_name(row: StatusRow) -> bool:
    """Return whether the object is where the declaration places it."""
    return not (row.declared_name or row.declared_config)


def _clear_ownership(row: StatusRow, *, keeps_name: bool = False) -> None:
    """Mark the object as not owned, and reset its location to the declared one.

    ``keeps_name``: a declared resource is about to create its object again.
    """
    is_kept = row.reserves_name or _has_declared_name(row)
    row.owned, row.reserves_name = False, keeps_name and row.declared and is_kept
    row.claims = row.claims if row.reserves_name else ()
    if not row.retiring:  # otherwise, the replaced object is owned
        row.owned_by, row.owned_since, row.owned_reason = "", None, ""
    row.renewal_at = row.progress_at = row.available_at = None
    row.uid = None
    row.listing_disproved = False
    row.provider_config, row.declared_config = row.declared_config or row.provider_config, ""
    row.external_name, row.declared_name = row.declared_name or row.external_name, ""


def _restore_replaced(row: StatusRow) -> None:
    """Own the replaced object again if its replacement disappears before it is deleted."""
    if not row.retiring:
        return
    if row.external_name != row.retiring:
        row.declared_name = row.external_name
    row.owned, row.external_name, row.uid = True, row.retiring, row.retiring_uid
    row.observed_digest, row.outputs = row.retiring_digest, row.retiring_outputs or {}
    _clear_retiring(row)


def _remember_uncertain(row: StatusRow, *names: str) -> None:
    """Remember names under which a late call may create an object."""
    new = dict.fromkeys(each for each in names if each and each not in row.uncertain_names)
    row.uncertain_names = (*row.uncertain_names, *new)[-MAX_UNCERTAIN_NAMES:]


def _forget_release(row: StatusRow, released_object: tuple[str, str | None]) -> None:
    row.released = tuple(each for each in row.released if each != released_object)


def _set_retiring_content(row: StatusRow, existing: ExternalObject) -> None:
    row.retiring_digest, row.retiring_outputs = digest(existing), existing.outputs


def _clear_retiring(row: StatusRow) -> None:
    row.retiring = row.retiring_digest = ""
    row.retiring_uid = row.retiring_outputs = None
