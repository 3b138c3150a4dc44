"""Status: how every shape stands, one row each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from events.external import ExternalObject, digest
from events.intake import OnWithdrawal
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
    ActionSought,
    ActionSucceeded,
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    Condition,
    DeclarationSuperseded,
    DriftDetected,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    GenerationSuperseded,
    HoldApproved,
    LogEvent,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    RetryScheduled,
    ShapeEvent,
    SpecDeclared,
    SpecWithdrawn,
    TargetObserved,
)
from events.manifest import SHAPE_REF_KIND, ShapeRefSpec, target_of
from events.names import ShapeKey

LOG_DAMAGED = "LogDamaged"
"""Reason of a shape that is held because its history is not what was written."""


class StatusRow(msgspec.Struct, rename="camel", omit_defaults=True):
    """How one shape stands after the event at ``position`` of the log.

    ``generation`` is what was declared, ``observed_generation`` what the outcome speaks of.
    ``paused``: it asks for no action, so that nothing is due.
    ``observed_digest`` is the digest of the object as the log last saw it, empty for none: an
    observer reports only what differs from it. ``asked_digest`` is that of what an action asks for,
    which is believed of an API that shows nothing after a write. ``action_id`` and ``retry_at`` are
    set while an action is under way, or the shape waits. ``listing_disproved``: a complete listing
    did not show the object though it was there; from now on only a read of its own proves its
    absence.
    ``strays`` and ``total`` are the numbers by which a guard judged last. ``doubted``: a guard does
    not believe that it is gone, or a person lets go what it holds; the next listing decides,
    whatever it shows. ``taken_by`` is another shape that has the object.
    ``references`` are those that this shape knows of. Of a ``ShapeRef``, ``target`` is what it
    refers to, and ``target_declared`` what it knows of that. ``throttled_until`` and
    ``breaker_until`` tell how the API of a ``ProviderConfig`` answers.
    """

    namespace: str
    kind: str
    name: str
    version: int = 0
    position: int = 0
    changed_at: datetime | None = None
    generation: int = 0
    observed_generation: int = 0
    declared: bool = False
    paused: bool = False
    owned: bool = False
    uid: str | None = None
    provider_config: str = ""
    external_name: str = ""
    observed_digest: str = ""
    asked_digest: str = ""
    outcome: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    action_id: str = ""
    operation: str = ""
    attempt: int = 0
    retry_at: datetime | None = None
    retry_seconds: float = 0.0
    drifts: int = 0
    listing_disproved: bool = False
    doubted: bool = False
    taken_by: str = ""
    strays: int | None = None
    total: int | None = None
    finalizers: dict[str, str] = {}
    references: dict[str, OnWithdrawal] = {}
    target: str = ""
    on_withdrawal: OnWithdrawal = "Keep"
    target_declared: bool | None = None
    throttled_until: datetime | None = None
    breaker_until: datetime | None = None

    @property
    def key(self) -> ShapeKey:
        """The identity of the shape."""
        return ShapeKey(self.namespace, self.kind, self.name)

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of the shape but its history.

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
        )

    @property
    def is_swept(self) -> bool:
        """Whether a sweep has to look at it: it waits, is held, refers or is referred to."""
        return self.outcome == "Held" or bool(self.retry_at or self.target or self.references)

    def hold_for_damage(self, damage: LogDamage) -> None:
        """Show that the shape is held: its history must not be folded any further."""
        self.outcome, self.reason, self.message = "Held", LOG_DAMAGED, str(damage)
        self.conditions = (
            Condition("Ready", "Unknown", LOG_DAMAGED, str(damage), self.generation),
        )


def fold_status(row: StatusRow, position: int, event: LogEvent) -> None:
    """Fold one event of the log into the row of its shape, in place."""
    row.version = event.shapeversion
    row.position = position
    row.changed_at = event.time
    data = event.data
    _FOLDS[type(data)](row, data)


def _declared(row: StatusRow, data: SpecDeclared) -> None:
    place = (data.provider_config, data.external_name)
    if (row.provider_config, row.external_name) != place and not row.owned:
        row.observed_digest = ""
    row.taken_by = row.taken_by if row.observed_digest else ""
    row.provider_config, row.external_name = place
    row.generation = data.generation
    row.declared = True
    row.throttled_until = row.breaker_until = None
    row.target_declared = None
    if row.kind == SHAPE_REF_KIND:
        row.target = str(target_of(data.fields))
        row.on_withdrawal = msgspec.convert(data.fields, ShapeRefSpec).on_withdrawal
    row.paused = data.policy.paused
    _stop_waiting(row)


def _withdrawn(row: StatusRow, data: SpecWithdrawn) -> None:
    row.generation = data.generation
    row.declared = row.paused = False
    _stop_waiting(row)


def _stop_waiting(row: StatusRow) -> None:
    """A new generation is looked at now; but an action under way still waits for its next try."""
    if not row.action_id:
        row.retry_at = None


def _superseded(_row: StatusRow, _data: GenerationSuperseded | DeclarationSuperseded) -> None:
    """The next outcome speaks of the newer generation."""


def _observed(row: StatusRow, data: ExternalObserved) -> None:
    row.observed_digest = "" if data.object is None else digest(data.object)
    row.doubted = False
    row.strays, row.total = data.strays, data.total
    row.taken_by = data.taken_by
    if not row.declared:
        row.provider_config = data.provider_config
        row.external_name = data.external_name


def _doubted(row: StatusRow, _data: AbsenceDoubted) -> None:
    row.doubted = True


def _drifted(row: StatusRow, _data: DriftDetected) -> None:
    row.drifts += 1


def _claimed(row: StatusRow, data: OwnershipClaimed) -> None:
    row.owned = True
    row.uid = data.uid
    row.listing_disproved = data.reason == "Returned"


def _released(row: StatusRow, _data: OwnershipReleased) -> None:
    row.owned = False
    row.uid = None


def _finalizer_added(row: StatusRow, data: FinalizerAdded) -> None:
    row.finalizers = {**row.finalizers, data.finalizer: data.holder}


def _finalizer_removed(row: StatusRow, data: FinalizerRemoved) -> None:
    row.finalizers = {
        name: holder for name, holder in row.finalizers.items() if name != data.finalizer
    }


def _release_forced(row: StatusRow, _data: ReleaseForced) -> None:
    row.finalizers = {}


def _approved(row: StatusRow, _data: HoldApproved) -> None:
    row.doubted = not row.action_id  # what is held without an action waits for the next listing


def _reference_added(row: StatusRow, data: ReferenceAdded) -> None:
    row.references = {**row.references, data.by: data.on_withdrawal}


def _reference_removed(row: StatusRow, data: ReferenceRemoved) -> None:
    row.references = {by: policy for by, policy in row.references.items() if by != data.by}


def _target_observed(row: StatusRow, data: TargetObserved) -> None:
    row.target_declared = data.declared


def _decided(row: StatusRow, data: ActionDecided | ActionRetried | ActionSought) -> None:
    row.action_id = data.action.action_id
    row.operation = data.action.operation
    row.attempt = 1 if isinstance(data, ActionDecided) else data.attempt
    row.asked_digest = _asked(data.action)
    row.retry_at = None


def _asked(action: Action) -> str:
    if action.operation == "Delete":
        return ""
    wanted = (action.external_name, action.fields, action.uid, None, action.labels)
    return digest(ExternalObject(*wanted))


def _succeeded(row: StatusRow, data: ActionSucceeded) -> None:
    if data.outdated:
        return
    asked = row.asked_digest
    if not data.late or not row.action_id:  # told late, another action may be under way
        _ended(row)
        row.retry_at = None
        row.asked_digest = ""
    if data.operation == "Delete":
        row.owned, row.uid, row.observed_digest = False, None, ""
        row.listing_disproved = False
        return
    row.owned = True
    if data.operation == "Create":
        row.listing_disproved = False
    row.observed_digest = asked
    if data.object is not None:
        row.uid = data.object.uid
        row.observed_digest = digest(data.object)


def _failed(row: StatusRow, data: ActionFailed) -> None:
    if data.error.error_class in ("Transient", "Throttled", "Unknown"):
        return
    _ended(row)
    if data.error.error_class == "NotFound":
        row.observed_digest = ""
    elif data.object is not None and data.error.error_class == "Conflict":
        row.observed_digest = digest(data.object)


def _not_done(_row: StatusRow, _data: ActionNotDone) -> None:
    """The same action is called again."""


def _action_doubted(_row: StatusRow, _data: ActionDoubted) -> None:
    """What it did, if anything, is seen later."""


def _held(row: StatusRow, _data: ActionHeld) -> None:
    row.retry_at = None


def _abandoned(row: StatusRow, _data: ActionAbandoned) -> None:
    _ended(row)
    row.retry_at = None


def _ended(row: StatusRow) -> None:
    row.action_id = row.operation = ""
    row.attempt = 0


def _scheduled(row: StatusRow, data: RetryScheduled) -> None:
    row.retry_at = data.at
    row.retry_seconds = data.delay_seconds


def _throttled(row: StatusRow, data: ApiThrottled) -> None:
    row.throttled_until = data.until


def _breaker_opened(row: StatusRow, data: BreakerOpened) -> None:
    row.breaker_until = data.until


def _breaker_probed(_row: StatusRow, _data: BreakerProbed) -> None:
    """It is open until the probe is answered."""


def _breaker_closed(row: StatusRow, _data: BreakerClosed) -> None:
    row.breaker_until = None


def _outcome(row: StatusRow, data: OutcomeRecorded) -> None:
    row.outcome = data.outcome
    row.generation = data.generation
    row.observed_generation = data.generation
    row.reason = data.reason
    row.message = data.message
    row.conditions = data.conditions


_FOLDS: dict[type[ShapeEvent], Callable[[StatusRow, Any], None]] = {
    SpecDeclared: _declared,
    SpecWithdrawn: _withdrawn,
    GenerationSuperseded: _superseded,
    DeclarationSuperseded: _superseded,
    ExternalObserved: _observed,
    AbsenceDoubted: _doubted,
    DriftDetected: _drifted,
    OwnershipClaimed: _claimed,
    OwnershipReleased: _released,
    FinalizerAdded: _finalizer_added,
    FinalizerRemoved: _finalizer_removed,
    ReleaseForced: _release_forced,
    HoldApproved: _approved,
    ReferenceAdded: _reference_added,
    ReferenceRemoved: _reference_removed,
    TargetObserved: _target_observed,
    ActionDecided: _decided,
    ActionRetried: _decided,
    ActionSought: _decided,
    ActionHeld: _held,
    ActionNotDone: _not_done,
    ActionDoubted: _action_doubted,
    ActionSucceeded: _succeeded,
    ActionFailed: _failed,
    ActionAbandoned: _abandoned,
    RetryScheduled: _scheduled,
    ApiThrottled: _throttled,
    BreakerOpened: _breaker_opened,
    BreakerProbed: _breaker_probed,
    BreakerClosed: _breaker_closed,
    OutcomeRecorded: _outcome,
}
