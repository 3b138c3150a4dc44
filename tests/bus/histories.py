"""Histories of shapes, as the aggregate writes them."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from events.log import LogEvent, OutcomeRecorded, ShapeEvent, event_id, event_type
from events.names import ShapeKey
from reconciler.ports import ShapeLog


def new_key() -> ShapeKey:
    return ShapeKey("default", "Shape", f"s{uuid.uuid4().hex[:12]}")


def event(key: ShapeKey, version: int, data: ShapeEvent | None = None) -> LogEvent:
    what = data or OutcomeRecorded("Converged", version, "AsDeclared")
    return LogEvent(
        id=event_id(key, version),
        source="test",
        type=event_type(what),
        subject=str(key),
        time=datetime.now(UTC),
        shapeversion=version,
        data=what,
    )


def events(key: ShapeKey, first: int, last: int) -> Sequence[LogEvent]:
    return [event(key, version) for version in range(first, last + 1)]


async def history_of(log: ShapeLog, key: ShapeKey) -> Sequence[LogEvent]:
    """Read all events of one shape, whose history is sound."""
    loaded = (await log.load([key], from_leader=True, use_snapshots=False))[key]
    assert loaded.damage is None
    return loaded.events
