"""Fold what was declared, and withdrawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from events.log import (
    DeclarationSuperseded,
    GenerationSuperseded,
    LogEvent,
    ShapeEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from reconciler.shape.api_health import renewed
from reconciler.shape.state import (
    REMEMBERED_DECLARATIONS,
    ShapeState,
    Spec,
    content_digest,
    declaration_id,
)


def _declared(state: ShapeState, data: SpecDeclared, event: LogEvent) -> ShapeState:
    observed = state.observed
    if observed is not None and (state.observed_in, observed.name) != (
        data.provider_config,
        data.external_name,
    ):
        observed = None  # what we saw was in another place
    spec = spec_of(data)
    return replace(
        state,
        version=event.shapeversion,
        generation=data.generation,
        declared=True,
        spec=spec,
        declared_position=event.causeposition,
        declaration_ids=remembered(state, event),
        contents=_contents(state, content_digest(spec)),
        created_before=state.created_before and state.declared,  # a new life begins
        observed=observed,
        taken_by="" if observed is None else state.taken_by,  # of what another had, nothing is left
        failures=0,
        conflicts=0,
        failure=None,
        hold_until=None,
        release_forced=False,
        orphan_forced=False,
        target_declared=None,
        because=event.id,
        api=renewed(state.api, event),
    )


def _withdrawn(state: ShapeState, data: SpecWithdrawn, event: LogEvent) -> ShapeState:
    return replace(
        state,
        version=event.shapeversion,
        generation=data.generation,
        declared=False,
        declared_position=event.causeposition,
        declaration_ids=remembered(state, event),
        failures=0,
        conflicts=0,
        failure=None,
        hold_until=None,
        because=event.id,
    )


def spec_of(data: SpecDeclared) -> Spec:
    """Give what an event declares."""
    return Spec(
        data.api_version,
        data.provider_config,
        data.external_name,
        data.fields,
        data.labels,
        data.annotations,
        data.policy,
    )


def _contents(state: ShapeState, newest: str) -> tuple[str, ...]:
    older = tuple(each for each in state.contents if each != newest)
    return (*older, newest)[-REMEMBERED_DECLARATIONS:]


def _superseded(state: ShapeState, _data: GenerationSuperseded, event: LogEvent) -> ShapeState:
    return replace(state, version=event.shapeversion)


def _declaration_superseded(
    state: ShapeState, _data: DeclarationSuperseded, event: LogEvent
) -> ShapeState:
    ids = remembered(state, event)
    return replace(state, version=event.shapeversion, declaration_ids=ids)


def remembered(state: ShapeState, event: LogEvent) -> tuple[str, ...]:
    """Give the ids of the newest declarations and wishes, with this event's."""
    newest = declaration_id(event.actor, event.causeid)
    return (*state.declaration_ids, newest)[-REMEMBERED_DECLARATIONS:]


FOLDS: dict[type[ShapeEvent], Callable[[ShapeState, Any, LogEvent], ShapeState]] = {
    SpecDeclared: _declared,
    SpecWithdrawn: _withdrawn,
    GenerationSuperseded: _superseded,
    DeclarationSuperseded: _declaration_superseded,
}
