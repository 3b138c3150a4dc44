"""Follow a stream from any sequence: every message once, in order, for ever.

Push with flow control: 57,000 to 66,000 msg/s, where pulling gave 51,000 to 59,000 and nats-py's
ordered consumer with a callback 38,000 to 45,000 in the same run (two busy cores).
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
from infra.jetstream.reads import StoredMessage, last_from_leader, last_of_each, stream_state
from infra.jetstream.wire import (
    changes_noticed,
    send,
    split_reply,
    status_of,
    subscribe,
    unsubscribe,
)

HEARTBEAT_SECONDS: Final = 2.0
_MISSED_AFTER_SECONDS: Final = 2.5 * HEARTBEAT_SECONDS
_CREATE_SECONDS: Final = 3.0  # without a leader no answer comes; there may be one the next time
_LOOK_SECONDS: Final = 1.0  # between two looks at a connection from which nothing comes
_RETRY_SECONDS: Final = 0.25
_INACTIVE_SECONDS: Final = 10  # after which the server forgets a follower that is gone
_PULLED: Final = 500  # messages that a pulling follower has requested
_PULL_SECONDS: Final = 20.0
_HEARTBEAT: Final = "100"
_SECOND: Final = 1_000_000_000
_EVERYTHING: Final = (">",)
_log = logging.getLogger(__name__)


def follow(
    nc: Client, stream: str, *, filters: Sequence[str] = _EVERYTHING, start_seq: int = 1
) -> "Follower":
    """Return a follower of a stream: `async with` it, then `async for batch in` it.

    Args:
        filters: subject filters that don't overlap.
        start_seq: the first stream sequence wanted.
    """
    return Follower(nc, stream, filters=filters, start_seq=start_seq)


def follow_as(
    nc: Client,
    stream: str,
    *,
    names: Sequence[str],
    subject_filter: str,
    start_seq: int | None = None,
) -> "Follower":
    """Return a follower for a user who may use only these consumers, which exist already.

    It resets one that no other client uses now, and pulls from it. It cannot create one, because
    who creates a consumer chooses where the server delivers to (ADR 0064). When all are in use,
    `async with` it raises `BusRefusedError`.

    Args:
        subject_filter: the consumers' filter.
        start_seq: the first stream sequence wanted; None for what comes from now on.
    """
    return Follower(nc, stream, filters=[subject_filter], start_seq=start_seq, names=names)


class Follower:
    """The messages of a stream in order, in lists, without gaps as to the filters.

    It repairs itself after lost connections, missed heartbeats and restarts of the server, by a
    new ordered consumer after the last message handed out. Memory is bounded by the server's flow
    control: no more is sent while batches wait to be taken.

    Attributes:
        caught_up: set when everything that was in the stream at the start has been handed out. It
            is set together with the last batch of it: look at it after having used each batch.
    """

    def __init__(
        self,
        nc: Client,
        stream: str,
        *,
        filters: Sequence[str] = _EVERYTHING,
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
        """The stream sequence up to which everything that matches has been handed out."""
        return self._position or 0

    async def __aenter__(self) -> Self:
        """Start following.

        Raises:
            NotFoundOnBusError: the stream doesn't exist.
            BusUnavailableError: no answer.
        """
        if not self._names:
            state = await stream_state(self._nc, self._stream)
            self._target, self._created = state.last_seq, state.created
        await self._restart()
        if await self._is_caught_up():
            self._reached_target()
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
        """Return the next messages: at least one, except for an empty list that says caught up.

        Raises:
            StreamReplacedError: the stream was deleted, and perhaps made anew.
            BusUnavailableError: the connection was closed.
        """
        while True:
            batch = await self._feed.take()
            if batch and batch[0].seq <= self.position:  # of a copy that lags behind: known
                batch = [message for message in batch if message.seq > self.position]
            if batch:
                self._position = batch[-1].seq
                if not self.caught_up.is_set() and await self._is_caught_up():
                    self._reached_target()
                return batch
            if self._feed.broken:
                await self._repair()
            if not self.caught_up.is_set() and await self._is_caught_up():
                self._reached_target()
                return []
            await self._feed.wait()

    async def replay(self) -> AsyncIterator[list[StoredMessage]]:
        """Yield the batches up to the moment of being caught up, then end."""
        while not self.caught_up.is_set():
            yield await anext(self)

    async def _is_caught_up(self) -> bool:
        """Whether all that was there at the start has been handed out.

        In a cluster only the leader knows: the copy of the stream that feeds us may lag behind, and
        believe that there is no more. Who may not ask the leader believes the copy.
        """
        if self._target is not None and self.position >= self._target:
            return True
        if not self._feed.is_exhausted:
            return False
        if self._names or not is_clustered(self._nc):
            return True
        try:
            last = [await last_from_leader(self._nc, self._stream, one) for one in self._filters]
        except BusUnavailableError:
            return False  # it is asked again soon
        return max((one.seq for one in last if one is not None), default=0) <= self.position

    def _reached_target(self) -> None:
        self._position = max(self.position, self._target or 0)
        self.caught_up.set()

    async def _repair(self) -> None:
        while True:
            _log.info("following %s again from position %d", self._stream, self.position)
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
        """Make sure that this is still the stream that was opened, where we may ask for it."""
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
                f"(created {created}, previously {self._created}), so positions of the old stream "
                "are invalid"
            )

    async def _restart(self) -> None:
        """Replace the feed by one from the position on."""
        await self._feed.close()
        self._feed = self._new_feed()
        await self._feed.open(self._stream, self._filters, self._position)
        if self._position is None:  # a loss before the first message must not skip any
            self._position = self._feed.began_after

    def _new_feed(self) -> "_Feed":
        return _PulledFeed(self._nc, self._names) if self._names else _Feed(self._nc)


class _Feed:
    """One ordered consumer: an inbox, and what has arrived in it."""

    def __init__(self, nc: Client) -> None:
        self.nothing_pending = False
        self.began_after = 0
        self._nc = nc
        self._subscription: Subscription | None = None
        self._waiting: list[StoredMessage] = []
        self._arrived = asyncio.Event()
        self._flow_reply = ""
        self._consumer_seq = 0
        self._gap = False
        self._silent = False
        self._heard = time.monotonic()
        self._reconnects = nc.stats["reconnects"]
        self._noticed = contextlib.ExitStack()

    @property
    def is_exhausted(self) -> bool:
        """Whether all that the server says there is has been taken."""
        return self.nothing_pending and not self._waiting

    @property
    def broken(self) -> bool:
        """Whether nothing more can be expected from it."""
        return self._gap or self._silent or self._nc.stats["reconnects"] != self._reconnects

    async def open(self, stream: str, filters: Sequence[str], after: int | None) -> None:
        """Make the consumer."""
        inbox = await self._listen()
        body = {
            "stream_name": stream,
            "config": _consumer_config(inbox, filters, after),
            "action": "create",
        }
        subject = f"CONSUMER.CREATE.{stream}"
        self._begin(await api_request(self._nc, subject, body, timeout=_CREATE_SECONDS))

    async def _listen(self) -> str:
        inbox = self._nc.new_inbox()
        self._subscription = await subscribe(self._nc, inbox, self._receive)
        self._noticed.enter_context(changes_noticed(self._nc, self._arrived.set))
        return inbox

    def _begin(self, answer: Mapping[str, Any]) -> None:
        self.began_after = int(answer["delivered"]["stream_seq"])
        if not answer.get("num_pending", 0):  # else the messages say it, perhaps before this answer
            self.nothing_pending = True

    async def close(self) -> None:
        """End the subscription; the server soon forgets a consumer that it made."""
        if self._subscription is None:
            return
        self._noticed.close()
        await unsubscribe(self._subscription)
        self._subscription = None

    async def take(self) -> list[StoredMessage]:
        """Return what has arrived, and let the server send more."""
        if self._flow_reply:
            reply, self._flow_reply = self._flow_reply, ""
            await _ignoring_absence(send(self._nc, reply, b""))
        batch, self._waiting = self._waiting, []  # after it no wait: `nothing_pending` is of now
        self._arrived.clear()
        if batch:
            self._heard = time.monotonic()
        return batch

    async def wait(self) -> None:
        """Return when something has arrived, or it is time to look whether this still works."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._arrived.wait()
        except TimeoutError:
            self._silent = time.monotonic() - self._heard > _MISSED_AFTER_SECONDS
        if self._nc.is_closed:
            raise BusUnavailableError("the connection to the bus was closed")

    def _receive(self, message: Incoming) -> None:
        if self._gap:
            return
        reply = message.reply
        if not reply.startswith("$JS.ACK."):
            self._control(message)
            return
        _, _, seq, consumer_seq, stamp, pending, *_ = split_reply(reply)
        self._consumer_seq += 1
        if int(consumer_seq) != self._consumer_seq:
            self._gap = True
        else:
            self._waiting.append(
                StoredMessage(int(seq), message.subject, message.data, message.headers, int(stamp))
            )
            self.nothing_pending = pending == "0"
        self._arrived.set()

    def _control(self, message: Incoming) -> None:
        """Take a heartbeat, or a question whether more may be sent."""
        self._heard = time.monotonic()
        headers = message.headers or {}
        stalled = headers.get("Nats-Consumer-Stalled")
        if message.reply or stalled:
            self._flow_reply = message.reply or stalled or ""
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._consumer_seq:
            self._gap = True
        elif last is not None and not stalled:
            self.nothing_pending = True
        if status_of(message):
            self._arrived.set()


class _PulledFeed(_Feed):
    """One of the consumers that exist for a service: reset to a position, and pulled from.

    Two clients that choose the same consumer disturb each other: each notices that messages are
    missing, and chooses again.
    """

    def __init__(self, nc: Client, names: Sequence[str]) -> None:
        super().__init__(nc)
        self._names = names
        self._inbox = ""
        self._next = ""
        self._requested = 0

    async def open(self, stream: str, filters: Sequence[str], after: int | None) -> None:
        """Reset a free consumer, and begin to pull."""
        if after is None:
            newest = await last_of_each(self._nc, stream, filters)
            after = max((one.seq for one in newest), default=0)
        name = await self._free_name(stream)
        answer = await api_request(
            self._nc, f"CONSUMER.RESET.{stream}.{name}", {"seq": after + 1}, _CREATE_SECONDS
        )
        self._inbox = await self._listen()
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        self._begin(answer)
        await self._request()

    async def take(self) -> list[StoredMessage]:
        """Return what has arrived, and ask for more."""
        if self._requested <= _PULLED // 2 and not self.broken and self._nc.is_connected:
            await self._request()
        return await super().take()

    async def _free_name(self, stream: str) -> str:
        """Return a consumer at which no request is open: each client that uses one keeps one."""
        for name in random.sample(self._names, len(self._names)):
            info = await api_request(self._nc, f"CONSUMER.INFO.{stream}.{name}", None)
            if not info.get("num_waiting"):
                return name
        raise BusRefusedError(f"consumers of {stream} in use: {', '.join(self._names)}")

    async def _request(self) -> None:
        body = {
            "batch": _PULLED - self._requested,
            "expires": int(_PULL_SECONDS * _SECOND),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * _SECOND),
        }
        self._requested = _PULLED
        await send(self._nc, self._next, msgspec.json.encode(body), reply=self._inbox)

    def _receive(self, message: Incoming) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._requested -= 1
        super()._receive(message)

    def _control(self, message: Incoming) -> None:
        """Take a heartbeat, or the end of a request."""
        self._heard = time.monotonic()
        if status_of(message) != _HEARTBEAT:
            pending = (message.headers or {}).get("Nats-Pending-Messages", "0")
            self._requested -= int(pending) if pending.isdecimal() else 0
            self._arrived.set()


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
        "num_replicas": 1,
    }
    if len(filters) == 1 and filters[0] != ">":
        config["filter_subject"] = filters[0]
    elif len(filters) > 1:
        config["filter_subjects"] = list(filters)
    return config


async def _ignoring_absence(sending: Any) -> None:
    """Await a message that nobody misses when the server is away."""
    try:
        await sending
    except BusUnavailableError as error:
        _log.debug("not sent: %s", error)
