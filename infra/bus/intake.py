"""The intake: declarations, observations, results and timers that await a decision."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, cast

from nats.aio.client import Client

from events.envelope import encode_intake
from events.names import ResourceKey
from events.subjects import (
    ALL_STORED_INTAKE,
    REPLY_HEADER,
    intake_kind_of,
    stored_intake,
    stored_tokens,
    user_of,
)
from events.subjects import intake as intake_subject
from infra.bus.removals import check_same_log, with_remedy
from infra.bus.streams import (
    DECIDER_GROUP,
    INTAKE,
    MAX_UNACKNOWLEDGED,
    LogIdentity,
    decider_consumers,
)
from infra.jetstream.deliveries import Delivered, ack, in_progress, nak
from infra.jetstream.errors import BusError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import store_all
from infra.jetstream.pull import PullGroup
from infra.jetstream.reads import (
    MAX_INDEX_BYTES,
    StoredMessage,
    SubjectCounts,
    last_for_subjects,
    read_subject,
    stream_state,
    subject_counts,
)
from infra.jetstream.wire import FastClient
from reconciler.ports import IntakeDelivery, IntakeMessageOut, NotStoredError

_MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"
_REPLY_PREFIX: Final = "_INBOX"
_REPLY: Final = re.compile(r"[!-)+\-/-=?-~]+(\.[!-)+\-/-=?-~]+)*")
"""Matches tokens of printable ASCII without wildcards."""

_MAX_REPLY_BYTES: Final = 1_000
_MAX_NEWER_DECLARATIONS: Final = 100
_CONCURRENT_READS: Final = 64
_PREFETCH_MESSAGES: Final = 4_000
_PREFETCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes to prefetch from a partition while a batch is processed.

This is enough to reach the messages of other namespaces behind a flood (ADR 0062).
"""

_MAX_SINGLE_COUNTS: Final = 8  # above this, one response with all subjects is cheaper
_MAX_COUNTED_BYTES: Final = MAX_INDEX_BYTES - 8 * 1024 * 1024  # more may arrive meanwhile


class _DeclarationCounts:
    """The number and subjects of each resource's declarations in the intake."""

    def __init__(self, responses: Sequence[SubjectCounts]) -> None:
        # The range that all responses cover.
        self.first_seq = max(response.first_seq for response in responses)
        self.last_seq = min(response.last_seq for response in responses)
        self.counts: dict[str, int] = {}
        self.subjects: dict[str, list[str]] = {}
        for response in responses:
            for subject, count in response.counts.items():
                if intake_kind_of(subject) == "desired":
                    tokens = stored_tokens(subject)
                    self.counts[tokens] = self.counts.get(tokens, 0) + count
                    self.subjects.setdefault(tokens, []).append(subject)


class IntakeNotStoredError(NotStoredError, BusError):
    """`NotStoredError` for this bus."""


class JetStreamIntakeWriter:
    """Implements ``reconciler.ports.IntakeWriter``. ``source``: name of the publisher."""

    def __init__(self, nc: Client, source: str) -> None:
        self._nc = nc
        self._source = source

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        """Publish messages in a pipeline, and wait until all are stored.

        Raises:
            NotStoredError: some messages were not stored, or may not have been stored.
        """
        now = datetime.now(UTC)
        outgoing = [
            OutgoingMessage(
                intake_subject(each.what, each.key),
                encode_intake(each.message_id, self._source, each.data, time=now),
                {_MESSAGE_ID_HEADER: each.message_id},
            )
            for each in messages
        ]
        results = await store_all(self._nc, outgoing)
        failed = {index: each for index, each in enumerate(results) if isinstance(each, Exception)}
        if failed:
            first = next(iter(failed.values()))
            raise IntakeNotStoredError(first, list(failed)) from first

    async def last_position(self) -> int:
        """Return the intake's last position."""
        return (await stream_state(self._nc, INTAKE)).last_seq


class JetStreamIntakeReader:
    """Implements ``reconciler.ports.IntakeReader`` with one pinned consumer per partition.

    ``identity``: identity of the log that the process has read. It is checked after the first read
    from the consumers, because a later restore recreates them.
    """

    def __init__(self, nc: Client, identity: LogIdentity) -> None:
        self._nc = nc
        self._unchecked_identity: LogIdentity | None = identity
        self._group = PullGroup(
            nc,
            INTAKE,
            decider_consumers(),
            group=DECIDER_GROUP,
            slots=_PREFETCH_MESSAGES,
            max_bytes=_PREFETCH_BYTES,
        )
        self._flood_counts: _DeclarationCounts | None = None
        # Without authentication, a server accepts any user name in a subject.
        self._has_verified_users = isinstance(nc, FastClient) and nc.requires_authentication

    @property
    def slots(self) -> int:
        """Number of unacknowledged messages that a consumer may have."""
        return MAX_UNACKNOWLEDGED

    async def next_batch(self, max_seconds: float = math.inf) -> Sequence[IntakeDelivery]:
        """Return messages from any partitions; by default, wait for at least one."""
        with with_remedy():
            delivered = await self._group.next_batch(max_seconds)
        if self._unchecked_identity is not None:
            await check_same_log(self._nc, self._unchecked_identity)
            self._unchecked_identity = None
        return [self._to_delivery(each) for each in delivered]

    async def extend(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Extend the leases of messages."""
        await in_progress(self._nc, [cast("Delivered", each.receipt) for each in deliveries])

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Acknowledge messages."""
        await ack(self._nc, [cast("Delivered", each.receipt) for each in deliveries])

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        """Request redelivery of messages after a delay in seconds."""
        for each in deliveries:
            await nak(self._nc, cast("Delivered", each.receipt), seconds)

    async def was_sole_reader(self, deliveries: Sequence[IntakeDelivery]) -> bool:
        """Return whether the consumers have been pinned to this reader since these deliveries."""
        delivered = [cast("Delivered", each.receipt) for each in deliveries]
        return await self._group.has_kept_pins(delivered)

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        """Read later declarations of the same resources, without acknowledging them.

        A single request determines which resources have any.
        """
        filters = [_resource_filter(each.subject) for each in deliveries]
        newest: dict[str, list[StoredMessage]] = {}
        for message in await last_for_subjects(self._nc, INTAKE, filters):
            if intake_kind_of(message.subject) == "desired":
                newest.setdefault(stored_tokens(message.subject), []).append(message)
        newer: list[Sequence[IntakeDelivery]] = []
        for start in range(0, len(deliveries), _CONCURRENT_READS):
            batch = deliveries[start : start + _CONCURRENT_READS]
            newer += await asyncio.gather(
                *(
                    self._read_newer(each, newest.get(stored_tokens(each.subject), ()))
                    for each in batch
                )
            )
        return newer

    async def declarations_of(
        self, known: Mapping[ResourceKey, Collection[int]]
    ) -> Mapping[ResourceKey, Sequence[IntakeDelivery]]:
        """Read all declarations of these resources in the intake, without acknowledging them.

        It counts before reading, because most resources have only the ``known`` positions.
        """
        subjects = await self._unknown_subjects(known)
        keys = list(subjects)
        declarations: dict[ResourceKey, Sequence[IntakeDelivery]] = {}
        for start in range(0, len(keys), _CONCURRENT_READS):
            batch = keys[start : start + _CONCURRENT_READS]
            read = await asyncio.gather(*(self._read(subjects[key]) for key in batch))
            declarations.update(zip(batch, read, strict=True))
        return declarations

    async def _read(
        self, subjects: Sequence[str], *, after: int = 0, limit: int | None = None
    ) -> list[IntakeDelivery]:
        """Read the declarations on several subjects, in order."""
        read = [
            message
            for subject in subjects
            for message in await read_subject(
                self._nc, INTAKE, subject, start_seq=after + 1, limit=limit
            )
        ]
        declared = [each for each in read if intake_kind_of(each.subject) == "desired"]
        return [
            self._to_read_delivery(each) for each in sorted(declared, key=lambda each: each.seq)
        ]

    async def _unknown_subjects(
        self, known: Mapping[ResourceKey, Collection[int]]
    ) -> Mapping[ResourceKey, Sequence[str]]:
        """Return the declarations' subjects for each resource that has unknown declarations."""
        newest = max((max(positions, default=0) for positions in known.values()), default=0)
        declared = (
            await self._count_all_declarations(up_to=newest)
            if len(known) > _MAX_SINGLE_COUNTS
            else None
        )
        if declared is None:
            self._flood_counts = None  # the flood is over, or too large
            filters, responses = [stored_intake(key) for key in known], list[SubjectCounts]()
            for start in range(0, len(filters), _CONCURRENT_READS):
                batch = filters[start : start + _CONCURRENT_READS]
                responses += await asyncio.gather(
                    *(subject_counts(self._nc, INTAKE, subjects) for subjects in batch)
                )
            declared = _DeclarationCounts(responses)
        return {
            # If a page of a very long response missed the resource, its subjects are unknown.
            key: declared.subjects.get(key.tokens) or [stored_intake(key)]
            for key, positions in known.items()
            # The count is below the known one if a page of a very long response missed the
            # resource.
            if declared.counts.get(key.tokens, 0)
            != sum(each >= declared.first_seq for each in set(positions))
        }

    async def _count_all_declarations(self, *, up_to: int) -> _DeclarationCounts | None:
        """Count the declarations of every resource, at least those up to a position.

        A flood is counted only once, because both the cost of a count and the number of turns grow
        with it. Returns None if the subjects may be too large to read, which any tenant can cause.
        """
        if self._flood_counts is None or self._flood_counts.last_seq < up_to:
            if (await stream_state(self._nc, INTAKE)).bytes > _MAX_COUNTED_BYTES:
                return None
            self._flood_counts = _DeclarationCounts(
                [await subject_counts(self._nc, INTAKE, ALL_STORED_INTAKE)]
            )
        return self._flood_counts

    async def _read_newer(
        self, delivery: IntakeDelivery, newest: Sequence[StoredMessage]
    ) -> list[IntakeDelivery]:
        subjects = [each.subject for each in newest if each.seq > delivery.position]
        newer = await self._read(subjects, after=delivery.position, limit=_MAX_NEWER_DECLARATIONS)
        return newer[:_MAX_NEWER_DECLARATIONS]

    def _to_read_delivery(self, message: StoredMessage) -> IntakeDelivery:
        return IntakeDelivery(
            position=message.seq,
            subject=message.subject,
            payload=message.payload,
            message_id=(message.headers or {}).get(_MESSAGE_ID_HEADER) or f"intake-{message.seq}",
            reply_to=None,
            delivered=0,
            receipt=None,
            stored_at=_storage_time(message),
            user=user_of(message.subject) if self._has_verified_users else "",
        )

    def _to_delivery(self, delivered: Delivered) -> IntakeDelivery:
        headers = delivered.headers or {}
        user = user_of(delivered.subject) if self._has_verified_users else ""
        return IntakeDelivery(
            position=delivered.seq,
            subject=delivered.subject,
            payload=delivered.payload,
            message_id=headers.get(_MESSAGE_ID_HEADER) or f"intake-{delivered.seq}",
            reply_to=_permitted_reply(headers.get(REPLY_HEADER), user),
            delivered=delivered.delivered,
            receipt=delivered,
            stored_at=_storage_time(delivered),
            user=user,
        )

    async def close(self) -> None:
        """Release the partitions to other readers."""
        await self._group.close()


def _resource_filter(subject: str) -> str:
    """Return the filter for all intake messages of a message's resource."""
    stored, partition, _, tokens = subject.split(".", 3)
    return f"{stored}.{partition}.*.{tokens}"


def _storage_time(message: StoredMessage | Delivered) -> datetime:
    return datetime.fromtimestamp(message.time_ns / 1e9, UTC)


def _permitted_reply(subject: str | None, user: str) -> str | None:
    """Return the inbox for a reply, or None if the publisher may not use it.

    Any other subject would let a client publish with the decider's permissions. A verified user may
    use only its own inbox, because the reply would otherwise reach another account. A subject that
    the bus does not accept could never receive a reply.
    """
    prefix = f"{_REPLY_PREFIX}.{user}." if user else _REPLY_PREFIX
    if subject is None or not subject.startswith(prefix) or len(subject) > _MAX_REPLY_BYTES:
        return None
    return subject if _REPLY.fullmatch(subject) else None
