"""Sequences of a stream: the messages that match one subject filter, with compare-and-set appends.

The decider's log (`infra.bus.event_log`) and the recorders for the `eventsourcing` library
(`infra.eventstore`) share this store (ADR 0023).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from nats.aio.client import Client

from events.integrity import DIGEST_HEADER, next_digest
from infra.jetstream.acknowledgement import TIMEOUT_SECONDS
from infra.jetstream.append import Step, append
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import (
    StoredMessage,
    last_for_subjects,
    last_from_leader,
    message_from_leader,
    read_subject,
)

MAX_HEADS: Final = 50_000  # about 400 bytes each
_CONCURRENT_READS: Final = 32


class Head(msgspec.Struct, frozen=True, gc=False):
    """The last message of a sequence.

    Attributes:
        position: its sequence number in the stream; 0 for an empty sequence.
        digest: the digest of the sequence up to this message; empty if there is none.
        version: its number in the sequence, assigned by the writer; None for an empty sequence.
    """

    position: int
    digest: str = ""
    version: int | None = None


EMPTY: Final = Head(0)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A message to append to a sequence.

    Attributes:
        sequence: the subject filter that matches exactly this sequence.
        version: number of the message in the sequence.
    """

    sequence: str
    version: int
    subject: str
    payload: bytes
    headers: Mapping[str, str] | None = None


class HeadCache:
    """The newest heads that this process has read, possibly stale because others also append.

    A stale head is harmless: the server checks each append, and the message at a position never
    changes. Only the event loop's thread may use the cache.
    """

    def __init__(self, limit: int = MAX_HEADS) -> None:
        self._limit = limit
        self._heads: OrderedDict[str, Head] = OrderedDict()

    def get(self, sequence: str) -> Head | None:
        """Return the cached head, or None."""
        return self._heads.get(sequence)

    def put(self, sequence: str, head: Head) -> None:
        """Cache a head, and evict the least recently updated one above the limit."""
        self._heads[sequence] = head
        self._heads.move_to_end(sequence)
        if len(self._heads) > self._limit:
            self._heads.popitem(last=False)


class Sequences:
    """The sequences of one stream."""

    def __init__(
        self,
        nc: Client,
        stream: str,
        *,
        sequence_of: Callable[[str], str],
        has_digests: bool,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """Use an existing stream.

        Args:
            sequence_of: returns the sequence of a subject.
            has_digests: whether each message carries the digest of its sequence so far.
            timeout: seconds to wait for the acknowledgement of an append.
        """
        self.heads = HeadCache()
        self._nc = nc
        self._stream = stream
        self._sequence_of = sequence_of
        self._has_digests = has_digests
        self._timeout = timeout
        self._reads = asyncio.Semaphore(_CONCURRENT_READS)

    async def append(
        self,
        entries: Sequence[Entry],
        heads: Mapping[str, Head],
        *,
        before_commit: Step | None = None,
    ) -> list[int]:
        """Store all entries or none, and return their positions.

        Args:
            entries: at most 1,000, ordered by version within each sequence.
            heads: the expected head of each of their sequences.
            before_commit: called after all entries except the last have been sent.

        Raises:
            AppendConflictError: a head has changed; nothing was stored.
            BusUnavailableError: no response; it is *unknown* whether the entries were stored.
            StreamFullError, MessageTooLargeError, BusRefusedError: nothing was stored.
        """
        messages: list[OutgoingMessage] = []
        digests: dict[str, str] = {}
        for entry in entries:
            sequence, headers = entry.sequence, entry.headers
            head = heads[sequence]
            is_first = sequence not in digests
            digest = head.digest if is_first else digests[sequence]
            if self._has_digests:
                digest = next_digest(digest, entry.payload)
                headers = {**headers, DIGEST_HEADER: digest} if headers else {DIGEST_HEADER: digest}
            digests[sequence] = digest
            # The check of a sequence's first message covers the later ones.
            expected = sequence if is_first else None
            messages.append(
                OutgoingMessage(entry.subject, entry.payload, headers, expected, head.position)
            )
        positions = await append(
            self._nc, messages, timeout=self._timeout, before_commit=before_commit
        )
        new_heads = {
            entry.sequence: Head(position, digests[entry.sequence], entry.version)
            for entry, position in zip(entries, positions, strict=True)
        }
        for sequence, head in new_heads.items():
            self.heads.put(sequence, head)
        return positions

    def cached_head(self, sequence: str, position: int) -> Head | None:
        """Return the cached head of a sequence if it is at `position`, else None."""
        if position == 0:
            return EMPTY
        cached = self.heads.get(sequence)
        return cached if cached is not None and cached.position == position else None

    async def head_at(self, position: int) -> Head:
        """Read the head at a position. Reads are not batched, because most heads are cached."""
        message = await message_from_leader(self._nc, self._stream, position)
        return Head(position) if message is None else head_of(message)

    async def newest(
        self, sequences: Iterable[str], *, from_leader: bool
    ) -> dict[str, StoredMessage]:
        """Return the last message of each nonempty sequence.

        A direct read may be served by a lagging replica. The leader never lags, but takes one
        request per sequence.
        """
        if from_leader:
            names = list(sequences)
            messages = await asyncio.gather(*(self._read_last_from_leader(name) for name in names))
            return {
                name: message
                for name, message in zip(names, messages, strict=True)
                if message is not None
            }
        newest: dict[str, StoredMessage] = {}
        for message in await last_for_subjects(self._nc, self._stream, list(sequences)):
            sequence = self._sequence_of(message.subject)
            if sequence not in newest or newest[sequence].seq < message.seq:
                newest[sequence] = message
        return newest

    async def _read_last_from_leader(self, sequence: str) -> StoredMessage | None:
        async with self._reads:
            return await last_from_leader(self._nc, self._stream, sequence)

    async def read(self, sequence: str, *, after: int = 0) -> list[StoredMessage]:
        """Read a sequence after a position, possibly from a lagging replica."""
        async with self._reads:
            return await read_subject(self._nc, self._stream, sequence, start_seq=after + 1)


def head_of(message: StoredMessage, version: int | None = None) -> Head:
    """Return the head for the last message of a sequence."""
    return Head(message.seq, digest_of(message), version)


def digest_of(message: StoredMessage) -> str:
    """Return the digest in a message's headers, or "" if there is none."""
    return "" if message.headers is None else message.headers.get(DIGEST_HEADER, "")
