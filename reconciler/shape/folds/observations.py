"""Fold what was seen, and whose it is by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import LossCount
from events.log import (
    AbsenceDoubted,
    DriftDetected,
    ExternalObserved,
    LogEvent,
    OwnershipClaimed,
    OwnershipReleased,
    ShapeEvent,
)
from reconciler.shape.state import (
    Owned,
    ShapeState,
)


def _observed(state: ShapeState, data: ExternalObserved, event: LogEvent) -> ShapeState:
    return replace(
        state,
        version=event.shapeversion,
        observed=data.object,
        orphaned=state.orphaned and _is_same_object(state.observed, data.object),
        observed_in=data.provider_config,
        observed_position=data.as_of,
        observed_message=event.causeposition,
        strays=data.strays,
        total=data.total,
        taken_by=data.taken_by,
        conflicts=0,
        doubted=None,
        approved=state.approved if _is_same_object(state.observed, data.object) else "",
    )


def _doubted(state: ShapeState, data: AbsenceDoubted, event: LogEvent) -> ShapeState:
    doubted = LossCount(data.missing, data.owned)
    return replace(state, version=event.shapeversion, doubted=doubted)


def _is_same_object(known: ExternalObject | None, found: ExternalObject | None) -> bool:
    return known is not None and found is not None and known.uid == found.uid


def _drifted(state: ShapeState, data: DriftDetected, event: LogEvent) -> ShapeState:
    ended = tuple(
        replace(each, suspected=True) if each.action.action_id == data.perhaps_by else each
        for each in state.ended
    )
    return replace(state, version=event.shapeversion, because=event.id, outcome=None, ended=ended)


def _claimed(state: ShapeState, data: OwnershipClaimed, event: LogEvent) -> ShapeState:
    return replace(
        state,
        version=event.shapeversion,
        owned=Owned(data.provider_config, data.external_name, data.uid),
        applied=None,
        orphaned=False,
        lost_uid=None,
        listing_disproved=data.reason == "Returned",
        because=event.id,
    )


def _released(state: ShapeState, data: OwnershipReleased, event: LogEvent) -> ShapeState:
    return replace(
        state,
        version=event.shapeversion,
        owned=None,
        applied=None,
        orphaned=data.reason == "Orphaned",
        lost_uid=None if data.reason == "Orphaned" else data.uid,
        because=event.id,
    )


FOLDS: dict[type[ShapeEvent], Callable[[ShapeState, Any, LogEvent], ShapeState]] = {
    ExternalObserved: _observed,
    AbsenceDoubted: _doubted,
    DriftDetected: _drifted,
    OwnershipClaimed: _claimed,
    OwnershipReleased: _released,
}
