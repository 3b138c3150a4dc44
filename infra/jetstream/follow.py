"""Follow a stream from any sequence: every message once, in order, indefinitely.

It uses a push consumer with flow control: 57,000 to 66,000 messages/s, compared with 51,000 to
59,000 for a pull consumer and 38,000 to 45,000 for nats-py's ordered consumer with a callback (same
run, two busy cores).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from infra.jetstream.connection import api_request, is_clustered
from infra.jetstream.errors import (
    BusError,
    BusRefusedError,
    BusUnavailableError,
    NotFoundOnBusError,
    StreamReplacedError,
)
from infra.jetstream.parser import Incoming
from infra.jetstream.reads import StoredMessage, last_by_subject, last_from_leader, stream_state
from infra.jetstream.wire import (
    on_connection_change,
    send,
    split_reply,
    status_of,
    subscribe,
    unsubscribe,
)

HEARTBEAT_SECONDS: Final = 2.0
_SILENT_AFTER_SECONDS: Final = 2.5 * HEARTBEAT_SECONDS
# Without a leader there is no response, but the next attempt may get one.
_CREATE_SECONDS: Final = 3.0
_CHECK_SECONDS: Final = 1.0  # interval between checks of a silent connection
_RETRY_SECONDS: Final = 0.25
_INACTIVE_SECONDS: Final = 10  # until the server deletes the consumer of a follower that ended
_PULL_MESSAGES: Final = 500  # number of messages that a pulling follower requests
_PULL_SECONDS: Final = 20.0
_HEARTBEAT: Final = "100"
_SECOND: Final = 1_000_000_000
_ALL_SUBJECTS: Final = (">",)
_log = logging.getLogger(__name__)


def follow(
    nc: Client, stream: str, *, filters: Sequence[str] = _ALL_SUBJECTS, start_seq: int = 1
) -> "Follower":
    """Return a follower of a stream: `async with` it, then `async for batch in` it.

    Args:
        filters: subject filters that do not overlap.
        start_seq: first stream sequence to return.
    """
    return Follower(nc, stream, filters=filters, start_seq=start_seq)


def follow_with_consumers(
    nc: Client,
    stream: str,
    *,
    names: Sequence[str],
    subject_filter: str,
    start_seq: int | None = None,
) -> "Follower":
    """Return a follower for a user that may use only the existing consumers in `names`.

    It resets a consumer that no other client uses, and pulls from it. Such a user may not create a
    consumer, because the creator chooses the delivery subject (ADR 0064). If all are in use, `async
    with` raises `BusRefusedError`.

    Args:
        subject_filter: the consumers' filter.
        start_seq: first stream sequence to return; None for new messages only.
    """
    return Follower(nc, stream, filters=[subject_filter], start_seq=start_seq, names=names)


class Follower:
    """Batches of a stream's messages that match the filters, in order and without gaps.

    After a lost connection, missing heartbeats or a server restart, it creates a new ordered
    consumer that starts after the last message returned. Flow control bounds memory: the server
    pauses until the caller has fetched the waiting batches.

    Attributes:
        caught_up: set once all messages that were in the stream at the start have been returned. It
            is set with the last such batch, so read it after processing each batch.
    """

    def __init__(
        self,
        nc: Client,
        stream: str,
        *,
        filters: Sequence[str] = _ALL_SUBJECTS,
        start_seq: int | None = 1,
        names: Sequence[str] = (),
    ) -> None:
        self.caught_up = asyncio.Event()
        self._nc = nc
        self._stream = stream
        self._filters = list(filters)
        self._names = names
        self._position = None if start_seq is None else max(0, start_seq - 1)
        self._target: int | None = None
        self._created = ""
        self._feed = self._new_feed()

    @property
    def position(self) -> int:
        """The last stream sequence covered: all matching messages up to it have been returned."""
        return self._position or 0

    async def __aenter__(self) -> Self:
        """Start following.

        Raises:
            NotFoundOnBusError: the stream does not exist.
            BusUnavailableError: no response.
        """
        if not self._names:
            state = await stream_state(self._nc, self._stream)
            self._target, self._created = state.last_seq, state.created
        await self._restart()
        if await self._is_caught_up():
            self._mark_caught_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._feed.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[StoredMessage]:
        """Return the next messages: at least one, or an empty list once it has caught up.

        Raises:
            StreamReplacedError: the stream was deleted, and possibly recreated.
            BusUnavailableError: the connection was closed.
        """
        while True:
            batch = await self._feed.take()
            if batch and batch[0].seq <= self.position:  # repeated by a lagging replica
                batch = [message for message in batch if message.seq > self.position]
            if batch:
                self._position = batch[-1].seq
                if not self.caught_up.is_set() and await self._is_caught_up():
                    self._mark_caught_up()
                return batch
            if self._feed.is_broken:
                await self._repair()
            if not self.caught_up.is_set() and await self._is_caught_up():
                self._mark_caught_up()
                return []
            await self._feed.wait()

    async def replay(self) -> AsyncIterator[list[StoredMessage]]:
        """Yield batches until the follower has caught up."""
        while not self.caught_up.is_set():
            yield await anext(self)

    async def _is_caught_up(self) -> bool:
        """Return whether all messages that were in the stream at the start have been returned.

        In a cluster, only the leader has this information: the replica that feeds this follower may
        lag and report that nothing is pending. A user who may not read from the leader relies on
        the replica.
        """
        if self._target is not None and self.position >= self._target:
            return True
        if not self._feed.is_exhausted:
            return False
        if self._names or not is_clustered(self._nc):
            return True
        try:
            last = [
                await last_from_leader(self._nc, self._stream, subject_filter)
                for subject_filter in self._filters
            ]
        except BusUnavailableError:
            return False  # the next call retries
        return (
            max((message.seq for message in last if message is not None), default=0)
            <= self.position
        )

    def _mark_caught_up(self) -> None:
        self._position = max(self.position, self._target or 0)
        self.caught_up.set()

    async def _repair(self) -> None:
        while True:
            _log.info("following %s again, from position %d", self._stream, self.position)
            try:
                await self._check_identity()
                await self._restart()
            except StreamReplacedError:
                raise
            except BusError as error:
                _log.info("following %s: %s", self._stream, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _check_identity(self) -> None:
        """Check that the stream was not replaced, if the user may read its state.

        Raises:
            StreamReplacedError: the stream was deleted, and possibly recreated.
        """
        if self._names:
            return
        try:
            created = (await stream_state(self._nc, self._stream)).created
        except NotFoundOnBusError as error:
            raise StreamReplacedError(
                f"stream {self._stream} was deleted while this process read it"
            ) from error
        if created != self._created:
            raise StreamReplacedError(
                f"stream {self._stream} was deleted and recreated while this process read it "
                f"(created {created}, previously {self._created}), so positions in the old stream "
                "are invalid"
            )

    async def _restart(self) -> None:
        """Replace the feed with a new one that starts after the position."""
        await self._feed.close()
        self._feed = self._new_feed()
        await self._feed.open(self._stream, self._filters, self._position)
        if self._position is None:  # a connection loss before the first message must not skip any
            self._position = self._feed.start_position

    def _new_feed(self) -> "_Feed":
        return _PulledFeed(self._nc, self._names) if self._names else _Feed(self._nc)


class _Feed:
    """One ordered consumer, with its inbox and the messages that have arrived.

    Attributes:
        nothing_pending: whether the server reported that no more messages exist.
        start_position: the stream sequence after which the consumer started.
    """

    def __init__(self, nc: Client) -> None:
        self.nothing_pending = False
        self.start_position = 0
        self._nc = nc
        self._subscription: Subscription | None = None
        self._waiting: list[StoredMessage] = []
        self._wakeup = asyncio.Event()
        self._flow_reply = ""
        self._consumer_seq = 0
        self._has_gap = False
        self._is_silent = False
        self._last_message_at = time.monotonic()
        self._reconnects = nc.stats["reconnects"]
        self._listeners = contextlib.ExitStack()

    @property
    def is_exhausted(self) -> bool:
        """Whether every message that the server announced has been fetched."""
        return self.nothing_pending and not self._waiting

    @property
    def is_broken(self) -> bool:
        """Whether to replace this feed, after a gap, missing heartbeats or a new connection."""
        return self._has_gap or self._is_silent or self._nc.stats["reconnects"] != self._reconnects

    async def open(self, stream: str, filters: Sequence[str], after: int | None) -> None:
        """Create the consumer."""
        inbox = await self._listen()
        body = {
            "stream_name": stream,
            "config": _consumer_config(inbox, filters, after),
            "action": "create",
        }
        subject = f"CONSUMER.CREATE.{stream}"
        self._read_start(await api_request(self._nc, subject, body, timeout=_CREATE_SECONDS))

    async def _listen(self) -> str:
        inbox = self._nc.new_inbox()
        self._subscription = await subscribe(self._nc, inbox, self._receive)
        self._listeners.enter_context(on_connection_change(self._nc, self._wakeup.set))
        return inbox

    def _read_start(self, response: Mapping[str, Any]) -> None:
        self.start_position = int(response["delivered"]["stream_seq"])
        # Otherwise, each message reports the pending count, and may arrive before this response.
        if not response.get("num_pending", 0):
            self.nothing_pending = True

    async def close(self) -> None:
        """End the subscription. The server deletes the consumer after `_INACTIVE_SECONDS`."""
        if self._subscription is None:
            return
        self._listeners.close()
        await unsubscribe(self._subscription)
        self._subscription = None

    async def take(self) -> list[StoredMessage]:
        """Return the messages that have arrived, and allow the server to send more."""
        # The server pauses until its flow control request gets a response. Responding only
        # now, when the caller requests more, bounds the number of waiting messages.
        if self._flow_reply:
            reply, self._flow_reply = self._flow_reply, ""
            await _ignore_unavailable(send(self._nc, reply, b""))
        # No await may follow, so that `nothing_pending` stays consistent with the batch.
        batch, self._waiting = self._waiting, []
        self._wakeup.clear()
        if batch:
            self._last_message_at = time.monotonic()
        return batch

    async def wait(self) -> None:
        """Wait for a message, or until the next connection check is due.

        Raises:
            BusUnavailableError: the connection was closed.
        """
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._wakeup.wait()
        except TimeoutError:
            self._is_silent = time.monotonic() - self._last_message_at > _SILENT_AFTER_SECONDS
        if self._nc.is_closed:
            raise BusUnavailableError("the connection to the bus was closed")

    def _receive(self, message: Incoming) -> None:
        if self._has_gap:
            return
        reply = split_reply(message.reply)
        if not reply:
            self._control(message)
            return
        # Consumer sequences are contiguous, so a gap means that a message was lost in transit.
        _, _, seq, consumer_seq, stamp, pending, *_ = reply
        self._consumer_seq += 1
        if int(consumer_seq) != self._consumer_seq:
            self._has_gap = True
            self._wakeup.set()
            return
        if not self._waiting:  # otherwise it is already set
            self._wakeup.set()
        self._waiting.append(
            StoredMessage(int(seq), message.subject, message.data, message.headers, int(stamp))
        )
        self.nothing_pending = pending == "0"

    def _control(self, message: Incoming) -> None:
        """Process a heartbeat or a flow control request."""
        self._last_message_at = time.monotonic()
        headers = message.headers or {}
        # A stalled consumer waits for the response to a lost flow control request. The header
        # repeats the reply subject.
        stalled_reply = headers.get("Nats-Consumer-Stalled")
        if message.reply or stalled_reply:
            self._flow_reply = message.reply or stalled_reply or ""
        # A heartbeat contains the sequence of the last message sent. If that message did not
        # arrive, it was lost.
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._consumer_seq:
            self._has_gap = True
        elif last is not None and not stalled_reply:
            self.nothing_pending = True
        if status_of(message):
            self._wakeup.set()


class _PulledFeed(_Feed):
    """A feed that resets one of a service's existing consumers to a position, and pulls from it.

    If two clients choose the same consumer, both detect missing messages and choose again.
    """

    def __init__(self, nc: Client, names: Sequence[str]) -> None:
        super().__init__(nc)
        self._names = names
        self._inbox = ""
        self._next_subject = ""
        self._requested = 0

    async def open(self, stream: str, filters: Sequence[str], after: int | None) -> None:
        """Reset an unused consumer, and start pulling."""
        if after is None:
            newest = await last_by_subject(self._nc, stream, filters)
            after = max((message.seq for message in newest), default=0)
        name = await self._find_unused_consumer(stream)
        response = await api_request(
            self._nc, f"CONSUMER.RESET.{stream}.{name}", {"seq": after + 1}, _CREATE_SECONDS
        )
        self._inbox = await self._listen()
        self._next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        self._read_start(response)
        await self._request()

    async def take(self) -> list[StoredMessage]:
        """Return the messages that have arrived, and request more."""
        if self._requested <= _PULL_MESSAGES // 2 and not self.is_broken and self._nc.is_connected:
            await self._request()
        return await super().take()

    async def _find_unused_consumer(self, stream: str) -> str:
        """Return a consumer without an open request, because every client keeps one open.

        Raises:
            BusRefusedError: all consumers are in use.
        """
        for name in random.sample(self._names, len(self._names)):
            info = await api_request(self._nc, f"CONSUMER.INFO.{stream}.{name}", None)
            if not info.get("num_waiting"):
                return name
        raise BusRefusedError(f"consumers of {stream} in use: {', '.join(self._names)}")

    async def _request(self) -> None:
        body = {
            "batch": _PULL_MESSAGES - self._requested,
            "expires": int(_PULL_SECONDS * _SECOND),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * _SECOND),
        }
        self._requested = _PULL_MESSAGES
        await send(self._nc, self._next_subject, msgspec.json.encode(body), reply=self._inbox)

    def _receive(self, message: Incoming) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._requested -= 1
        super()._receive(message)

    def _control(self, message: Incoming) -> None:
        """Process a heartbeat or the end of a request."""
        self._last_message_at = time.monotonic()
        if status_of(message) != _HEARTBEAT:
            # The status that ends a request reports how many of its messages were not sent.
            pending = (message.headers or {}).get("Nats-Pending-Messages", "0")
            self._requested -= int(pending) if pending.isdecimal() else 0
            self._wakeup.set()


def _consumer_config(inbox: str, filters: Sequence[str], after: int | None) -> dict[str, Any]:
    start: dict[str, Any] = {"deliver_policy": "new"}
    if after is not None:
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
    config: dict[str, Any] = {
        **start,
        "deliver_subject": inbox,
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": int(HEARTBEAT_SECONDS * _SECOND),
        "inactive_threshold": _INACTIVE_SECONDS * _SECOND,
        "mem_storage": True,
        # Not replicated, because a follower that loses its consumer creates another one.
        "num_replicas": 1,
    }
    if len(filters) == 1 and filters[0] != ">":
        config["filter_subject"] = filters[0]
    elif len(filters) > 1:
        config["filter_subjects"] = list(filters)
    return config


async def _ignore_unavailable(awaitable: Any) -> None:
    """Await a send, and ignore an unreachable server, because the message is not essential."""
    try:
        await awaitable
    except BusUnavailableError as error:
        _log.debug("not sent: %s", error)
