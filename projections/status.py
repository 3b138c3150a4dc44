"""Status: how every shape stands, one row each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from events.external import digest
from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionRetried,
    ActionSucceeded,
    Condition,
    DriftDetected,
    ExternalObserved,
    GenerationSuperseded,
    LogEvent,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    RetryScheduled,
    ShapeEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.names import ShapeKey


class StatusRow(msgspec.Struct, rename="camel", omit_defaults=True):
    """How one shape stands after the event at ``position`` of the log.

    ``generation`` is what was declared, ``observed_generation`` what the outcome speaks of.
    ``paused``: it asks for no action, so that nothing is due.
    ``observed_digest`` is the digest of the object as the log last saw it, empty for none: an
    observer reports only what differs from it. ``action_id`` and ``retry_at`` are set while an
    action is under way, or the shape waits. ``listing_disproved``: a complete listing did not show
    the object though it was there; from now on only a read of its own proves its absence.
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
    outcome: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    action_id: str = ""
    operation: str = ""
    attempt: int = 0
    retry_at: datetime | None = None
    drifts: int = 0
    listing_disproved: bool = False

    @property
    def key(self) -> ShapeKey:
        """The identity of the shape."""
        return ShapeKey(self.namespace, self.kind, self.name)

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of the shape but its history."""
        return not (
            self.declared or self.owned or self.observed_digest or self.action_id or self.retry_at
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
    row.provider_config, row.external_name = place
    row.generation = data.generation
    row.declared = True
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


def _superseded(_row: StatusRow, _data: GenerationSuperseded) -> None:
    """The next outcome speaks of the newer generation."""


def _observed(row: StatusRow, data: ExternalObserved) -> None:
    row.observed_digest = "" if data.object is None else digest(data.object)
    if not row.declared:
        row.provider_config = data.provider_config
        row.external_name = data.external_name


def _drifted(row: StatusRow, _data: DriftDetected) -> None:
    row.drifts += 1


def _claimed(row: StatusRow, data: OwnershipClaimed) -> None:
    row.owned = True
    row.uid = data.uid
    row.listing_disproved = data.reason == "Returned"


def _released(row: StatusRow, _data: OwnershipReleased) -> None:
    row.owned = False
    row.uid = None


def _decided(row: StatusRow, data: ActionDecided | ActionRetried) -> None:
    row.action_id = data.action.action_id
    row.operation = data.action.operation
    row.attempt = data.attempt if isinstance(data, ActionRetried) else 1
    row.retry_at = None


def _succeeded(row: StatusRow, data: ActionSucceeded) -> None:
    _ended(row)
    row.retry_at = None
    if data.operation == "Delete":
        row.owned, row.uid, row.observed_digest = False, None, ""
        return
    row.owned = True
    if data.operation == "Create":
        row.listing_disproved = False
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


def _abandoned(row: StatusRow, _data: ActionAbandoned) -> None:
    _ended(row)
    row.retry_at = None


def _ended(row: StatusRow) -> None:
    row.action_id = row.operation = ""
    row.attempt = 0


def _scheduled(row: StatusRow, data: RetryScheduled) -> None:
    row.retry_at = data.at


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
    ExternalObserved: _observed,
    DriftDetected: _drifted,
    OwnershipClaimed: _claimed,
    OwnershipReleased: _released,
    ActionDecided: _decided,
    ActionRetried: _decided,
    ActionSucceeded: _succeeded,
    ActionFailed: _failed,
    ActionAbandoned: _abandoned,
    RetryScheduled: _scheduled,
    OutcomeRecorded: _outcome,
}
