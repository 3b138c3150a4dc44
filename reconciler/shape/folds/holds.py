"""Fold what keeps a shape, and what people and references say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from events.log import (
    FinalizerAdded,
    FinalizerRemoved,
    HoldApproved,
    LogEvent,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    ShapeEvent,
    TargetObserved,
)
from reconciler.shape.folds.actions import NOT_DONE
from reconciler.shape.folds.declarations import remembered
from reconciler.shape.state import (
    Finalizer,
    ShapeState,
)


def _finalizer_added(state: ShapeState, data: FinalizerAdded, event: LogEvent) -> ShapeState:
    return replace(
        state,
        version=event.shapeversion,
        finalizers=(*state.finalizers, Finalizer(data.finalizer, data.holder)),
        declaration_ids=remembered(state, event),
    )


def _finalizer_removed(state: ShapeState, data: FinalizerRemoved, event: LogEvent) -> ShapeState:
    return replace(
        state,
        version=event.shapeversion,
        finalizers=tuple(each for each in state.finalizers if each.name != data.finalizer),
        declaration_ids=remembered(state, event),
        because=event.id,
    )


def _release_forced(state: ShapeState, data: ReleaseForced, event: LogEvent) -> ShapeState:
    flight = state.in_flight
    if flight is not None and data.orphan:
        flight = replace(flight, abandoned=True)
    return replace(
        state,
        version=event.shapeversion,
        finalizers=(),
        release_forced=True,
        orphan_forced=data.orphan,
        in_flight=flight,
        declaration_ids=remembered(state, event),
        because=event.id,
    )


def _approved(state: ShapeState, data: HoldApproved, event: LogEvent) -> ShapeState:
    flight = state.in_flight
    if flight is not None and flight.held:
        # Who says that it was not done has looked: what is met now is known to be another's.
        is_certain = data.decision == "Proceed"
        state = replace(state, uncertain_create=state.uncertain_create and not is_certain)
        flight = replace(
            flight,
            held="",
            abandoned=data.decision == "Abandon",
            failed=NOT_DONE,
            retry_at=event.time,
            retry_seconds=0.0,
            unknown=0,
            uncertain=flight.uncertain and not is_certain,
            seeking=False,
        )
    return replace(
        state,
        version=event.shapeversion,
        in_flight=flight,
        approved=data.hold,
        approved_position=event.causeposition,
        declaration_ids=remembered(state, event),
        because=event.id,
    )


def _reference_added(state: ShapeState, data: ReferenceAdded, event: LogEvent) -> ShapeState:
    references = {**state.references, data.by: data.on_withdrawal}
    return replace(state, version=event.shapeversion, references=references)


def _reference_removed(state: ShapeState, data: ReferenceRemoved, event: LogEvent) -> ShapeState:
    references = {by: policy for by, policy in state.references.items() if by != data.by}
    return replace(state, version=event.shapeversion, references=references, because=event.id)


def _target_observed(state: ShapeState, data: TargetObserved, event: LogEvent) -> ShapeState:
    return replace(state, version=event.shapeversion, target_declared=data.declared)


FOLDS: dict[type[ShapeEvent], Callable[[ShapeState, Any, LogEvent], ShapeState]] = {
    FinalizerAdded: _finalizer_added,
    FinalizerRemoved: _finalizer_removed,
    ReleaseForced: _release_forced,
    HoldApproved: _approved,
    ReferenceAdded: _reference_added,
    ReferenceRemoved: _reference_removed,
    TargetObserved: _target_observed,
}
