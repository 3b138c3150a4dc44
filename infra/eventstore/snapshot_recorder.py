"""The recorder of snapshots."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eventsourcing.persistence import IntegrityError, OperationalError

from infra.eventstore.aggregate_recorder import JetStreamAggregateRecorder
from infra.eventstore.header_layout import NEWEST, version_of
from infra.eventstore.heads import Head
from infra.eventstore.layout import Entry
from infra.eventstore.sequence_writer import SequenceWriter
from infra.jetstream.reads import read_subject


class SnapshotWriter(SequenceWriter):
    """Appends snapshots: a version only once, but in any order."""

    async def prepare(self, entries: Sequence[Entry], heads: Mapping[str, Head]) -> Sequence[Entry]:
        """Return the entries, late ones marked; raises `IntegrityError` for a taken version."""
        taken = {
            sequence: await self._versions(sequence, head)
            if any(_is_late(entry, head) for entry in entries if entry.sequence == sequence)
            else set[int]()
            for sequence, head in heads.items()
        }
        newest = {sequence: head.version for sequence, head in heads.items()}
        ready: list[Entry] = []
        for entry in entries:
            if entry.version in taken[entry.sequence]:
                raise IntegrityError(f"version {entry.version} of {entry.sequence} is taken")
            taken[entry.sequence].add(entry.version)
            before = newest[entry.sequence]
            newest[entry.sequence] = max(entry.version, entry.version if before is None else before)
            ready.append(_marked(entry, newest[entry.sequence]))
        return ready

    async def _versions(self, sequence: str, head: Head) -> set[int]:
        messages = await read_subject(self.nc, self.stream, sequence)
        if not messages or messages[-1].seq < head.seq:
            raise OperationalError(
                f"the replica that answered for {sequence} is behind its leader: try again"
            )
        return {version_of(message) for message in messages}


def _is_late(entry: Entry, head: Head) -> bool:
    return head.version is not None and entry.version <= head.version


def _marked(entry: Entry, newest: int | None) -> Entry:
    if newest is None or newest == entry.version:
        return entry
    headers = {**(entry.headers or {}), NEWEST: str(newest)}
    return replace(entry, headers=headers, version=newest)


class JetStreamSnapshotRecorder(JetStreamAggregateRecorder):
    """Snapshots in a stream of their own, unique by aggregate and version."""

    writer_class = SnapshotWriter
