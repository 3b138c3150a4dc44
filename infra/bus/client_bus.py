"""The operations of a client on the bus."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import structlog
from nats.aio.client import Client

from events.dead_letter import DeadLetterHandled, DeadLetterRecord, Discarded
from events.envelope import encode_intake, encode_listing_part
from events.intake import ListingPart, Reply
from events.log import ApiFellSilent
from events.names import ResourceKey
from events.subjects import REPLY_HEADER, outcome_filter, parse_intake, silence
from events.subjects import intake as intake_subject
from infra.bus.dead_letters import read_discarded, read_letters, store_handled
from infra.bus.log_times import log_between
from infra.bus.outcome_feeds import (
    DurableOutcomes,
    FollowedOutcomes,
    can_use_service_consumers,
    decode_readable,
    follow_durable,
    follow_outcomes,
    follow_service_outcomes,
)
from infra.bus.replies import ReplyBox, RequestBatch
from infra.bus.retries import retry_read
from infra.bus.rows import JetStreamRows
from infra.bus.streams import INTAKE, LOG
from infra.bus.user import user_of_connection
from infra.jetstream.errors import BusDeniedError, BusUnavailableError
from infra.jetstream.outgoing import MESSAGE_ID, OutgoingMessage
from infra.jetstream.publish import publish, publish_many, store_all
from infra.jetstream.reads import last_by_subject, last_for_subjects, stream_state
from reconciler.errors import WaitTimeoutError
from reconciler.ports import IntakeMessageOut, StoredEvent

_RETRY_SECONDS: Final = 0.2
_CHECK_SECONDS: Final = 0.5  # interval between checks for a lost connection
_logger = structlog.get_logger(__name__)

OnRetry = Callable[[int], object]
"""Called with the number of unconfirmed messages, before each retry."""


class RetryLog:
    """Logs at most one retry per second, because each message may be retried separately."""

    def __init__(self) -> None:
        self._not_before = 0.0

    def __call__(self, count: int) -> None:
        """Log the number of unconfirmed messages, unless it did so within the last second."""
        now = time.monotonic()
        if now >= self._not_before:
            self._not_before = now + 1.0
            _logger.warning("the server did not confirm messages; retrying", count=count)


log_retry: OnRetry = RetryLog()


class JetStreamClientBus:
    """A client's operations. ``source``: name of the publisher.

    Every method may raise a `BusError`. Methods retry internally while a result is unknown.
    """

    def __init__(self, nc: Client, source: str, on_retry: OnRetry = log_retry) -> None:
        self._nc = nc
        self._source = source
        self._on_retry = on_retry
        self._replies = ReplyBox(nc)
        self._rows = JetStreamRows(nc)
        self._uses_service_consumers = False
        self._unreadable_apis: set[str] = set()
        self._user = ""

    async def open(self) -> None:
        """Subscribe to replies, and determine the user name for published messages."""
        self._user = await user_of_connection(self._nc)
        await self._replies.open(self._user)

    async def close(self) -> None:
        """End the subscription to replies."""
        await self._replies.close()

    # --- the intake

    async def store(self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float) -> None:
        """Store messages, and retry with the same ids while the result is unknown.

        Raises:
            WaitTimeoutError: the server did not confirm all messages in time.
        """
        outgoing = [self._outgoing(each, {}) for each in messages]
        try:
            async with asyncio.timeout(timeout_seconds):
                for error in (await self._store(outgoing)).values():
                    raise error
        except TimeoutError:
            raise _build_unconfirmed_error(len(messages), timeout_seconds) from None

    async def request(
        self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float
    ) -> Sequence[Reply | None]:
        """Store messages, and return their replies, with None for those that do not arrive in time.

        The reply to a message that the server refused is a refusal. If it refused all messages, the
        first error is raised.

        Raises:
            WaitTimeoutError: the server did not confirm all messages in time.
        """
        stored = asyncio.Event()
        with self._replies.expect(len(messages)) as requests:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._send_requests(messages, requests, stored)
            except TimeoutError:
                if not stored.is_set():
                    raise _build_unconfirmed_error(len(messages), timeout_seconds) from None
                _logger.info("replies are missing", count=len(requests.pending))
            return requests.replies

    async def _send_requests(
        self, messages: Sequence[IntakeMessageOut], requests: RequestBatch, stored: asyncio.Event
    ) -> None:
        """Store messages. After a lost connection, store again those without a reply.

        Replies are lost along with the connection. The decider detects a repeated message by its
        id, and replies `Duplicate`.
        """
        while not requests.complete.is_set():
            reconnects = self._nc.stats["reconnects"]
            indexes = requests.pending
            failures = await self._store(
                [
                    self._outgoing(messages[index], {REPLY_HEADER: requests.reply_to(index)})
                    for index in indexes
                ]
            )
            for number, error in failures.items():
                if len(failures) == len(messages):
                    raise error
                # The other messages are stored, so the caller needs their replies.
                requests.set_reply(
                    indexes[number], _build_refusal(messages[indexes[number]], error)
                )
            stored.set()
            while self._nc.stats["reconnects"] == reconnects:
                if await _is_set(requests.complete):
                    return

    async def _store(self, outgoing: Sequence[OutgoingMessage]) -> Mapping[int, Exception]:
        """Store messages, retrying while the result is unknown. Return the failures by index."""
        failures: dict[int, Exception] = {}
        pending = dict(enumerate(outgoing))
        while pending:
            results = await store_all(self._nc, list(pending.values()))
            unknown: dict[int, OutgoingMessage] = {}
            for (index, message), result in zip(pending.items(), results, strict=True):
                if isinstance(result, BusUnavailableError) and not self._nc.is_closed:
                    unknown[index] = message
                elif isinstance(result, Exception):
                    failures[index] = result
            pending = unknown
            if pending:
                self._on_retry(len(pending))
                await asyncio.sleep(_RETRY_SECONDS)
        return failures

    def _outgoing(self, message: IntakeMessageOut, headers: Mapping[str, str]) -> OutgoingMessage:
        identity = message.message_id
        return OutgoingMessage(
            intake_subject(message.what, message.key, self._user),
            encode_intake(identity, self._source, message.data, time=datetime.now(UTC)),
            {MESSAGE_ID: identity, **headers},
        )

    # --- dead letters

    @property
    def source(self) -> str:
        """Name of the publisher."""
        return self._source

    async def dead_letters(
        self, *, limit: int | None = None
    ) -> tuple[Mapping[int, DeadLetterRecord], Sequence[DeadLetterHandled]]:
        """Read the dead letters, and the records of their handling."""
        stored = await retry_read(self._nc, lambda: read_letters(self._nc, limit=limit))
        return stored.letters, stored.handled

    async def discarded(self) -> Sequence[Discarded]:
        """Read the counts of messages for which no dead letter was stored."""
        return await retry_read(self._nc, lambda: read_discarded(self._nc))

    async def record_handling(self, handled: DeadLetterHandled) -> None:
        """Record the handling of a dead letter."""
        await store_handled(self._nc, handled)

    async def publish_again(
        self, subject: str, payload: bytes, message_id: str, *, reply_timeout_seconds: float
    ) -> tuple[int, Reply | None]:
        """Store an intake message with an unchanged payload, under a new id.

        The publisher is this client's user, regardless of the original one.
        """
        what, key = parse_intake(subject)
        own_subject = intake_subject(what, key, self._user)
        with self._replies.expect(1) as request:
            headers = {MESSAGE_ID: message_id, REPLY_HEADER: request.reply_to(0)}
            stored = await publish(self._nc, own_subject, payload, headers=headers)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(reply_timeout_seconds):
                    await request.complete.wait()
            return stored.seq, request.replies[0]

    # --- observed state

    async def last_intake_position(self) -> int:
        """Return the intake's last position."""
        state = await retry_read(self._nc, lambda: stream_state(self._nc, INTAKE))
        return state.last_seq

    async def store_listing_parts(self, subject: str, parts: Sequence[ListingPart]) -> None:
        """Store the parts of a listing in order in a pipeline, and raise the first failure."""
        now = datetime.now(UTC)
        messages: list[OutgoingMessage] = []
        for part in parts:
            identity = uuid.uuid4().hex
            payload = encode_listing_part(identity, self._source, part, time=now)
            messages.append(OutgoingMessage(subject, payload, {MESSAGE_ID: identity}))
        for result in await publish_many(self._nc, messages):
            if isinstance(result, Exception):
                raise result

    # --- outcomes

    def outcomes(
        self, tokens: Sequence[str], *, after: int | None
    ) -> AbstractAsyncContextManager[FollowedOutcomes]:
        """Follow outcomes after a position, or only new ones."""
        return self._follow_outcomes(tokens, after)

    @asynccontextmanager
    async def _follow_outcomes(
        self, tokens: Sequence[str], after: int | None
    ) -> AsyncGenerator[FollowedOutcomes]:
        """Follow as an unrestricted user, or as a service with its namespace's consumers.

        The first attempt determines which, because an unrestricted user does not need consumers.
        """
        async with AsyncExitStack() as stack:
            feed = None
            if not self._uses_service_consumers:
                try:
                    feed = await stack.enter_async_context(follow_outcomes(self._nc, tokens, after))
                except BusDeniedError:
                    if not can_use_service_consumers(tokens):
                        raise
                    self._uses_service_consumers = True
            if feed is None:
                feed = await stack.enter_async_context(
                    follow_service_outcomes(self._nc, tokens, after)
                )
            yield feed

    def durable_outcomes(
        self, tokens: str, *, after: int | None, durable: str
    ) -> AbstractAsyncContextManager[DurableOutcomes]:
        """Follow outcomes with a durable consumer."""
        return follow_durable(self._nc, tokens, after, durable)

    async def last_outcomes(self, keys: Sequence[ResourceKey]) -> Sequence[StoredEvent]:
        """Read the newest outcome of each resource."""
        subjects = [outcome_filter(key.tokens) for key in keys]
        read = last_by_subject if self._uses_service_consumers else last_for_subjects
        messages = await retry_read(self._nc, lambda: read(self._nc, LOG, subjects))
        newest: dict[ResourceKey, StoredEvent] = {}
        # There is one message for every type of outcome that a resource has had.
        for each in decode_readable(messages, LOG):
            if each.position >= newest.get(each.event.key, each).position:
                newest[each.event.key] = each
        return list(newest.values())

    async def silent_since(self, provider_config: str) -> datetime | None:
        """Return the time of the last response of a silent API; None if it responds.

        Raises:
            BusDeniedError: the user may not read this configuration's condition.
        """
        subject = silence(provider_config)
        messages = await retry_read(self._nc, lambda: last_by_subject(self._nc, LOG, [subject]))
        events = [each.event.data for each in decode_readable(messages, LOG)]
        return events[0].since if events and isinstance(events[0], ApiFellSilent) else None

    async def readable_silence(self, provider_config: str) -> datetime | None:
        """Return the same as `silent_since`, or None if the user may not read it."""
        if provider_config in self._unreadable_apis:
            return None
        try:
            return await self.silent_since(provider_config)
        except BusDeniedError:  # a service need not have this permission
            self._unreadable_apis.add(provider_config)  # not requested again
            return None

    # --- the log

    async def replay(
        self, tokens: str, *, after: int, follow: bool
    ) -> AsyncGenerator[Sequence[StoredEvent]]:
        """Read the log after a position, up to its end, or indefinitely if `follow` is set."""
        log_events = log_between(self._nc, f"log.{tokens}.>", after=after, keep_following=follow)
        async with aclosing(log_events) as batches:
            async for events in batches:
                yield events

    # --- read models

    async def row(self, name: str) -> bytes | None:
        """Read one row."""
        rows = await retry_read(self._nc, lambda: self._rows.get([name]))
        return rows.get(name)

    async def rows(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match a pattern."""
        return await retry_read(self._nc, lambda: self._rows.read_matching(pattern))


def _build_refusal(message: IntakeMessageOut, error: Exception) -> Reply:
    """Return a refusal for a message that the server did not store."""
    reason = "Denied" if isinstance(error, BusDeniedError) else "NotStored"
    return Reply(False, reason, 0, 0, str(error), str(message.key), message.message_id)


def _build_unconfirmed_error(count: int, seconds: float) -> WaitTimeoutError:
    noun = "message" if count == 1 else "messages"
    return WaitTimeoutError(
        f"the server did not confirm {count} {noun} within {seconds:g} s, and may or may not "
        "have stored them; check that the server's disk has room, then send them again, "
        "which is safe"
    )


async def _is_set(event: asyncio.Event) -> bool:
    """Wait for an event for up to `_CHECK_SECONDS`, and return whether it is set."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await event.wait()
    except TimeoutError:
        return False
    return True
