"""Explain the status of a resource, or the value of a field, from its own history (pure).

Every event references its cause: an action references the events that led to it, a result its
action, an outcome the turn that it ends. This chain leads back to a message from a user or service.
If the message came from a composed resource, the chain continues in that resource's history
(`lineage`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from events.composition import parent_in
from events.log import (
    Action,
    ActionDecided,
    DriftDetected,
    LogEvent,
    OutcomeRecorded,
    SpecDeclared,
    SpecWithdrawn,
)
from events.names import ResourceKey
from reconciler.ports import StoredEvent
from reconciler.resource.contention import CONTENTION_DRIFTS, CONTENTION_WINDOW
from reconciler.resource.difference import value_at
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW, ResourceState

_MAX_STEPS: Final = 100
_MAX_PARENTS: Final = 16
_DECLARATION_EVENTS: Final = (SpecDeclared, SpecWithdrawn)


class Value(msgspec.Struct, frozen=True, rename="camel"):
    """The value of a field since an event; ``None``: the field was absent."""

    value: Any
    version: int
    position: int
    time: datetime
    event: str
    actor: str


class RepeatedDrift(msgspec.Struct, frozen=True, rename="camel"):
    """A field that Reconciler and another client keep overwriting."""

    path: str
    times: int
    since: datetime
    until: datetime
    ours: Any
    theirs: tuple[Any, ...]


class Parent(msgspec.Struct, frozen=True, rename="camel"):
    """A composed resource, and why it declared or withdrew its part.

    ``chain``: versions of its history, from its declaration to the decision. ``reason``: the reason
    in its declaration of the part.
    """

    resource: str
    reason: str
    chain: tuple[int, ...]


class Why(msgspec.Struct, frozen=True, rename="camel"):
    """The explanation. ``chain``: versions of the history, from the first cause to the outcome.

    ``parents``: the composed resources that contain it, innermost first; `lineage` finds them.
    """

    resource: str
    chain: tuple[int, ...]
    repeated_drifts: tuple[RepeatedDrift, ...]
    field: str = ""
    wanted: tuple[Value, ...] = ()
    applied: tuple[Value, ...] = ()
    observed: tuple[Value, ...] = ()
    parents: tuple[Parent, ...] = ()


def explain(resource: str, history: Sequence[StoredEvent], field: str = "") -> Why:
    """Explain the newest outcome, or the changes to a field, with the newest value last."""
    values = _values(history, field) if field else ((), (), ())
    drifts = [each for each in history if isinstance(each.event.data, DriftDetected)]
    repeated = tuple(each for each in _repeated_drifts(drifts) if field in ("", each.path))
    newest = [each[-1].version for each in values if each]
    if not field:
        newest = [
            each.event.resourceversion
            for each in history
            if isinstance(each.event.data, OutcomeRecorded)
        ] or [len(history)]
    version = max(newest, default=0)
    return Why(resource, tuple(chain(history, version)), repeated, field, *values)


# --- causes


def chain(history: Sequence[StoredEvent], version: int) -> list[int]:
    """Return the versions that led to ``version``, starting with the first cause."""
    by_version = {each.event.resourceversion: each.event for each in history}
    by_id = {each.id: each for each in by_version.values()}
    decided = {
        data.action.action_id: event
        for event in by_version.values()
        if isinstance(data := event.data, ActionDecided)
    }
    versions: list[int] = []
    event = by_version.get(version)
    while (
        event is not None and event.resourceversion not in versions and len(versions) < _MAX_STEPS
    ):
        versions.append(event.resourceversion)
        event = _cause(event, by_version, by_id, decided)
    return versions[::-1]


def _cause(
    event: LogEvent,
    by_version: dict[int, LogEvent],
    by_id: dict[str, LogEvent],
    decided: dict[str, LogEvent],
) -> LogEvent | None:
    """Return the event that caused another, or None if an external message did."""
    action = getattr(event.data, "action", None)
    if isinstance(action, Action):
        decision_event = decided.get(action.action_id)
        if decision_event is not None and decision_event is not event:
            return decision_event  # an attempt of the action
        return next((by_id[each] for each in reversed(action.causes) if each in by_id), None)
    action_id = getattr(event.data, "action_id", None)
    if isinstance(action_id, str) and action_id in decided:
        decision_event = decided[action_id]
        if not isinstance(event.data, OutcomeRecorded) or not _is_same_turn(decision_event, event):
            return decision_event
    previous = by_version.get(event.resourceversion - 1)
    return previous if previous is not None and _is_same_turn(previous, event) else None


def _is_same_turn(previous: LogEvent, event: LogEvent) -> bool:
    return (previous.causationid, previous.causationposition) == (
        event.causationid,
        event.causationposition,
    )


# --- parents


async def lineage(
    history: Sequence[StoredEvent],
    read: Callable[[ResourceKey], Awaitable[Sequence[StoredEvent]]],
) -> list[tuple[Parent, Sequence[StoredEvent]]]:
    """Return the parents of a resource with their histories, nearest first.

    ``read`` returns the history of another resource. The search ends at a parent without a history,
    or at a cycle.
    """
    parents: list[tuple[Parent, Sequence[StoredEvent]]] = []
    visited = {each.event.key for each in history[:1]}
    while len(parents) < _MAX_PARENTS:
        declarations = [
            each.event.data for each in history if isinstance(each.event.data, SpecDeclared)
        ]
        key = parent_in(declarations[-1].labels) if declarations else None
        if key is None or key in visited:
            break
        visited.add(key)
        parent_history = await read(key)
        if not parent_history:
            break
        parents.append((_parent(key, parent_history, history), parent_history))
        history = parent_history
    return parents


def _parent(
    key: ResourceKey, parent_history: Sequence[StoredEvent], history: Sequence[StoredEvent]
) -> Parent:
    """Return the parent, and its reason for the newest declaration or withdrawal in a history."""
    decided = {
        data.action.idempotency_key: each.event
        for each in parent_history
        if isinstance(data := each.event.data, ActionDecided)
    }
    candidates = [
        each.event for each in history if isinstance(each.event.data, _DECLARATION_EVENTS)
    ]
    for event in reversed(candidates):
        # A parent's messages carry the key of its action (`CompositionProvider`).
        decision = decided.get(event.causationid.partition(".")[0])
        if decision is not None:
            assert isinstance(event.data, _DECLARATION_EVENTS)
            assert isinstance(decision.data, ActionDecided)
            declaration = _find_declaration(parent_history, decision.data.action.generation)
            decision_chain = chain(parent_history, decision.resourceversion)
            return Parent(
                str(key), event.data.reason, tuple(dict.fromkeys([*declaration, *decision_chain]))
            )
    return Parent(str(key), "", tuple(_find_declaration(parent_history, None)))


def _find_declaration(history: Sequence[StoredEvent], generation: int | None) -> list[int]:
    """Return the version of a generation's declaration, by default the newest."""
    versions = [
        each.event.resourceversion
        for each in history
        if isinstance(each.event.data, _DECLARATION_EVENTS)
        and generation in (None, each.event.data.generation)
    ]
    return versions[-1:]


# --- values


def _values(
    history: Sequence[StoredEvent], field: str
) -> tuple[tuple[Value, ...], tuple[Value, ...], tuple[Value, ...]]:
    """Return all desired, applied and observed values of a field."""
    desired_values: list[Value] = []
    applied: list[Value] = []
    observed: list[Value] = []
    state = NEW
    for stored in history:
        state = evolve(state, stored.event)
        for values, value in zip(
            (desired_values, applied, observed), _current_values(state, field), strict=True
        ):
            if value != (values[-1].value if values else None):
                values.append(_value(value, stored))
    return tuple(desired_values), tuple(applied), tuple(observed)


def _current_values(state: ResourceState, field: str) -> tuple[object, object, object]:
    desired, owned, found_object = state.desired, state.owned, state.observed.object
    labels = {} if desired.spec is None else desired.spec.labels
    declared = None
    if desired.is_declared and desired.spec is not None:
        declared = value_at(field, desired.fields, labels)
        # A defined kind maps its fields to other fields of the object.
        if declared is None:
            declared = value_at(field, desired.spec.fields, labels)
    applied = None if owned is None else owned.applied
    return (
        declared,
        None if applied is None else value_at(field, applied.fields, applied.labels),
        None if found_object is None else value_at(field, found_object.fields, found_object.labels),
    )


def _value(value: object, stored: StoredEvent) -> Value:
    event = stored.event
    name = type(event.data).__name__
    return Value(value, event.resourceversion, stored.position, event.time, name, event.actor)


# --- repeated drift


def _repeated_drifts(drifts: Sequence[StoredEvent]) -> Iterable[RepeatedDrift]:
    """Return the fields that another client has repeatedly overwritten recently."""
    if not drifts:
        return
    newest = drifts[-1].event.time
    recent = [each.event for each in drifts if each.event.time > newest - CONTENTION_WINDOW]
    times: Counter[str] = Counter()
    for event in recent:
        assert isinstance(event.data, DriftDetected)
        if not event.data.suspected_action:
            times.update(each.path for each in event.data.differences)
    for path, count in times.items():
        if count < CONTENTION_DRIFTS:
            continue
        differences = [
            (event.time, each)
            for event in recent
            if isinstance(event.data, DriftDetected)
            for each in event.data.differences
            if each.path == path
        ]
        theirs: list[Any] = []
        for _, each in differences:
            if each.observed not in theirs:
                theirs.append(each.observed)
        ours = differences[-1][1].desired
        yield RepeatedDrift(path, count, differences[0][0], differences[-1][0], ours, tuple(theirs))
