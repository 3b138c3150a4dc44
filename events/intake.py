"""Messages to Reconciler: declarations, approvals, observations, results and timers.

Each struct is the ``data`` of a CloudEvent (``events.envelope``) on a subject of
``events.subjects``. The ``type`` of the CloudEvent ends with the name of the class:
``reconciler.desired.Declared``.

A *position* is a sequence number of the intake stream, and the logical clock of the system. The
report of a call has a later position than everything that was known before the call. An observation
contains the position at which its read began (``as_of``). An observation from before our last
effect is therefore recognized as stale, regardless of any clock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from events.external import ExternalObject
from events.field_types import (
    ApiErrorText,
    Attempt,
    ComparedVersion,
    ConfigName,
    ExternalName,
    Finalizer,
    FoundAs,
    IsReplayed,
    KnownVersion,
    Missing,
    Owned,
    Reason,
    ReferencedBy,
    ResourceName,
    Secret,
    SecretDigest,
    Target,
    Uid,
    UserCount,
    UserNames,
    description,
)
from events.manifest import Manifest


class _Intake(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of all intake messages: camelCase, without default values."""


_ExpectedGeneration = Annotated[
    int | None,
    description(
        "Required generation of the resource; 0 if it must not exist, null for any. If the "
        "generation differs, the decider rejects the message."
    ),
]


class PlanRef(_Intake, frozen=True):
    """A plan: the resource's version when it was planned, and the digest of the resulting events.

    ``reconciler.resource.expectation.turn_digest`` computes the digest.
    """

    version: Annotated[int, description("Version of the resource when it was planned.")]
    digest: Annotated[str, description("Digest of the events that the declaration would cause.")]


class Declared(_Intake, frozen=True):
    """A service declares the desired state of one resource."""

    manifest: Annotated[Manifest, description("Desired state.")]
    expected_generation: _ExpectedGeneration = None
    plan: Annotated[
        PlanRef | None,
        description(
            "Plan that the result must match exactly, or the decider rejects the message; null "
            "if there is none."
        ),
    ] = None
    reason: Annotated[
        str,
        description(
            "Reason to show in the history. Default: the manifest's reconciler/reason annotation."
        ),
    ] = ""


class Withdrawn(_Intake, frozen=True):
    """A service withdraws its declaration; the policy determines what happens to the object."""

    expected_generation: _ExpectedGeneration = None
    reason: Reason = ""


class ReconcileRequested(_Intake, frozen=True):
    """A client requests an immediate read and reconciliation of a resource, despite backoff."""

    reason: Reason = ""


class FinalizerRequested(_Intake, frozen=True):
    """A service adds a finalizer, which blocks the deletion or release of the object.

    It belongs to the service that sent the message (``source`` of the CloudEvent).
    """

    finalizer: Annotated[
        str, description("Name of the finalizer, as in Kubernetes: billing.example.com/invoice.")
    ]


class FinalizerReleased(_Intake, frozen=True):
    """A service removes its finalizer, or with ``force`` another service's."""

    finalizer: Finalizer
    force: Annotated[
        bool, description("Whether the finalizer is removed even if another service added it.")
    ] = False
    reason: Reason = ""


class ForcedRelease(_Intake, frozen=True):
    """An operator removes all finalizers and references of a withdrawn resource."""

    reason: Annotated[str, description("Reason to show in the history. Required.")]
    orphan: Annotated[
        bool, description("Whether Reconciler releases the object without another call.")
    ] = False


ApprovalDecision = Literal["Proceed", "Abandon", "Reject"]


class Approved(_Intake, frozen=True):
    """An operator approves or rejects the action of a held resource."""

    hold: Annotated[
        str,
        description(
            "Reason for the hold: DeletionGuard, LossGuard, UnknownResult, DataLoss, "
            "DefinitionGuard, PruneGuard, Twin, ExclusiveScope or Approval. The decider rejects "
            "the message if the resource is held for a different reason."
        ),
    ]
    decision: Annotated[
        ApprovalDecision,
        description(
            "Proceed: start or repeat the action. Abandon: end an action with an unknown result "
            "without another call. Reject: reject the plan of the Approval hold."
        ),
    ] = "Proceed"
    reason: Reason = ""
    plan: Annotated[
        str, description("Digest of the plan that is approved or rejected, for the Approval hold.")
    ] = ""
    generation: Annotated[
        int,
        description(
            "Generation of the declaration whose hold is approved; 0 for any. If the resource has "
            "a newer one, the decider rejects the message."
        ),
    ] = 0


OnWithdrawal = Literal["Keep", "Release", "Ignore"]
WithdrawalEffect = Annotated[
    OnWithdrawal,
    description(
        "Effect of the reference when this resource is withdrawn. Keep: the object stays "
        "until the reference is removed. Release: Reconciler releases the object without "
        "deleting it. Ignore: no effect."
    ),
]


class Referenced(_Intake, frozen=True):
    """Another resource references this one."""

    by: ReferencedBy
    on_withdrawal: WithdrawalEffect


class Unreferenced(_Intake, frozen=True):
    """Another resource no longer references this one."""

    by: ReferencedBy


class TargetState(_Intake, frozen=True):
    """The state of a referenced resource."""

    declared: Annotated[bool, description("Whether the resource is declared.")]
    ready: Annotated[
        bool, description("Whether it was ready at any time since it was declared.")
    ] = False
    values: Annotated[dict[str, Any], description("Known values of the referenced fields.")] = {}
    cycle: Annotated[
        tuple[str, ...],
        description("Resources that wait for each other, if the reference is part of a cycle."),
    ] = ()
    api_event: Annotated[
        str,
        description(
            "Event of its ProviderConfig on which `ready` depends: ApiFellSilent if the readiness "
            "is unknown, or ApiSilenceEnded. Empty if the API was never silent."
        ),
    ] = ""
    momentary: Annotated[
        bool,
        description(
            "Whether it is ready, but has not stayed ready for long enough. Then ready is false."
        ),
    ] = False


class TargetReported(_Intake, frozen=True):
    """The sweeper or a decider reports the state of a referenced resource."""

    target: Target
    state: Annotated[TargetState, description("State of the referenced resource.")]
    known_version: KnownVersion = 0


class SecretReported(_Intake, frozen=True):
    """A role reports the digest of a secret."""

    secret: Secret
    digest: SecretDigest
    known_version: KnownVersion = 0


class DefinitionReported(_Intake, frozen=True):
    """A role reports that the definition of the resource's kind has changed."""

    generation: Annotated[int, description("Generation of the definition.")]
    digest: Annotated[str, description("Digest of the definition.")]
    affected: Annotated[
        int, description("Number of declared resources of the kind with an older definition.")
    ]
    total: Annotated[int, description("Number of declared resources of the kind.")]


class UsersReported(_Intake, frozen=True):
    """The sweeper reports the resources that use a withdrawn ``ProviderConfig``."""

    generation: Annotated[int, description("Generation of the withdrawal.")]
    count: UserCount
    names: UserNames = ()


class UnmanagedCount(_Intake, frozen=True):
    """Counts of an exclusive scope: undeclared objects, which would be deleted, and all objects."""

    unmanaged: Annotated[int, description("Number of undeclared objects in the scope.")]
    total: Annotated[int, description("Number of all objects in the scope.")]


class LossCount(_Intake, frozen=True):
    """Counts of a listing: owned objects that it does not contain, and all owned objects."""

    missing: Missing
    owned: Owned
    restarted: Annotated[
        bool,
        description(
            "Whether the process of the API, with which its objects end, started after the last "
            "complete listing. The loss guard then accepts the loss, unless maxPercent is 0."
        ),
    ] = False
    same_system: Annotated[
        bool,
        description(
            "Whether the listed system is the one that had the objects. The loss guard then "
            "accepts the loss, unless maxPercent is 0."
        ),
    ] = False

    @property
    def is_explained(self) -> bool:
        """Whether the listing is proven to come from the right API."""
        return self.restarted or self.same_system


class Observed(_Intake, frozen=True):
    """An observer read one object, or proved that it does not exist.

    ``began_at`` and ``age_seconds`` are the same moment on two clocks, for APIs that show effects
    after a delay.
    """

    provider_config: ConfigName
    external_name: ExternalName
    object: Annotated[
        ExternalObject | None, description("State of the object; null if it does not exist.")
    ] = None
    evidence: Annotated[
        Literal["CompleteListing", "Read"],
        description(
            "CompleteListing: a complete listing of the scope. Read: a read of this object."
        ),
    ] = "Read"
    as_of: Annotated[
        int,
        description(
            "Intake position at which the read began; 0 if the observation counts as older than "
            "all others."
        ),
    ] = 0
    began_at: Annotated[
        datetime | None, description("Time at which the read began, by the observer's clock.")
    ] = None
    exclusive: Annotated[
        UnmanagedCount | None, description("Counts for the deletion guard, in an exclusive scope.")
    ] = None
    losses: Annotated[LossCount | None, description("Counts for the loss guard.")] = None
    age_seconds: Annotated[
        float | None, description("Time since the read began, by a monotonic clock.")
    ] = None
    belongs_to: Annotated[
        str | None,
        description(
            "Another resource that this object belongs to, as NAMESPACE/KIND/NAME; empty if "
            "none, null if unknown."
        ),
    ] = None
    absent_uid: Annotated[
        str | None,
        description("Uid of the object that does not exist, if another object may have its name."),
    ] = None
    known_version: ComparedVersion = 0
    found_as: FoundAs = ""


ErrorClass = Literal["NotDone", "Refused", "Conflict", "NotFound", "Throttled", "Unknown"]


class ActionError(_Intake, frozen=True):
    """The reason why a call did not succeed."""

    error_class: Annotated[
        ErrorClass,
        description(
            "NotDone: nothing was changed, and the action is retried. Refused: nothing was "
            "changed, and the action waits for a new generation. Conflict and NotFound: nothing "
            "was changed, because the known state was outdated. Throttled: the action is retried "
            "when the API accepts calls again. Unknown: the call may have been executed, so the "
            "action is retried with the same key, or its object is looked up."
        ),
    ]
    message: Annotated[str, description("Error text.")]
    status: Annotated[
        int | None, description("HTTP status of the response; null if there was none.")
    ] = None
    retry_after_seconds: Annotated[float | None, description("Delay that the API requests.")] = None
    attempted: Annotated[
        bool,
        description(
            "Whether the call was made; false if calls to the API were suspended, or the name "
            "belongs to another resource."
        ),
    ] = True
    belongs_to: Annotated[
        str,
        description(
            "Another resource that the name of the object belongs to, as NAMESPACE/KIND/NAME; "
            "empty if none."
        ),
    ] = ""


class Reported(_Intake, frozen=True):
    """A worker reports the result of one attempt of an action."""

    action_id: Annotated[str, description("Id of the action.")]
    attempt: Attempt
    started_at: Annotated[datetime, description("Time at which the worker started.")]
    finished_at: Annotated[datetime, description("Time of the result.")]
    worker: Annotated[str, description("Name of the worker.")]
    error: Annotated[
        ActionError | None, description("Error from the attempt; null if it succeeded.")
    ] = None
    object: Annotated[
        ExternalObject | None,
        description("Object in the API's response. After a conflict, the object that conflicts."),
    ] = None
    replayed: IsReplayed = False
    is_lookup: Annotated[
        bool,
        description(
            "Whether the worker only read the API. If it reports neither an error nor an "
            "object, the object does not exist."
        ),
    ] = False
    redelivered: Annotated[
        bool,
        description(
            "Whether another worker also received this attempt and may have made the call."
        ),
    ] = False
    absent: Annotated[
        bool,
        description(
            "Whether a deletion found no object, so it is unknown which client deleted it."
        ),
    ] = False
    labeled_uids: Annotated[
        tuple[str, ...],
        description(
            "Uids of the objects with this name and the owner label, if there are several. The "
            "field object is the first of them."
        ),
    ] = ()


class NewerObject(_Intake, frozen=True):
    """An object with an owner label of this log, written by an action that is not in the log."""

    kind: Annotated[str, description("Kind of the object in its API.")]
    name: ExternalName
    uid: Uid
    action: Annotated[
        str,
        description(
            "Id of the action: the resource, and a version that this log does not contain."
        ),
    ]
    known_version: Annotated[int, description("Newest version of the resource in this log.")]


class ListingFailure(_Intake, frozen=True):
    """Listings of a kind have failed for so long that its resources are no longer observed."""

    since: Annotated[
        datetime,
        description("Time of the last complete listing, or of the start of the reporting process."),
    ]
    message: Annotated[str, description("Error from the newest listing.")] = ""


class UndeclaredObjects(_Intake, frozen=True):
    """The undeclared objects of a kind in the scope of a ``ProviderConfig``."""

    count: Annotated[int, description("Number of undeclared objects.")]
    total: Annotated[int, description("Number of all objects.")]
    names: Annotated[
        tuple[str, ...], description("Names of the first few undeclared objects.")
    ] = ()


SystemId = Annotated[
    str,
    description(
        "Id of the system that a complete listing showed, for ListingsResumed; empty if unknown."
    ),
]


class ApiReported(_Intake, frozen=True):
    """A worker or an observer reports the condition of an API to its ``ProviderConfig``."""

    state: Annotated[
        Literal[
            "Throttled",
            "Failing",
            "Probing",
            "Responding",
            "Stopping",
            "Twin",
            "ListingsFailed",
            "ListingsResumed",
            "UndeclaredCounted",
            "Silent",
            "SilenceEnded",
        ],
        description(
            "Throttled: the API temporarily rejects calls. Failing: consecutive calls failed. "
            "Probing: the reporter requests permission for the call that determines whether an "
            "open breaker closes. Responding: the API responded to that call. Stopping: the "
            "reporter stops and does not probe. Twin: the API has objects that are newer than the "
            "log. ListingsFailed: no listing of `kind` has completed for several resync intervals. "
            "ListingsResumed: a listing of `kind` completed after a failure or at another system, "
            "or no resource uses the kind. UndeclaredCounted: a complete listing of `kind` shows "
            "how many objects of a new scope are undeclared. Silent: the API has not responded for "
            "`silentSeconds`. SilenceEnded: it responded."
        ),
    ]
    reporter: Annotated[str, description("Reporting process.")]
    at: Annotated[Annotated[datetime, msgspec.Meta(tz=True)], description("Time of the report.")]
    as_of: Annotated[
        int,
        description(
            "Version of the event that had last changed the breaker when the call began. For Twin: "
            "version of the event that last set or ended that hold. For listings: generation of "
            "the ProviderConfig. For silence: version of the event that last began or ended it. "
            "The decider ignores older reports."
        ),
    ] = 0
    retry_after_seconds: Annotated[
        float,
        description("Time after `at` during which the API does not accept calls, for Throttled."),
    ] = 0.0
    failures: Annotated[int, description("Number of consecutive failures, for Failing.")] = 0
    message: ApiErrorText = ""
    newer: Annotated[
        tuple[NewerObject, ...], description("The first few of the newer objects, for Twin.")
    ] = ()
    total: Annotated[int, description("Number of newer objects, for Twin.")] = 0
    kind: Annotated[str, description("Kind of the objects, for listings.")] = ""
    failure: Annotated[
        ListingFailure | None, description("How the listings failed, for ListingsFailed.")
    ] = None
    system_id: SystemId = ""
    undeclared: Annotated[
        UndeclaredObjects | None, description("The undeclared objects, for UndeclaredCounted.")
    ] = None
    silent_seconds: Annotated[float, description("Time since the last response, for Silent.")] = 0.0


WaitPurpose = Literal["Retry", "Renewal", "Progress", "Availability"]
"""Purpose of a deadline: the next attempt, a renewal, progress, or the availability of a part."""


class TimerFired(_Intake, frozen=True):
    """A timer fired, so the decider processes the resource. A lost timer only causes a delay."""

    purpose: Annotated[
        WaitPurpose | Literal["Sweep", "ConfigChanged"],
        description(
            "Retry: the delay of a retry ended. Renewal: a renewal is due. Progress: the object "
            "should have made progress. Availability: a part has been ready for long enough. "
            "Sweep: the sweeper checks the resource. ConfigChanged: the ProviderConfig or the kind "
            "that the resource is waiting for is available."
        ),
    ]


class Reply(_Intake, frozen=True):
    """The decider's reply to a publisher that sent the ``Reconciler-Reply-To`` header."""

    accepted: Annotated[bool, description("Whether the decider accepted the message.")]
    reason: Annotated[
        str,
        description(
            "Accepted, Unchanged, Duplicate, or the reason for the rejection, in one word."
        ),
    ]
    generation: Annotated[int, description("Generation of the resource after the message.")]
    position: Annotated[int, description("Position of the message in the intake.")]
    message: Annotated[str, description("Explanation of a rejection.")] = ""
    resource: ResourceName = ""
    id: Annotated[str, description("Id of the message.")] = ""


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
    | TargetReported
    | SecretReported
    | DefinitionReported
    | UsersReported
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
    "reconciler.reference.TargetReported": TargetReported,
    "reconciler.reference.SecretReported": SecretReported,
    "reconciler.reference.DefinitionReported": DefinitionReported,
    "reconciler.reference.UsersReported": UsersReported,
    "reconciler.observed.Observed": Observed,
    "reconciler.result.Reported": Reported,
    "reconciler.result.ApiReported": ApiReported,
    "reconciler.timer.TimerFired": TimerFired,
}
"""CloudEvents types of the intake messages. Their second part is the ``<what>`` of the subject."""

INTAKE_TYPE_NAMES: dict[type[IntakeData], str] = {
    struct: name for name, struct in INTAKE_TYPES.items()
}


class ListingBegan(_Intake, frozen=True, tag_field="part", tag="Began"):
    """An observer begins a listing of a scope."""

    provider_config: ConfigName
    kind: Annotated[str, description("Kind of the objects.")]
    as_of: Annotated[int, description("Last position of the intake when the listing began.")]
    prefix: Annotated[
        str | None, description("Prefix of the names in the scope; null if all names are in scope.")
    ] = None
    labels: Annotated[dict[str, str], description("Labels of the objects in the scope.")] = {}


class ListingItem(_Intake, frozen=True, tag_field="part", tag="Item"):
    """One object of the scope."""

    object: Annotated[ExternalObject, description("State of the object.")]


class ListingCompleted(_Intake, frozen=True, tag_field="part", tag="Completed"):
    """The listing is complete; it proves absence only if ``count`` items were received."""

    count: Annotated[
        int,
        description(
            "Number of objects in the listing. If the observer receives a different number of "
            "items, the listing does not prove that any object is missing."
        ),
    ]


ListingPart = ListingBegan | ListingItem | ListingCompleted

LISTING_TYPE = "reconciler.listing.Part"
