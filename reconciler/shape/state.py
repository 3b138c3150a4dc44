"""The folded state of one shape: all that a decision may rest on."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from events.external import ExternalObject
from events.intake import ActionError, LossCount, OnWithdrawal
from events.log import Action, OutcomeRecorded
from events.manifest import Fields, Policy

STATE_SCHEMA = 9
"""Raised whenever the meaning of a stored state changes: older snapshots are then ignored."""

REMEMBERED_DECLARATIONS = 64
"""How many ids of declarations a shape remembers, to recognise one that is delivered again late;
and how many contents, to tell what may be one."""

REMEMBERED_ACTIONS = 16
"""So many ended actions a shape remembers of which a call may still arrive, or be told of."""

_encoder = msgspec.json.Encoder(order="deterministic")


class Spec(msgspec.Struct, frozen=True):
    """The desired state of one generation."""

    api_version: str
    provider_config: str
    external_name: str
    fields: Fields
    labels: dict[str, str]
    annotations: dict[str, str]
    policy: Policy


def content_digest(spec: Spec) -> str:
    """Digest what a generation declares: equal for two declarations that say the same."""
    return hashlib.blake2b(_encoder.encode(spec), digest_size=8).hexdigest()


class Owned(msgspec.Struct, frozen=True):
    """The external object that is ours, by the log."""

    provider_config: str
    external_name: str
    uid: str | None


class Applied(msgspec.Struct, frozen=True):
    """What we last wanted written, and what the API made of it: base of the three-way comparison.

    ``fields`` and ``labels`` are only those that we declared, not what others had set, and not what
    is left to them. ``result`` is None as long as nothing is written.
    """

    fields: Fields
    labels: dict[str, str]
    result: ExternalObject | None


class InFlight(msgspec.Struct, frozen=True):
    """An action whose end is not known yet.

    ``failed`` is the error of the last attempt, while no newer attempt has begun; ``retry_at`` is
    when the next attempt is due, ``retry_seconds`` how long that wait is. ``base`` is what becomes
    the base of the three-way comparison at success. ``unknown`` counts attempts since the last
    certain knowledge whose result is unknown, ``in_doubt`` says that there ever was one: its call
    may still arrive. ``uncertain``: some attempt failed in a way that may have left an object
    behind. ``seeking``: what is under way is a look, not a call. ``held`` is why a person has to
    decide.
    """

    action: Action
    attempt: int = 1
    failed: ActionError | None = None
    retry_at: datetime | None = None
    base: Applied | None = None
    unknown: int = 0
    in_doubt: bool = False
    uncertain: bool = False
    seeking: bool = False
    held: str = ""
    abandoned: bool = False
    retry_seconds: float = 0.0


class Ended(msgspec.Struct, frozen=True):
    """An action that has ended, of which a call may still arrive or be told of.

    ``in_doubt``: a worker that had it was not heard of. ``known_by`` is the message that said that
    it was done, if one did. ``told_late``: another one has said so since. ``suspected``: a drift
    has named it.
    """

    action: Action
    base: Applied | None
    in_doubt: bool
    known_by: str = ""
    told_late: bool = False
    suspected: bool = False


class Finalizer(msgspec.Struct, frozen=True):
    """A service's hold on the shape."""

    name: str
    holder: str


class ApiHealth(msgspec.Struct, frozen=True):
    """How the API of a ``ProviderConfig`` answers.

    ``version`` is that of the event that last moved the breaker. ``open_until`` is set while the
    breaker is open, also when that time is over: then it waits for its probe, which somebody makes
    until ``probe_until``. ``openings`` counts without a success in between.
    """

    version: int = 0
    throttled_until: datetime | None = None
    open_until: datetime | None = None
    probe_until: datetime | None = None
    openings: int = 0
    failures: int = 0
    message: str = ""


class ShapeState(msgspec.Struct, frozen=True):
    """Everything known about one shape.

    ``version`` counts its events. ``generation`` counts its declarations and withdrawals;
    ``declared_position`` is the intake position of the newest. ``contents`` are digests of what was
    declared so far, the newest last. ``effect_position`` is the position
    of the newest result of an action: an observation that began before it is stale.
    ``observed_message`` is the intake position of the newest observation, which decides between two
    that began at the same ``observed_position``. ``because`` is
    the event that the next action would rest on. ``api`` is a ``ProviderConfig``'s.
    ``orphaned``: the object that is there was ours, and was let go on purpose.
    ``lost_uid``: the object that was ours when it was said to be gone or replaced.
    ``listing_disproved``: it was there all the same, so that only a read proves its absence.
    ``ended`` are the last actions that ended without success, or in doubt: told late, they were
    done all the same.
    ``uncertain_create``: some creation may have been done that we do not know of. ``doubted`` is
    the listing that the guard did not believe. ``approved`` is the hold that a person has lifted,
    at ``approved_position`` of the intake. ``taken_by`` is another shape that has the object.
    ``target_declared`` is what a ``ShapeRef`` knows of its target.
    """

    version: int = 0
    generation: int = 0
    declared: bool = False
    spec: Spec | None = None
    declared_position: int = 0
    declaration_ids: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    settled_generation: int = 0
    owned: Owned | None = None
    applied: Applied | None = None
    created_before: bool = False
    orphaned: bool = False
    lost_uid: str | None = None
    listing_disproved: bool = False
    observed: ExternalObject | None = None
    observed_in: str = ""
    observed_position: int = 0
    observed_message: int = 0
    effect_position: int = 0
    effect_at: datetime | None = None
    strays: int | None = None
    total: int | None = None
    in_flight: InFlight | None = None
    failures: int = 0
    conflicts: int = 0
    failed_generation: int = 0
    failure: ActionError | None = None
    hold_until: datetime | None = None
    hold_seconds: float = 0.0
    outcome: OutcomeRecorded | None = None
    because: str = ""
    ended: tuple[Ended, ...] = ()
    uncertain_create: bool = False
    doubted: LossCount | None = None
    approved: str = ""
    approved_position: int = 0
    taken_by: str = ""
    finalizers: tuple[Finalizer, ...] = ()
    references: dict[str, OnWithdrawal] = {}
    release_forced: bool = False
    orphan_forced: bool = False
    target_declared: bool | None = None
    api: ApiHealth = ApiHealth()


def declaration_id(source: str, message_id: str) -> str:
    """Name a declaration: CloudEvents promises that source and id together are unique."""
    return f"{source}/{message_id}"


NEW = ShapeState()
"""A shape of which nothing is known."""
