"""A long synthetic log with realistic subjects, sizes, digests, and sequences of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from nats.aio.client import Client

from events.envelope import encode_log
from events.external import ExternalObject
from events.integrity import DIGEST_HEADER, next_digest
from events.log import (
    Action,
    ActionDecided,
    ActionSucceeded,
    Condition,
    DriftDetected,
    ExternalObserved,
    FieldDifference,
    LogEvent,
    Operation,
    OutcomeRecorded,
    ResourceEvent,
    SpecDeclared,
    event_id,
    event_type,
    log_suffix,
)
from events.names import ResourceKey
from events.subjects import log
from infra.jetstream.append import append
from infra.jetstream.outgoing import OutgoingMessage

EVENTS_PER_RESOURCE: Final = 22
NAMESPACES: Final = 10
DAYS: Final = 30
HOT: Final = ResourceKey("team-0", "Shape", "hot")
"""A resource whose object another client keeps changing; it has a hundredth of the events."""

ONE_TIME_ACTOR: Final = "cli:ann"
"""An actor with a single event, at the beginning of the log."""

_BATCH: Final = 500
_HOT_EVERY: Final = 100
_GENERATIONS: Final = 2
_CONDITIONS: Final = (
    Condition("Converged", "True", "AsDeclared", observed_generation=1),
    Condition("Ready", "True", "Ready", observed_generation=1),
)
_COLORS: Final = ("Red", "Blue", "Green", "Purple")


class LogSummary(NamedTuple):
    """The size and an example resource of a filled log."""

    events: int
    bytes: int
    resources: int
    example: ResourceKey


async def fill(nc: Client, count: int) -> LogSummary:
    """Append ``count`` events, spread evenly over the last ``DAYS`` days."""
    began = datetime.now(UTC) - timedelta(days=DAYS)
    step = timedelta(days=DAYS) / count
    heads: dict[ResourceKey, tuple[int, str]] = {}
    waiting: list[OutgoingMessage] = []
    size = 0
    for number, (key, data, actor) in zip(range(count), _generate_events(count), strict=False):
        version, digest = heads.get(key, (0, ""))
        event = LogEvent(
            id=event_id(key, version + 1),
            source="reconciler",
            type=event_type(data),
            subject=str(key),
            time=began + number * step,
            resourceversion=version + 1,
            data=data,
            causationid=f"{number:032x}",
            actor=actor,
        )
        payload = encode_log(event)
        digest = next_digest(digest, payload)
        heads[key] = (version + 1, digest)
        subject = log(key, log_suffix(data))
        waiting.append(OutgoingMessage(subject, payload, {DIGEST_HEADER: digest}))
        size += len(payload)
        if len(waiting) == _BATCH:
            await append(nc, waiting)
            waiting.clear()
    if waiting:
        await append(nc, waiting)
    example = next(key for key in heads if key != HOT)
    return LogSummary(count, size, len(heads), example)


def _generate_events(count: int) -> Iterator[tuple[ResourceKey, ResourceEvent, str]]:
    """Yield events endlessly: each resource is declared, changed, and drifts."""
    resources = max(1, count // EVENTS_PER_RESOURCE)
    turn, hot = 0, 0
    while True:
        for number in range(resources):
            key = ResourceKey(f"team-{number % NAMESPACES}", "Shape", f"shape-{number}")
            actor = ONE_TIME_ACTOR if turn == 0 and number == 0 else "deploy"
            for data in _turn(key.name, turn):
                yield key, data, actor if isinstance(data, SpecDeclared) else "reconciler@host:1"
            if number % (_HOT_EVERY // 4) == 0:
                for data in _turn(HOT.name, hot):
                    yield HOT, data, "reconciler@host:1"
                hot += 1
        turn += 1


def _turn(name: str, turn: int) -> Sequence[ResourceEvent]:
    """Return the events of a resource in one turn: first new generations, then drift."""
    if turn >= _GENERATIONS:
        return _drift(name, turn)
    generation = turn + 1
    operation: Operation = "Create" if turn == 0 else "Update"
    existing = _object(name, generation)
    return (
        SpecDeclared(generation, "shapes/v1", "default", name, existing.fields, {"team": "tiles"}),
        *_action(name, generation, turn, operation),
    )


def _drift(name: str, turn: int) -> Sequence[ResourceEvent]:
    other_object = _object(name, turn + 1)
    desired_object = _object(name, _GENERATIONS)
    colors = (desired_object.fields["color"], other_object.fields["color"])
    return (
        ExternalObserved("default", name, other_object, "CompleteListing", turn),
        DriftDetected(_GENERATIONS, differences=(FieldDifference("color", *colors),)),
        *_action(name, _GENERATIONS, turn, "Update"),
    )


def _action(name: str, generation: int, turn: int, operation: Operation) -> Sequence[ResourceEvent]:
    existing = _object(name, generation)
    action = f"team/Shape/{name}@{turn}"
    causes = (f"{turn:032x}",)
    content = ("default", name, causes, existing.fields, existing.labels)
    return (
        ActionDecided(Action(action, action, operation, generation, *content)),
        ActionSucceeded(action, operation, 1, existing),
        OutcomeRecorded("Converged", generation, "AsDeclared", conditions=_CONDITIONS),
    )


def _object(name: str, number: int) -> ExternalObject:
    color = _COLORS[number % len(_COLORS)]
    fields = {"type": "Square", "color": color, "size": {"width": 10, "height": 20}}
    labels = {"team": "tiles", "reconciler/owner": f"6857df0eff23.team.Shape.{name}"}
    return ExternalObject(name, fields, f"87d2642b-a2dc-4f23-83a3-{name}", str(number), labels)
