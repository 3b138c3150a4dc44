"""Events of the log, the only source of truth about a resource.

These classes are the stored format. A new field has a default. To rename or remove a field, or to
change its meaning, increase ``LOG_FORMAT`` in ``infra.bus.streams`` (ADR 0020).

An event describes a fact in the past tense, and contains everything that a fold needs. The envelope
(``LogEvent``) adds the version of the resource, the time, and the cause: the intake message and its
position.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

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
from events.intake import (
    ActionError,
    ApprovalDecision,
    ListingFailure,
    NewerObject,
    SystemId,
    TargetState,
    UndeclaredObjects,
    WithdrawalEffect,
)
from events.kind_definition import DefinitionRef
from events.manifest import ApprovalLevel, Fields, Policy
from events.names import DEFAULT_NAMESPACE, ResourceKey
from events.reference import Reference
from events.subjects import SILENCE, LogClass


class _Event(
    msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True, tag_field="event"
):
    """Base of all log events: camelCase, with the class name as ``event``.

    ``gc=False`` here and in other structs: their values are trees, so there are no reference
    cycles.
    """


_Generation = Annotated[int, description("Generation of the declaration.")]
_ActionId = Annotated[str, description("Id of the action: the id of the ActionDecided event.")]
_Delay = Annotated[float, description("Delay in seconds, from the time of the event.")]
_ReportedAt = Annotated[
    datetime | None,
    description("Time at which the bus received the result, by the bus's clock."),
]


_IsUnconfirmed = Annotated[
    bool,
    description(
        "Whether a creation may have created, or may still create, an object that the log does "
        "not contain and whose name does not reveal it, because the API assigns ids, cannot "
        "list, or responded with a different uid."
    ),
]


class SpecDeclared(_Event, frozen=True):
    """The decider accepted a new desired state, as a new generation."""

    generation: _Generation
    api_version: Annotated[str, description("API version of the manifest.")]
    provider_config: ConfigName
    external_name: ExternalName
    fields: Annotated[
        Fields, description("Declared fields of the kind. References and secrets are not resolved.")
    ]
    labels: Annotated[dict[str, str], description("Labels of the manifest.")] = {}
    annotations: Annotated[
        dict[str, str], description("Annotations of the manifest, without the reason.")
    ] = {}
    policy: Annotated[Policy, description("Policy of the spec.")] = Policy()
    references: Annotated[
        tuple[Reference, ...], description("Resources that the fields reference.")
    ] = ()
    secrets: Annotated[
        tuple[str, ...],
        description("Secrets that the fields name, as STORE/NAME or STORE/NAMESPACE/NAME."),
    ] = ()
    definition: Annotated[
        DefinitionRef | None,
        description(
            "Definition that the fields were checked against, if a KindDefinition defines the kind."
        ),
    ] = None
    reason: Reason = ""
    undeclared: Annotated[
        dict[str, UndeclaredObjects] | None,
        description(
            "For a ProviderConfig whose scope is new: its undeclared objects by kind, as far as "
            "they are known. Their deletion waits for an approval. Null if none is necessary."
        ),
    ] = None
    moved_from: Annotated[
        str, description("Resource whose object this one takes over; empty if none.")
    ] = ""


class SpecWithdrawn(_Event, frozen=True):
    """The decider accepted the withdrawal of the declaration, as a new generation."""

    generation: Annotated[int, description("Generation of the withdrawal.")]
    reason: Reason = ""
    until_unused: Annotated[
        bool,
        description(
            "For a ProviderConfig: whether it stays in effect until UsersCounted shows that no "
            "resource uses it, or a ReleaseForced ends it."
        ),
    ] = False


class GenerationSuperseded(_Event, frozen=True):
    """Generation ``by`` replaced a generation that had not settled yet."""

    generation: Annotated[int, description("Generation that had not settled yet.")]
    by: Annotated[int, description("Generation that replaced it.")]


class DeclarationSuperseded(_Event, frozen=True):
    """The decider ignored a declaration or withdrawal that is older than generation ``by``.

    The envelope identifies the message, so that a redelivery is ignored too.
    """

    by: Annotated[int, description("Current generation, which is newer than the message.")]


class ExternalObserved(_Event, frozen=True):
    """An observer read a new state of the object."""

    provider_config: ConfigName
    external_name: ExternalName
    object: Annotated[
        ExternalObject | None,
        description("Observed state of the object; null if it does not exist."),
    ]
    evidence: Annotated[
        Literal["CompleteListing", "Read"],
        description(
            "CompleteListing: a complete listing of the scope. Read: a read of this object."
        ),
    ]
    as_of: Annotated[int, description("Intake position at which the read began.")]
    unmanaged: Annotated[
        int | None,
        description("Number of undeclared objects in an exclusive scope; null in a shared scope."),
    ] = None
    total: Annotated[int | None, description("Number of all objects in an exclusive scope.")] = None
    belongs_to: Annotated[
        str,
        description(
            "Another resource that this object belongs to, as NAMESPACE/KIND/NAME; empty if none "
            "is known."
        ),
    ] = ""
    known_version: ComparedVersion = 0
    found_as: FoundAs = ""


class AbsenceDoubted(_Event, frozen=True):
    """Too many owned objects are missing from a listing, so the object still counts as existing."""

    provider_config: ConfigName
    external_name: ExternalName
    missing: Missing
    owned: Owned


class FieldDifference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A field whose observed value is not the desired one."""

    path: Annotated[str, description("Path of the field.")]
    desired: Annotated[object, description("Desired value; null if not set.")]
    observed: Annotated[object, description("Observed value; null if not set.")]


class PathDrift(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How often another client has recently overwritten a field (ADR 0041)."""

    path: Annotated[str, description("Path of the field; empty if the client deleted the object.")]
    times: Annotated[int, description("Number of drifts.")]
    since: Annotated[datetime, description("Time of the first drift.")]
    last: Annotated[datetime, description("Time of the last drift.")]


class DriftDetected(_Event, frozen=True):
    """The object differs from what Reconciler last applied."""

    generation: _Generation
    missing: Annotated[bool, description("Whether the object does not exist.")] = False
    differences: Annotated[
        tuple[FieldDifference, ...],
        description("Fields whose observed value differs from the desired one."),
    ] = ()
    suspected_action: Annotated[
        str,
        description("Id of an action with an unknown result that may have caused the difference."),
    ] = ""
    recent: Annotated[
        tuple[PathDrift, ...], description("Recent drifts of each path, including this one.")
    ] = ()
    renamed_to: Annotated[
        str,
        description("Name that another client gave the missing object; empty if none is known."),
    ] = ""


class MovedObject(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What the former owner of a moved object recorded about it."""

    moved_from: Annotated[str, description("Resource that owned the object before.")]
    object: Annotated[ExternalObject | None, description("The object as last observed.")] = None
    is_applied: Annotated[bool, description("Whether the last write to it is known.")] = False
    fields: Annotated[Fields, description("Fields of the last write.")] = {}
    labels: Annotated[dict[str, str], description("Labels of the last write.")] = {}
    result: Annotated[
        ExternalObject | None, description("The object as the API returned it after that write.")
    ] = None
    in_doubt: Annotated[
        bool, description("Whether parts of the last write may never have been written.")
    ] = False
    owner_label: Annotated[
        str, description("Owner label of the former owner, which the object may still have.")
    ] = ""
    written_at: Annotated[
        datetime | None, description("Time of the last result, by the bus's clock.")
    ] = None


class OwnershipClaimed(_Event, frozen=True):
    """The resource took ownership of an existing object."""

    external_name: ExternalName
    uid: Uid
    reason: Annotated[
        Literal["Adopted", "Label", "Prefix", "ExclusiveScope", "Returned", "Found", "Moved"],
        description(
            "Adopted: the policy allows adoption. Label: the object carries the owner label. "
            "Prefix: its name has the ownerPrefix of the ProviderConfig. ExclusiveScope: it is in "
            "an exclusive scope. Returned: it has the uid of an owned object that was missing from "
            "an earlier listing. Found: it carries the owner label, and an earlier creation had an "
            "unknown result. Moved: its former owner released it to this resource."
        ),
    ]
    provider_config: ConfigName = ""
    object: Annotated[
        ExternalObject | None,
        description(
            "A second object that exists in addition to the owned one. Reconciler deletes it as "
            "it deletes a replaced object."
        ),
    ] = None
    grace_seconds: Annotated[
        float,
        description(
            "Grace period after a write of this resource in which observations do not count, "
            "because the API shows writes with a delay; 0 if unchanged."
        ),
    ] = 0.0
    moved: Annotated[
        MovedObject | None, description("The moved object; null for other reasons.")
    ] = None
    claims: Annotated[
        tuple[str, ...], description("What only this object of the API has, as in Action.")
    ] = ()


class OwnershipReleased(_Event, frozen=True):
    """The resource no longer owns its object."""

    external_name: ExternalName
    uid: Uid
    reason: Annotated[
        Literal["Orphaned", "Forgotten", "Gone", "Replaced", "Moved"],
        description(
            "Orphaned: Reconciler released the object, which still exists. Forgotten: nothing can "
            "read the object's API anymore, so the object keeps its labels. Gone: the object does "
            "not exist. Replaced: another object has its name. Moved: another resource took it "
            "over."
        ),
    ]
    provider_config: ConfigName = ""
    seconds_since_write: Annotated[
        float,
        description(
            "Time from the last write of the resource to the start of the read that did not show "
            "the object; 0 if unknown."
        ),
    ] = 0.0
    unconfirmed: _IsUnconfirmed = False
    lost_data: Annotated[
        str,
        description(
            "Data that vanished with the object. It is not recreated without an approval; empty if "
            "it held none."
        ),
    ] = ""
    moved_to: Annotated[str, description("Resource that took the object over; empty if none.")] = ""


class MoveExpected(_Event, frozen=True):
    """Another resource takes the object over once this one is withdrawn."""

    moved_to: Annotated[str, description("Resource that will take the object over.")]


class MoveEnded(_Event, frozen=True):
    """A move between this resource and another one will not happen."""

    resource: Annotated[str, description("The other resource.")]
    reason: Reason = ""


class ReconcileAccepted(_Event, frozen=True):
    """A client requested a reconciliation, which ends the current wait.

    The envelope names the actor.
    """

    reads: Annotated[bool, description("Whether the resource has an object to read.")]
    reason: Reason = ""
    requested_at: Annotated[
        datetime | None,
        description("Time at which the request was stored, by the bus's clock; null if unknown."),
    ] = None


class FinalizerAdded(_Event, frozen=True):
    """The service ``holder`` added a finalizer, which blocks the deletion of the object."""

    finalizer: Finalizer
    holder: Annotated[str, description("Service that added it and may remove it.")]


class FinalizerRemoved(_Event, frozen=True):
    """The holder removed a finalizer, or another client removed it by force."""

    finalizer: Finalizer
    forced: Annotated[bool, description("Whether a client other than the holder removed it.")] = (
        False
    )
    reason: Reason = ""


class ReleaseForced(_Event, frozen=True):
    """An operator removed all finalizers and references by force; the envelope names the actor."""

    reason: Reason
    orphan: Annotated[
        bool, description("Whether Reconciler releases the object without deleting it.")
    ] = False
    finalizers: Annotated[tuple[str, ...], description("Names of the removed finalizers.")] = ()
    references: Annotated[
        tuple[str, ...], description("Resources whose references were removed.")
    ] = ()
    forgotten: Annotated[
        bool,
        description(
            "Whether the resource was also forgotten, because its kind or its ProviderConfig no "
            "longer exists."
        ),
    ] = False


class HoldApproved(_Event, frozen=True):
    """An operator approved the action of a held resource; the envelope names the actor."""

    hold: Annotated[str, description("Reason for the hold.")]
    decision: Annotated[
        ApprovalDecision,
        description("Proceed: start or repeat the action. Abandon: end it without another call."),
    ] = "Proceed"
    reason: Reason = ""
    plan: Annotated[str, description("Digest of the approved plan, for the Approval hold.")] = ""
    approved_at: Annotated[
        datetime | None,
        description("Time at which the bus received the approval, by the bus's clock."),
    ] = None


class ApprovalRefused(_Event, frozen=True):
    """An operator rejected the plan that waited for approval; the envelope names the actor."""

    plan: Annotated[str, description("Digest of the rejected plan.")]
    reason: Reason = ""


class ReferenceAdded(_Event, frozen=True):
    """Another resource now references this one."""

    by: ReferencedBy
    on_withdrawal: WithdrawalEffect


class ReferenceRemoved(_Event, frozen=True):
    """Another resource no longer references this one."""

    by: ReferencedBy


class TargetObserved(_Event, frozen=True):
    """The decider recorded the state of a resource that this one references."""

    target: Target
    state: Annotated[TargetState, description("State of the referenced resource.")]


class SecretObserved(_Event, frozen=True):
    """The decider recorded the digest of a referenced secret."""

    secret: Secret
    digest: SecretDigest


class DefinitionObserved(_Event, frozen=True):
    """The decider recorded that the definition of the kind has changed."""

    definition: Annotated[DefinitionRef, description("Current definition of the kind.")]


class SpecResolved(_Event, frozen=True):
    """The decider computed the desired fields of a generation from references and secrets.

    A reference is replaced by its value, a secret by its digest.
    """

    generation: _Generation
    fields: Annotated[
        Fields,
        description("Desired fields of the object. Those of a composed resource are its parts."),
    ]
    definition: Annotated[
        str,
        description(
            "Digest of the definition that was used to compute the fields, if a KindDefinition "
            "defines the kind."
        ),
    ] = ""
    is_applied: Annotated[
        bool, description("Whether the object was last written with exactly these fields.")
    ] = False


Operation = Literal["Create", "Update", "Delete"]
Purpose = Literal["Converge", "Replace", "Retire", "Renew"]
"""Purpose of an action: to reach the declared state, to replace an object, to delete the replaced
object, or to renew an object (ADR 0026, ADR 0027)."""

_Operation = Annotated[Operation, description("Operation of the action.")]
_Purpose = Annotated[
    Purpose,
    description(
        "Purpose of the action. Converge: bring the object to the desired state. Replace: delete "
        "an object for its replacement, or create the replacement. Retire: delete the object that "
        "was replaced. Renew: write the object again, because its renewal is due."
    ),
]


class Action(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One immutable change to the external API: every attempt has the same key and parameters."""

    action_id: _ActionId
    idempotency_key: Annotated[str, description("Key that every attempt sends to the API.")]
    operation: _Operation
    generation: _Generation
    provider_config: ConfigName
    external_name: ExternalName
    causes: Annotated[
        tuple[str, ...], description("Ids of the events and messages that caused the action.")
    ]
    fields: Annotated[
        Fields,
        description(
            "Fields to write. Secrets are digests. For a deletion that begins a replacement, the "
            "fields of the new object."
        ),
    ] = {}
    labels: Annotated[
        dict[str, str], description("Labels to write, or those of the new object.")
    ] = {}
    uid: Annotated[
        str | None, description("Required uid of the object to update or delete; null for any.")
    ] = None
    version: Annotated[
        str | None, description("Required version of the object to update; null for any.")
    ] = None
    purpose: _Purpose = "Converge"
    definition: Annotated[
        str, description("Digest of the definition of the kind, if a KindDefinition defines it.")
    ] = ""
    epoch: Annotated[
        str,
        description("Epoch of the log, which `init` and each restore set; empty in earlier logs."),
    ] = ""
    data_loss: Annotated[
        str,
        description(
            "Data that the action loses, according to the observation that it was decided by; "
            "empty if none. A worker does not make the call if the object then has other data."
        ),
    ] = ""
    claims: Annotated[
        tuple[str, ...],
        description("What only this object of the API has, such as a port (`Kind.find_claims`)."),
    ] = ()

    @property
    def namespace(self) -> str:
        """The namespace of the resource, whose secrets the action may read."""
        namespace, is_event_id, _ = self.action_id.partition("/")
        return namespace if is_event_id else DEFAULT_NAMESPACE


_SameAction = Annotated[Action, description("The action, as in ActionDecided.")]


class ApprovalRequested(_Event, frozen=True):
    """An action requires approval before it starts (ADR 0040).

    The approval level of a withdrawn declaration still applies, even after the resource's row was
    deleted.
    """

    plan: Annotated[
        str, description("Digest of the action's parameters and of the current object.")
    ]
    operation: _Operation
    generation: _Generation
    provider_config: ConfigName
    external_name: ExternalName
    purpose: _Purpose = "Converge"
    changes: Annotated[
        tuple[FieldDifference, ...], description("Fields that the action changes.")
    ] = ()
    level: Annotated[
        ApprovalLevel, description("Least strict approval level that covers the action.")
    ] = "Always"
    declared_level: Annotated[
        ApprovalLevel | None,
        description("Approval level of a withdrawn declaration; null if the resource is declared."),
    ] = None


class Base(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The declared part of a write, if it differs from the desired fields and the action's labels.

    A write that keeps the fields of other clients would otherwise record the desired ones twice.
    """

    fields: Annotated[
        Fields | None, description("Declared fields; null if they are the desired fields.")
    ] = None
    labels: Annotated[
        dict[str, str] | None, description("Declared labels; null if they are those of the action.")
    ] = None


class ActionDecided(_Event, frozen=True):
    """The decider chose the next action, and recorded it before any external call."""

    action: Annotated[Action, description("The action; its first attempt starts.")]
    base: Annotated[
        Base | None,
        description(
            "Part of the written content that the resource declares: the base of the next "
            "three-way comparison; null if it declares all of it."
        ),
    ] = None


class ActionRetried(_Event, frozen=True):
    """The decider started the next attempt of the same action, with the same key and parameters."""

    action: _SameAction
    attempt: Annotated[int, description("Number of the attempt that starts.")]


class LookupDecided(_Event, frozen=True):
    """The result of an attempt is unknown, so a worker reads the API to check for its effect.

    This is the second step for unknown results (ADR 0012). The first one is ``ActionRetried``.
    """

    action: _SameAction
    attempt: Annotated[int, description("Number of the lookup, counted with the attempts.")]
    known_uids: Annotated[
        tuple[str, ...],
        description(
            "Uids of objects that existed before the action and therefore cannot be its result."
        ),
    ] = ()


class ActionHeld(_Event, frozen=True):
    """The result of the action cannot be determined, so an operator must decide.

    This is the third step for unknown results (ADR 0012).
    """

    action_id: _ActionId
    reason: Annotated[str, description("Why the result is unknown, and what an operator must do.")]
    object: Annotated[
        ExternalObject | None, description("Object that the action may have created.")
    ] = None
    name_owner: Annotated[
        str,
        description(
            "Another resource that owns the name of that object, as NAMESPACE/KIND/NAME; empty if "
            "none. A withdrawal then ends the action."
        ),
    ] = ""


FoundBy = Literal["Label", "Key", "Content", "Absence"]


class ActionSucceeded(_Event, frozen=True):
    """The action took effect."""

    action_id: _ActionId
    operation: _Operation
    attempt: Attempt
    object: Annotated[
        ExternalObject | None,
        description("Object in the API's response, or the one that a lookup returned."),
    ] = None
    replayed: IsReplayed = False
    found_by: Annotated[
        FoundBy | None,
        description(
            "How a read shows the effect. Label: the owner label. Key: the idempotency key. "
            "Content: the fields. Absence: the object does not exist. null: the API confirmed the "
            "call."
        ),
    ] = None
    late: Annotated[
        bool,
        description("Whether the result arrived after the action had failed or was abandoned."),
    ] = False
    redelivered: Annotated[
        bool,
        description(
            "Whether another worker also received the attempt and may still make its call. For a "
            "creation, set only if the API does not store keys."
        ),
    ] = False
    reported_at: _ReportedAt = None
    outdated: Annotated[
        bool,
        description("Whether the log had a newer state, so the result does not change the state."),
    ] = False
    purpose: _Purpose = "Converge"
    external_name: Annotated[
        str,
        description(
            "Name of a replacement with a different name, or of an object that was created late."
        ),
    ] = ""
    refused: Annotated[
        ActionError | None,
        description(
            "Error of the remaining calls, if the API executed only the first of several calls and "
            "permanently rejected the others."
        ),
    ] = None
    provider_config: Annotated[
        str, description("Name of the ProviderConfig of an object that was created late.")
    ] = ""
    unconfirmed: _IsUnconfirmed = False


class ActionNotDone(_Event, frozen=True):
    """A read shows no effect of the action, so the decider repeats it with the same key.

    Another client may have deleted a created object before the read.
    """

    action_id: _ActionId
    operation: _Operation
    attempt: Attempt


class Effect(StrEnum):
    """What the attempts of an action may have changed in the API (ADR 0067).

    The first four describe one attempt, or the worst of all attempts so far. The last two require
    or record the decision of an operator.
    """

    NOT_SENT = "NotSent"
    REFUSED = "Refused"
    PARTIAL = "Partial"
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
        return self in (Effect.UNKNOWN, Effect.HELD)

    @property
    def is_nothing(self) -> bool:
        """Whether the API certainly changed nothing."""
        return self in (Effect.NOT_SENT, Effect.REFUSED)


Consequence = Literal["Retry", "Refused", "Failed", "Outdated", "Conflict", "Observed", "Retired"]


class ActionFailed(_Event, frozen=True):
    """An attempt failed, or its result is unknown."""

    action_id: _ActionId
    operation: _Operation
    attempt: Attempt
    error: Annotated[ActionError, description("Error from the attempt.")]
    object: Annotated[
        ExternalObject | None, description("Object that conflicts with the action.")
    ] = None
    redelivered: Annotated[
        bool,
        description(
            "Whether another worker, which reported no result, had already received this attempt. "
            "Its call may have taken effect, or may still do so. The failure therefore does not "
            "prove that the action had no effect."
        ),
    ] = False
    reported_at: _ReportedAt = None
    purpose: _Purpose = "Converge"
    # The aggregate sets this and `consequence` when it records the event (`apply_rules`).
    effect: Annotated[
        Effect,
        description(
            "What this attempt may have changed. NotSent: no call was made. Refused: nothing, "
            "because the API refused the call or no connection was established. Partial: the "
            "first of several requests, before the API throttled the rest. Unknown: the call may "
            "have taken effect, or may still do so."
        ),
    ] = Effect.NOT_SENT
    consequence: Annotated[
        Consequence,
        description(
            "What the failure means for the resource. Retry: the action continues with a retry "
            "or a lookup. Refused: the API permanently refuses this generation. Failed: it "
            "permanently refuses a write that the generation does not depend on. Outdated: it "
            "refuses an older generation. Conflict: the recorded state was outdated. Observed: "
            "like Conflict, and the failure also shows the current object, or shows that none "
            "exists. For the deletion of a replaced object, it shows that object. Retired: the "
            "replaced object no longer exists."
        ),
    ] = "Retry"


class ActionDoubted(_Event, frozen=True):
    """A late call of the action has an unknown result.

    Another worker also received the attempt, or the action was abandoned. Its effect may appear
    later.
    """

    action_id: _ActionId
    operation: _Operation
    attempt: Attempt
    message: Annotated[str, description("Error from the call.")]
    unconfirmed: _IsUnconfirmed = False


class ActionAbandoned(_Event, frozen=True):
    """The decider abandoned an action that has no known effect."""

    action_id: _ActionId
    operation: _Operation
    reason: Annotated[str, description("Reason why the action ended.")]
    in_doubt: Annotated[
        bool,
        description("Whether a call may still be in progress, so the effect may appear later."),
    ] = False
    unconfirmed: _IsUnconfirmed = False


REPEATED_DRIFT: Final = "RepeatedDrift"
"""Reason for a wait and its outcome: another client repeatedly overwrote a repair."""


class RetryScheduled(_Event, frozen=True):
    """The resource waits for the next attempt of an action, or for the next read."""

    at: Annotated[datetime, description("Time of the next attempt or read.")]
    delay_seconds: _Delay
    reason: Annotated[str, description("Class of the error, or another reason for the wait.")]
    action_id: Annotated[
        str | None,
        description("Id of the retried action; null if no action is in progress."),
    ] = None


class RenewalScheduled(_Event, frozen=True):
    """The object is as declared, and its kind requires a renewal at ``renewal_time``.

    The decider processes the resource at ``at``, slightly later, so that it does not write many
    objects with the same ``renewal_time`` at the same time.
    """

    renewal_time: Annotated[datetime, description("Time at which the object requires a renewal.")]
    at: Annotated[
        datetime,
        description("Time of the next decision, which is at or slightly after the renewal time."),
    ]
    delay_seconds: _Delay


class ProgressNoted(_Event, frozen=True):
    """The object is as declared but not ready, and made progress at ``since``."""

    mark: Annotated[
        str,
        description(
            "Value that changes whenever the object makes progress; empty if none is expected."
        ),
    ]
    since: Annotated[datetime, description("Time of the latest progress.")]
    at: Annotated[
        datetime | None,
        description(
            "Time by which more progress is expected; null if there is no deadline or it has "
            "passed."
        ),
    ] = None
    delay_seconds: _Delay = 0.0


class PartAvailability(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How long an object, such as a part of a composed one, has been ready without interruption."""

    run: Annotated[
        str, description("Start of its process, from its outputs; empty if it has none.")
    ] = ""
    since: Annotated[
        datetime | None,
        description("Time since which it has been ready; null if it is not ready."),
    ] = None
    interruptions: Annotated[
        int, description("Number of times that it restarted or stopped being ready.")
    ] = 0
    available: Annotated[
        bool, description("Whether it has been ready for long enough that others may rely on it.")
    ] = False
    api_event: Annotated[
        str,
        description(
            "Event of the part's ProviderConfig that this decision used: ApiFellSilent if it "
            "waits for the API, or ApiSilenceEnded. Empty if the API was never silent."
        ),
    ] = ""


class AvailabilityNoted(_Event, frozen=True):
    """Parts of the composed object became or stopped being available, or restarted."""

    parts: Annotated[
        dict[str, PartAvailability | None],
        description("The changed parts, by name; null for a part that no longer exists."),
    ] = {}
    at: Annotated[
        datetime | None,
        description(
            "Time at which the next part becomes available if it stays ready; null if no part is "
            "about to."
        ),
    ] = None
    delay_seconds: _Delay = 0.0
    withheld_until: Annotated[
        datetime | None,
        description(
            "Time at which parts are withdrawn because other parts are not ready, if these stay "
            "not ready; null if no withdrawal waits."
        ),
    ] = None

    @property
    def next_at(self) -> datetime | None:
        """Earlier of the two times; None if there is none."""
        return min(filter(None, (self.at, self.withheld_until)), default=None)


class ApiThrottled(_Event, frozen=True):
    """The API of a ``ProviderConfig`` does not accept calls before ``until``."""

    until: Annotated[datetime, description("Time until which Reconciler does not call the API.")]
    delay_seconds: _Delay
    message: ApiErrorText = ""


class BreakerOpened(_Event, frozen=True):
    """The circuit breaker of a ``ProviderConfig`` opened after too many consecutive failures.

    After ``until``, one call is made as a probe.
    """

    until: Annotated[datetime, description("Time of the probe.")]
    delay_seconds: _Delay
    failures: Annotated[int, description("Number of consecutive failures.")]
    message: ApiErrorText = ""


class BreakerProbed(_Event, frozen=True):
    """The process ``by`` probes the API of an open breaker, and must finish before ``until``.

    If the process stops before it finishes, another one may probe.
    """

    until: Annotated[datetime, description("Time at which the probe must have finished.")]
    delay_seconds: _Delay
    by: Annotated[
        str,
        description("Process that makes the probe; empty if it stopped before it finished."),
    ]


class BreakerClosed(_Event, frozen=True):
    """The API responded to the probe, and the circuit breaker closed."""


class TwinDetected(_Event, frozen=True):
    """The API of a ``ProviderConfig`` has objects that are newer than this log (ADR 0065).

    Another copy of the log writes to the API, or this log is an older copy. Reconciler does not
    write to the API until an operator approves.
    """

    objects: Annotated[tuple[NewerObject, ...], description("The first few of the newer objects.")]
    total: Annotated[int, description("Number of newer objects.")]


class ListingsFailed(_Event, frozen=True):
    """No listing of a kind has completed for several resync intervals (ADR 0069).

    Until one completes, Reconciler detects neither drift nor deletions of the kind's objects at
    this ``ProviderConfig``.
    """

    kind: Annotated[str, description("Kind of the objects.")]
    failure: Annotated[ListingFailure, description("Last complete listing, and the error.")]


class ListingsResumed(_Event, frozen=True):
    """A listing of a kind completed after ``ListingsFailed``, or no resource uses it anymore.

    With a new ``system_id``, it is the first complete listing with objects at that system.
    """

    kind: Annotated[str, description("Kind of the objects.")]
    system_id: SystemId = ""


class UndeclaredCounted(_Event, frozen=True):
    """The first complete listing of a kind in a new scope, or one with a very different count.

    Undeclared objects are not deleted until an operator approves the ``ProviderConfig``. A count of
    0 settles the kind without approval.
    """

    undeclared: Annotated[
        dict[str, UndeclaredObjects], description("The undeclared objects of all listed kinds.")
    ]


class UsersCounted(_Event, frozen=True):
    """The resources that use a withdrawn ``ProviderConfig``. With a count of 0, it is deleted."""

    count: UserCount
    names: UserNames = ()


class ApiFellSilent(_Event, frozen=True):
    """The API of a ``ProviderConfig`` does not respond (ADR 0080).

    Until ``ApiSilenceEnded``, the readiness of its objects is unknown. No other event records this.
    """

    since: Annotated[datetime, description("Time of the last response.")]
    outages: Annotated[
        int,
        description(
            "Number of outages in quick succession, including this one. The more there are, the "
            "longer the next one must last before it is recorded."
        ),
    ] = 1


class ApiSilenceEnded(_Event, frozen=True):
    """The API of a ``ProviderConfig`` responded after ``ApiFellSilent``, or it was withdrawn."""


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
"""Outcomes during which a resource may wait. Every other outcome ends the wait."""

ConditionType = Literal["Converged", "Ready", "Degraded", "Paused"]


class Condition(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One aspect of a resource's state, as in Kubernetes."""

    type: Annotated[
        ConditionType,
        description(
            "Converged: the object is as declared. Ready: the object is usable, according to its "
            "kind. Degraded: calls are failing. Paused: the policy stops all actions."
        ),
    ]
    status: Annotated[
        Literal["True", "False", "Unknown"], description("Whether the condition holds.")
    ]
    reason: Annotated[str, description("Reason in one word.")]
    message: Annotated[str, description("Explanation for an operator.")] = ""
    observed_generation: Annotated[int, description("Generation that the condition describes.")] = 0


class OutcomeRecorded(_Event, frozen=True):
    """The outcome of a generation: the public result, to which other services subscribe."""

    outcome: Annotated[OutcomeName, description("State of the resource.")]
    generation: Annotated[int, description("Generation that the outcome describes.")]
    reason: Annotated[str, description("Reason in one word.")]
    message: Annotated[str, description("Explanation for an operator.")] = ""
    conditions: Annotated[
        tuple[Condition, ...], description("Conditions of the resource, as in Kubernetes.")
    ] = ()
    action_id: Annotated[
        str | None, description("Id of the action that led to the outcome; null if none did.")
    ] = None
    confirms_write: Annotated[
        bool,
        description("Whether the object has the content of an update whose result was unknown."),
    ] = False
    provider_config: Annotated[
        str,
        description("ProviderConfig of the object; empty if the resource has none."),
    ] = ""
    availability: Annotated[
        PartAvailability | None,
        description(
            "How long the object has been ready, if its kind may stop being ready by itself; null "
            "for other kinds, and for an object that was never ready."
        ),
    ] = None

    @property
    def is_ready(self) -> bool:
        """Whether the object is as declared and can be used."""
        return self.outcome == "Converged" and all(
            each.status == "True" for each in self.conditions if each.type == "Ready"
        )


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
    | MoveExpected
    | MoveEnded
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
    | RenewalScheduled
    | ProgressNoted
    | AvailabilityNoted
    | ApiThrottled
    | BreakerOpened
    | BreakerProbed
    | BreakerClosed
    | TwinDetected
    | ListingsFailed
    | ListingsResumed
    | UndeclaredCounted
    | UsersCounted
    | ApiFellSilent
    | ApiSilenceEnded
    | OutcomeRecorded
)


_LOG_CLASSES: Final[Mapping[type[ResourceEvent], LogClass]] = {
    ActionDecided: "action",
    ActionRetried: "action",
    LookupDecided: "action",
    OutcomeRecorded: "outcome",
    ApiFellSilent: "silence",
    ApiSilenceEnded: "silence",
}


def log_class(event: ResourceEvent) -> LogClass:
    """Return the class of an event, which is part of its subject."""
    return _LOG_CLASSES.get(type(event), "fact")


def log_suffix(event: ResourceEvent) -> str:
    """Return the last part of an event's subject, which for an action names its configuration."""
    if type(event) not in _LOG_CLASSES:  # faster than the patterns below
        return "fact"
    match event:
        case ActionDecided() | ActionRetried() | LookupDecided():
            return f"action.{event.action.provider_config}"
        case OutcomeRecorded():
            return f"outcome.{event.outcome}"
        case ApiFellSilent() | ApiSilenceEnded():
            return SILENCE
        case _:
            return "fact"


class LogEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of the log in its envelope: CloudEvents 1.0, structured JSON, with extensions.

    Attribute names are in lower case without separators, as CloudEvents requires.
    """

    id: Annotated[str, description("Id of the event: RESOURCE@VERSION.")]
    source: Annotated[str, description("Always reconciler.")]
    type: Annotated[str, description("CloudEvents type: reconciler.resource.EVENT.")]
    subject: ResourceName
    time: Annotated[datetime, description("Time at which the decider recorded the event.")]
    resourceversion: Annotated[
        int, description("Number of the event in the history of its resource, without gaps.")
    ]
    data: Annotated[ResourceEvent, description("The event.")]
    causationid: Annotated[str, description("Id of the intake message that caused the event.")] = ""
    causationposition: Annotated[int, description("Position of that message in the intake.")] = 0
    actor: Annotated[str, description("Source of that message.")] = ""
    specversion: Annotated[str, description("Version of CloudEvents.")] = "1.0"

    @property
    def key(self) -> ResourceKey:
        """The resource that the event belongs to."""
        return ResourceKey(*self.subject.split("/"))


SOURCE = "reconciler"


def event_id(resource: ResourceKey | str, version: int) -> str:
    """Return the id of an event of a resource (NAMESPACE/KIND/NAME), which is unique in its log."""
    return f"{resource}@{version}"


def version_in(event: str) -> int:
    """Return the version in the id of an event, such as the id of an action."""
    return int(event.rpartition("@")[2])


def event_type(event: ResourceEvent) -> str:
    """Return the CloudEvents type of an event."""
    return f"reconciler.resource.{type(event).__name__}"
