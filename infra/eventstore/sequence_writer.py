"""Appends to many sequences at once: all or nothing, and each version only once."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from eventsourcing.persistence import DataError, IntegrityError
from nats.aio.client import Client

from events.integrity import DIGEST_HEADER, next_digest
from infra.eventstore.heads import NOTHING, Head, HeadCache
from infra.eventstore.layout import Entry, Position
from infra.jetstream.append import MAX_BATCH, append
from infra.jetstream.errors import AppendConflictError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import StoredMessage, last_for_subjects, last_from_leader

MAX_ENTRIES: Final = MAX_BATCH


class SequenceWriter:
    """Appends entries as one atomic batch, compare-and-set on every sequence in it.

    It expects the heads that it knows or guesses, so that the usual append is one round trip. Where
    that fails it asks the stream's leader: only what the leader says makes an `IntegrityError`.
    """

    def __init__(
        self,
        nc: Client,
        stream: str,
        *,
        position_of: Callable[[StoredMessage], Position],
        gapless: bool,
        timeout: float,
    ) -> None:
        self.heads = HeadCache()
        self.nc = nc
        self.stream = stream
        self._position_of = position_of
        self._gapless = gapless
        self._timeout = timeout

    async def append(self, entries: Sequence[Entry]) -> list[int]:
        """Store all entries or none, and return their stream sequences.

        Raises:
            IntegrityError: a version is there already; nothing was stored.
            DataError: too many entries for one atomic batch; nothing was stored.
            BusUnavailableError: unknown whether the entries were stored.
        """
        _check_count(entries)
        if not entries:
            return []
        try:
            return await self._append_after(await self._guess(entries), entries)
        except (AppendConflictError, IntegrityError):
            heads = await self._ask_leader(_sequences(entries))
        try:
            return await self._append_after(heads, entries)
        except AppendConflictError as error:
            raise IntegrityError(f"another writer was faster: {error}") from error

    async def prepare(self, entries: Sequence[Entry], heads: Mapping[str, Head]) -> Sequence[Entry]:
        """Return the entries as they follow the heads; raises `IntegrityError` if they can't."""
        last = {sequence: head.version for sequence, head in heads.items()}
        for entry in entries:
            self._check(entry, last[entry.sequence])
            last[entry.sequence] = entry.version
        return _digested(entries, heads)

    def _check(self, entry: Entry, last: int | None) -> None:
        if last is not None and entry.version <= last:
            raise IntegrityError(
                f"version {entry.version} of {entry.sequence} is taken: the last one is {last}"
            )
        if self._gapless and entry.version != (last or 0) + 1:
            raise IntegrityError(
                f"version {entry.version} of {entry.sequence} would leave a gap: "
                f"the next one is {(last or 0) + 1}"
            )

    async def _append_after(self, heads: Mapping[str, Head], entries: Sequence[Entry]) -> list[int]:
        ready = await self.prepare(entries, heads)
        numbers = await append(self.nc, _messages(ready, heads), timeout=self._timeout)
        for entry, seq in zip(ready, numbers, strict=True):
            self.heads.put(entry.sequence, Head(entry.version, seq, _digest(entry.headers)))
        return numbers

    async def _guess(self, entries: Sequence[Entry]) -> dict[str, Head]:
        heads: dict[str, Head] = {}
        unknown: list[str] = []
        for entry in entries:
            if entry.sequence in heads:
                continue
            known = self.heads.get(entry.sequence)
            heads[entry.sequence] = known or NOTHING
            if known is None and not entry.opens:
                unknown.append(entry.sequence)
        if unknown:
            heads |= await self._read(unknown)
        return heads

    async def _read(self, sequences: Sequence[str]) -> dict[str, Head]:
        """Read heads wherever a server answers: a follower may be behind."""
        heads: dict[str, Head] = {}
        for message in await last_for_subjects(self.nc, self.stream, sequences):
            sequence = self._position_of(message).sequence
            if message.seq > heads.get(sequence, NOTHING).seq:
                heads[sequence] = self._head(message)
        return heads

    async def _ask_leader(self, sequences: Iterable[str]) -> dict[str, Head]:
        names = list(sequences)
        heads = await asyncio.gather(*(self._leaders_head(name) for name in names))
        return dict(zip(names, heads, strict=True))

    async def _leaders_head(self, sequence: str) -> Head:
        message = await last_from_leader(self.nc, self.stream, sequence)
        head = self._head(message) if message else NOTHING
        self.heads.put(sequence, head)
        return head

    def _head(self, message: StoredMessage) -> Head:
        version = self._position_of(message).version
        return Head(version, message.seq, _digest(message.headers))


def _check_count(entries: Sequence[Entry]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise DataError(
            f"{len(entries)} events (and tracking records) in one insert: JetStream stores at most "
            f"{MAX_ENTRIES} messages atomically; save them in several steps"
        )


def _digest(headers: Mapping[str, str] | None) -> str:
    return headers.get(DIGEST_HEADER, "") if headers else ""


def _digested(entries: Sequence[Entry], heads: Mapping[str, Head]) -> list[Entry]:
    """Return the entries with the digests of their sequences up to each, where they have them."""
    last = {sequence: head.digest for sequence, head in heads.items()}
    ready: list[Entry] = []
    for entry in entries:
        if not entry.digested:
            ready.append(entry)
            continue
        digest = last[entry.sequence] = next_digest(last[entry.sequence], entry.payload)
        ready.append(replace(entry, headers={**(entry.headers or {}), DIGEST_HEADER: digest}))
    return ready


def _sequences(entries: Iterable[Entry]) -> dict[str, None]:
    return dict.fromkeys(entry.sequence for entry in entries)


def _messages(entries: Iterable[Entry], heads: Mapping[str, Head]) -> list[OutgoingMessage]:
    """Write the messages; the first one of each sequence carries its expectation."""
    messages: list[OutgoingMessage] = []
    begun: set[str] = set()
    for entry in entries:
        first = entry.sequence not in begun
        begun.add(entry.sequence)
        messages.append(
            OutgoingMessage(
                entry.subject,
                entry.payload,
                entry.headers,
                expected_filter=entry.sequence if first else None,
                expected_last=heads[entry.sequence].seq if first else 0,
            )
        )
    return messages
