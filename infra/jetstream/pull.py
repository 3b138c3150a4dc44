"""Pull consumers: one queue of messages over several of them, with a request always open.

The client's own `fetch` asks once a batch, waits for all of it, and doesn't know priority groups.
Here a consumer's next request is sent while the last one is being answered.

With `sync_interval: always`, an acknowledgement on a work-queue stream is a deletion and a sync:
1,200/s, where a limits stream took 24,000/s in the same run.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from infra.jetstream.connection import api_request
from infra.jetstream.deliveries import Delivered, nak
from infra.jetstream.denials import Denial
from infra.jetstream.errors import BusError, BusUnavailableError, NotFoundOnBusError
from infra.jetstream.parser import DESCRIPTION, Incoming
from infra.jetstream.wire import (
    FastClient,
    bus_errors,
    changes_noticed,
    denial_noticed,
    note_doubt,
    send,
    split_reply,
    status_of,
    subscribe,
    unsubscribe,
)

EXPIRES_SECONDS: Final = 20.0
_SECOND: Final = 1_000_000_000
_HEARTBEATS_PER_REQUEST: Final = 4
_LOOK_SECONDS: Final = 1.0
_LOOK_PATIENCE_SECONDS: Final = 2.0
_UNHEARD_SECONDS: Final = 1.0  # nobody deletes a consumer and starts a reader that makes it sooner
_RETRY_SECONDS: Final = 0.1  # between two requests to a consumer that can't answer now
_PIN_ID: Final = "Nats-Pin-Id"
_HEARTBEAT: Final = "100"
_NO_RESPONDERS: Final = "503"
_PIN_LOST: Final = "423"
_log = logging.getLogger(__name__)


class PullGroup:
    """Messages of several pull consumers of one stream, in one queue; order holds per consumer.

    At most `room` messages a consumer wait here or are on their way, by default `max_batch`, and
    each request is for at most `max_bytes`. The consumers' `max_ack_pending` bounds what is handed
    out and not acknowledged. Use it in one task.

    With `until_done`, what was returned counts as well, until it is said to be `done`.
    """

    def __init__(
        self,
        nc: Client,
        stream: str,
        consumers: Sequence[str],
        *,
        group: str | None = None,
        max_batch: int = 500,
        room: int | None = None,
        max_bytes: int | None = None,
        expires_seconds: float = EXPIRES_SECONDS,
        until_done: bool = False,
    ) -> None:
        self._nc = nc
        self._stream = stream
        self._until_done = until_done
        self._group = group
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._expires_seconds = expires_seconds
        self._inbox = nc.new_inbox()
        self._subscription: Subscription | None = None
        self._queue: list[Delivered] = []
        self._arrived = asyncio.Event()
        self._reconnects = 0
        self._failure: BusError | None = None
        self._noticed = contextlib.ExitStack()
        self._asking = asyncio.Lock()
        self._keeping_pins: asyncio.Task[None] | None = None
        self._sources = {
            name: _Source(index, name, room or max_batch) for index, name in enumerate(consumers)
        }
        self._by_index = list(self._sources.values())

    async def next_batch(self, *, wait: bool = True) -> list[Delivered]:
        """Return what is available, at most `max_batch` messages; wait for one, unless told not to.

        Raises:
            NotFoundOnBusError: a consumer doesn't exist, or was deleted.
            BusDeniedError: we may not ask this consumer.
        BusUnavailableError: the connection was closed.
        """
        if self._subscription is None:
            await self._open()
        while True:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            batch = self._take()
            try:
                await self._ask()
            except BaseException:  # cancelled too: nothing that was taken may get lost
                self._put_back(batch)
                raise
            if batch or not wait:
                return batch
            await self._wait()

    def take_from(self, consumer: str, most: int) -> None:
        """Read another consumer too, or hold another number of one's messages from now on."""
        source = self._sources.get(consumer)
        if source is None:
            source = self._sources[consumer] = _Source(len(self._by_index), consumer, most)
            self._by_index.append(source)
        else:
            source.resize(most)
        self._arrived.set()

    def done(self, delivered: Delivered) -> None:
        """Make room for another message of this one's consumer."""
        self._sources[delivered.consumer].credit += 1
        self._arrived.set()

    async def has_kept_pins(self, handed_out: Sequence[Delivered]) -> bool:
        """Return whether the consumers of these are pinned as they were when they sent them.

        Raises:
            BusUnavailableError: a consumer has no leader now.
        """
        pins = {(one.consumer, (one.headers or {}).get(_PIN_ID)) for one in handed_out}
        found = await asyncio.gather(*(self._pins_of(consumer) for consumer, _ in pins))
        return all(pin in now for (_, pin), now in zip(pins, found, strict=True))

    async def _pins_of(self, consumer: str) -> list[str | None]:
        info = await api_request(self._nc, f"CONSUMER.INFO.{self._stream}.{consumer}", None)
        groups: list[dict[str, str]] = info.get("priority_groups") or []
        return [each.get("pinned_client_id") for each in groups if each["group"] == self._group]

    async def close(self) -> None:
        """Take no more, give back what was not handed out, and let another reader take over."""
        if self._subscription is None:
            return
        subscription, self._subscription = self._subscription, None
        self._noticed.close()
        if self._keeping_pins is not None:
            self._keeping_pins.cancel()
        try:
            if self._nc.is_connected:
                with contextlib.suppress(BusError), bus_errors("close"):
                    await subscription.drain()
        finally:
            await unsubscribe(subscription)
        queued, self._queue = self._queue, []
        with contextlib.suppress(BusError):
            for one in queued:
                await nak(self._nc, one)
            for source in self._by_index:
                await self._unpin(source)

    async def _open(self) -> None:
        expires = self._expires_seconds
        for source in self._by_index:
            info = await self._info(source.name)
            source.created, source.heard = str(info["created"]), time.monotonic()
            pinned_for = info["config"].get("priority_timeout", 0) / _SECOND
            if pinned_for:  # only a request keeps the pin: ask twice in that time
                expires = min(expires, pinned_for / 2)
        self._expires_seconds = expires
        self._reconnects = self._nc.stats["reconnects"]
        self._subscription = await subscribe(self._nc, f"{self._inbox}.*", self._receive)
        self._noticed.enter_context(denial_noticed(self._nc, self._denied))
        self._noticed.enter_context(changes_noticed(self._nc, self._arrived.set))
        if self._group is not None:
            self._keeping_pins = asyncio.create_task(self._keep_pins())

    async def _info(self, name: str) -> dict[str, Any]:
        """Read how a consumer is configured, however long it has no leader."""
        while True:
            try:
                return await api_request(self._nc, f"CONSUMER.INFO.{self._stream}.{name}", None)
            except BusUnavailableError as error:
                if self._nc.is_closed:
                    raise
                _log.info("consumer %s of %s does not respond: %s", name, self._stream, error)
            await asyncio.sleep(_RETRY_SECONDS)

    def _take(self) -> list[Delivered]:
        batch = self._queue[: self._max_batch]
        del self._queue[: self._max_batch]
        if not self._until_done:
            for one in batch:
                self._sources[one.consumer].credit += 1
        return batch

    def _put_back(self, batch: list[Delivered]) -> None:
        self._queue[:0] = batch
        if not self._until_done:
            for one in batch:
                self._sources[one.consumer].credit -= 1

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._arrived.wait()
        except TimeoutError:
            pass
        if self._nc.is_closed:
            raise BusUnavailableError("the connection to the bus was closed")

    async def _ask(self) -> None:
        """Keep a request open at every consumer, for what may still come."""
        async with self._asking:
            await self._ask_all()

    async def _keep_pins(self) -> None:
        """Go on asking while a long batch is decided: without a request the pins are lost."""
        while True:
            await asyncio.sleep(self._expires_seconds / 2)
            try:
                await self._ask()
            except BusError as error:
                _log.debug("pulling from consumers of %s failed: %s", self._stream, error)

    async def _ask_all(self) -> None:
        if self._nc.stats["reconnects"] != self._reconnects:
            self._reconnects = self._nc.stats["reconnects"]
            for source in self._by_index:  # the server forgot the requests of the old connection
                source.forget_requests()
                source.has_doubt = True
        now = time.monotonic()
        for source in self._by_index:
            source.forget_silent(now, self._expires_seconds * 3 / _HEARTBEATS_PER_REQUEST)
            is_idle = self._group is not None and source.keeps_pin(now, self._expires_seconds)
            if not (source.wants(now) or is_idle) or not self._nc.is_connected:
                continue
            if not source.is_doubtful(now) or await self._is_known(source):
                await self._request(source, now)

    async def _is_known(self, source: "_Source") -> bool:
        """Find out whether the consumer is still there, and the one that was read so far.

        An open request tells of its end; without one, somebody may have made another one meanwhile,
        which hands out once more what was done long ago.
        """
        try:
            info = await api_request(
                self._nc,
                f"CONSUMER.INFO.{self._stream}.{source.name}",
                None,
                _LOOK_PATIENCE_SECONDS,
            )
        except BusUnavailableError:
            source.not_before = time.monotonic() + _RETRY_SECONDS
            return False
        created = str(info["created"])
        if source.created not in ("", created):
            raise NotFoundOnBusError(
                f"consumer {source.name} of stream {self._stream} was deleted and recreated"
            )
        source.created, source.has_doubt = created, False
        return True

    async def _request(self, source: "_Source", now: float) -> None:
        number, wanted = source.open_request(now)
        body: dict[str, Any] = {
            "batch": wanted,
            "expires": int(self._expires_seconds * _SECOND),
            "idle_heartbeat": int(self._expires_seconds * _SECOND / _HEARTBEATS_PER_REQUEST),
        }
        if self._max_bytes is not None:
            body["max_bytes"] = self._max_bytes
        if self._group is not None:
            body["group"] = self._group
            if source.pin_id:
                body["id"] = source.pin_id
        await send(
            self._nc,
            self._next_subject(source),
            msgspec.json.encode(body),
            reply=f"{self._inbox}.{source.index}-{number}",
        )

    def _denied(self, denial: Denial) -> bool:
        """Take note that a consumer may not be asked: nothing would ever come."""
        asked = map(self._next_subject, self._by_index)
        if not any(map(denial.is_of, asked)) or not isinstance(self._nc, FastClient):
            return False
        self._failure = self._nc.denied(denial)
        self._arrived.set()
        return True

    def _next_subject(self, source: "_Source") -> str:
        return f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{source.name}"

    def _receive(self, message: Incoming) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._received(message)
        else:
            self._status(message)
        self._arrived.set()

    def _received(self, message: Incoming) -> None:
        reply = message.reply
        name, delivered, seq, _, stamp, *_ = split_reply(reply)
        source = self._sources[name]
        source.delivered()
        source.heard = time.monotonic()
        headers = message.headers
        if headers and self._group is not None and _PIN_ID in headers:
            source.pin_id = headers[_PIN_ID]
        self._queue.append(
            Delivered(
                int(seq),
                message.subject,
                message.data,
                headers,
                int(delivered),
                reply,
                int(stamp),
                name,
            )
        )

    def _status(self, message: Incoming) -> None:
        """Take the end of a request."""
        index, number = message.subject.rsplit(".", 1)[1].split("-")
        source = self._by_index[int(index)]
        source.heard = time.monotonic()
        status = status_of(message)
        if status == _HEARTBEAT:
            return
        description = (message.headers or {}).get(DESCRIPTION, "")
        if status == "409" and "Consumer Deleted" in description:
            self._failure = NotFoundOnBusError(
                f"consumer {source.name} of stream {self._stream} was deleted"
            )
        if status == _PIN_LOST:
            source.pin_id = ""
        source.close_request(int(number))
        if status == _NO_RESPONDERS:
            source.has_doubt = True
            note_doubt(self._nc)
        if status not in ("404", "408", _PIN_LOST):
            source.not_before = time.monotonic() + _RETRY_SECONDS

    async def _unpin(self, source: "_Source") -> None:
        """Let the server choose another reader now, not after `priority_timeout`."""
        if self._group is None or not source.pin_id or not self._nc.is_connected:
            return
        subject = f"$JS.API.CONSUMER.UNPIN.{self._stream}.{source.name}"
        await send(self._nc, subject, msgspec.json.encode({"group": self._group}))


class PullReader(PullGroup):
    """Messages of one pull consumer."""

    def __init__(
        self,
        nc: Client,
        stream: str,
        consumer: str,
        *,
        group: str | None = None,
        max_batch: int = 500,
        expires_seconds: float = EXPIRES_SECONDS,
    ) -> None:
        super().__init__(
            nc,
            stream,
            [consumer],
            group=group,
            max_batch=max_batch,
            expires_seconds=expires_seconds,
        )


class _Source:
    """One consumer's open requests, oldest first, and how many messages it may still send.

    Requests are answered in order, so a message belongs to the oldest one.
    """

    def __init__(self, index: int, name: str, most: int) -> None:
        self.index = index
        self.name = name
        self.credit = most  # of the room here, what neither waits nor was asked for
        self.pin_id = ""
        self.not_before = 0.0
        self.created = ""
        self.has_doubt = False  # nobody took a request, or the connection was lost
        self.heard = 0.0
        self._most = most
        self._open: dict[int, int] = {}  # request number to messages still to come
        self._number = 0

    def resize(self, most: int) -> None:
        """Have room for so many messages from now on; what is too many is there already."""
        self.credit += most - self._most
        self._most = most

    def wants(self, now: float) -> bool:
        """Whether a request is due: none is open, or half of the room is free again."""
        return now >= self.not_before and (
            self.credit >= max(1, self._most // 2) or (not self._open and self.credit > 0)
        )

    def keeps_pin(self, now: float, pause_seconds: float) -> bool:
        """Whether a request is due though there is no room: only a request keeps the pin."""
        return not self._open and now >= max(self.not_before, self.heard + pause_seconds)

    def is_doubtful(self, now: float) -> bool:
        """Whether the consumer may be gone, or another one, and no open request has told of it."""
        return self.has_doubt or (not self._open and now > self.heard + _UNHEARD_SECONDS)

    def open_request(self, now: float) -> tuple[int, int]:
        """Return the number of a new request for all of the credit, and its size."""
        self._number += 1
        wanted = max(1, self.credit)
        self._open[self._number] = wanted
        self.credit -= wanted
        self.heard = now
        return self._number, wanted

    def delivered(self) -> None:
        """Count a message against the oldest request."""
        for number, left in self._open.items():
            if left > 1:
                self._open[number] = left - 1
            else:
                del self._open[number]
            return
        self.credit -= 1  # of a request that was given up: it still takes room

    def close_request(self, number: int) -> None:
        """Take back what a request did not get."""
        self.credit += self._open.pop(number, 0)

    def forget_requests(self) -> None:
        """Return up all requests: the server doesn't know them any more."""
        self.credit += sum(self._open.values())
        self._open.clear()

    def forget_silent(self, now: float, patience_seconds: float) -> None:
        """Return up requests of which not even heartbeats come: they or their end were lost."""
        if self._open and now > self.heard + patience_seconds:
            self.forget_requests()
