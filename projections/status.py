"""Status: how every resource stands, one row each."""

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
    ApiThrottled,
    ApprovalRefused,
    ApprovalRequested,
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
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
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
)
from events.manifest import ApprovalLevel, Fields
from events.names import ResourceKey, name_for_external
from events.reference import Reference

_NEED_LISTING = frozenset(each for each in Hold if each.needs_listing)

_GOOD_IF_FALSE = ("Degraded", "Paused")

MAX_RELEASED = 16
"""Released objects of one resource to remember."""

MAX_UNCERTAIN_NAMES = 4
"""Names of possible late creations of one resource to remember: each replacement has another."""


class StatusRow(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """How one resource stands after the event at ``position`` of the log."""

    namespace: str
    kind: str
    name: str
    version: int = 0
    position: int = 0
    since: datetime | None = None  # when it was declared first, or seen
    changed_at: datetime | None = None

    # What is declared. ``outcome`` speaks of ``observed_generation``.
    generation: int = 0
    observed_generation: int = 0
    declared: bool = False
    paused: bool = False  # it asks for no action, so that nothing is due
    labels: dict[str, str] = {}
    approve: ApprovalLevel = "Never"
    definition: int = 0  # the generation of its kind's definition that it rests on
    refers: tuple[Reference, ...] = ()  # until its object is gone, too
    targets: dict[str, TargetState] = {}  # what it knows of what it refers to
    secrets: dict[str, str] = {}  # their digests by name, empty for unknown

    # Where the object is, and whose. ``owned_by`` is the event that made it ours.
    provider_config: str = ""
    external_name: str = ""
    declared_config: str = ""  # where it is created next, if its object is elsewhere
    declared_name: str = ""  # what it is called next, where its object has a second name
    owned: bool = False
    owned_by: str = ""
    owned_since: datetime | None = None
    owned_reason: str = ""
    uid: str | None = None
    belongs_to: str = ""  # another resource that has the object

    # The object as the log last saw it: an observer reports only what differs from the digest.
    # Of an object that nobody here declares or owns, ``foreign_identity`` tells whose it is.
    observed_at: datetime | None = None  # a look that shows nothing new is not in the log
    observed_uid: str | None = None  # of an object that is not owned
    observed_digest: str = ""
    foreign_identity: str = ""
    outputs: Fields = {}
    drifts: int = 0
    listing_disproved: bool = False  # one left out what is ours: only a read proves its absence
    grace_seconds: float = 0.0  # that the API needs, as the return of an object has shown
    doubted: bool = False  # the next listing or read decides, whatever it shows
    unmanaged: int | None = None  # the numbers by which a guard judged last
    total: int | None = None

    # What was replaced and is still there.
    retiring: str = ""
    retiring_uid: str | None = None
    retiring_digest: str = ""
    retiring_outputs: Fields | None = None

    # Names and uids of objects that were released on purpose, until they are known to be gone.
    released: tuple[tuple[str, str | None], ...] = ()

    # Names of objects that creations of unknown result may have created, or may create yet.
    uncertain_names: tuple[str, ...] = ()

    # Its deletion met nothing, and its creation may have made an object of another uid.
    is_unconfirmed: bool = False

    # The action under way. ``pending_digest`` is of what it asks for, which is believed of an API
    # that shows nothing after a write; ``pending_name`` is what a create will call the object.
    action_id: str = ""
    operation: str = ""
    attempt: int = 0
    pending_name: str = ""
    pending_digest: str = ""

    # How it stands, and what it waits for.
    outcome: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    unmet_since: dict[str, datetime] | None = None  # of the conditions that are not as they should
    retry_at: datetime | None = None
    retry_seconds: float = 0.0
    renewal_at: datetime | None = None  # of a renewal
    progress_at: datetime | None = None  # its object should have made progress by then
    pending_plan: str = ""  # waits for approval, from ``pending_level`` on
    pending_level: ApprovalLevel = "Never"

    # What others rely on.
    finalizers: dict[str, str] = {}
    references: dict[str, OnWithdrawal] = {}
    referenced_from: tuple[str, ...] = ()

    # Of a ``ProviderConfig``: how its API answers.
    throttled_until: datetime | None = None
    throttled_seconds: float = 0.0
    breaker_until: datetime | None = None
    failed_listings: dict[str, ListingFailure] | None = None  # by kind; None: no failure

    @property
    def key(self) -> ResourceKey:
        """The identity of the resource."""
        return ResourceKey(self.namespace, self.kind, self.name)

    def read_uid(self, *, unique_names: bool) -> str | None:
        """Return the uid to read the object by; None to read whichever object has its name.

        Where names are not unique, an object that is not owned can only be found by its uid.
        """
        return self.uid if unique_names else self.uid or self.observed_uid

    @property
    def is_foreign(self) -> bool:
        """Whether nobody here ever declared it or had it: it was seen in an API, and no more."""
        return not (self.generation or self.owned)

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of the resource but its history.

        A finalizer outlives its object: it would hold the next one, and nobody would see why.
        """
        return not (
            self.declared
            or self.owned
            or self.observed_digest
            or self.action_id
            or self.retry_at
            or self.references
            or self.finalizers
            or self.released
            or self.is_unconfirmed
            # A listing would name another resource after the object that a late call creates.
            or any(name_for_external(each) != self.name for each in self.uncertain_names)
        )

    @property
    def not_ready(self) -> Condition | None:
        """Why the object cannot be used yet, though it is as declared; None if that is not so."""
        if self.outcome != "Converged":
            return None
        for each in self.conditions:
            if each.type == "Ready" and each.status != "True":
                return each
        return None

    @property
    def waits_since(self) -> datetime | None:
        """Since when it is not as declared, or cannot be used, for the reason that is shown."""
        shown = "Ready" if self.outcome == "Converged" else "Converged"
        return (self.unmet_since or {}).get(shown)

    @property
    def is_linked(self) -> bool:
        """Whether it refers to others or to secrets, or others to it."""
        return bool(self.refers or self.references or self.secrets)

    @property
    def hold(self) -> Hold | None:
        """The hold of a resource with the outcome ``Held``, unless it is of a newer release."""
        return hold_of(self.outcome, self.reason)

    @property
    def next_deadline(self) -> datetime | None:
        """When its object is due for renewal, or should have made progress: the earlier one."""
        return min(filter(None, (self.renewal_at, self.progress_at)), default=None)

    @property
    def is_swept(self) -> bool:
        """Whether a sweep has to look at it: it waits, or is held."""
        return self.outcome == "Held" or bool(self.retry_at or self.renewal_at or self.progress_at)

    def hold_for_damage(self, damage: LogDamage) -> None:
        """Show that the resource is held: its history must not be folded any further."""
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
    match event.data:  # what is most frequent comes first: a case that is tried costs 50 ns
        case OutcomeRecorded() as data:
            row.unmet_since = _unmet_since(row, data, event.time)
            row.outcome = data.outcome
            row.generation = row.observed_generation = data.generation
            row.reason = data.reason
            row.message = data.message
            row.conditions = data.conditions
        case ActionDecided(action):
            row.doubted = False  # what was let go is done with
            _start_attempt(row, action, 1)
        case ActionSucceeded() as data:
            row.observed_at = event.time
            _fold_success(row, event, data)
        case SpecDeclared() as data:
            if not row.declared:
                row.since = event.time
            _fold_declaration(row, data)
        case SpecWithdrawn(generation):
            row.generation = generation
            row.declared = row.paused = False
        case GenerationSuperseded() | DeclarationSuperseded():
            pass  # the next outcome speaks of the newer generation
        case ExternalObserved() as data:
            row.observed_at = event.time
            _fold_observation(row, data)
        case AbsenceDoubted():
            row.doubted = True
        case DriftDetected():
            row.drifts += 1
        case OwnershipClaimed(object=ExternalObject() as second) as data:
            row.retiring, row.retiring_uid = data.external_name, data.uid
            row.retiring_digest, row.retiring_outputs = digest(second), second.outputs
        case OwnershipClaimed() as data:
            _set_owned(row, event, data.reason)
            _set_place(row, data.provider_config, data.external_name)
            row.uid = data.uid
            _forget_release(row, (data.external_name, data.uid))
            row.listing_disproved = data.reason == "Returned"
            row.grace_seconds = data.grace_seconds or row.grace_seconds
        case OwnershipReleased() as data:
            place = (data.external_name, data.uid)
            if data.unconfirmed:
                _remember_uncertain(row, data.external_name)
                row.is_unconfirmed = True
            if data.reason == "Orphaned":
                row.released = (*row.released, place)[-MAX_RELEASED:]
            if row.retiring and place == (row.retiring, row.retiring_uid):
                _clear_retiring(row)
                return
            _clear_ownership(row)
            if data.reason != "Orphaned":
                _restore_replaced(row)
            elif row.observed_digest:
                # It is looked for under its second name as long as it exists.
                if row.external_name != data.external_name:
                    row.declared_name, row.external_name = row.external_name, data.external_name
                row.observed_uid = data.uid
        case FinalizerAdded(finalizer, holder):
            row.finalizers = {**row.finalizers, finalizer: holder}
        case FinalizerRemoved(finalizer):
            row.finalizers = {
                name: holder for name, holder in row.finalizers.items() if name != finalizer
            }
        case ReleaseForced():
            row.finalizers = {}
        case ApprovalRequested() as data:
            row.pending_plan, row.pending_level = data.plan, data.level
            row.approve = data.declared_level or row.approve
        case ApprovalRefused():
            pass  # the outcome tells it
        case HoldApproved() as data:
            row.doubted = not row.action_id and data.hold in _NEED_LISTING
        case ReconcileAccepted(reads):
            row.doubted = reads and not row.action_id
            row.retry_at = row.retry_at and (event.time if row.action_id else None)
        case ReferenceAdded(by, on_withdrawal):
            row.references = {**row.references, by: on_withdrawal}
        case ReferenceRemoved(by):
            row.references = {name: asked for name, asked in row.references.items() if name != by}
        case TargetObserved() as data:
            row.targets = {**row.targets, data.target: data.state}
        case SecretObserved() as data:
            row.secrets = {**row.secrets, data.secret: data.digest}
        case DefinitionObserved(definition):
            row.definition = definition.generation
        case SpecResolved():
            pass  # what follows from it is told by others
        case ActionRetried(action, attempt) | LookupDecided(action, attempt):
            _start_attempt(row, action, attempt)
        case ActionHeld():
            row.retry_at = None
        case ActionNotDone():
            pass  # it is called again
        case ActionDoubted(operation="Create"):
            names = (row.pending_name, row.declared_name, row.external_name)
            _remember_uncertain(row, *names)
        case ActionDoubted():
            pass  # what it did is seen later
        case ActionFailed() as data:
            _fold_failure(row, data)
        case ActionAbandoned():
            _remember_uncertain(row, row.pending_name)
        case RetryScheduled(at, seconds):
            row.retry_at = at
            row.retry_seconds = seconds
        case RenewalScheduled(_, at):
            row.renewal_at = at
        case ProgressNoted() as data:
            row.progress_at = data.at
        case ApiThrottled(until, seconds):
            row.throttled_until, row.throttled_seconds = until, seconds
        case BreakerOpened(until):
            row.breaker_until = until
        case BreakerProbed():
            pass  # it is open until the probe is answered
        case BreakerClosed():
            row.breaker_until = None
        case TwinDetected():
            pass  # the outcome tells it
        case ListingsFailed(kind, failure):
            row.failed_listings = {**(row.failed_listings or {}), kind: failure}
        case ListingsResumed(kind):
            failed = (row.failed_listings or {}).items()
            row.failed_listings = {name: each for name, each in failed if name != kind} or None
        case _:
            assert_never(event.data)
    _apply_endings(row, endings_of(event.data))
    if not (row.declared or row.owned or row.action_id):
        # References end with the object of a declaration. What the resource claims afterwards is
        # deleted or released; a row that was forgotten meanwhile could not name a target either.
        row.refers = row.referenced_from = ()


def _unmet_since(
    row: StatusRow, data: OutcomeRecorded, now: datetime
) -> dict[str, datetime] | None:
    """Return since when each condition is not as it should be, for the reason it has now."""
    found: dict[str, datetime] | None = None
    for each in data.conditions:
        if (each.status == "True") is not (each.type in _GOOD_IF_FALSE):
            continue
        since = now
        for before in row.conditions if row.unmet_since else ():
            if (before.type, before.status, before.reason) != (each.type, each.status, each.reason):
                continue
            # What waits for another names it in the message; elsewhere that may count, or vary.
            if data.outcome != "Waiting" or before.message == each.message:
                since = (row.unmet_since or {}).get(each.type, now)
        found = found or {}
        found[each.type] = since
    return found


def _fold_declaration(row: StatusRow, data: SpecDeclared) -> None:
    name = data.external_name
    is_known = row.provider_config == data.provider_config and name in (
        row.external_name,
        row.declared_name,
    )
    if not is_known and not row.owned:
        _set_observed(row, None)
        row.provider_config, row.external_name, row.observed_uid = data.provider_config, name, None
        row.grace_seconds = 0.0
    row.declared_config = (
        "" if data.provider_config == row.provider_config else data.provider_config
    )
    row.belongs_to = row.belongs_to if row.observed_digest else ""
    if row.external_name != name:  # a replacement has another name
        row.declared_name = name
    elif not row.owned:
        row.declared_name = ""
    if row.hold == Hold.DELETION_GUARD:
        row.doubted = False  # the deletion that was approved is not wanted any more
    row.foreign_identity = ""
    row.generation, row.labels = data.generation, data.labels
    if not row.declared:  # a new life begins, which knows nothing of others yet
        row.targets, row.secrets = {}, {}
    row.declared = True
    row.throttled_until = row.breaker_until = row.failed_listings = None
    row.refers = data.references
    row.targets = {
        each.target: row.targets[each.target]
        for each in data.references
        if each.target in row.targets
    }
    row.secrets = {name: row.secrets.get(name, "") for name in data.secrets}
    row.definition = 0 if data.definition is None else data.definition.generation
    row.paused = data.policy.paused
    row.approve = data.policy.approve
    row.referenced_from = data.policy.referenced_from


def _apply_endings(row: StatusRow, endings: Endings) -> None:
    """End what an event ends; the wait of an action ends with the action."""
    if endings.action:
        row.action_id = row.operation = row.pending_name = ""
        row.attempt = 0
    if endings.wait and not row.action_id:
        row.retry_at = None
    if endings.deadlines:
        row.renewal_at = row.progress_at = None
    if endings.plan:
        row.pending_plan, row.pending_level = "", "Never"


def _start_attempt(row: StatusRow, action: Action, attempt: int) -> None:
    row.action_id = action.action_id
    if action.purpose == "Renew":
        row.renewal_at = None
    row.operation = action.operation
    row.attempt = attempt
    row.pending_digest = row.pending_name = ""
    if action.operation == "Create":
        row.pending_name = action.external_name
        row.provider_config = action.provider_config
    if action.operation != "Delete":
        wanted = (action.external_name, action.fields, action.uid, None, action.labels)
        row.pending_digest = digest(ExternalObject(*wanted))
    row.retry_at = None


def _set_place(row: StatusRow, config: str, name: str) -> None:
    """Keep where the resource is declared, if its object is in another place."""
    declared_config = row.declared_config or row.provider_config
    declared_name = row.declared_name or row.external_name
    row.provider_config, row.external_name = config, name
    row.declared_config = "" if declared_config == config else declared_config
    row.declared_name = "" if declared_name == name else declared_name


def _set_owned(row: StatusRow, event: LogEvent, reason: str) -> None:
    row.owned, row.is_unconfirmed = True, False
    row.foreign_identity, row.observed_uid = "", None
    row.owned_by, row.owned_since, row.owned_reason = event.id, event.time, reason


def _fold_success(row: StatusRow, event: LogEvent, data: ActionSucceeded) -> None:
    if data.operation == "Create" and (data.redelivered or data.late):
        _remember_uncertain(row, data.external_name if data.late else row.pending_name)
    if data.outdated:
        return
    pending_digest = row.pending_digest
    if not data.late or not row.action_id:  # told late, another action may be under way
        row.pending_digest = ""
    if data.operation == "Delete" and data.purpose == "Retire":
        _clear_retiring(row)
        return
    if data.operation == "Delete":
        if data.unconfirmed:
            _remember_uncertain(row, row.external_name)
            row.is_unconfirmed = True
        _clear_ownership(row)
        _set_observed(row, None)
        _restore_replaced(row)
        return
    if data.operation == "Create":
        if data.purpose == "Replace" and row.owned:
            row.retiring, row.retiring_uid = row.external_name, row.uid
            row.retiring_digest, row.retiring_outputs = row.observed_digest, row.outputs
        # A creation that is reported late may have been made where the resource was before.
        name = data.external_name or row.declared_name or row.external_name
        _set_place(row, data.provider_config or row.provider_config, name)
        row.uid = None
    if data.operation == "Create" or not row.owned:
        _set_owned(row, event, f"{data.operation}d")
    if data.operation == "Create":
        row.listing_disproved = False
        # That the one before was ready, or that its absence was wanted, says nothing of this one.
        row.conditions = tuple(
            replace(each, status="Unknown", reason="Created") if each.type == "Ready" else each
            for each in row.conditions
        )
    row.observed_digest = pending_digest
    if data.object is not None:
        row.uid = row.uid or data.object.uid  # another object that an update met is not ours
        _set_observed(row, data.object)


def _fold_failure(row: StatusRow, data: ActionFailed) -> None:
    if data.effect.may_exist:
        _remember_uncertain(row, row.pending_name)
    if data.consequence == "Retry":
        return
    if data.consequence == "Retired":
        _clear_retiring(row)
    elif data.consequence == "Observed":
        _set_observed(row, data.object)


def _fold_observation(row: StatusRow, data: ExternalObserved) -> None:
    existing, name = data.object, data.external_name
    is_replaced = existing is not None and existing.uid != row.observed_uid
    # Only a read proves an absence: what a listing leaves out may be listed again (invariant 6).
    if is_replaced or (existing is None and data.evidence == "Read"):
        _forget_release(row, (row.external_name, row.observed_uid))
    if row.declared_name and not row.owned:
        is_same = existing is not None and existing.uid == row.observed_uid
        if not is_same:  # what was released is gone: what has its second name is another object
            existing, name = None, row.declared_name
            row.external_name, row.declared_name = name, ""
    _set_observed(row, existing)
    is_foreign = existing is not None and not (row.declared or row.owned)
    row.foreign_identity = identity(existing) if existing and is_foreign else ""
    row.observed_uid = None if existing is None or row.owned else existing.uid
    row.doubted = False
    row.unmanaged, row.total = data.unmanaged, data.total
    row.belongs_to = data.belongs_to
    if not row.declared:
        row.provider_config, row.external_name = data.provider_config, name


def _set_observed(row: StatusRow, existing: ExternalObject | None) -> None:
    row.observed_digest = "" if existing is None else digest(existing)
    row.outputs = {} if existing is None else existing.outputs


def _clear_ownership(row: StatusRow) -> None:
    row.owned = False
    if not row.retiring:  # else that is ours again, or still
        row.owned_by, row.owned_since, row.owned_reason = "", None, ""
    row.renewal_at = row.progress_at = None
    row.uid = None
    row.listing_disproved = False
    row.provider_config, row.declared_config = row.declared_config or row.provider_config, ""
    row.external_name, row.declared_name = row.declared_name or row.external_name, ""


def _restore_replaced(row: StatusRow) -> None:
    """When a replacement is gone before what it replaced, that is our object again."""
    if not row.retiring:
        return
    if row.external_name != row.retiring:
        row.declared_name = row.external_name
    row.owned, row.external_name, row.uid = True, row.retiring, row.retiring_uid
    row.observed_digest, row.outputs = row.retiring_digest, row.retiring_outputs or {}
    _clear_retiring(row)


def _remember_uncertain(row: StatusRow, *names: str) -> None:
    new = dict.fromkeys(each for each in names if each and each not in row.uncertain_names)
    row.uncertain_names = (*row.uncertain_names, *new)[-MAX_UNCERTAIN_NAMES:]


def _forget_release(row: StatusRow, place: tuple[str, str | None]) -> None:
    row.released = tuple(each for each in row.released if each != place)


def _clear_retiring(row: StatusRow) -> None:
    row.retiring = row.retiring_digest = ""
    row.retiring_uid = row.retiring_outputs = None
