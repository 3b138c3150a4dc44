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
    """What somebody has planned: the resource's version by then, and the digest of the turn.

    The digest is that of ``reconciler.resource.foresight.turn_digest``.
    """

    version: int
    digest: str


class Declared(_Intake, frozen=True):
    """A service declares the desired state of one resource.

    With ``expected_generation`` the declaration is refused unless the resource's generation is that
    one (0: it does not exist yet); with ``plan``, unless exactly what was planned would come of it.
    ``reason``: why, for the history; else the manifest's annotation says it.
    """

    manifest: Manifest
    expected_generation: int | None = None
    plan: PlanRef | None = None
    reason: str = ""


class Withdrawn(_Intake, frozen=True):
    """A service takes its declaration back: the policy says what happens to the external object."""

    expected_generation: int | None = None
    reason: str = ""


class LookRequested(_Intake, frozen=True):
    """Somebody asks that a resource is looked at now, and that nothing waits for its time."""

    reason: str = ""


class FinalizerRequested(_Intake, frozen=True):
    """A service asks that a resource is not deleted or released before it has finished with it.

    The ``finalizer`` is named as in Kubernetes: ``billing.example.com/invoice``. It belongs to the
    service that asked: the CloudEvent's ``source``.
    """

    finalizer: str


class FinalizerReleased(_Intake, frozen=True):
    """A service has finished with a resource; another service's finalizer needs ``force``."""

    finalizer: str
    force: bool = False
    reason: str = ""


class ForcedRelease(_Intake, frozen=True):
    """Somebody takes off whatever keeps a withdrawn resource: finalizers and references.

    With ``orphan`` the external object is let go where it is, and no call is made any more.
    """

    reason: str
    orphan: bool = False


ApprovalDecision = Literal["Proceed", "Abandon", "Reject"]


class Approved(_Intake, frozen=True):
    """A person decides about a resource that is held.

    ``hold`` is the reason of its outcome (``DeletionGuard``, ``LossGuard``, ``UnknownResult``,
    ``DataLoss``, ``DefinitionGuard``, ``PruneGuard``, ``Approval``): an approval of something else
    is refused. ``Abandon`` ends an action whose result stays unknown. Of ``Approval``, ``plan`` is
    the digest of the plan that is approved, or with ``Reject`` rejected; others are left as they
    are.
    """

    hold: str
    decision: ApprovalDecision = "Proceed"
    reason: str = ""
    plan: str = ""


OnWithdrawal = Literal["Keep", "Release", "Ignore"]


class Referenced(_Intake, frozen=True):
    """Another resource refers to this one: ``by`` is its ``namespace/kind/name``."""

    by: str
    on_withdrawal: OnWithdrawal


class Unreferenced(_Intake, frozen=True):
    """A resource does not refer to this one any more."""

    by: str


class TargetState(_Intake, frozen=True):
    """What a resource knows of another one that it refers to.

    ``values`` are the fields that it wants, as far as they are known. ``ready``: it was ready since
    it was declared. ``circle``: the resources that wait for each other, where that leads back.
    """

    declared: bool
    ready: bool = False
    values: dict[str, Any] = {}
    circle: tuple[str, ...] = ()


class TargetSeen(_Intake, frozen=True):
    """Tells a resource how another one stands that it refers to."""

    target: str
    state: TargetState


class SecretSeen(_Intake, frozen=True):
    """Tells a resource the digest of a secret that it names (``store/name``), empty for none."""

    secret: str
    digest: str


class DefinitionSeen(_Intake, frozen=True):
    """Tells a resource that its kind is defined otherwise by now, and how many that concerns.

    ``affected`` of the kind's ``total`` declared resources rest on an older definition.
    """

    generation: int
    digest: str
    affected: int
    total: int


class StrayCount(_Intake, frozen=True):
    """How many objects of a scope would be removed because nobody declared them, of how many."""

    strays: int
    total: int


class LossCount(_Intake, frozen=True):
    """How many objects that are ours one listing does not show any more, of how many."""

    missing: int
    owned: int


class Observed(_Intake, frozen=True):
    """What an observer saw of one resource: the object, or proof that there is none.

    ``evidence`` says what the absence of an object rests on: a ``CompleteListing`` of the scope, or
    a ``Read`` of just this object. Without ``as_of`` nothing is known about when the read began,
    and the observation is taken as older than everything. For APIs that show an effect only after a
    grace: ``began_at`` is the same moment by the observer's clock, and ``age_seconds`` how long ago
    it was when this was sent, by no clock that can be set. ``exclusive`` and ``losses`` count the
    whole listing, for the guards. ``taken_by`` is another resource that has this object, empty if
    none has, None if nobody looked. ``absent_uid`` is the object that is not there, where another
    one may have its name.
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


ErrorClass = Literal["Transient", "Throttled", "Conflict", "NotFound", "Permanent", "Unknown"]


class ActionError(_Intake, frozen=True):
    """Why a call did not succeed.

    ``Transient``, ``Throttled`` and ``Unknown`` are tried again with the same key; ``Conflict`` and
    ``NotFound`` say that what we knew is out of date; ``Permanent`` waits for a new generation.
    ``retry_after_seconds`` is the API's own wish. Not ``attempted``: the API's gate was closed, and
    no call was made. ``nothing_done``: the API was asked, and certainly has done nothing.
    """

    error_class: ErrorClass
    message: str
    status: int | None = None
    retry_after_seconds: float | None = None
    attempted: bool = True
    nothing_done: bool = False


class Reported(_Intake, frozen=True):
    """A worker reports what came of one attempt at an action.

    ``object`` is the object as the API shows it after a success; after a conflict, what stands in
    the way, if it could be read. ``is_lookup``: the worker did not call but looked what came of the
    action; without an error, no object says that there is none. ``redelivered``: another worker
    had this attempt before, or may have it too by now: it may have made the call. ``replayed``: the
    API said that this answer, a refusal too, was kept with the action's key. ``absent``: a deletion
    met nothing, so that it is not known who made it.
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


class ApiReported(_Intake, frozen=True):
    """A worker or an observer reports to a ``ProviderConfig`` how its whole API answers.

    ``Throttled``: it wants no call for ``retry_after_seconds`` from ``at`` on. ``Failing``: so many
    ``failures`` came in a row. ``Probing``: ``reporter`` asks to make the one call that tells
    whether an open breaker may close. ``Answered``: that call was answered.

    ``as_of`` is the version of the configuration's event that last moved its breaker, as the
    reporter knew it when the call began: what began before the breaker moved says nothing new.
    """

    state: Literal["Throttled", "Failing", "Probing", "Answered"]
    reporter: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    as_of: int = 0
    retry_after_seconds: float = 0.0
    failures: int = 0
    message: str = ""


class TimerFired(_Intake, frozen=True):
    """A timer is due: a hint to look at the resource again, never truth."""

    purpose: Literal["Retry", "Due", "Sweep", "ConfigChanged"]


class Answer(_Intake, frozen=True):
    """What the decider answers to a publisher that asked (``events.subjects.REPLY_HEADER``).

    ``reason`` is one word: ``Accepted``, ``Unchanged``, ``Duplicate``, or why it was refused.
    ``generation`` is the resource's generation after the message; ``position`` the message's place
    in the intake. ``resource`` and ``id`` identify the message that is answered.
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
    | LookRequested
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
    "reconciler.desired.LookRequested": LookRequested,
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
    """An observer begins to list a scope; ``as_of`` is the intake's last position by then."""

    provider_config: str
    kind: str
    as_of: int
    prefix: str | None = None
    labels: dict[str, str] = {}


class ListingItem(_Intake, frozen=True, tag_field="part", tag="Item"):
    """One object of the scope."""

    object: ExternalObject


class ListingCompleted(_Intake, frozen=True, tag_field="part", tag="Completed"):
    """The listing came to its end; it proves absence only if ``count`` items were received."""

    count: int


ListingPart = ListingBegan | ListingItem | ListingCompleted

LISTING_TYPE = "reconciler.listing.Part"
