"""What the reconciler recorded about a resource: the event log, which is the only truth.

These are the STORED formats: a field may be added with a default; a field is never renamed or
removed, and what no longer fits gets a new class and an upcaster (``events.upcasting``).

An event says what happened in the past tense and carries all that a fold needs. The envelope
(``LogEvent``) adds the resource's gapless version, the time, and the cause: the intake message that
led to it, with its position.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

from events.external import ExternalObject
from events.intake import (
    ActionError,
    ApprovalDecision,
    NewerObject,
    OnWithdrawal,
    TargetState,
)
from events.kind_definition import DefinitionRef
from events.manifest import ApprovalLevel, Fields, Policy
from events.names import DEFAULT_NAMESPACE, ResourceKey
from events.reference import Reference
from events.subjects import LogClass


class _Event(
    msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True, tag_field="event"
):
    """How every event of the log is written: camelCase, with its class's name as ``event``.

    ``gc=False`` here, and wherever a struct is a tree of values: a tree has no cycle to look for.
    """


class SpecDeclared(_Event, frozen=True):
    """The decider accepted a new desired state as this generation.

    ``references`` and ``secrets`` (by their places) are those of its fields. ``definition`` is the
    definition that they were checked against, if the kind was defined at run time. ``reason`` is
    the reason that the declaration gives.
    """

    generation: int
    api_version: str
    provider_config: str
    external_name: str
    fields: Fields
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    policy: Policy = Policy()
    references: tuple[Reference, ...] = ()
    secrets: tuple[str, ...] = ()
    definition: DefinitionRef | None = None
    reason: str = ""


class SpecWithdrawn(_Event, frozen=True):
    """The decider accepted the withdrawal of the declaration as this generation."""

    generation: int
    reason: str = ""


class GenerationSuperseded(_Event, frozen=True):
    """Generation ``by`` replaced this generation before it was settled."""

    generation: int
    by: int


class DeclarationSuperseded(_Event, frozen=True):
    """The decider ignored a declaration or withdrawal that is older than generation ``by``.

    The envelope identifies the message, so that a redelivery is ignored too.
    """

    by: int


class ExternalObserved(_Event, frozen=True):
    """An observer read a new state of the object. ``object`` is null if the object is missing.

    ``strays``: number of undeclared objects in an exclusive scope, of ``total``. ``taken_by``:
    another resource of the log that has this object, empty if none is known. ``known_version``: the
    version of the resource that the observer had read before it compared its listing with the log.
    """

    provider_config: str
    external_name: str
    object: ExternalObject | None
    evidence: Literal["CompleteListing", "Read"]
    as_of: int
    strays: int | None = None
    total: int | None = None
    taken_by: str = ""
    known_version: int = 0


class AbsenceDoubted(_Event, frozen=True):
    """Too many owned objects are missing from a listing, so this object still counts as existing.

    ``missing`` of the ``owned`` objects were not in the listing.
    """

    provider_config: str
    external_name: str
    missing: int
    owned: int


class FieldDifference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A field whose observed value is not the desired one; ``None``: it is not set."""

    path: str
    desired: object
    observed: object


class PathDrift(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How often another client has recently overwritten the field at ``path`` (ADR 0041).

    An empty path is the whole object, which the client deleted.
    """

    path: str
    times: int
    since: datetime
    last: datetime


class DriftDetected(_Event, frozen=True):
    """The object differs from what Reconciler last applied, because of another client.

    ``missing``: the object does not exist. ``perhaps_by``: an action of Reconciler with an unknown
    result that may have caused the difference. ``recent``: the recent drifts of each path, this
    one included.
    """

    generation: int
    missing: bool = False
    differences: tuple[FieldDifference, ...] = ()
    perhaps_by: str = ""
    recent: tuple[PathDrift, ...] = ()


class OwnershipClaimed(_Event, frozen=True):
    """The resource took ownership of an existing object.

    ``Returned``: the object, by its uid, that an earlier listing had not contained. ``Found``: the
    object carries the owner label of the resource, and an earlier creation had an unknown result.
    ``object``: it exists beside the object that the resource owns, and is deleted like one that was
    replaced.
    ``grace_seconds``: the return shows that the API lists writes late, so observations count only
    that long after a write of this resource; 0: unchanged.
    """

    external_name: str
    uid: str | None
    reason: Literal["Adopted", "Label", "Prefix", "ExclusiveScope", "Returned", "Found"]
    provider_config: str = ""
    object: ExternalObject | None = None
    grace_seconds: float = 0.0


class OwnershipReleased(_Event, frozen=True):
    """The resource no longer owns its object.

    ``Orphaned``: it was released and still exists. ``Gone``: it does not exist. ``Replaced``:
    another object has its name. ``seconds_since_write``: how long after the last write of the
    resource the read began that did not show the object; 0: unknown. ``unconfirmed``: only the
    answer to the creation had this uid, so the creation may have made another object.
    """

    external_name: str
    uid: str | None
    reason: Literal["Orphaned", "Gone", "Replaced"]
    provider_config: str = ""
    seconds_since_write: float = 0.0
    unconfirmed: bool = False


class ReconcileAccepted(_Event, frozen=True):
    """A client requested a reconciliation, which ends the current wait.

    ``reads``: the resource has an object to read. The envelope names the actor.
    """

    reads: bool
    reason: str = ""


class FinalizerAdded(_Event, frozen=True):
    """The service ``holder`` added a finalizer, which blocks the deletion of the object."""

    finalizer: str
    holder: str


class FinalizerRemoved(_Event, frozen=True):
    """The holder removed a finalizer, or an operator removed it by force; see the actor."""

    finalizer: str
    forced: bool = False
    reason: str = ""


class ReleaseForced(_Event, frozen=True):
    """An operator removed all finalizers and references by force; the envelope names the actor."""

    reason: str
    orphan: bool = False
    finalizers: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


class HoldApproved(_Event, frozen=True):
    """An operator approved the action of a held resource; the envelope names the actor."""

    hold: str
    decision: ApprovalDecision = "Proceed"
    reason: str = ""
    plan: str = ""


class ApprovalRefused(_Event, frozen=True):
    """An operator rejected the plan that waited for approval; the envelope names the actor."""

    plan: str
    reason: str = ""


class ReferenceAdded(_Event, frozen=True):
    """Another resource now references this one, with this policy."""

    by: str
    on_withdrawal: OnWithdrawal


class ReferenceRemoved(_Event, frozen=True):
    """Another resource no longer references this one."""

    by: str


class TargetObserved(_Event, frozen=True):
    """The decider recorded the state of a resource that this one references."""

    target: str
    state: TargetState


class SecretObserved(_Event, frozen=True):
    """The decider recorded the digest of a referenced secret, empty if it does not exist."""

    secret: str
    digest: str


class DefinitionObserved(_Event, frozen=True):
    """The decider recorded that the definition of the kind has changed."""

    definition: DefinitionRef


class SpecResolved(_Event, frozen=True):
    """The desired fields of a generation, with the values of references and the digests of secrets.

    ``definition``: the digest of the definition by which the fields of the underlying kind were
    computed. ``is_applied``: the object was last written with exactly these fields.
    """

    generation: int
    fields: Fields
    definition: str = ""
    is_applied: bool = False


Operation = Literal["Create", "Update", "Delete"]
Purpose = Literal["Converge", "Replace", "Retire", "Renew"]
"""What an action is for: to have the object as declared; to make way for a replacement, or to make
it; to remove what was replaced; to write again what is due (ADR 0026, ADR 0027)."""


class Action(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One effect on the external API, frozen: every attempt has the same key and parameters.

    ``because`` lists the events and messages that caused it. ``uid`` and ``version`` are
    preconditions on the object. ``definition`` is the digest of the kind's definition, if it was
    defined at run time.
    """

    action_id: str
    idempotency_key: str
    operation: Operation
    generation: int
    provider_config: str
    external_name: str
    because: tuple[str, ...]
    fields: Fields = {}
    labels: dict[str, str] = {}
    uid: str | None = None
    version: str | None = None
    purpose: Purpose = "Converge"
    definition: str = ""

    @property
    def namespace(self) -> str:
        """The namespace of the resource, whose secrets the action may read."""
        namespace, is_event_id, _ = self.action_id.partition("/")
        return namespace if is_event_id else DEFAULT_NAMESPACE


class ApprovalRequested(_Event, frozen=True):
    """An action requires approval before it starts (ADR 0040).

    ``plan`` is the digest of its parameters and of the current object. ``level`` is the least
    strict approval level that covers the action. ``declared_level`` is the level of a withdrawn
    declaration: it still applies, even if the row of the resource is forgotten.
    """

    plan: str
    operation: Operation
    generation: int
    provider_config: str
    external_name: str
    purpose: Purpose = "Converge"
    changes: tuple[FieldDifference, ...] = ()
    level: ApprovalLevel = "Always"
    declared_level: ApprovalLevel | None = None


class Content(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The fields and labels of an object."""

    fields: Fields = {}
    labels: dict[str, str] = {}


class ActionDecided(_Event, frozen=True):
    """The decider chose the next action, and recorded it before any external call.

    ``base``: what the resource declares of the written content, which the next three-way comparison
    starts from; the rest belongs to other clients. Null: all of it.
    """

    action: Action
    base: Content | None = None


class ActionRetried(_Event, frozen=True):
    """The decider started the next attempt of the same action, with the same key and parameters."""

    action: Action
    attempt: int


class LookupDecided(_Event, frozen=True):
    """The result of an attempt is unknown, so a worker reads the API for the effect.

    This is the second step for unknown results (ADR 0012). The first one is ``ActionRetried``.
    ``known_uids``: objects that existed before the action, so that none of them is its result.
    """

    action: Action
    attempt: int
    known_uids: tuple[str, ...] = ()


class ActionHeld(_Event, frozen=True):
    """The result of the action cannot be determined, so an operator must decide.

    This is the third step for unknown results (ADR 0012). ``object`` is the object that the action
    may have created.
    """

    action_id: str
    reason: str
    object: ExternalObject | None = None


FoundBy = Literal["Label", "Key", "Content", "Absence"]


class ActionSucceeded(_Event, frozen=True):
    """The action took effect.

    ``found_by``: a read of the object shows the effect: by the owner label, the key, the content,
    or its absence. ``late``: the result arrived after the action had failed or was abandoned.
    ``outdated``: a newer state was known by then, so the result changes nothing else.
    ``external_name``: the name of a replacement that has another name; a late creation has both
    ``provider_config`` and ``external_name``. ``redelivered``: another worker had the attempt too,
    and may still make its call; for a creation only if the API stores no keys. ``reported_at``: the
    time at which the bus received the result, for an API that shows effects after a delay.
    ``refused``: the API executed only the first of several calls, and refuses the rest permanently.
    ``unconfirmed``: a deletion found no object of a uid that only the answer to the creation had,
    so the creation may have made another object.
    """

    action_id: str
    operation: Operation
    attempt: int
    object: ExternalObject | None = None
    replayed: bool = False
    found_by: FoundBy | None = None
    late: bool = False
    redelivered: bool = False
    reported_at: datetime | None = None
    outdated: bool = False
    purpose: Purpose = "Converge"
    external_name: str = ""
    refused: ActionError | None = None
    provider_config: str = ""
    unconfirmed: bool = False


class ActionNotDone(_Event, frozen=True):
    """A read shows no effect of the action, so the decider repeats it with the same key.

    Another client may have deleted a created object before the read.
    """

    action_id: str
    operation: Operation
    attempt: int


class Effect(StrEnum):
    """What the attempts of an action may have changed in the API (ADR 0067).

    The first five describe one attempt, and all attempts so far by the worst of them. An operator
    decides about the last two.
    """

    NOT_SENT = "NotSent"
    REFUSED = "Refused"
    PARTIAL = "Partial"
    POSSIBLE = "Possible"
    UNKNOWN = "Unknown"
    HELD = "Held"
    CHECKED = "Checked"

    @property
    def may_arrive(self) -> bool:
        """Whether a call of the action may still take effect."""
        return self in (Effect.UNKNOWN, Effect.HELD, Effect.CHECKED)

    @property
    def may_exist(self) -> bool:
        """Whether an attempt may have created an object that no response has shown."""
        return self in (Effect.POSSIBLE, Effect.UNKNOWN, Effect.HELD)

    @property
    def is_nothing(self) -> bool:
        """Whether the API certainly changed nothing."""
        return self in (Effect.NOT_SENT, Effect.REFUSED)


Consequence = Literal["Retry", "Refused", "Failed", "Outdated", "Conflict", "Observed", "Retired"]
"""What a failure means for the resource.

``Retry``: the same action is tried again. ``Refused``: the API permanently refuses this generation.
``Failed``: it permanently refuses a write that the generation does not depend on. ``Outdated``: it
refuses an older generation. ``Conflict``: the known state was outdated. ``Observed``: so it was,
and the failure shows the current object, or that none exists. ``Retired``: the object that was
replaced no longer exists.
"""


class ActionFailed(_Event, frozen=True):
    """An attempt failed, or its result is unknown. ``object`` is a conflicting object, if any.

    ``redelivered``: another worker, which reported nothing, had this attempt before and may have
    made the call, or may still make it. The failure therefore does not prove that nothing happened.
    ``reported_at``: as in ``ActionSucceeded``. ``effect``: what this attempt may have changed.
    ``consequence``: what the failure means for the resource.
    """

    action_id: str
    operation: Operation
    attempt: int
    error: ActionError
    object: ExternalObject | None = None
    redelivered: bool = False
    reported_at: datetime | None = None
    purpose: Purpose = "Converge"
    effect: Effect = Effect.NOT_SENT
    consequence: Consequence = "Retry"


class ActionDoubted(_Event, frozen=True):
    """A late call of the action has an unknown result.

    Another worker had the attempt, or the action was abandoned. Its effect may appear later.
    """

    action_id: str
    operation: Operation
    attempt: int
    message: str


class ActionAbandoned(_Event, frozen=True):
    """The decider ended an action without a known effect, because a newer generation replaces it.

    ``in_doubt``: a call may still be in progress, so the effect may appear later.
    """

    action_id: str
    operation: Operation
    reason: str
    in_doubt: bool = False


REPEATED_DRIFT: Final = "RepeatedDrift"
"""Reason of a wait, and of its outcome, because another client repeatedly overwrote a repair."""


class RetryScheduled(_Event, frozen=True):
    """The resource waits until ``at`` for the next attempt of ``actionId`` or the next read."""

    at: datetime
    delay_seconds: float
    reason: str
    action_id: str | None = None


class DueScheduled(_Event, frozen=True):
    """The object is as declared, and its kind requires a renewal at ``due``.

    The resource is decided again at ``at``, slightly later, so that many objects with the same
    ``due`` are not written at the same time.
    """

    due: datetime
    at: datetime
    delay_seconds: float


class ProgressNoted(_Event, frozen=True):
    """The object is as declared but not ready, and made progress at ``since``.

    ``mark`` changes with each progress, and is empty if no more progress is expected. The next
    progress is expected before ``at``, which is null after that time has passed.
    """

    mark: str
    since: datetime
    at: datetime | None = None
    delay_seconds: float = 0.0


class ApiThrottled(_Event, frozen=True):
    """The API of a ``ProviderConfig`` accepts no calls before ``until``."""

    until: datetime
    delay_seconds: float
    message: str = ""


class BreakerOpened(_Event, frozen=True):
    """The circuit breaker of a ``ProviderConfig`` opened after too many consecutive failures.

    After ``until``, one call is made as a probe.
    """

    until: datetime
    delay_seconds: float
    failures: int
    message: str = ""


class BreakerProbed(_Event, frozen=True):
    """The process ``by`` probes the API of an open breaker, and must finish before ``until``.

    An empty ``by``: the process stopped before it finished, and another one may probe.
    """

    until: datetime
    delay_seconds: float
    by: str


class BreakerClosed(_Event, frozen=True):
    """The API responded to the probe, and the circuit breaker closed."""


class TwinDetected(_Event, frozen=True):
    """The API of a ``ProviderConfig`` has objects that are newer than this log (ADR 0065).

    Another copy of the log writes to the API, or this log is an older copy. ``objects`` are the
    first of ``total``. Reconciler writes nothing to the API until an operator approves.
    """

    objects: tuple[NewerObject, ...]
    total: int


OutcomeName = Literal[
    "Converged",
    "Waiting",
    "Degraded",
    "Failed",
    "Conflict",
    "Disputed",
    "Drifted",
    "Held",
    "Paused",
    "Unowned",
    "Deleted",
    "Released",
    "Rejected",
]
MAY_WAIT: Final[frozenset[OutcomeName]] = frozenset({"Degraded", "Held"})
"""Outcomes under which a resource may wait for a moment; under any other, no wait is left."""

ConditionType = Literal["Converged", "Ready", "Degraded", "Paused"]


class Condition(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One aspect of a resource's state, as Kubernetes users know it."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int = 0


class OutcomeRecorded(_Event, frozen=True):
    """The outcome of a generation: the public result, to which other services subscribe.

    ``confirms_write``: the object has the content of an update whose result was unknown.
    """

    outcome: OutcomeName
    generation: int
    reason: str
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    action_id: str | None = None
    confirms_write: bool = False


ResourceEvent = (
    SpecDeclared
    | SpecWithdrawn
    | GenerationSuperseded
    | DeclarationSuperseded
    | ExternalObserved
    | AbsenceDoubted
    | DriftDetected
    | OwnershipClaimed
    | OwnershipReleased
    | FinalizerAdded
    | FinalizerRemoved
    | ReleaseForced
    | HoldApproved
    | ReconcileAccepted
    | ApprovalRequested
    | ApprovalRefused
    | ReferenceAdded
    | ReferenceRemoved
    | TargetObserved
    | SecretObserved
    | DefinitionObserved
    | SpecResolved
    | ActionDecided
    | ActionRetried
    | LookupDecided
    | ActionHeld
    | ActionSucceeded
    | ActionNotDone
    | ActionDoubted
    | ActionFailed
    | ActionAbandoned
    | RetryScheduled
    | DueScheduled
    | ProgressNoted
    | ApiThrottled
    | BreakerOpened
    | BreakerProbed
    | BreakerClosed
    | TwinDetected
    | OutcomeRecorded
)


def log_class(event: ResourceEvent) -> LogClass:
    """Return the subject class that an event is recorded under."""
    match event:
        case ActionDecided() | ActionRetried() | LookupDecided():
            return "action"
        case OutcomeRecorded():
            return "outcome"
        case _:
            return "fact"


def log_place(event: ResourceEvent) -> str:
    """Return where below its resource an event is recorded: an action beside its API's others."""
    match event:
        case ActionDecided() | ActionRetried() | LookupDecided():
            return f"action.{event.action.provider_config}"
        case OutcomeRecorded():
            return f"outcome.{event.outcome}"
        case _:
            return "fact"


class LogEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of the log in its envelope: CloudEvents 1.0, structured JSON, with extensions.

    ``resourceversion`` counts the events of one resource without a gap. ``causeid`` and
    ``causeposition`` name the intake message that led to the event; ``actor`` is that message's
    source. Attribute names are lower case and joined, as CloudEvents wants.
    """

    id: str
    source: str
    type: str
    subject: str
    time: datetime
    resourceversion: int
    data: ResourceEvent
    causeid: str = ""
    causeposition: int = 0
    actor: str = ""
    specversion: str = "1.0"

    @property
    def key(self) -> ResourceKey:
        """The resource that the event belongs to."""
        return ResourceKey(*self.subject.split("/"))


SOURCE = "reconciler"


def event_id(key: ResourceKey, version: int) -> str:
    """Name an event: unique in one log, since versions have no gaps and appends are checked."""
    return f"{key}@{version}"


def event_type(event: ResourceEvent) -> str:
    """Return the CloudEvents type of an event."""
    return f"reconciler.resource.{type(event).__name__}"
