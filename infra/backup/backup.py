"""Save a log to a file while the system runs.

The backup reflects one position in the log. Unprocessed messages in the intake are read before
that position is determined. Those processed in between are also in the log, so the restore skips
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.client import Client

from events.integrity import DIGEST_HEADER, LogChains, LogDamage, RecordedEvent
from events.subjects import intake_kind_of
from infra.backup.file import BackupWriter, Header, SavedMessage, new_backup
from infra.bus.streams import (
    INTAKE,
    LOG,
    PARTITIONS,
    LogIdentity,
    decider_consumers,
    service_namespaces,
)
from infra.jetstream.connection import api_request
from infra.jetstream.errors import NotFoundOnBusError
from infra.jetstream.follow import follow
from infra.jetstream.reads import StoredMessage, StreamState, read_subject, stream_state

Progress = Callable[[int], object]
"""Called with the number of processed events."""

_PAGE_MESSAGES: Final = 1_000


class SavedLog(msgspec.Struct, frozen=True, rename="camel"):
    """The content of a backup, and the damage to the log at that time."""

    file: str
    log_id: str
    position: int
    events: int
    declarations: int
    bytes: int
    damage: list[LogDamage]


async def save_log(
    nc: Client,
    path: Path,
    identity: LogIdentity,
    progress: Progress,
    *,
    all_declarations: bool = False,
) -> SavedLog:
    """Write a backup of the current log, or one without events if only an intake exists.

    ``all_declarations``: include processed declarations that the intake still holds, for a log that
    will be restored to an earlier state. If an error is raised, no file is left.

    Raises:
        BackupFileError: the file cannot be written.
        BusError: the streams cannot be read.
    """
    damage: list[LogDamage] = []
    chains = LogChains(damage.append)
    with new_backup(path) as writer:
        # Read before the log's position is determined (see the module docstring).
        decided = {} if all_declarations else await _read_decided_positions(nc)
        log = await _log(nc)
        config = {} if log is None else log.config
        services = [] if log is None else await service_namespaces(nc)
        intake = await intake_position(nc)
        header = Header(identity, datetime.now(UTC), config, services, intake)
        writer.begin(header)
        await _save_declarations(nc, writer, decided)
        last = 0 if log is None else (await stream_state(nc, LOG)).last_seq
        async for messages in _events(nc, last):
            for message in messages:
                chains.verify_next(to_recorded(message))
            writer.add(b"E", messages)
            progress(messages[-1].seq)
        chains.end(last)
        footer = writer.finish(last)
    size = (await asyncio.to_thread(path.stat)).st_size
    return SavedLog(
        str(path), identity.log_id, last, footer.events, footer.declarations, size, damage
    )


def to_recorded(message: StoredMessage | SavedMessage) -> RecordedEvent:
    """Return the fields for the integrity check of the log."""
    position = message.seq if isinstance(message, StoredMessage) else message.position
    digest = (message.headers or {}).get(DIGEST_HEADER, "")
    return RecordedEvent(position, message.subject, message.payload, digest)


async def _log(nc: Client) -> StreamState | None:
    try:
        return await stream_state(nc, LOG)
    except NotFoundOnBusError:
        return None


async def _events(nc: Client, last: int) -> AsyncGenerator[Sequence[StoredMessage]]:
    if not last:
        return
    async with follow(nc, LOG) as follower:
        while follower.position < last:
            messages = [each for each in await anext(follower) if each.seq <= last]
            if messages:
                yield messages


async def _read_decided_positions(nc: Client) -> dict[int, int]:
    """Return the last position in each intake partition that was processed without a gap."""
    decided: dict[int, int] = {}
    for partition, consumer in enumerate(decider_consumers()[:PARTITIONS]):
        try:
            info = await api_request(nc, f"CONSUMER.INFO.{INTAKE}.{consumer}", None)
        except NotFoundOnBusError:
            continue
        decided[partition] = int(info["ack_floor"]["stream_seq"])
    return decided


async def intake_position(nc: Client) -> int:
    """Return the intake's last position, or 0 if there is no intake."""
    try:
        return (await stream_state(nc, INTAKE)).last_seq
    except NotFoundOnBusError:
        return 0


async def _save_declarations(nc: Client, writer: BackupWriter, decided: dict[int, int]) -> None:
    if not await intake_position(nc):
        return
    for partition in range(PARTITIONS):
        first = decided.get(partition, 0) + 1
        while True:
            messages = await read_subject(
                nc, INTAKE, f"in.{partition}.>", start_seq=first, limit=_PAGE_MESSAGES
            )
            declared = [each for each in messages if intake_kind_of(each.subject) == "desired"]
            writer.add(b"D", declared)
            if len(messages) < _PAGE_MESSAGES:
                break
            first = messages[-1].seq + 1
