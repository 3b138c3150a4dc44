"""The operations of a service's client on the bus."""

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
from events.names import ResourceKey
from events.subjects import REPLY_HEADER, outcome_filter, parse_intake
from events.subjects import intake as intake_subject
from infra.bus.answers import AnswerBox, Round
from infra.bus.dead_letters import read_discarded, read_letters, store_handled
from infra.bus.log_moments import log_between
from infra.bus.outcome_feeds import (
    DurableOutcomes,
    FollowedOutcomes,
    can_be_bound,
    followed,
    followed_bound,
    readable,
)
from infra.bus.outcome_feeds import durable as open_durable
from infra.bus.retries import patiently
from infra.bus.rows import JetStreamRows
from infra.bus.streams import INTAKE, LOG
from infra.bus.user import user_of_connection
from infra.jetstream.errors import BusDeniedError, BusUnavailableError
from infra.jetstream.outgoing import MESSAGE_ID, OutgoingMessage
from infra.jetstream.publish import publish, publish_many, store_all
from infra.jetstream.reads import last_for_subjects, last_of_each, stream_state
from reconciler.errors import WaitTimeoutError
from reconciler.ports import IntakeMessageOut, StoredEvent

_RETRY_SECONDS: Final = 0.2
_CHECK_SECONDS: Final = 0.5  # interval of checks whether the connection was lost
_logger = structlog.get_logger(__name__)

OnRetry = Callable[[int], object]
"""Called with the number of unconfirmed messages, before each retry."""


class RetryLog:
    """Logs retries, at most one per second, because each message may be retried separately."""

    def __init__(self) -> None:
        self._not_before = 0.0

    def __call__(self, count: int) -> None:
        """Log the number of unconfirmed messages, unless a retry was logged in the last second."""
        now = time.monotonic()
        if now >= self._not_before:
            self._not_before = now + 1.0
            _logger.warning("the server did not confirm messages; retrying", count=count)


log_retry: OnRetry = RetryLog()


class JetStreamClientBus:
    """Operations of a client. ``source`` names the publisher.

    Every method may raise `BusError` classes. Methods retry internally while a result is unknown.
    """

    def __init__(self, nc: Client, source: str, on_retry: OnRetry = log_retry) -> None:
        self._nc = nc
        self._source = source
        self._on_retry = on_retry
        self._answers = AnswerBox(nc)
        self._rows = JetStreamRows(nc)
        self._uses_service_consumers = False
        self._user = ""

    async def open(self) -> None:
        """Subscribe to replies, and determine the user for published messages."""
        self._user = await user_of_connection(self._nc)
        await self._answers.open(self._user)

    async def close(self) -> None:
        """End the subscription to replies."""
        await self._answers.close()

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
            raise _unconfirmed(len(messages), timeout_seconds) from None

    async def ask(
        self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float
    ) -> Sequence[Reply | None]:
        """Store messages, and return their replies, with None for those not received in time.

        A message that the server refused has a refusal, unless it refused all of them.

        Raises:
            WaitTimeoutError: the server did not confirm all messages in time.
        """
        stored = asyncio.Event()
        with self._answers.round(len(messages)) as questions:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._ask(messages, questions, stored)
            except TimeoutError:
                if not stored.is_set():
                    raise _unconfirmed(len(messages), timeout_seconds) from None
                _logger.info("replies are missing", count=len(questions.unanswered))
            return questions.answers

    async def _ask(
        self, messages: Sequence[IntakeMessageOut], questions: Round, stored: asyncio.Event
    ) -> None:
        """Store messages, and store those without a reply again after a lost connection.

        A lost connection loses replies. The decider detects a repeat by its id, and replies
        `Duplicate`.
        """
        while not questions.complete.is_set():
            reconnects = self._nc.stats["reconnects"]
            indexes = questions.unanswered
            failures = await self._store(
                [
                    self._outgoing(messages[index], {REPLY_HEADER: questions.reply_to(index)})
                    for index in indexes
                ]
            )
            for number, error in failures.items():
                if len(failures) == len(messages):
                    raise error
                # The others are stored, so the caller needs their replies.
                questions.take(indexes[number], _refusal(messages[indexes[number]], error))
            stored.set()
            while self._nc.stats["reconnects"] == reconnects:
                if await _is_set(questions.complete):
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
        self, *, most: int | None = None
    ) -> tuple[Mapping[int, DeadLetterRecord], Sequence[DeadLetterHandled]]:
        """Read the dead letters, and the records of their handling."""
        stored = await patiently(self._nc, lambda: read_letters(self._nc, most=most))
        return stored.letters, stored.handled

    async def discarded(self) -> Sequence[Discarded]:
        """Read the counts of messages that got no dead letter."""
        return await patiently(self._nc, lambda: read_discarded(self._nc))

    async def letter_handled(self, handled: DeadLetterHandled) -> None:
        """Record the handling of a dead letter."""
        await store_handled(self._nc, handled)

    async def publish_again(
        self, subject: str, payload: bytes, message_id: str, *, answer_seconds: float
    ) -> tuple[int, Reply | None]:
        """Store an intake message with its payload unchanged, under a new id.

        The publisher is this client's user, regardless of the original one.
        """
        what, key = parse_intake(subject)
        own_subject = intake_subject(what, key, self._user)
        with self._answers.round(1) as question:
            headers = {MESSAGE_ID: message_id, REPLY_HEADER: question.reply_to(0)}
            stored = await publish(self._nc, own_subject, payload, headers=headers)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(answer_seconds):
                    await question.complete.wait()
            return stored.seq, question.answers[0]

    # --- observed state

    async def last_intake_position(self) -> int:
        """Return the intake's last position."""
        state = await patiently(self._nc, lambda: stream_state(self._nc, INTAKE))
        return state.last_seq

    async def store_listing_parts(self, subject: str, parts: Sequence[ListingPart]) -> None:
        """Store the parts of a listing, pipelined in this order, and raise the first failure."""
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
        return self._followed(tokens, after)

    @asynccontextmanager
    async def _followed(
        self, tokens: Sequence[str], after: int | None
    ) -> AsyncGenerator[FollowedOutcomes]:
        """Follow as an unrestricted user, or as a service with the consumers of its namespace.

        The first attempt determines the permissions, because an unrestricted user needs no
        consumers.
        """
        async with AsyncExitStack() as stack:
            feed = None
            if not self._uses_service_consumers:
                try:
                    feed = await stack.enter_async_context(followed(self._nc, tokens, after))
                except BusDeniedError:
                    if not can_be_bound(tokens):
                        raise
                    self._uses_service_consumers = True
            if feed is None:
                feed = await stack.enter_async_context(followed_bound(self._nc, tokens, after))
            yield feed

    def durable_outcomes(
        self, tokens: str, *, after: int | None, durable: str
    ) -> AbstractAsyncContextManager[DurableOutcomes]:
        """Follow outcomes with a durable consumer."""
        return open_durable(self._nc, tokens, after, durable)

    async def last_outcomes(self, keys: Sequence[ResourceKey]) -> Sequence[StoredEvent]:
        """Read the newest outcome of each resource."""
        subjects = [outcome_filter(key.tokens) for key in keys]
        read = last_of_each if self._uses_service_consumers else last_for_subjects
        messages = await patiently(self._nc, lambda: read(self._nc, LOG, subjects))
        newest: dict[ResourceKey, StoredEvent] = {}
        # One message for every type of outcome that a resource has had.
        for each in readable(messages, LOG):
            if each.position >= newest.get(each.event.key, each).position:
                newest[each.event.key] = each
        return list(newest.values())

    # --- the log

    async def replay(
        self, tokens: str, *, after: int, follow: bool
    ) -> AsyncGenerator[Sequence[StoredEvent]]:
        """Read the log after a position, up to its end, or without an end if `follow` is set."""
        reading = log_between(self._nc, f"log.{tokens}.>", after=after, follows=follow)
        async with aclosing(reading) as batches:
            async for events in batches:
                yield events

    # --- read models

    async def row(self, name: str) -> bytes | None:
        """Read one row."""
        rows = await patiently(self._nc, lambda: self._rows.get([name]))
        return rows.get(name)

    async def rows(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match a pattern."""
        return await patiently(self._nc, lambda: self._rows.matching(pattern))


def _refusal(message: IntakeMessageOut, error: Exception) -> Reply:
    """Return the refusal of a message that the server did not store."""
    reason = "Denied" if isinstance(error, BusDeniedError) else "NotStored"
    return Reply(False, reason, 0, 0, str(error), str(message.key), message.message_id)


def _unconfirmed(count: int, seconds: float) -> WaitTimeoutError:
    noun = "message" if count == 1 else "messages"
    return WaitTimeoutError(
        f"the server did not confirm {count} {noun} within {seconds:g} s, and may or may not "
        "have stored them; check that the disk of the server has room, then send them again, "
        "which is safe"
    )


async def _is_set(event: asyncio.Event) -> bool:
    """Wait for an event for `_CHECK_SECONDS`, and return whether it is set."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await event.wait()
    except TimeoutError:
        return False
    return True
