"""Histories of resources, as the aggregate writes them."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from events.log import LogEvent, OutcomeRecorded, ResourceEvent, event_id, event_type
from events.names import ResourceKey
from reconciler.ports import EventLog


def new_key() -> ResourceKey:
    return ResourceKey("default", "Shape", f"s{uuid.uuid4().hex[:12]}")


def event(key: ResourceKey, version: int, data: ResourceEvent | None = None) -> LogEvent:
    event_data = data or OutcomeRecorded("Converged", version, "AsDeclared")
    return LogEvent(
        id=event_id(key, version),
        source="test",
        type=event_type(event_data),
        subject=str(key),
        time=datetime.now(UTC),
        resourceversion=version,
        data=event_data,
    )


def events(key: ResourceKey, first: int, last: int) -> Sequence[LogEvent]:
    return [event(key, version) for version in range(first, last + 1)]


async def history_of(log: EventLog, key: ResourceKey) -> Sequence[LogEvent]:
    """Read all events of one resource, whose history is sound."""
    loaded = (await log.load([key], from_leader=True, use_cache=False))[key]
    assert loaded.damage is None
    return loaded.events
