"""Histories of resources as the aggregate writes them, and streams without metadata."""

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from nats.aio.client import Client

from events.log import LogEvent, OutcomeRecorded, ResourceEvent, event_id, event_type
from events.names import ResourceKey
from infra.jetstream.connection import api_request
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


async def remove_metadata(nc: Client, names: Iterable[str]) -> None:
    """Redeclare streams without metadata, as a library does."""
    for name in names:
        config = (await api_request(nc, f"STREAM.INFO.{name}", None))["config"]
        await api_request(nc, f"STREAM.UPDATE.{name}", {**config, "metadata": {}})
