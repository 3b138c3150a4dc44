"""What the reconciler recorded about a resource: the event log, which is the only truth.

These are the STORED formats: a field may be added with a default; a field is never renamed or
removed, and what no longer fits gets a new class and an upcaster (``events.upcasting``).

An event says what happened in the past tense and carries all that a fold needs. The envelope
(``LogEvent``) adds the resource's gapless version, the time, and the cause: the intake message that
led to it, with its position.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from events.external import ExternalObject
from events.intake import ActionError, ApprovalDecision, OnWithdrawal, TargetState
from events.kind_definition import DefinitionRef
from events.manifest import ApprovalLevel, Fields, Policy
from events.names import ResourceKey
from events.reference import Reference
from events.subjects import LogClass


class _Event(
    msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True, tag_field="event"
):
    """How every event of the log is written: camelCase, with its class's name as ``event``.

    ``gc=False`` here, and wherever a struct is a tree of values: a tree has no cycle to look for.
    """


class SpecDeclared(_Event, frozen=True):
    """A new desired state was accepted, as this generation.

    ``references`` and ``secrets`` (``store/name``) are those of its fields. ``definition`` is what
    they were checked by, where the kind was defined at run time. ``reason`` is what whoever
    declared it has said.
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
    """The desired state was taken back, as this generation."""

    generation: int
    reason: str = ""


class GenerationSuperseded(_Event, frozen=True):
    """A generation was replaced before it was settled."""

    generation: int
    by: int


class DeclarationSuperseded(_Event, frozen=True):
    """A declaration or withdrawal came after a newer one, generation ``by``: it makes none.

    The envelope names it, so that it makes none either when it is sent again.
    """

    by: int


class ExternalObserved(_Event, frozen=True):
    """Something new was seen in the external API: the object, or None: proof that there is none.

    ``taken_by``: another resource of the log that has this object, empty if none is known.
    """

    provider_config: str
    external_name: str
    object: ExternalObject | None
    evidence: Literal["CompleteListing", "Read"]
    as_of: int
    strays: int | None = None
    total: int | None = None
    taken_by: str = ""


class AbsenceDoubted(_Event, frozen=True):
    """A listing shows too few of our objects to be believed: this one counts as there."""

    provider_config: str
    external_name: str
    missing: int
    owned: int


class FieldDifference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One field whose observed value is not the desired one. ``None`` stands for: not there."""

    path: str
    desired: object
    observed: object


class DriftDetected(_Event, frozen=True):
    """What exists is no longer what was applied: by somebody else, since we changed nothing.

    ``missing``: the object is gone. ``perhaps_by``: it may have been an action of our own all the
    same, one that ended in doubt.
    """

    generation: int
    missing: bool = False
    differences: tuple[FieldDifference, ...] = ()
    perhaps_by: str = ""


class OwnershipClaimed(_Event, frozen=True):
    """An object that was there already is ours from now on.

    ``Returned``: it is the very object (by its uid) that a listing had shown as gone. ``Found``: it
    carries our label, and we had tried to create it without learning what came of it.
    """

    external_name: str
    uid: str | None
    reason: Literal["Adopted", "Label", "Prefix", "ExclusiveScope", "Returned", "Found"]
    provider_config: str = ""


class OwnershipReleased(_Event, frozen=True):
    """The external object is not ours any more: we let it go, or it is not the one we knew."""

    external_name: str
    uid: str | None
    reason: Literal["Orphaned", "Gone", "Replaced"]
    provider_config: str = ""


class LookAsked(_Event, frozen=True):
    """Somebody asked for a look now: a wait is over. ``reads``: there is an object to look at.

    The envelope names the actor.
    """

    reads: bool
    reason: str = ""


class FinalizerAdded(_Event, frozen=True):
    """A service holds the resource until it has finished with it; ``holder`` is that service."""

    finalizer: str
    holder: str


class FinalizerRemoved(_Event, frozen=True):
    """A finalizer was taken off: by its holder, or by force. The envelope names the actor."""

    finalizer: str
    forced: bool = False
    reason: str = ""


class ReleaseForced(_Event, frozen=True):
    """Somebody took off all that kept the resource. The envelope names the actor."""

    reason: str
    orphan: bool = False
    finalizers: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


class HoldApproved(_Event, frozen=True):
    """A person decided about a resource that was held. The envelope names the actor."""

    hold: str
    decision: ApprovalDecision = "Proceed"
    reason: str = ""
    plan: str = ""


class ApprovalRefused(_Event, frozen=True):
    """A person rejected what waited for approval. The envelope names the actor."""

    plan: str
    reason: str = ""


class ReferenceAdded(_Event, frozen=True):
    """Another resource refers to this one from now on, with this policy."""

    by: str
    on_withdrawal: OnWithdrawal


class ReferenceRemoved(_Event, frozen=True):
    """Another resource does not refer to this one any more."""

    by: str


class TargetObserved(_Event, frozen=True):
    """A resource learned how another one stands that it refers to."""

    target: str
    state: TargetState


class SecretObserved(_Event, frozen=True):
    """A resource learned the digest of a secret that it names; empty: there is none."""

    secret: str
    digest: str


class DefinitionObserved(_Event, frozen=True):
    """A resource learned that its kind is defined otherwise by now."""

    definition: DefinitionRef


class SpecResolved(_Event, frozen=True):
    """What a generation wants: with the values of its references and the digests of its secrets.

    ``definition``: the digest of the definition that made of it the fields of the kind beneath.
    """

    generation: int
    fields: Fields
    definition: str = ""


Operation = Literal["Create", "Update", "Delete"]
Purpose = Literal["Converge", "Replace", "Retire", "Renew"]
"""What an action is for: to have the object as declared; to make way for a replacement, or to make
it; to remove what was replaced; to write again what is due (ADR 0026, ADR 0027)."""


class Action(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One effect on the external API, frozen: every attempt has the same key and parameters.

    ``because`` names the events and messages it rests on. ``uid`` and ``version`` are
    preconditions: what the object must still be. ``definition`` is the digest of the kind's, where
    it was defined at run time.
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


class ApprovalAsked(_Event, frozen=True):
    """An action is wanted that people have to approve first (ADR 0040).

    ``plan`` is the digest of its parameters and of what is there by now; ``level`` the least strict
    one at which it has to wait. ``declared_level`` is that of a declaration which
    was withdrawn: it still holds, though the row of the resource may be forgotten.
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


class ActionDecided(_Event, frozen=True):
    """The intent, recorded before any external call is made."""

    action: Action


class ActionRetried(_Event, frozen=True):
    """The same action is to be tried once more: same key, same parameters, next attempt."""

    action: Action
    attempt: int


class LookupDecided(_Event, frozen=True):
    """A worker shall look in the API what came of the action: its result is unknown.

    Second rung of the ladder of unknown results (ADR 0012); the first is ``ActionRetried``.
    """

    action: Action
    attempt: int


class ActionHeld(_Event, frozen=True):
    """Nothing can tell what came of the action: a person has to. Third rung of the ladder.

    ``object`` is what may have been made by it.
    """

    action_id: str
    reason: str
    object: ExternalObject | None = None


FoundBy = Literal["Label", "Key", "Content", "Absence"]


class ActionSucceeded(_Event, frozen=True):
    """The effect is known to have happened.

    ``found_by``: not this call did it, as far as is known, but what is there shows it: it carries
    our label or the action's key, has the action's content, or is gone as it should be.
    ``late``: the answer came when the action had been taken for failed or was given up;
    ``outdated``: and something newer is known by then, so that it explains the effect and changes
    nothing else. ``external_name``: of what was made under a name of its own, beside another.
    A late creation has both ``provider_config`` and ``external_name``: the row of its resource may
    be gone, or show another place.
    ``redelivered``: another worker had the attempt as well, and may still make its call; of a
    creation only where the API keeps no keys.
    ``reported_at``: when the bus got the worker's report, for an API that shows effects only after
    a grace. ``refused``: only the first of several calls had their effect; the API never accepts
    the rest.
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


class ActionNotDone(_Event, frozen=True):
    """A look showed nothing of the action's effect: it is tried again, with the same key.

    What a creation made may have been deleted by others before the look.
    """

    action_id: str
    operation: Operation
    attempt: int


class ActionFailed(_Event, frozen=True):
    """An attempt failed, or its result is unknown. ``object`` is what stands in the way.

    ``redelivered``: a worker that was not heard of again had this attempt before, and may have made
    the call or may still make it; so that it failed now does not say that nothing was done.
    ``reported_at``: as of ``ActionSucceeded``.
    """

    action_id: str
    operation: Operation
    attempt: int
    error: ActionError
    object: ExternalObject | None = None
    redelivered: bool = False
    reported_at: datetime | None = None
    purpose: Purpose = "Converge"


def is_retired(failed: ActionFailed, uid: str | None) -> bool:
    """Return whether a failure shows that what was replaced is gone: another may have its name."""
    shown = None if failed.object is None else failed.object.uid
    is_other = failed.error.error_class == "Conflict" and None not in (shown, uid) and shown != uid
    return failed.error.error_class == "NotFound" or is_other


class ActionDoubted(_Event, frozen=True):
    """A call of the action that nobody waited for any more has an unknown result.

    Another worker had the attempt, or the action was given up: what it did may show itself later.
    """

    action_id: str
    operation: Operation
    attempt: int
    message: str


class ActionAbandoned(_Event, frozen=True):
    """An action is given up: as far as is known it has done nothing, and something newer is wanted.

    ``in_doubt``: a call of it may still be under way, so that it may be done all the same.
    """

    action_id: str
    operation: Operation
    reason: str
    in_doubt: bool = False


class RetryScheduled(_Event, frozen=True):
    """The resource waits until ``at``; for the next attempt of ``action_id``, or to look again."""

    at: datetime
    delay_seconds: float
    reason: str
    action_id: str | None = None


class DueScheduled(_Event, frozen=True):
    """An object that is as declared has to be written again, by its kind at ``due``.

    The resource is woken at ``at``, a little later, so that many that are due together are not
    written together.
    """

    due: datetime
    at: datetime
    delay_seconds: float


class ProgressNoted(_Event, frozen=True):
    """Of an object that is as declared and not ready yet, something has moved at ``since``.

    ``mark`` stands for how far it is; empty: nothing is waited for any more. It should move again
    before ``at``; None: that has passed, and it has not.
    """

    mark: str
    since: datetime
    at: datetime | None = None
    delay_seconds: float = 0.0


class ApiThrottled(_Event, frozen=True):
    """The API of a ``ProviderConfig`` wants no call before ``until``."""

    until: datetime
    delay_seconds: float
    message: str = ""


class BreakerOpened(_Event, frozen=True):
    """The API of a ``ProviderConfig`` failed so often in a row that it is left alone.

    After ``until`` one call is made as a probe.
    """

    until: datetime
    delay_seconds: float
    failures: int
    message: str = ""


class BreakerProbed(_Event, frozen=True):
    """``by`` makes the one call that an open breaker lets through; it has until ``until``."""

    until: datetime
    delay_seconds: float
    by: str


class BreakerClosed(_Event, frozen=True):
    """The probe was answered: the API may be called again."""


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
    """How a generation stands: the public result, which others subscribe to."""

    outcome: OutcomeName
    generation: int
    reason: str
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    action_id: str | None = None


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
    | LookAsked
    | ApprovalAsked
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
