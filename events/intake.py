"""What others tell the reconciler: declarations, approvals, observations, results and timers.

Each is the ``data`` of a CloudEvent (``events.envelope``) on a subject of ``events.subjects``. The
class's tag is the last part of the CloudEvent's ``type``: ``reconciler.desired.Declared``.

A *position* is a sequence of the intake stream, and the logical clock of this system: what a worker
reports after an effect gets a later position than anything that was known before it. An observation
says at which position its read began (``as_of``), so that one taken before our last effect is
recognised as stale, whatever the clocks say.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from events.external import ExternalObject
from events.manifest import Manifest


class _Intake(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How every intake message is written: camelCase."""


class PlanRef(_Intake, frozen=True):
    """A plan: the resource's version at that time, and the digest of the resulting turn.

    The digest is that of ``reconciler.resource.foresight.turn_digest``.
    """

    version: int
    digest: str


class Declared(_Intake, frozen=True):
    """A service declares the desired state of one resource.

    With ``expected_generation``, the declaration is refused unless the resource has that generation
    (0: it does not exist yet). With ``plan``, it is refused unless its result would be exactly the
    planned one. ``reason`` is recorded in the history; if it is empty, the manifest's annotation is
    used.
    """

    manifest: Manifest
    expected_generation: int | None = None
    plan: PlanRef | None = None
    reason: str = ""


class Withdrawn(_Intake, frozen=True):
    """A service withdraws its declaration; the policy determines what happens to the object."""

    expected_generation: int | None = None
    reason: str = ""


class ReconcileRequested(_Intake, frozen=True):
    """A client requests an immediate read and reconciliation of a resource, without a back-off."""

    reason: str = ""


class FinalizerRequested(_Intake, frozen=True):
    """A service adds a finalizer, which blocks the deletion or release of the object.

    ``finalizer`` is a name as in Kubernetes: ``billing.example.com/invoice``. It belongs to the
    service that sent the message (``source`` of the CloudEvent).
    """

    finalizer: str


class FinalizerReleased(_Intake, frozen=True):
    """A service removes its finalizer; to remove another service's finalizer, set ``force``."""

    finalizer: str
    force: bool = False
    reason: str = ""


class ForcedRelease(_Intake, frozen=True):
    """An operator removes all finalizers and references of a withdrawn resource.

    With ``orphan``, Reconciler releases the object as it is, and makes no more calls.
    """

    reason: str
    orphan: bool = False


ApprovalDecision = Literal["Proceed", "Abandon", "Reject"]


class Approved(_Intake, frozen=True):
    """An operator approves or rejects the action of a held resource.

    ``hold`` is the reason of its outcome (``DeletionGuard``, ``LossGuard``, ``UnknownResult``,
    ``DataLoss``, ``DefinitionGuard``, ``PruneGuard``, ``Twin``, ``Approval``). If the resource has
    another reason, the message is refused. ``Proceed`` repeats or starts the action. ``Abandon``
    ends an action with an unknown result, without another call. For ``Approval``, ``plan`` is the
    digest of the plan that is approved, or rejected with ``Reject``. Other plans stay unchanged.
    """

    hold: str
    decision: ApprovalDecision = "Proceed"
    reason: str = ""
    plan: str = ""


OnWithdrawal = Literal["Keep", "Release", "Ignore"]


class Referenced(_Intake, frozen=True):
    """Another resource references this one; ``by`` is its ``namespace/kind/name``."""

    by: str
    on_withdrawal: OnWithdrawal


class Unreferenced(_Intake, frozen=True):
    """Another resource no longer references this one."""

    by: str


class TargetState(_Intake, frozen=True):
    """The state of a referenced resource.

    ``values`` are the requested fields that are known. ``ready``: it was ready since it was
    declared. ``circle``: the resources that wait for each other, if the reference is part of a
    cycle.
    """

    declared: bool
    ready: bool = False
    values: dict[str, Any] = {}
    circle: tuple[str, ...] = ()


class TargetSeen(_Intake, frozen=True):
    """The sweeper or a decider reports the state of a referenced resource.

    ``known_version`` is the version of the resource that the reporter had read, 0 if it is unknown.
    """

    target: str
    state: TargetState
    known_version: int = 0


class SecretSeen(_Intake, frozen=True):
    """A role reports the digest of the secret ``store/name``, or "" if the secret does not exist.

    ``known_version`` is the version of the resource that the reporter had read, 0 if it is unknown.
    """

    secret: str
    digest: str
    known_version: int = 0


class DefinitionSeen(_Intake, frozen=True):
    """A role reports that the definition of the resource's kind has changed.

    ``affected`` of the ``total`` declared resources of the kind have an older definition.
    """

    generation: int
    digest: str
    affected: int
    total: int


class StrayCount(_Intake, frozen=True):
    """Number of undeclared objects that would be deleted in an exclusive scope, of all objects."""

    strays: int
    total: int


class LossCount(_Intake, frozen=True):
    """Number of owned objects that a listing does not contain, and of all owned objects."""

    missing: int
    owned: int


class Observed(_Intake, frozen=True):
    """An observer read one object, or proved that it does not exist.

    ``evidence``: a ``CompleteListing`` of the scope, or a ``Read`` of this object. ``as_of``:
    intake position at which the read began; without it, the observation counts as older than all
    others. ``began_at`` and ``age_seconds``: the same moment by the observer's clock, and its age
    by a monotonic clock, for APIs with a consistency delay. ``exclusive`` and ``losses``: counts of
    the whole listing, for the guards. ``taken_by``: another resource that has this object; empty:
    none; None: unknown. ``absent_uid``: the object that does not exist, if another one may have its
    name. ``known_version``: the version of the resource that the observer had read before it
    compared the listing with the log; 0: none.
    """

    provider_config: str
    external_name: str
    object: ExternalObject | None = None
    evidence: Literal["CompleteListing", "Read"] = "Read"
    as_of: int = 0
    began_at: datetime | None = None
    exclusive: StrayCount | None = None
    losses: LossCount | None = None
    age_seconds: float | None = None
    taken_by: str | None = None
    absent_uid: str | None = None
    known_version: int = 0


ErrorClass = Literal["Transient", "Throttled", "Conflict", "NotFound", "Permanent", "Unknown"]


class ActionError(_Intake, frozen=True):
    """The reason why a call did not succeed.

    ``Transient``, ``Throttled`` and ``Unknown`` are retried with the same key. ``Conflict`` and
    ``NotFound`` mean that the known state was outdated. ``Permanent`` waits for a new generation.
    ``retry_after_seconds`` is the delay that the API requests. ``attempted`` false: the gate was
    closed, and no call was made. ``nothing_done``: the API was called, and did certainly nothing.
    """

    error_class: ErrorClass
    message: str
    status: int | None = None
    retry_after_seconds: float | None = None
    attempted: bool = True
    nothing_done: bool = False


class Reported(_Intake, frozen=True):
    """A worker reports the result of one attempt of an action.

    ``object``: the object in the API's response; after a conflict, the object that conflicts, if it
    could be read. ``is_lookup``: the worker only read the API; without an error and without an
    object, no object exists. ``redelivered``: another worker had or has this attempt, and may have
    made the call. ``replayed``: the API returned a stored response for the key of the action.
    ``absent``: a deletion found no object, so which client deleted it is unknown. ``labeled_uids``:
    several objects of the name have the owner label, and ``object`` is the first of them.
    """

    action_id: str
    attempt: int
    started_at: datetime
    finished_at: datetime
    worker: str
    error: ActionError | None = None
    object: ExternalObject | None = None
    replayed: bool = False
    is_lookup: bool = False
    redelivered: bool = False
    absent: bool = False
    labeled_uids: tuple[str, ...] = ()


class NewerObject(_Intake, frozen=True):
    """An object whose owner label is of this log, written by an action that the log does not have.

    ``kind`` and ``name`` are those of the object in its API. ``action`` is the id of that action:
    the resource and the version that this log has not reached. ``known_version`` is the newest
    version of the resource in this log.
    """

    kind: str
    name: str
    uid: str | None
    action: str
    known_version: int


class ApiReported(_Intake, frozen=True):
    """A worker or an observer reports the condition of an API to its ``ProviderConfig``.

    ``Throttled``: it accepts no calls for ``retry_after_seconds`` from ``at`` on. ``Failing``:
    ``failures`` consecutive calls failed. ``Probing``: ``reporter`` requests to make the one call
    that decides whether an open breaker closes. ``Responding``: the API responded to that call.
    ``Stopping``: ``reporter`` stops, and makes no probe that it was granted.
    ``Twin``: it has ``total`` objects that are newer than the log, such as those in ``newer``.

    ``as_of`` is the version of the event that last changed the breaker, as the reporter knew it
    when the call began; for ``Twin`` of the event that last set or ended that hold. Reports of
    calls that began earlier are ignored.
    """

    state: Literal["Throttled", "Failing", "Probing", "Responding", "Stopping", "Twin"]
    reporter: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    as_of: int = 0
    retry_after_seconds: float = 0.0
    failures: int = 0
    message: str = ""
    newer: tuple[NewerObject, ...] = ()
    total: int = 0


class TimerFired(_Intake, frozen=True):
    """A timer fired, so the decider processes the resource. A lost timer only delays this."""

    purpose: Literal["Retry", "Due", "Sweep", "ConfigChanged"]


class Answer(_Intake, frozen=True):
    """The decider's reply to a publisher that requested one (``events.subjects.REPLY_HEADER``).

    ``reason`` is one word: ``Accepted``, ``Unchanged``, ``Duplicate``, or the reason of the
    refusal. ``generation`` is the resource's generation after the message. ``position`` is the
    message's place in the intake. ``resource`` and ``id`` identify the message.
    """

    accepted: bool
    reason: str
    generation: int
    position: int
    message: str = ""
    resource: str = ""
    id: str = ""


IntakeData = (
    Declared
    | Withdrawn
    | ReconcileRequested
    | FinalizerRequested
    | FinalizerReleased
    | ForcedRelease
    | Approved
    | Referenced
    | Unreferenced
    | TargetSeen
    | SecretSeen
    | DefinitionSeen
    | Observed
    | Reported
    | ApiReported
    | TimerFired
)

INTAKE_TYPES: dict[str, type[IntakeData]] = {
    "reconciler.desired.Declared": Declared,
    "reconciler.desired.Withdrawn": Withdrawn,
    "reconciler.desired.ReconcileRequested": ReconcileRequested,
    "reconciler.finalizer.FinalizerRequested": FinalizerRequested,
    "reconciler.finalizer.FinalizerReleased": FinalizerReleased,
    "reconciler.approval.ForcedRelease": ForcedRelease,
    "reconciler.approval.Approved": Approved,
    "reconciler.reference.Referenced": Referenced,
    "reconciler.reference.Unreferenced": Unreferenced,
    "reconciler.reference.TargetSeen": TargetSeen,
    "reconciler.reference.SecretSeen": SecretSeen,
    "reconciler.reference.DefinitionSeen": DefinitionSeen,
    "reconciler.observed.Observed": Observed,
    "reconciler.result.Reported": Reported,
    "reconciler.result.ApiReported": ApiReported,
    "reconciler.timer.TimerFired": TimerFired,
}
"""CloudEvents type of every intake message; its second part is the ``<what>`` of the subject."""

TYPE_OF_INTAKE: dict[type[IntakeData], str] = {
    struct: name for name, struct in INTAKE_TYPES.items()
}


class ListingBegan(_Intake, frozen=True, tag_field="part", tag="Began"):
    """An observer begins a listing of a scope; ``as_of`` is the intake's last position then."""

    provider_config: str
    kind: str
    as_of: int
    prefix: str | None = None
    labels: dict[str, str] = {}


class ListingItem(_Intake, frozen=True, tag_field="part", tag="Item"):
    """One object of the scope."""

    object: ExternalObject


class ListingCompleted(_Intake, frozen=True, tag_field="part", tag="Completed"):
    """The listing is complete; it proves absence only if ``count`` items were received."""

    count: int


ListingPart = ListingBegan | ListingItem | ListingCompleted

LISTING_TYPE = "reconciler.listing.Part"
