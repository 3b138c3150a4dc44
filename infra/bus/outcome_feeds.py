"""Outcomes from the stream OUTCOMES: followed by an ordered consumer, or by a durable one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from infra.bus.patience import patiently
from infra.bus.streams import OUTCOMES
from infra.jetstream.connection import api_request
from infra.jetstream.deliveries import Delivered, ack, nak, terminate
from infra.jetstream.errors import IncompatibleStreamError, NotFoundOnBusError
from infra.jetstream.follow import Follower, follow
from infra.jetstream.pull import PullReader
from infra.jetstream.reads import StoredMessage, stream_state
from infra.jetstream.topology import ensure_consumer
from reconciler.ports import StoredEvent

_REQUESTED_AT_ONCE: Final = 64
_LEASE: Final = 120 * 1_000_000_000
_logger = structlog.get_logger(__name__)


class FollowedOutcomes:
    """Implements ``reconciler.client.port.OutcomeFeed``; remembers nothing."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    async def next_outcomes(self) -> Sequence[StoredEvent]:
        """Wait for outcomes."""
        return readable(await anext(self._follower), OUTCOMES)

    async def done(self, position: int) -> None:
        """Do nothing: who follows knows the position."""


class DurableOutcomes:
    """Implements ``reconciler.client.port.OutcomeFeed`` over a consumer that remembers."""

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
        """Give back what is not done, to be handed out at once to the next reader."""
        await self._reader.close()
        if self._nc.is_connected:
            for each in self._open.values():
                await nak(self._nc, each)


@asynccontextmanager
async def followed(
    nc: Client, tokens: Sequence[str], after: int | None
) -> AsyncGenerator[FollowedOutcomes]:
    """Follow outcomes that match one of the patterns; ``after=None``: from now on."""
    first = await _first_wanted(nc, after)
    filters = [f"outcome.{each}" for each in tokens]
    async with AsyncExitStack() as stack:
        outcomes = follow(nc, OUTCOMES, filters=filters, start_seq=first)
        follower = await patiently(nc, lambda: stack.enter_async_context(outcomes))
        yield FollowedOutcomes(follower)


@asynccontextmanager
async def durable(
    nc: Client, tokens: str, after: int | None, name: str
) -> AsyncGenerator[DurableOutcomes]:
    """Follow outcomes with a durable consumer, made where there is none of that name.

    Raises ``IncompatibleStreamError`` for a name that is in use for other outcomes.
    """
    await patiently(nc, lambda: _ensure_durable(nc, f"outcome.{tokens}", after, name))
    feed = DurableOutcomes(nc, name)
    try:
        yield feed
    finally:
        await feed.close()


async def _ensure_durable(nc: Client, subject_filter: str, after: int | None, name: str) -> None:
    found = await _existing(nc, name)
    if found is None:
        config = {
            "durable_name": name,
            "filter_subject": subject_filter,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": await _first_wanted(nc, after),
            "ack_policy": "explicit",
            "ack_wait": _LEASE,
            "max_ack_pending": 1,  # in order, also what is handed out again
        }
        await ensure_consumer(nc, OUTCOMES, config)
        return
    if found.get("filter_subject") != subject_filter:
        raise IncompatibleStreamError(
            f"durable {name!r} exists and follows {found.get('filter_subject')}, not "
            f"{subject_filter}: use another name, or remove it with "
            f"`nats consumer rm {OUTCOMES} {name}`"
        )


async def _first_wanted(nc: Client, after: int | None) -> int:
    """Give the first position behind ``after``, or behind all that is there."""
    if after is not None:
        return after + 1
    state = await patiently(nc, lambda: stream_state(nc, OUTCOMES))
    return state.last_seq + 1


async def _existing(nc: Client, name: str) -> dict[str, Any] | None:
    try:
        return (await api_request(nc, f"CONSUMER.INFO.{OUTCOMES}.{name}", None))["config"]
    except NotFoundOnBusError:
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
