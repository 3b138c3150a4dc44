"""Sequences of a stream: what one subject filter covers, appended to by compare-and-set.

The one store under both of its faces: the decider's log (`infra.bus.event_log`) and the
recorders of the `eventsourcing` library (`infra.eventstore`). ADR 0023.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

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
_READS_AT_ONCE: Final = 32


class Head(NamedTuple):
    """The last message of a sequence.

    Attributes:
        position: its place in the stream, 0 where the sequence is empty.
        digest: that of the sequence up to it, empty where none is kept.
        version: its place in the sequence, as its writer counts; None where it is empty.
    """

    position: int
    digest: str = ""
    version: int | None = None


EMPTY: Final = Head(0)


class Entry(NamedTuple):
    """One message to append to one sequence.

    Attributes:
        sequence: the subject filter that covers the whole sequence, and no other.
        version: its place in that sequence.
    """

    sequence: str
    version: int
    subject: str
    payload: bytes
    headers: Mapping[str, str] | None = None


class HeadCache:
    """The newest heads that this process has seen; a guess, since others write too.

    A wrong guess can do no harm: the server checks each append, and what a message at a position is
    never changes. Only the event loop's thread may use it.
    """

    def __init__(self, limit: int = MAX_HEADS) -> None:
        self._limit = limit
        self._heads: OrderedDict[str, Head] = OrderedDict()

    def get(self, sequence: str) -> Head | None:
        """Return what was seen last, or None."""
        return self._heads.get(sequence)

    def put(self, sequence: str, head: Head) -> None:
        """Remember a head; the one that was not touched for longest is forgotten for it."""
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
        digested: bool,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """Take the stream as it is.

        Args:
            sequence_of: returns the sequence that a subject belongs to.
            digested: whether each message carries the digest of its sequence up to it.
            timeout: seconds until an append is answered.
        """
        self.heads = HeadCache()
        self._nc = nc
        self._stream = stream
        self._sequence_of = sequence_of
        self._digested = digested
        self._timeout = timeout
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def append(
        self,
        entries: Sequence[Entry],
        heads: Mapping[str, Head],
        *,
        before_commit: Step | None = None,
    ) -> list[int]:
        """Store all entries or none, and return their positions.

        Args:
            entries: at most 1,000, those of one sequence in its order.
            heads: the expected head of every sequence among them.
            before_commit: done when all but the last of several are sent.

        Raises:
            AppendConflictError: a head is another one; nothing was stored.
            BusUnavailableError: no answer: *unknown* whether the entries were stored.
            StreamFullError, MessageTooLargeError, BusRefusedError: nothing was stored.
        """
        messages: list[OutgoingMessage] = []
        digests: dict[str, str] = {}
        for entry in entries:
            head = heads[entry.sequence]
            is_first, headers = entry.sequence not in digests, entry.headers
            digest = head.digest if is_first else digests[entry.sequence]
            if self._digested:
                digest = next_digest(digest, entry.payload)
                headers = {**headers, DIGEST_HEADER: digest} if headers else {DIGEST_HEADER: digest}
            digests[entry.sequence] = digest
            expected = entry.sequence if is_first else None  # the first one speaks for all
            messages.append(
                OutgoingMessage(entry.subject, entry.payload, headers, expected, head.position)
            )
        positions = await append(
            self._nc, messages, timeout=self._timeout, before_commit=before_commit
        )
        for entry, position in zip(entries, positions, strict=True):
            self.heads.put(entry.sequence, Head(position, digests[entry.sequence], entry.version))
        return positions

    def known_head(self, sequence: str, position: int) -> Head | None:
        """Return the head of a sequence whose last message is at a position, if it is known."""
        if position == 0:
            return EMPTY
        known = self.heads.get(sequence)
        return known if known is not None and known.position == position else None

    async def head_at(self, position: int) -> Head:
        """Read the head that the message at a position is; seldom needed, so one by one."""
        message = await message_from_leader(self._nc, self._stream, position)
        return Head(position) if message is None else head_of(message)

    async def newest(
        self, sequences: Iterable[str], *, from_leader: bool
    ) -> dict[str, StoredMessage]:
        """Return the last message of each sequence that has any.

        Whoever answers a direct read may be behind; the leader is not, and is asked one by one.
        """
        if from_leader:
            names = list(sequences)
            found = await asyncio.gather(*(self._leaders_last(name) for name in names))
            return {name: one for name, one in zip(names, found, strict=True) if one is not None}
        newest: dict[str, StoredMessage] = {}
        for message in await last_for_subjects(self._nc, self._stream, list(sequences)):
            sequence = self._sequence_of(message.subject)
            if sequence not in newest or newest[sequence].seq < message.seq:
                newest[sequence] = message
        return newest

    async def _leaders_last(self, sequence: str) -> StoredMessage | None:
        async with self._reads:
            return await last_from_leader(self._nc, self._stream, sequence)

    async def read(self, sequence: str, *, after: int = 0) -> list[StoredMessage]:
        """Read a sequence from behind a position on; a server that answers may be behind."""
        async with self._reads:
            return await read_subject(self._nc, self._stream, sequence, start_seq=after + 1)


def head_of(message: StoredMessage, version: int | None = None) -> Head:
    """Return the head that a message is."""
    return Head(message.seq, digest_of(message), version)


def digest_of(message: StoredMessage) -> str:
    """Return the digest of its sequence that a message carries, empty if it carries none."""
    return message.headers.get(DIGEST_HEADER, "") if message.headers else ""
