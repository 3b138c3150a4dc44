"""Pull consumers: queue messages from several consumers, always with an open request.

nats-py's `fetch` sends one request per batch, waits for the whole batch, and does not support
priority groups. This module sends the next request before the previous one is complete.

With `sync_interval: always`, an acknowledgement on a work-queue stream deletes and syncs: 1,200 per
second, compared with 24,000 on a limits stream (same run).
"""

import asyncio
import contextlib
import logging
import math
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
    BusErrors,
    FastClient,
    on_connection_change,
    on_denial,
    send,
    split_reply,
    status_of,
    subscribe,
    suspect_server,
    unsubscribe,
)

EXPIRES_SECONDS: Final = 20.0
_SECOND: Final = 1_000_000_000
_HEARTBEATS_PER_REQUEST: Final = 4
_CHECK_SECONDS: Final = 1.0
_CHECK_TIMEOUT_SECONDS: Final = 2.0
# A restarted reader takes longer than this to delete and recreate a consumer.
_SILENT_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.1  # interval between requests to a consumer that cannot respond
# A consumer with a priority group delivers only to the pinned reader, whose requests must contain
# this id.
_PIN_ID: Final = "Nats-Pin-Id"
_HEARTBEAT: Final = "100"
_NO_RESPONDERS: Final = "503"
# status: this reader is no longer pinned
_PIN_LOST: Final = "423"
_log = logging.getLogger(__name__)


class PullGroup:
    """Messages from several pull consumers on one stream, in one queue, ordered per consumer.

    Per consumer, at most `slots` messages (default `max_batch`) are queued or requested, and each
    request is for at most `max_bytes`. The consumer's `max_ack_pending` limits the unacknowledged
    messages. With `keep_slots`, returned messages also count until `free_slot` is called.

    Only one task may use it.
    """

    def __init__(
        self,
        nc: Client,
        stream: str,
        consumers: Sequence[str],
        *,
        group: str | None = None,
        max_batch: int = 500,
        slots: int | None = None,
        max_bytes: int | None = None,
        expires_seconds: float = EXPIRES_SECONDS,
        keep_slots: bool = False,
    ) -> None:
        self._nc = nc
        self._stream = stream
        self._keep_slots = keep_slots
        self._group = group
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._expires_seconds = expires_seconds
        self._inbox = nc.new_inbox()
        self._subscription: Subscription | None = None
        self._queue: list[Delivered] = []
        self._wakeup = asyncio.Event()
        self._reconnects = 0
        self._failure: BusError | None = None
        self._listeners = contextlib.ExitStack()
        self._request_lock = asyncio.Lock()
        self._pin_task: asyncio.Task[None] | None = None
        self._sources = {
            name: _Source(index, name, slots or max_batch) for index, name in enumerate(consumers)
        }
        self._by_index = list(self._sources.values())

    async def next_batch(self, max_seconds: float = math.inf) -> list[Delivered]:
        """Return the available messages, at most `max_batch`; wait for the first one.

        Return an empty list if none arrives within `max_seconds`.

        Raises:
            NotFoundOnBusError: a consumer does not exist or was deleted.
            BusDeniedError: the user may not pull from a consumer.
            BusUnavailableError: the connection was closed.
        """
        if self._subscription is None:
            await self._open()
        deadline = time.monotonic() + max_seconds
        while True:
            if self._failure is not None:
                raise self._failure
            self._wakeup.clear()
            batch = self._take_batch()
            try:
                await self._send_requests()
            except BaseException:  # including a cancellation: no fetched message may be lost
                self._return_batch(batch)
                raise
            if batch or (remaining := deadline - time.monotonic()) <= 0:
                return batch
            await self._wait(min(remaining, _CHECK_SECONDS))

    def set_slots(self, consumer: str, slots: int) -> None:
        """Add a consumer with this number of slots, or change the number for an existing one."""
        source = self._sources.get(consumer)
        if source is None:
            source = self._sources[consumer] = _Source(len(self._by_index), consumer, slots)
            self._by_index.append(source)
        else:
            source.resize(slots)
        self._wakeup.set()

    def free_slot(self, delivered: Delivered) -> None:
        """Free the slot that a message occupied at its consumer."""
        self._sources[delivered.consumer].credit += 1
        self._wakeup.set()

    async def has_kept_pins(self, deliveries: Sequence[Delivered]) -> bool:
        """Return whether the consumers' pins are the same as when these messages were delivered.

        Raises:
            BusUnavailableError: a consumer has no leader.
        """
        pins = {
            (delivery.consumer, (delivery.headers or {}).get(_PIN_ID)) for delivery in deliveries
        }
        current_pins = await asyncio.gather(*(self._pins_of(consumer) for consumer, _ in pins))
        return all(pin in current for (_, pin), current in zip(pins, current_pins, strict=True))

    async def _pins_of(self, consumer: str) -> list[str | None]:
        info = await api_request(self._nc, f"CONSUMER.INFO.{self._stream}.{consumer}", None)
        groups: list[dict[str, str]] = info.get("priority_groups") or []
        return [each.get("pinned_client_id") for each in groups if each["group"] == self._group]

    async def close(self) -> None:
        """Stop pulling, return undelivered messages, and release the pins for another reader."""
        if self._subscription is None:
            return
        subscription, self._subscription = self._subscription, None
        self._listeners.close()
        if self._pin_task is not None:
            self._pin_task.cancel()
        try:
            if self._nc.is_connected:
                with contextlib.suppress(BusError), BusErrors("close"):
                    await subscription.drain()
        finally:
            await unsubscribe(subscription)
        queued, self._queue = self._queue, []
        with contextlib.suppress(BusError):
            for delivery in queued:
                await nak(self._nc, delivery)
            for source in self._by_index:
                await self._unpin(source)

    async def _open(self) -> None:
        expires = self._expires_seconds
        for source in self._by_index:
            info = await self._consumer_info(source.name)
            source.created, source.last_message_at = str(info["created"]), time.monotonic()
            pin_seconds = info["config"].get("priority_timeout", 0) / _SECOND
            if pin_seconds:  # only a request keeps the pin, so send two within that time
                expires = min(expires, pin_seconds / 2)
        self._expires_seconds = expires
        self._reconnects = self._nc.stats["reconnects"]
        self._subscription = await subscribe(self._nc, f"{self._inbox}.*", self._receive)
        self._listeners.enter_context(on_denial(self._nc, self._handle_denial))
        self._listeners.enter_context(on_connection_change(self._nc, self._wakeup.set))
        if self._group is not None:
            self._pin_task = asyncio.create_task(self._keep_pins())

    async def _consumer_info(self, name: str) -> dict[str, Any]:
        """Read a consumer's information, waiting while it has no leader."""
        while True:
            try:
                return await api_request(self._nc, f"CONSUMER.INFO.{self._stream}.{name}", None)
            except BusUnavailableError as error:
                if self._nc.is_closed:
                    raise
                _log.info("consumer %s of %s does not respond: %s", name, self._stream, error)
            await asyncio.sleep(_RETRY_SECONDS)

    def _take_batch(self) -> list[Delivered]:
        batch = self._queue[: self._max_batch]
        del self._queue[: self._max_batch]
        if not self._keep_slots:
            for delivery in batch:
                self._sources[delivery.consumer].credit += 1
        return batch

    def _return_batch(self, batch: list[Delivered]) -> None:
        self._queue[:0] = batch
        if not self._keep_slots:
            for delivery in batch:
                self._sources[delivery.consumer].credit -= 1

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        if self._nc.is_closed:
            raise BusUnavailableError("the connection to the bus was closed")

    async def _send_requests(self) -> None:
        """Keep a request open at every consumer."""
        async with self._request_lock:
            await self._send_due_requests()

    async def _keep_pins(self) -> None:
        """Keep sending requests while a long batch is processed, so that the pins do not expire."""
        while True:
            await asyncio.sleep(self._expires_seconds / 2)
            try:
                await self._send_requests()
            except BusError as error:
                _log.debug("failed to pull from consumers of %s: %s", self._stream, error)

    async def _send_due_requests(self) -> None:
        if self._nc.stats["reconnects"] != self._reconnects:
            self._reconnects = self._nc.stats["reconnects"]
            for source in self._by_index:  # the server discarded the requests of the old connection
                source.write_off_requests()
                source.is_suspect = True
        now = time.monotonic()
        for source in self._by_index:
            source.write_off_if_silent(now, self._expires_seconds * 3 / _HEARTBEATS_PER_REQUEST)
            needs_pin = self._group is not None and source.needs_pin_request(
                now, self._expires_seconds
            )
            if not (source.should_request(now) or needs_pin) or not self._nc.is_connected:
                continue
            if not source.may_be_replaced(now) or await self._is_same_consumer(source):
                await self._request(source, now)

    async def _is_same_consumer(self, source: "_Source") -> bool:
        """Return whether the consumer responds and has not been recreated.

        The server ends an open request if its consumer is deleted. Without an open request, the
        consumer may have been recreated unnoticed, and would deliver processed messages again.

        Raises:
            NotFoundOnBusError: the consumer was deleted, or recreated.
        """
        try:
            info = await api_request(
                self._nc,
                f"CONSUMER.INFO.{self._stream}.{source.name}",
                None,
                _CHECK_TIMEOUT_SECONDS,
            )
        except BusUnavailableError:
            source.not_before = time.monotonic() + _RETRY_SECONDS
            return False
        created = str(info["created"])
        if source.created not in ("", created):
            raise NotFoundOnBusError(
                f"consumer {source.name} of stream {self._stream} was deleted and recreated"
            )
        source.created, source.is_suspect = created, False
        return True

    async def _request(self, source: "_Source", now: float) -> None:
        number, size = source.open_request(now)
        body: dict[str, Any] = {
            "batch": size,
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

    def _handle_denial(self, denial: Denial) -> bool:
        """Fail if the denial concerns a consumer, because no message would ever arrive."""
        subjects = map(self._next_subject, self._by_index)
        if not any(map(denial.concerns, subjects)) or not isinstance(self._nc, FastClient):
            return False
        self._failure = self._nc.denial_error(denial)
        self._wakeup.set()
        return True

    def _next_subject(self, source: "_Source") -> str:
        return f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{source.name}"

    def _receive(self, message: Incoming) -> None:
        reply = split_reply(message.reply)
        if not reply:
            self._receive_status(message)
            self._wakeup.set()
            return
        if not self._queue:  # otherwise `next_batch` does not wait
            self._wakeup.set()
        name, delivered, seq, _, stamp, *_ = reply
        source = self._sources[name]
        source.count_delivery()
        source.last_message_at = time.monotonic()
        headers = message.headers
        if headers is not None and self._group is not None:
            source.pin_id = headers.get(_PIN_ID, source.pin_id)
        self._queue.append(
            Delivered(
                int(seq),
                message.subject,
                message.data,
                headers,
                int(delivered),
                message.reply,
                int(stamp),
                name,
            )
        )

    def _receive_status(self, message: Incoming) -> None:
        """Process a status message: a heartbeat, or the end of a request."""
        index, number = message.subject.rsplit(".", 1)[1].split("-")
        source = self._by_index[int(index)]
        source.last_message_at = time.monotonic()
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
            source.is_suspect = True
            suspect_server(self._nc)
        # 404 and 408 end an expired request. After any other status, pause before the next request.
        if status not in ("404", "408", _PIN_LOST):
            source.not_before = time.monotonic() + _RETRY_SECONDS

    async def _unpin(self, source: "_Source") -> None:
        """Release the pin, so that the server chooses another reader before `priority_timeout`."""
        if self._group is None or not source.pin_id or not self._nc.is_connected:
            return
        subject = f"$JS.API.CONSUMER.UNPIN.{self._stream}.{source.name}"
        await send(self._nc, subject, msgspec.json.encode({"group": self._group}))


class PullReader(PullGroup):
    """Messages from one pull consumer."""

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
    """One consumer's open requests, oldest first, and its remaining credit.

    The server fills requests in order, so a message belongs to the oldest one.
    """

    def __init__(self, index: int, name: str, limit: int) -> None:
        self.index = index
        self.name = name
        self.credit = limit  # slots for messages that have been neither received nor requested
        self.pin_id = ""
        self.not_before = 0.0
        self.created = ""
        self.is_suspect = False  # a request had no responder, or the connection was lost
        self.last_message_at = 0.0
        self._limit = limit
        self._open: dict[int, int] = {}  # request number to its outstanding messages
        self._number = 0

    def resize(self, limit: int) -> None:
        """Change the number of slots. Messages above the new limit stay."""
        self.credit += limit - self._limit
        self._limit = limit

    def should_request(self, now: float) -> bool:
        """Return whether to send a request: none is open, or half of the slots are free."""
        return now >= self.not_before and (
            self.credit >= max(1, self._limit // 2) or (not self._open and self.credit > 0)
        )

    def needs_pin_request(self, now: float, pause_seconds: float) -> bool:
        """Return whether to send a request without a slot, because only requests keep the pin."""
        return not self._open and now >= max(self.not_before, self.last_message_at + pause_seconds)

    def may_be_replaced(self, now: float) -> bool:
        """Return whether the consumer may have been deleted or recreated unnoticed."""
        return self.is_suspect or (not self._open and now > self.last_message_at + _SILENT_SECONDS)

    def open_request(self, now: float) -> tuple[int, int]:
        """Open a request for the whole credit. Return its number and size."""
        self._number += 1
        # Without credit the request is for one message, and the credit becomes negative.
        size = max(1, self.credit)
        self._open[self._number] = size
        self.credit -= size
        self.last_message_at = now
        return self._number, size

    def count_delivery(self) -> None:
        """Count a message against the oldest request."""
        for number in self._open:
            self._open[number] -= 1
            if self._open[number] == 0:
                del self._open[number]
            return
        self.credit -= 1  # its request was written off, but it still occupies a slot

    def close_request(self, number: int) -> None:
        """Return a request's outstanding messages to the credit."""
        self.credit += self._open.pop(number, 0)

    def write_off_requests(self) -> None:
        """Write off all requests that the server has lost."""
        self.credit += sum(self._open.values())
        self._open.clear()

    def write_off_if_silent(self, now: float, silent_seconds: float) -> None:
        """Write off requests without heartbeats, because they or their end statuses were lost."""
        if self._open and now > self.last_message_at + silent_seconds:
            self.write_off_requests()
