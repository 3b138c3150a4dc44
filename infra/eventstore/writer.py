"""Append by version: store each aggregate version once, and an insert's events atomically."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from eventsourcing.persistence import DataError, IntegrityError, OperationalError
from msgspec.structs import replace
from nats.aio.client import Client

from infra.eventstore.header_layout import NEWEST, version_of
from infra.eventstore.layout import EventLayout
from infra.jetstream.append import MAX_BATCH
from infra.jetstream.errors import AppendConflictError
from infra.jetstream.sequences import EMPTY, Entry, Head, Sequences, head_of

FIRST_VERSION: Final = 1


class EventWriter:
    """Converts the library's versions to the positions that the server compares.

    It assumes cached or guessed heads, so that a typical append takes one round trip. If that
    fails, it reads from the stream's leader. Only the leader's response can cause an
    `IntegrityError`.
    """

    def __init__(self, nc: Client, layout: EventLayout, *, timeout: float) -> None:
        self.sequences = Sequences(
            nc,
            layout.stream,
            sequence_of=layout.sequence_at,
            has_digests=layout.has_digests,
            timeout=timeout,
        )
        self._layout = layout

    async def append(self, entries: Sequence[Entry]) -> list[int]:
        """Store all entries or none, and return their positions.

        Raises:
            IntegrityError: a version already exists; nothing was stored.
            DataError: too many entries for one atomic batch; nothing was stored.
            BusUnavailableError: it is unknown whether the entries were stored.
        """
        if len(entries) > MAX_BATCH:
            raise DataError(
                f"{len(entries)} events (and tracking records) in one insert: JetStream stores "
                f"at most {MAX_BATCH} messages atomically; save them in several steps"
            )
        if not entries:
            return []
        try:
            heads = await self._assume_heads(entries)
            return await self.sequences.append(await self.prepare(entries, heads), heads)
        # The guess was stale, or a version exists. Only the leader's heads are certain.
        except (AppendConflictError, IntegrityError):
            names = dict.fromkeys(entry.sequence for entry in entries)
            heads = await self._read(names, from_leader=True)
        prepared = await self.prepare(entries, heads)
        try:
            return await self.sequences.append(prepared, heads)
        except AppendConflictError as error:
            raise IntegrityError(
                f"version conflict: another writer appended first ({error})"
            ) from error

    async def prepare(self, entries: Sequence[Entry], heads: Mapping[str, Head]) -> Sequence[Entry]:
        """Return the entries; raises `IntegrityError` unless they follow the heads."""
        last = {sequence: head.version for sequence, head in heads.items()}
        for entry in entries:
            self._check_version(entry, last[entry.sequence])
            last[entry.sequence] = entry.version
        return entries

    def _check_version(self, entry: Entry, last: int | None) -> None:
        if last is not None and entry.version <= last:
            raise IntegrityError(
                f"version conflict: version {entry.version} of {entry.sequence} already "
                f"exists; the last version is {last}"
            )
        if self._layout.gapless and entry.version != (last or 0) + 1:
            raise IntegrityError(
                f"version {entry.version} of {entry.sequence} would leave a gap; the next "
                f"version is {(last or 0) + 1}"
            )

    async def _assume_heads(self, entries: Sequence[Entry]) -> dict[str, Head]:
        """Return cached heads. A sequence that starts with version 1 is assumed to be empty."""
        heads: dict[str, Head] = {}
        unknown: list[str] = []
        for entry in entries:
            if entry.sequence in heads:
                continue
            cached = self.sequences.heads.get(entry.sequence)
            heads[entry.sequence] = cached or EMPTY
            if cached is None and entry.version > FIRST_VERSION:
                unknown.append(entry.sequence)
        if unknown:
            heads |= await self._read(unknown, from_leader=False)
        return heads

    async def _read(self, sequences: Collection[str], *, from_leader: bool) -> dict[str, Head]:
        newest = await self.sequences.newest(sequences, from_leader=from_leader)
        heads = dict.fromkeys(sequences, EMPTY)
        for name, message in newest.items():
            heads[name] = head_of(message, self._layout.version_of(message))
        for name, head in heads.items():
            self.sequences.heads.put(name, head)
        return heads


class SnapshotWriter(EventWriter):
    """Appends snapshots: each version once, but in any order."""

    async def prepare(self, entries: Sequence[Entry], heads: Mapping[str, Head]) -> Sequence[Entry]:
        """Return the entries, marking late ones; raises `IntegrityError` for existing versions."""
        existing_versions = {
            sequence: await self._versions(sequence, head)
            if any(_is_late(entry, head) for entry in entries if entry.sequence == sequence)
            else set[int]()
            for sequence, head in heads.items()
        }
        newest = {sequence: head.version for sequence, head in heads.items()}
        prepared: list[Entry] = []
        for entry in entries:
            if entry.version in existing_versions[entry.sequence]:
                raise IntegrityError(
                    f"version conflict: version {entry.version} of {entry.sequence} already exists"
                )
            existing_versions[entry.sequence].add(entry.version)
            last_version = newest[entry.sequence]
            newest[entry.sequence] = max(
                entry.version, entry.version if last_version is None else last_version
            )
            prepared.append(_mark_late(entry, newest[entry.sequence]))
        return prepared

    async def _versions(self, sequence: str, head: Head) -> set[int]:
        messages = await self.sequences.read(sequence)
        if not messages or messages[-1].seq < head.position:
            raise OperationalError(
                f"the replica that returned {sequence} is behind its leader; retry"
            )
        return {version_of(message) for message in messages}


def _is_late(entry: Entry, head: Head) -> bool:
    return head.version is not None and entry.version <= head.version


def _mark_late(entry: Entry, newest: int | None) -> Entry:
    if newest is None or newest == entry.version:
        return entry
    return replace(entry, headers={**(entry.headers or {}), NEWEST: str(newest)}, version=newest)
