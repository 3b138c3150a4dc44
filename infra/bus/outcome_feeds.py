"""Outcomes from the stream OUTCOMES: followed by an ordered consumer, or by a durable one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.subjects import outcome_filter
from infra.bus.retries import patiently
from infra.bus.streams import OUTCOMES, follower_names
from infra.jetstream.connection import api_request
from infra.jetstream.deliveries import Delivered, ack, nak, terminate
from infra.jetstream.errors import (
    BusDeniedError,
    BusRefusedError,
    IncompatibleStreamError,
    NotFoundOnBusError,
)
from infra.jetstream.follow import Follower, follow, follow_as
from infra.jetstream.pull import PullReader
from infra.jetstream.reads import StoredMessage, stream_state
from infra.jetstream.topology import ensure_consumer
from reconciler.ports import StoredEvent

_REQUESTED_AT_ONCE: Final = 64
_LEASE: Final = 120 * 1_000_000_000
_logger = structlog.get_logger(__name__)


class FollowedOutcomes:
    """Outcomes in order, as they come; remembers nothing."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    async def next_outcomes(self) -> Sequence[StoredEvent]:
        """Wait for outcomes."""
        return readable(await anext(self._follower), OUTCOMES)

    async def done(self, position: int) -> None:
        """Do nothing: who follows knows the position."""


class DurableOutcomes:
    """Outcomes over a consumer that remembers what was dealt with."""

    def __init__(self, nc: Client, consumer: str) -> None:
        self._nc = nc
        self._reader = PullReader(nc, OUTCOMES, consumer, max_batch=_REQUESTED_AT_ONCE)
        self._open: dict[int, Delivered] = {}

    async def next_outcomes(self) -> Sequence[StoredEvent]:
        """Wait for outcomes; each is handed out again until it is done."""
        found: list[StoredEvent] = []
        for each in await self._reader.next_batch():
            try:
                found.append(StoredEvent(each.seq, decode_log(each.payload)))
            except InvalidMessageError as error:
                _tell_unreadable(OUTCOMES, each.seq, error)
                await terminate(self._nc, each, "not an outcome")
                continue
            self._open[each.seq] = each
        return found

    async def done(self, position: int) -> None:
        """Have the server remember it."""
        delivered = self._open.pop(position, None)
        if delivered is not None:
            await ack(self._nc, [delivered])

    async def close(self) -> None:
        """Return back what is not done, to be handed out at once to the next reader."""
        await self._reader.close()
        if self._nc.is_connected:
            for each in self._open.values():
                await nak(self._nc, each)


OutcomeFeed = FollowedOutcomes | DurableOutcomes


@asynccontextmanager
async def followed(
    nc: Client, tokens: Sequence[str], after: int | None
) -> AsyncGenerator[FollowedOutcomes]:
    """Follow outcomes that match one of the patterns; ``after=None``: from now on."""
    first = await _first_wanted(nc, after)
    filters = [outcome_filter(each) for each in tokens]
    async with AsyncExitStack() as stack:
        outcomes = follow(nc, OUTCOMES, filters=filters, start_seq=first)
        follower = await patiently(nc, lambda: stack.enter_async_context(outcomes))
        yield FollowedOutcomes(follower)


def can_be_bound(tokens: Sequence[str]) -> bool:
    """Whether the patterns are of one namespace: only then has it consumers of its own."""
    namespaces = {each.split(".")[0] for each in tokens}
    return len(namespaces) == 1 and "*" not in namespaces


@asynccontextmanager
async def followed_bound(
    nc: Client, tokens: Sequence[str], after: int | None
) -> AsyncGenerator[FollowedOutcomes]:
    """Follow outcomes with one of the consumers of the patterns' namespace.

    Several patterns are followed as the whole namespace: a permission binds one filter. Raises
    ``BusDeniedError``, and ``BusRefusedError`` when all the consumers are in use.
    """
    namespace = tokens[0].split(".")[0]
    mine = outcome_filter(tokens[0]) if len(tokens) == 1 else f"outcome.{namespace}.>"
    outcomes = follow_as(
        nc,
        OUTCOMES,
        names=follower_names(namespace),
        subject_filter=mine,
        start_seq=None if after is None else after + 1,
    )
    async with AsyncExitStack() as stack:
        try:
            follower = await patiently(nc, lambda: stack.enter_async_context(outcomes))
        except BusRefusedError as error:
            raise BusRefusedError(
                f"all {len(follower_names(namespace))} consumers of namespace {namespace} are in "
                f"use ({error}): share one stream of outcomes, or wait for many resources at once"
            ) from error
        yield FollowedOutcomes(follower)


@asynccontextmanager
async def durable(
    nc: Client, tokens: str, after: int | None, name: str
) -> AsyncGenerator[DurableOutcomes]:
    """Follow outcomes with a durable consumer, made where there is none of that name.

    Raises ``IncompatibleStreamError`` for a name that is in use for other outcomes.
    """
    await patiently(nc, lambda: _ensure_durable(nc, outcome_filter(tokens), after, name))
    feed = DurableOutcomes(nc, name)
    try:
        yield feed
    finally:
        await feed.close()


async def _ensure_durable(nc: Client, subject_filter: str, after: int | None, name: str) -> None:
    found = await _existing(nc, name)
    if found is None:
        start = {"deliver_policy": "new"}
        if after is not None:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
        config = {
            **start,
            "durable_name": name,
            "filter_subject": subject_filter,
            "ack_policy": "explicit",
            "ack_wait": _LEASE,
            "max_ack_pending": 1,  # in order, also what is handed out again
        }
        try:
            await ensure_consumer(nc, OUTCOMES, config)
        except BusDeniedError as error:
            raise _hinted(error, subject_filter.split(".")[1]) from None
        return
    if found.get("filter_subject") != subject_filter:
        raise IncompatibleStreamError(
            f"durable {name!r} exists and follows {found.get('filter_subject')}, not "
            f"{subject_filter}: use another name, or remove it with "
            f"`nats consumer rm {OUTCOMES} {name}`"
        )


def _hinted(error: BusDeniedError, namespace: str) -> BusDeniedError:
    return BusDeniedError(
        f"{error}; a service's durable stream is named as its namespace, and follows only that: "
        f"outcomes({namespace!r}, durable={namespace!r})",
        subject=error.subject,
    )


async def _first_wanted(nc: Client, after: int | None) -> int:
    """Return the first position behind ``after``, or behind all that is there."""
    if after is not None:
        return after + 1
    state = await patiently(nc, lambda: stream_state(nc, OUTCOMES))
    return state.last_seq + 1


async def _existing(nc: Client, name: str) -> dict[str, Any] | None:
    try:
        return (await api_request(nc, f"CONSUMER.INFO.{OUTCOMES}.{name}", None))["config"]
    except (NotFoundOnBusError, BusDeniedError):  # denied: told with a hint when it is made
        return None


def readable(messages: Iterable[StoredMessage], stream: str) -> list[StoredEvent]:
    """Decode what can be decoded; the rest is told, since a reader must go on."""
    events: list[StoredEvent] = []
    for message in messages:
        try:
            events.append(StoredEvent(message.seq, decode_log(message.payload)))
        except InvalidMessageError as error:
            _tell_unreadable(stream, message.seq, error)
    return events


def _tell_unreadable(stream: str, position: int, error: InvalidMessageError) -> None:
    _logger.error("an event cannot be read", stream=stream, position=position, error=str(error))
