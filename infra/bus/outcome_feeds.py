"""Feeds of public states: outcomes in the log, and rejections outside of it (ADR 0054).

A feed merges both streams, with ordered or durable consumers. A rejection has the position of the
last outcome returned before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.names import ResourceKey
from events.subjects import outcome_filter, rejection_filter
from infra.bus.retries import retry_read
from infra.bus.streams import (
    LOG,
    REJECTIONS,
    durable_outcomes,
    follower_names,
    service_consumers,
)
from infra.jetstream.connection import api_request
from infra.jetstream.deliveries import Delivered, ack, nak, terminate
from infra.jetstream.errors import (
    BusDeniedError,
    BusRefusedError,
    IncompatibleStreamError,
    NotFoundOnBusError,
)
from infra.jetstream.follow import Follower, follow, follow_with_consumers
from infra.jetstream.pull import PullReader
from infra.jetstream.reads import StoredMessage, read_subject, stream_state
from infra.jetstream.topology import ensure_consumer
from reconciler.errors import PositionNotFoundError
from reconciler.ports import StoredEvent

_STREAMS: Final = (LOG, REJECTIONS)
_BATCH_MESSAGES: Final = 64
_OVERLAP_NS: Final = 300 * 1_000_000_000
"""Period before a resumed position whose rejections are returned again, in ns.

A lagging client may have received an outcome before a rejection that was stored earlier.
"""

_logger = structlog.get_logger(__name__)

_Read = TypeVar("_Read")


class _MergedReads(Generic[_Read]):
    """Merges the results of two readers, one for the log and one for the rejections."""

    def __init__(self, *readers: Callable[[], Awaitable[_Read]]) -> None:
        self._readers = dict(zip(_STREAMS, readers, strict=True))
        self._pending: dict[str, asyncio.Future[_Read]] = {}

    async def next(self) -> tuple[str, _Read]:
        """Wait for a result, and return it with its stream. The log takes precedence."""
        for stream, read in self._readers.items():
            if stream not in self._pending:
                self._pending[stream] = asyncio.ensure_future(read())
        await asyncio.wait(self._pending.values(), return_when=asyncio.FIRST_COMPLETED)
        stream = next(stream for stream in _STREAMS if self._pending[stream].done())
        return stream, self._pending.pop(stream).result()

    def has_result(self, stream: str) -> bool:
        """Return whether a reader has a result that has not been returned yet."""
        return stream in self._pending and self._pending[stream].done()

    async def close(self) -> list[_Read]:
        """Cancel the readers, and return the results that have not been returned yet."""
        for each in self._pending.values():
            each.cancel()
        results = await asyncio.gather(*self._pending.values(), return_exceptions=True)
        return [each for each in results if not isinstance(each, BaseException)]


class FollowedOutcomes:
    """Outcomes in order, interleaved with rejections. The position is not stored.

    Messages stored before the start are ordered by time. ``kept``: the rejections among them.
    """

    def __init__(
        self,
        outcomes: Follower,
        rejections: Follower,
        tokens: Sequence[str],
        kept: Sequence[StoredMessage] = (),
    ) -> None:
        self._tokens = tokens
        self._outcomes = outcomes
        self._position = outcomes.position
        self._kept = deque(kept)
        self._merged = _MergedReads(outcomes.__anext__, rejections.__anext__)

    async def next_outcomes(self) -> Sequence[StoredEvent]:
        """Wait for outcomes."""
        if self._kept and self._is_caught_up:
            return self._to_rejections(self._kept_until(None))
        stream, messages = await self._merged.next()
        if stream == REJECTIONS and not self._is_caught_up:
            self._kept += messages
            return []
        if stream == REJECTIONS:
            return self._to_rejections(messages)
        outcomes: list[StoredEvent] = []
        for message in messages:
            outcomes += self._to_rejections(self._kept_until(message.time_ns))
            self._position = message.seq
            outcomes += self._filter(decode_readable([message], LOG))
        return outcomes

    def _filter(self, events: Iterable[StoredEvent]) -> list[StoredEvent]:
        return [each for each in events if _matches(each.event.key, self._tokens)]

    @property
    def _is_caught_up(self) -> bool:
        """Whether all outcomes that existed at the start have been returned."""
        return self._outcomes.caught_up.is_set() and not self._merged.has_result(LOG)

    def _kept_until(self, time_ns: int | None) -> list[StoredMessage]:
        """Remove and return the kept rejections up to a time, or all of them."""
        rejections: list[StoredMessage] = []
        while self._kept and (time_ns is None or self._kept[0].time_ns <= time_ns):
            rejections.append(self._kept.popleft())
        return rejections

    def _to_rejections(self, messages: Sequence[StoredMessage]) -> list[StoredEvent]:
        if not messages:
            return []
        rejected = self._filter(decode_readable(messages, REJECTIONS))
        return [StoredEvent(self._position, event) for _, event in rejected]

    async def acknowledge(self, outcome: StoredEvent) -> None:
        """Do nothing, because no position is stored."""

    async def close(self) -> None:
        """Stop following."""
        await self._merged.close()


class DurableOutcomes:
    """Outcomes from durable consumers, which store their progress."""

    def __init__(self, nc: Client, consumer: str, tokens: str, position: int) -> None:
        self._nc = nc
        self._tokens = tokens
        self._readers = [
            PullReader(nc, stream, consumer, max_batch=_BATCH_MESSAGES) for stream in _STREAMS
        ]
        self._merged = _MergedReads(*(each.next_batch for each in self._readers))
        self._position = position
        self._unacknowledged: dict[str, Delivered] = {}

    async def next_outcomes(self) -> Sequence[StoredEvent]:
        """Wait for outcomes. Each is delivered again until `acknowledge` is called."""
        stream, batch = await self._merged.next()
        outcomes: list[StoredEvent] = []
        for delivered in batch:
            try:
                event = decode_log(delivered.payload)
            except InvalidMessageError as error:
                _log_unreadable(stream, delivered.seq, error)
                await terminate(self._nc, delivered, "not an outcome")
                continue
            if stream == LOG:
                self._position = delivered.seq
            if not _matches(event.key, [self._tokens]):
                await ack(self._nc, [delivered])
                continue
            outcomes.append(StoredEvent(self._position, event))
            self._unacknowledged[event.id] = delivered
        return outcomes

    async def acknowledge(self, outcome: StoredEvent) -> None:
        """Acknowledge an outcome."""
        delivered = self._unacknowledged.pop(outcome.event.id, None)
        if delivered is not None:
            await ack(self._nc, [delivered])

    async def close(self) -> None:
        """Stop pulling, and return unprocessed outcomes for immediate redelivery."""
        unprocessed = [each for batch in await self._merged.close() for each in batch]
        for each in self._readers:
            await each.close()
        if self._nc.is_connected:
            for each in [*self._unacknowledged.values(), *unprocessed]:
                await nak(self._nc, each)


OutcomeFeed = FollowedOutcomes | DurableOutcomes


@asynccontextmanager
async def follow_outcomes(
    nc: Client, tokens: Sequence[str], after: int | None
) -> AsyncGenerator[FollowedOutcomes]:
    """Follow outcomes that match one of the patterns; only new ones if ``after`` is None.

    Raises:
        PositionNotFoundError: the position is after the end of the log.
    """
    end = await _read_last_position(nc, LOG)
    if after is not None and after > end:
        raise PositionNotFoundError(
            f"position {after}: after the end of the log at position {end}; use a position "
            "from this log, not from another one"
        )
    outcomes = follow(
        nc,
        LOG,
        filters=[outcome_filter(each) for each in tokens],
        start_seq=(end if after is None else after) + 1,
    )
    rejections = follow(
        nc,
        REJECTIONS,
        filters=[rejection_filter(each) for each in tokens],
        start_seq=await _read_last_position(nc, REJECTIONS) + 1 if after is None else 1,
    )
    since_ns = await _read_storage_time(nc, after) - _OVERLAP_NS if after else 0
    async with _open_feed(nc, outcomes, rejections, tokens, since_ns=since_ns) as feed:
        yield feed


def _matches(key: ResourceKey, patterns: Sequence[str]) -> bool:
    """Return whether a resource matches one of the ``namespace.kind.name`` patterns."""
    tokens = key.tokens.split(".")
    return any(
        all(wanted in ("*", token) for wanted, token in zip(each.split("."), tokens, strict=True))
        for each in patterns
    )


def can_use_service_consumers(tokens: Sequence[str]) -> bool:
    """Return whether all patterns are in one namespace, so that its consumers can be used."""
    namespaces = {each.split(".")[0] for each in tokens}
    return len(namespaces) == 1 and "*" not in namespaces


@asynccontextmanager
async def follow_service_outcomes(
    nc: Client, tokens: Sequence[str], after: int | None
) -> AsyncGenerator[FollowedOutcomes]:
    """Follow outcomes with one of the existing consumers of the patterns' namespace.

    The consumers deliver all outcomes in the namespace, and the feed filters them.

    Raises:
        BusDeniedError: the user may not use the consumers.
        NotFoundOnBusError: the consumers do not exist.
        BusRefusedError: all consumers are in use.
    """
    namespace = tokens[0].split(".")[0]
    namespace_tokens = f"{namespace}.*.*"
    names = follower_names(namespace)
    outcomes = follow_with_consumers(
        nc,
        LOG,
        names=names,
        subject_filter=outcome_filter(namespace_tokens),
        start_seq=None if after is None else after + 1,
    )
    rejections = follow_with_consumers(
        nc,
        REJECTIONS,
        names=names,
        subject_filter=rejection_filter(namespace_tokens),
        # A service may not read the storage time of a position, so it receives all rejections.
        start_seq=None if after is None else 1,
    )
    async with AsyncExitStack() as stack:
        try:
            feed = await stack.enter_async_context(
                _open_feed(nc, outcomes, rejections, tokens, since_ns=0)
            )
        except NotFoundOnBusError as error:
            raise _build_missing_consumers_error(error, namespace) from error
        except BusRefusedError as error:
            raise BusRefusedError(
                f"all {len(names)} consumers of namespace {namespace} are in use ({error}); "
                "share one stream of outcomes, or wait for several resources in one call"
            ) from error
        yield feed


@asynccontextmanager
async def _open_feed(
    nc: Client, outcomes: Follower, rejections: Follower, tokens: Sequence[str], *, since_ns: int
) -> AsyncGenerator[FollowedOutcomes]:
    async with AsyncExitStack() as stack:
        await retry_read(nc, lambda: stack.enter_async_context(outcomes))
        await retry_read(nc, lambda: stack.enter_async_context(rejections))
        kept: list[StoredMessage] = []
        async for messages in rejections.replay():
            kept += [each for each in messages if each.time_ns >= since_ns]
        feed = FollowedOutcomes(outcomes, rejections, tokens, kept)
        stack.push_async_callback(feed.close)
        yield feed


@asynccontextmanager
async def follow_durable(
    nc: Client, tokens: str, after: int | None, name: str
) -> AsyncGenerator[DurableOutcomes]:
    """Follow outcomes with durable consumers, which are created if missing.

    Raises:
        IncompatibleStreamError: the name is already used for different outcomes.
    """
    # A new consumer receives all stored rejections, or none.
    for stream, subject_filter, first_seq in (
        (LOG, outcome_filter(tokens), None if after is None else after + 1),
        (REJECTIONS, rejection_filter(tokens), None if after is None else 1),
    ):
        config = durable_outcomes(name, subject_filter)
        await retry_read(nc, partial(_ensure_durable, nc, stream, config, first_seq))
    info = await retry_read(nc, lambda: api_request(nc, f"CONSUMER.INFO.{LOG}.{name}", None))
    feed = DurableOutcomes(nc, name, tokens, int(info["ack_floor"].get("stream_seq", 0)))
    try:
        yield feed
    finally:
        await feed.close()


def _build_missing_consumers_error(error: NotFoundOnBusError, namespace: str) -> NotFoundOnBusError:
    return NotFoundOnBusError(
        f"namespace {namespace}: no consumers for services ({error}); run "
        f"`reconciler init --namespace {namespace}`"
    )


async def _ensure_durable(
    nc: Client, stream: str, config: Mapping[str, Any], first_seq: int | None
) -> None:
    """Create a durable consumer that starts at ``first_seq``, or use the existing one.

    A service may not create one: `init` has created one for all outcomes in its namespace.
    """
    name, subject_filter = str(config["durable_name"]), str(config["filter_subject"])
    namespace = subject_filter.split(".")[1]
    namespace_filters = [
        each["filter_subject"]
        for other_stream, each in service_consumers(name)
        if (other_stream, each["durable_name"]) == (stream, name)
    ]
    info = await _read_consumer(nc, stream, name)
    if info is None:
        start = {"deliver_policy": "new"}
        if first_seq is not None:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": first_seq}
        try:
            await ensure_consumer(nc, stream, {**config, **start})
        except BusDeniedError as error:
            raise _add_hint(error, namespace, name) from None
        return
    existing_filter = info["config"].get("filter_subject")
    if existing_filter != subject_filter and (
        name != namespace or existing_filter not in namespace_filters
    ):
        raise IncompatibleStreamError(
            f"durable {name!r} already exists and follows {existing_filter}, not "
            f"{subject_filter}; use another name, or remove it with `nats consumer rm {stream} "
            f"{name}`"
        )
    is_unused = not info["delivered"].get("consumer_seq") and not info["num_waiting"]
    if first_seq is not None and is_unused and info["config"].get("deliver_policy") == "all":
        await api_request(nc, f"CONSUMER.RESET.{stream}.{name}", {"seq": first_seq})


def _add_hint(error: BusDeniedError, namespace: str, name: str) -> BusDeniedError:
    hint = (
        f"run `reconciler init --namespace {namespace}`"
        if name == namespace
        else "a service's durable stream must be named after its namespace, as in "
        f"outcomes({namespace!r}, durable={namespace!r})"
    )
    return BusDeniedError(f"{error}; {hint}", subject=error.subject)


async def _read_last_position(nc: Client, stream: str) -> int:
    return (await retry_read(nc, lambda: stream_state(nc, stream))).last_seq


async def _read_storage_time(nc: Client, position: int) -> int:
    """Return the storage time of the first event at or after a position, or 0."""
    messages = await retry_read(nc, lambda: read_subject(nc, LOG, ">", start_seq=position, limit=1))
    return messages[0].time_ns if messages else 0


async def _read_consumer(nc: Client, stream: str, name: str) -> dict[str, Any] | None:
    try:
        return await api_request(nc, f"CONSUMER.INFO.{stream}.{name}", None)
    # Creating the consumer then reports a denial with a hint.
    except (NotFoundOnBusError, BusDeniedError):
        return None


def decode_readable(messages: Iterable[StoredMessage], stream: str) -> list[StoredEvent]:
    """Decode the events in messages. Unreadable ones are logged and skipped."""
    events: list[StoredEvent] = []
    for message in messages:
        try:
            events.append(StoredEvent(message.seq, decode_log(message.payload)))
        except InvalidMessageError as error:
            _log_unreadable(stream, message.seq, error)
    return events


def _log_unreadable(stream: str, position: int, error: InvalidMessageError) -> None:
    _logger.error("failed to read an event", stream=stream, position=position, error=str(error))
