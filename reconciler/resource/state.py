"""The folded state of one resource, in groups: all that a decision may rest on."""

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
)
from events.kind_definition import DefinitionRef
from events.log import Action, Effect, OutcomeRecorded, PathDrift
from events.manifest import Fields, Policy
from events.reference import Reference

STATE_SCHEMA = 35
"""Raised whenever the meaning of a stored state changes: what was cached before is then ignored."""

_encoder = msgspec.json.Encoder(order="deterministic")


class Spec(msgspec.Struct, frozen=True, gc=False):
    """What one generation declares."""

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
        """Equal for two declarations that say the same."""
        return hashlib.blake2b(_encoder.encode(self), digest_size=8).hexdigest()


class Desired(msgspec.Struct, frozen=True, gc=False):
    """What services want."""

    generation: int = 0  # counts declarations and withdrawals
    is_declared: bool = False
    spec: Spec | None = None  # of the newest declaration, kept after its withdrawal
    position: int = 0  # of the newest generation, in the intake
    declaration_ids: tuple[str, ...] = ()  # the newest, to recognise one that is delivered again
    contents: tuple[str, ...] = ()  # digests of the newest specs: what may be a repeat (ADR 0016)
    completed_generation: int = 0
    refused_generation: int = 0  # by the API, for good
    targets: dict[str, TargetState] = {}  # what is known of those that the spec refers to
    secrets: dict[str, str] = {}  # digests of those that it names
    # By target and secret: the version of the resource that recorded what is known of it.
    recorded_by: dict[str, int] = {}
    resolved: Fields | None = None  # its fields, with the values of all of them
    definition: DefinitionRef | None = None  # what a kind that is defined at run time rests on
    resolved_by: str = ""  # digest of the definition that `resolved` rests on

    @property
    def fields(self) -> Fields:
        """What is wanted: with the values of references, where there are any."""
        if self.resolved is not None:
            return self.resolved
        return {} if self.spec is None else self.spec.fields


class Applied(msgspec.Struct, frozen=True, gc=False):
    """What we last wanted written: the base of the three-way comparison.

    Only what we declared: neither what others had set, nor what is left to them.
    """

    fields: Fields
    labels: dict[str, str]
    result: ExternalObject | None = None  # what the API made of it, once it is written
    in_doubt: bool = False  # some of it may never have been written


class Owned(msgspec.Struct, frozen=True, gc=False):
    """The external object that is ours, by the log."""

    provider_config: str
    external_name: str
    uid: str | None
    applied: Applied | None = None
    responded_at: datetime | None = None  # by a creation, and nothing has shown it since
    last_observed: ExternalObject | None = None  # of what was replaced: how it was seen last


class Observation(msgspec.Struct, frozen=True, gc=False):
    """What is known of the external object, whoever has it."""

    object: ExternalObject | None = None
    provider_config: str = ""
    position: int = 0  # of the intake, when the newest look began
    message: int = 0  # where that look is in the intake: decides between two of one position
    absent_at: int = 0  # of the intake, when the newest proof began that there is no object
    unmanaged: int | None = None  # undeclared objects of an exclusive scope, of `total`
    total: int | None = None
    belongs_to: str = ""  # another resource that has the object
    known_version: int = 0  # of the resource, which that look was compared with
    is_released: bool = False  # the object was ours, and was let go on purpose
    released_uid: str | None = None  # of the newest such object, until a read shows its absence
    lost_uid: str | None = None  # of what was ours when it was said to be gone or replaced
    lost_after_seconds: float = 0.0  # after its last write, where it was gone
    grace_seconds: float = 0.0  # that the API needs, as a return has shown
    is_listing_disproved: bool = False  # of what is ours: only a read proves its absence
    doubted: LossCount | None = None  # the listing that the loss guard did not believe
    read_requested_at: int | None = (
        None  # in the intake, where somebody asked for a look that is to come
    )


class InFlight(msgspec.Struct, frozen=True, gc=False):
    """An action whose end is not known yet."""

    action: Action
    attempt: int = 1
    failed: ActionError | None = None  # the last attempt, while no newer one has begun
    failed_at: datetime | None = None  # when it did
    retry_at: datetime | None = None
    retry_seconds: float = 0.0  # how long that wait is
    base: Applied | None = None  # of the three-way comparison, once it has succeeded
    effect: Effect = Effect.NOT_SENT  # of all attempts that have ended
    unknown_results: int = (
        0  # attempts of unknown result since a lookup or an operator found no effect
    )
    is_lookup: bool = False  # what is under way is a lookup, not a call
    is_unclear: bool = False  # a lookup since the last unknown result could not show it
    hold_message: str = ""  # that an operator has to answer
    abandoned: bool = False  # by an operator

    @property
    def is_held(self) -> bool:
        """Whether an operator has to decide."""
        return self.effect is Effect.HELD

    @property
    def is_in_doubt(self) -> bool:
        """Whether an attempt may have done it, and no lookup has shown since that none has.

        An update or a deletion of which a part is done needs no lookup: the next write corrects it.
        """
        is_partial_creation = self.effect is Effect.PARTIAL and self.action.operation == "Create"
        return self.unknown_results > 0 or is_partial_creation

    @property
    def had_no_effect(self) -> bool:
        """Whether the API certainly changed nothing in any attempt."""
        return self.failed is not None and self.effect.is_nothing


class Ended(msgspec.Struct, frozen=True, gc=False):
    """An action that has ended, of which a call may still arrive or be reported.

    ``made``: the uids of all objects that a creation is known to have created: more than one where
    a second delivery created again what was deleted meanwhile. ``unowned``: those of them that the
    log does not own yet. ``obstacle``: the uid of the object that had the name of a creation.
    """

    action: Action
    base: Applied | None
    in_doubt: bool  # a call of it may still take effect
    version: int  # of the event that ended it
    reported_by: str = ""  # the message that said that it was done
    reported_late: bool = False  # another one has said so since
    suspected: bool = False  # a drift has named it
    created_uids: tuple[str, ...] = ()
    unowned_uids: tuple[str, ...] = ()
    obstacle: str | None = None


class Actions(msgspec.Struct, frozen=True, gc=False):
    """What is done about the object, and what may have been."""

    in_flight: InFlight | None = None
    ended: tuple[Ended, ...] = ()  # without certain successes of updates and deletions; newest last
    disowned: dict[str, int] = {}  # by the uid of what was ours: the version that ended that
    effect_position: int = 0  # of the newest result, in the intake: what was seen before is stale
    effect_at: datetime | None = None
    has_created: bool = False  # since it was declared
    uncertain_create: bool = False  # a creation may have been done that we do not know of


class Waits(msgspec.Struct, frozen=True, gc=False):
    """Failures in a row, and the wait that they led to."""

    failures: int = 0
    conflicts: int = 0
    failure: ActionError | None = None
    until: datetime | None = None  # of a wait that belongs to no action
    seconds: float = 0.0  # how long that wait is
    is_contention: bool = False  # that wait is for a repair of what somebody else overwrites


class Renewal(msgspec.Struct, frozen=True, gc=False):
    """When an object that is as declared has to be written again (ADR 0027)."""

    time: datetime  # by its kind
    at: datetime  # when that is done
    is_written: bool = False  # it was written for this moment


class KnownProgress(msgspec.Struct, frozen=True, gc=False):
    """How far an object is that is not ready, and since when."""

    mark: str
    since: datetime
    at: datetime | None = None  # it should move before that; None: it has not


class Finalizer(msgspec.Struct, frozen=True, gc=False):
    """A service's hold on the resource."""

    name: str
    holder: str


PLAN_OUTDATED: Final = "PlanOutdated"
"""Why a declaration is refused of which something else would come than was planned."""


class ApprovalState(msgspec.Struct, frozen=True, gc=False):
    """The plan that people were asked about, and what they decided."""

    plan: str
    decision: Literal["", "Proceed", "Reject"] = ""
    by: str = ""
    reason: str = ""
    is_replacing: bool = False  # of an approved replacement the old one is gone


class Holds(msgspec.Struct, frozen=True, gc=False):
    """What keeps a resource, and what people decided about that."""

    finalizers: tuple[Finalizer, ...] = ()
    references: dict[str, OnWithdrawal] = {}  # by the name of the ShapeRef
    release_forced: bool = False
    orphan_forced: bool = False  # and the object stays in the API
    approved: str = ""  # the hold that a person has lifted
    approved_position: int = 0
    approval: ApprovalState | None = None


class Twin(msgspec.Struct, frozen=True, gc=False):
    """Objects that are newer than this log, until somebody approves; none if it is not held."""

    version: int = 0  # of the event that last set or ended the hold
    objects: tuple[NewerObject, ...] = ()
    total: int = 0


class ApiHealth(msgspec.Struct, frozen=True, gc=False):
    """How the API of a `ProviderConfig` answers, and whether another log writes to it."""

    version: int = 0  # of the event that last moved the breaker
    throttled_until: datetime | None = None
    throttled_seconds: float = 0.0  # as long as it was when it was recorded; so are the others
    open_until: datetime | None = None  # past: the breaker waits for its probe
    open_seconds: float = 0.0
    probe_until: datetime | None = None  # somebody makes it
    probe_seconds: float = 0.0
    openings: int = 0  # without a success in between
    failures: int = 0
    message: str = ""
    probe_by: str = ""
    twin: Twin = Twin()
    failed_listings: dict[str, ListingFailure] = {}  # by kind


class ResourceState(msgspec.Struct, frozen=True, gc=False):
    """Everything known about one resource."""

    version: int = 0  # counts its events
    desired: Desired = Desired()
    owned: Owned | None = None
    retiring: Owned | None = None  # what was replaced, and is still there
    observed: Observation = Observation()
    actions: Actions = Actions()
    waits: Waits = Waits()
    renewal: Renewal | None = None
    progress: KnownProgress | None = None
    holds: Holds = Holds()
    recent_drifts: tuple[PathDrift, ...] = ()
    outcome: OutcomeRecorded | None = None  # None while something newer is under way
    outcome_version: int = 0  # of the event that recorded the newest outcome
    cause: str = ""  # the event that the next action would rest on
    api: ApiHealth = ApiHealth()  # of a ProviderConfig

    @property
    def provider_config(self) -> str:
        """The configuration that it uses: where it lives, shall live, or was seen."""
        spec = self.desired.spec
        if self.owned is not None:
            return self.owned.provider_config
        if spec is not None and (self.desired.is_declared or self.observed.object is None):
            return spec.provider_config
        return self.observed.provider_config

    @property
    def released(self) -> ExternalObject | None:
        """The object that was ours and was released on purpose, as long as it exists."""
        return self.observed.object if self.observed.is_released else None


NEW = ResourceState()
"""A resource of which nothing is known."""


def declaration_id(source: str, message_id: str) -> str:
    """Name a declaration: CloudEvents promises that source and id together are unique."""
    return f"{source}/{message_id}"
