"""The folded state of one resource: everything that a decision may depend on."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final, Literal

import msgspec

from events.external import ExternalObject
from events.intake import (
    ActionError,
    ListingFailure,
    LossCount,
    NewerObject,
    OnWithdrawal,
    TargetState,
    UndeclaredObjects,
)
from events.kind_definition import DefinitionRef
from events.log import Action, Effect, OutcomeRecorded, PartAvailability, PathDrift
from events.manifest import Fields, Policy
from events.reference import Reference

STATE_SCHEMA = 53
"""Schema of a cached state. Increase it when the meaning of a field changes, so that older caches
are ignored."""

_encoder = msgspec.json.Encoder(order="deterministic")


class Spec(msgspec.Struct, frozen=True, gc=False):
    """The content of one declaration."""

    api_version: str
    provider_config: str
    external_name: str
    fields: Fields
    labels: dict[str, str]
    annotations: dict[str, str]
    policy: Policy
    references: tuple[Reference, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of the content. Two equal declarations have the same digest."""
        return hashlib.blake2b(_encoder.encode(self), digest_size=8).hexdigest()


class Desired(msgspec.Struct, frozen=True, gc=False):
    """The declarations of a resource, and the values that they reference."""

    generation: int = 0  # number of declarations and withdrawals
    is_declared: bool = False
    spec: Spec | None = None  # newest declaration, kept after its withdrawal
    position: int = 0  # intake position of the newest generation
    declaration_ids: tuple[str, ...] = ()  # ids of the newest messages, to recognize a redelivery
    # digests of the newest specs, to recognize a repeated declaration (ADR 0016)
    contents: tuple[str, ...] = ()
    completed_generation: int = 0
    refused_generation: int = 0  # generation that the API refused permanently
    targets: dict[str, TargetState] = {}  # known states of the referenced resources
    secrets: dict[str, str] = {}  # known digests of the named secrets
    # By target and secret: version of the reporter's resource in the newest recorded report.
    recorded_by: dict[str, int] = {}
    resolved: Fields | None = None  # fields with all references and secrets resolved
    definition: DefinitionRef | None = None  # definition of the kind, if it is defined at run time
    resolved_by: str = ""  # digest of the definition used to compute `resolved`
    # Resource whose object this one waits to take over. A withdrawal keeps the name, so that a
    # redelivered one still ends the move.
    moving_from: str = ""
    # Resources whose objects an earlier declaration waited to take over, until the end of the move
    # is in the log.
    abandoned_moves: tuple[str, ...] = ()

    @property
    def fields(self) -> Fields:
        """The desired fields, with resolved references if there are any."""
        if self.resolved is not None:
            return self.resolved
        return {} if self.spec is None else self.spec.fields

    @property
    def digest(self) -> str:
        """The digest of the desired fields."""
        return hashlib.blake2b(_encoder.encode(self.fields), digest_size=16).hexdigest()


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The content of the last intended write: the base of the three-way comparison.

    It contains only declared fields and labels, not those of other clients or ignored ones.
    """

    fields: Fields
    labels: dict[str, str]
    result: ExternalObject | None = None  # the object as the API returned it after the write
    in_doubt: bool = False  # whether parts of the content may never have been written


class Owned(msgspec.Struct, frozen=True, gc=False):
    """The external object that the resource owns, according to the log."""

    provider_config: str
    external_name: str
    uid: str | None
    applied: Applied | None = None
    # time of the response to its creation, until a read confirms its uid
    responded_at: datetime | None = None
    last_observed: ExternalObject | None = None  # for a replaced object: its last observed state
    data_loss: str = ""  # for a replaced object: the data that its replacement gave up
    former_label: str = ""  # for a moved object: the owner label that it may still have


class Observation(msgspec.Struct, frozen=True, gc=False):
    """The last observation of the external object, whether the resource owns it or not."""

    object: ExternalObject | None = None
    provider_config: str = ""
    position: int = 0  # intake position at which the newest read began
    message: int = 0  # intake position of its message, to order two reads with the same position
    absent_at: int = 0  # intake position of the newest proof of absence
    unmanaged: int | None = None  # undeclared objects in an exclusive scope, out of `total`
    total: int | None = None
    belongs_to: str = ""  # another resource that the object or its name belongs to
    known_version: int = 0  # version of this resource that the read was compared with
    is_released: bool = False  # whether the object was owned, and released on purpose
    # uid of the newest released object, until a read shows its absence
    released_uid: str | None = None
    lost_uid: str | None = None  # uid of the owned object that was last missing or replaced
    lost_after_seconds: float = 0.0  # time from its last write to the read that did not show it
    # consistency grace of the API, learned from an object that reappeared
    grace_seconds: float = 0.0
    # a listing once missed the owned object, so only a read proves its absence
    is_listing_disproved: bool = False
    doubted: LossCount | None = None  # counts of the listing that the loss guard rejected
    read_requested_at: int | None = (
        None  # intake position of a requested read that has not arrived yet
    )
    read_requested_time: datetime | None = None  # bus time of that request
    # bus time of the last request whose read has arrived: the read began later
    confirmed_at: datetime | None = None
    seen_at: datetime | None = None  # time of the event that last recorded the owned object
    # name under which a listing showed the owned uid when the object was missing
    found_as: str = ""


class LostData(msgspec.Struct, frozen=True, gc=False):
    """Data that vanished with the owned object, until that is settled (invariant 17)."""

    description: str
    provider_config: str
    external_name: str
    uid: str | None
    missing_at: datetime
    seen_at: datetime | None = None


class InFlight(msgspec.Struct, frozen=True, gc=False):
    """An action that has not ended."""

    action: Action
    attempt: int = 1
    failed: ActionError | None = None  # error of the last attempt, until the next attempt starts
    failed_at: datetime | None = None  # bus time of that error, or of the approval of a retry
    retry_at: datetime | None = None
    retry_seconds: float = 0.0  # duration of the wait that ends at `retry_at`
    base: Applied | None = None  # base of the three-way comparison after a success
    effect: Effect = Effect.NOT_SENT  # combined effect of the attempts that have ended
    unknown_results: int = (
        0  # attempts with an unknown result since a lookup or an operator found no effect
    )
    # whether an attempt of a creation was throttled since a lookup or an operator found no effect
    may_be_partial: bool = False
    is_lookup: bool = False  # whether the current attempt is a lookup, not a call
    is_unclear: bool = False  # whether the lookup after the last unknown result was inconclusive
    hold_message: str = ""  # what an operator must decide
    abandoned: bool = False  # whether an operator abandoned the action
    name_owner: str = ""  # while it is held: the other resource that owns the object's name

    @property
    def is_held(self) -> bool:
        """Whether an operator must decide."""
        return self.effect is Effect.HELD

    @property
    def may_be_running(self) -> bool:
        """Whether no result of the current attempt is known."""
        return self.failed is None and self.retry_at is None and not self.is_held

    @property
    def is_in_doubt(self) -> bool:
        """Whether an attempt may have taken effect, and no later lookup shows that none did.

        An update or deletion with a partial effect does not need a lookup, because the next write
        corrects it.
        """
        return self.unknown_results > 0 or self.may_be_partial

    @property
    def had_no_effect(self) -> bool:
        """Whether the API certainly changed nothing in any attempt."""
        return self.failed is not None and self.effect.is_nothing


class Ended(msgspec.Struct, frozen=True, gc=False):
    """An action that has ended, but whose calls may still arrive or be reported.

    ``created_uids``: uids of all objects that a creation is known to have created. There are
    several if a redelivered call created the object again after its deletion. ``unowned_uids``:
    those that the log does not own yet. ``obstacle``: uid of the object that already had the name
    that a creation requested.
    """

    action: Action
    base: Applied | None
    in_doubt: bool  # whether a call may still take effect
    version: int  # version of the event that ended the action
    reported_by: str = ""  # id of the message that reported success
    reported_late: bool = False  # whether another message reported success later
    suspected: bool = False  # whether a drift named this action as its possible cause
    created_uids: tuple[str, ...] = ()
    unowned_uids: tuple[str, ...] = ()
    obstacle: str | None = None


class Actions(msgspec.Struct, frozen=True, gc=False):
    """The action in flight, and ended actions that may still have an effect."""

    in_flight: InFlight | None = None
    # newest last, without updates and deletions that certainly succeeded
    ended: tuple[Ended, ...] = ()
    disowned: dict[str, int] = {}  # version of the event that ended the ownership, by uid
    # intake position of the newest result; observations that began earlier are stale
    effect_position: int = 0
    effect_at: datetime | None = None  # bus time of that result
    has_created: bool = False  # whether an object was created since the declaration
    # whether a creation may have created an object that the log does not contain
    uncertain_create: bool = False


class Waits(msgspec.Struct, frozen=True, gc=False):
    """Consecutive failures, and the wait that they caused."""

    failures: int = 0
    conflicts: int = 0
    failure: ActionError | None = None
    until: datetime | None = None  # end of a wait that does not belong to an action
    seconds: float = 0.0  # duration of that wait
    is_contention: bool = False  # whether the wait delays the correction of a contended field


class Renewal(msgspec.Struct, frozen=True, gc=False):
    """When an object that is as declared must be written again (ADR 0027)."""

    time: datetime  # renewal time, computed by the kind
    at: datetime  # time of the renewal, with jitter
    is_written: bool = False  # whether the object was written for this renewal time


class KnownProgress(msgspec.Struct, frozen=True, gc=False):
    """The progress of an object that is not ready."""

    mark: str
    since: datetime
    at: datetime | None = None  # deadline for more progress; None if it has passed


class Availability(msgspec.Struct, frozen=True, gc=False):
    """How long the parts of a composed object have been ready."""

    parts: dict[str, PartAvailability] = {}
    at: datetime | None = None  # time at which the next part becomes available
    withheld_until: datetime | None = None  # time at which parts are withdrawn

    @property
    def next_at(self) -> datetime | None:
        """Earlier of the two times; None if there is none."""
        return min(filter(None, (self.at, self.withheld_until)), default=None)


class Finalizer(msgspec.Struct, frozen=True, gc=False):
    """A finalizer, which blocks the deletion of the object until its holder removes it."""

    name: str
    holder: str


PLAN_OUTDATED: Final = "PlanOutdated"
"""Reason for refusing a declaration whose result would differ from its plan."""


class ApprovalState(msgspec.Struct, frozen=True, gc=False):
    """The plan waiting for approval, and the decision about it."""

    plan: str
    decision: Literal["", "Proceed", "Reject"] = ""
    by: str = ""
    reason: str = ""
    is_replacing: bool = False  # whether the old object of an approved replacement is deleted
    content: str = ""  # digest of the replacement's fields when that deletion was decided


class Users(msgspec.Struct, frozen=True, gc=False):
    """The resources that use a withdrawn ProviderConfig (ADR 0086)."""

    count: int | None = None  # None until the first report
    names: tuple[str, ...] = ()


class Holds(msgspec.Struct, frozen=True, gc=False):
    """Finalizers, references and operator decisions that affect a resource's object."""

    finalizers: tuple[Finalizer, ...] = ()
    references: dict[str, OnWithdrawal] = {}  # by referencing resource
    users: Users | None = None  # for a withdrawn ProviderConfig, while it stays in effect
    moving_to: str = ""  # resource that takes the object over after a withdrawal
    release_forced: bool = False
    orphan_forced: bool = False  # whether a forced release keeps the object in the API
    forgotten: bool = False  # whether a forced release ended everything known about its API
    approved: str = ""  # the hold that an operator approved, except for DataLoss
    # Message of the approved DataLoss hold. The approval of another hold does not end it.
    approved_loss: str = ""
    approved_position: int = 0
    approval: ApprovalState | None = None


class Twin(msgspec.Struct, frozen=True, gc=False):
    """Objects that are newer than this log, until an operator approves (ADR 0065)."""

    version: int = 0  # version of the event that last set or ended the hold
    objects: tuple[NewerObject, ...] = ()
    total: int = 0


class Silence(msgspec.Struct, frozen=True, gc=False):
    """Whether the API of a ProviderConfig responds, and its recent outages (ADR 0080)."""

    version: int = 0  # version of the declaration, or of the event that last began or ended it
    since: datetime | None = None  # time of the last response; None while it responds
    outages: int = 0  # in quick succession
    ended_at: datetime | None = None


class ApiHealth(msgspec.Struct, frozen=True, gc=False):
    """Health of a ProviderConfig's API: throttling, breaker, copies of the log and listings."""

    version: int = 0  # version of the event that last changed the breaker
    throttled_until: datetime | None = None
    # duration at the time of recording, like the other durations here
    throttled_seconds: float = 0.0
    open_until: datetime | None = None  # if in the past, the breaker waits for its probe
    open_seconds: float = 0.0
    probe_until: datetime | None = None  # deadline of the probe in progress
    probe_seconds: float = 0.0
    openings: int = 0  # since the last success
    failures: int = 0
    message: str = ""
    probe_by: str = ""
    twin: Twin = Twin()
    failed_listings: dict[str, ListingFailure] = {}  # by kind
    systems: dict[str, str] = {}  # ids of the listed systems, by kind
    silence: Silence = Silence()
    # Undeclared objects by kind, while the deletions in a new scope wait for approval; else None.
    undeclared: dict[str, UndeclaredObjects] | None = None


class ResourceState(msgspec.Struct, frozen=True, gc=False):
    """The state of one resource, as of its newest event."""

    version: int = 0  # number of its events
    desired: Desired = Desired()
    owned: Owned | None = None
    retiring: Owned | None = None  # the replaced object, until it is deleted
    lost: LostData | None = None  # until the object returns, or an operator gives its data up
    observed: Observation = Observation()
    # The owned object as last observed, from its deletion or loss until the next one is owned.
    predecessor: ExternalObject | None = None
    actions: Actions = Actions()
    waits: Waits = Waits()
    renewal: Renewal | None = None
    progress: KnownProgress | None = None
    availability: Availability = Availability()
    own_availability: PartAvailability | None = None  # of the resource's object
    holds: Holds = Holds()
    recent_drifts: tuple[PathDrift, ...] = ()
    outcome: OutcomeRecorded | None = None  # None while a newer change is in progress
    outcome_version: int = 0  # version of the event that recorded the newest outcome
    moved_to: str = ""  # resource that took the object over, until the next declaration
    # Resources that took objects over, by uid, until an observation proves an absence.
    moved_objects: dict[str, str] = {}
    last_move: str = ""  # the other resource of the move that ended last
    cause: str = ""  # id of the event that would cause the next action
    api: ApiHealth = ApiHealth()  # for a ProviderConfig

    @property
    def provider_config(self) -> str:
        """Name of the ProviderConfig that the resource uses.

        It comes from the owned object, or else from the declaration or the observed object.
        """
        spec = self.desired.spec
        if self.owned is not None:
            return self.owned.provider_config
        if spec is not None and (self.desired.is_declared or self.observed.object is None):
            return spec.provider_config
        return self.observed.provider_config

    @property
    def released(self) -> ExternalObject | None:
        """The object that was owned and then released on purpose, while it exists."""
        return self.observed.object if self.observed.is_released else None


NEW = ResourceState()
"""State of a resource without events."""


def declaration_id(source: str, message_id: str) -> str:
    """Return the unique id under which a message is remembered (CloudEvents: source and id)."""
    return f"{source}/{message_id}"
