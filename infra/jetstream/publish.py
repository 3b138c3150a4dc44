"""Publish with acknowledgements: one message, many pipelined, or many in atomic batches."""

import asyncio
from collections.abc import Mapping, Sequence

from nats.aio.client import Client

from infra.jetstream.acknowledgement import TIMEOUT_SECONDS, PublishAck, read_acknowledgement
from infra.jetstream.append import MAX_BATCH, append_acknowledged
from infra.jetstream.denials import Denial
from infra.jetstream.errors import (
    BusError,
    BusRefusedError,
    BusUnavailableError,
    MessageTooLargeError,
)
from infra.jetstream.outgoing import MESSAGE_ID, OutgoingMessage, check_expectation, headers_of
from infra.jetstream.parser import Incoming
from infra.jetstream.wire import (
    FastClient,
    encode,
    on_denial,
    on_loss,
    request,
    subscribe,
    suspect_server,
    unsubscribe,
    write,
)

# With at least this many messages, an atomic batch costs less than individual publishes.
_MIN_BATCH = 16


async def publish(
    nc: Client,
    subject: str,
    payload: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    msg_id: str | None = None,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - passed on to nats-py
) -> PublishAck:
    """Store one message, and return its acknowledgement.

    Args:
        msg_id: if given, repeats within the stream's duplicate window are stored only once.

    Raises:
        BusUnavailableError: no response before the timeout, or no stream accepts the subject. The
            result is unknown.
        StreamFullError, MessageTooLargeError, BusRefusedError: nothing was stored.
    """
    if msg_id is not None:
        headers = {**(headers or {}), MESSAGE_ID: msg_id}
    response = await request(nc, subject, payload, headers=headers, timeout=timeout)
    ack = read_acknowledgement(response, ())
    return PublishAck(ack.stream, ack.seq, ack.duplicate)


async def publish_many(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    *,
    window: int = 1_000,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - a wait without any progress
) -> list[PublishAck | BusError]:
    """Store the messages individually, in a pipeline, and return the result of each, in order.

    A failed message does not affect the others: its result is the error.

    Args:
        window: maximum number of unacknowledged messages.
        timeout: if no acknowledgement arrives for this many seconds, the remaining results count as
            unknown (`BusUnavailableError`).
    """
    for message in messages:
        check_expectation(message)
    return await _Pipeline(nc, messages, window, timeout).run()


async def publish_in_batches(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    *,
    batch: int = 500,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - per batch
) -> list[PublishAck | BusError]:
    """Publish as `publish_many` does, but in atomic batches, to one stream that allows them.

    With `sync_interval: always`, the server syncs once per batch instead of once per message, which
    is ten times as fast. The messages of a rejected batch are published again one by one, so that
    each has its own result.
    """
    results: list[PublishAck | BusError] = []
    for start in range(0, len(messages), min(batch, MAX_BATCH)):
        chunk = messages[start : start + min(batch, MAX_BATCH)]
        try:
            stream, sequences = await append_acknowledged(nc, chunk, timeout)
        except BusUnavailableError as error:
            results += [error] * len(chunk)
        except BusError:
            results += await publish_many(nc, chunk, timeout=timeout)
        else:
            results += [PublishAck(stream, seq) for seq in sequences]
    return results


async def store_all(
    nc: Client, messages: Sequence[OutgoingMessage]
) -> Sequence[PublishAck | BusError]:
    """Store messages with the fastest method, and return the result of each, in order.

    Every acknowledged publish waits for the disk, but an atomic batch waits only once (ADR 0007).
    """
    if len(messages) == 1:
        message = messages[0]
        try:
            return [await publish(nc, message.subject, message.payload, headers=message.headers)]
        except BusError as error:
            return [error]
    store = publish_many if len(messages) < _MIN_BATCH else publish_in_batches
    return await store(nc, messages)


class _Pipeline:
    """Publishes in flight, with one subscription for all responses.

    The last token of a reply subject is the index of its message.
    """

    def __init__(
        self, nc: Client, messages: Sequence[OutgoingMessage], window: int, timeout_seconds: float
    ) -> None:
        self._nc = nc
        self._messages = messages
        self._window = max(1, window)
        self._timeout_seconds = timeout_seconds
        self._responses: list[Incoming | BusError | None] = [None] * len(messages)
        self._in_flight = 0
        self._sent_count = 0
        self._is_lost = False
        self._progress = asyncio.Event()
        self._max_in_flight = 0  # `_progress` is set when at most this many messages are in flight

    async def run(self) -> list[PublishAck | BusError]:
        inbox = self._nc.new_inbox()
        subscription = await subscribe(self._nc, f"{inbox}.*", self._receive)
        try:
            with (
                on_loss(self._nc, self._handle_loss),
                on_denial(self._nc, self._handle_denial),
            ):
                await self._send_all(inbox)
        except (TimeoutError, BusUnavailableError):
            # `_result` reports messages without a response as unknown.
            suspect_server(self._nc)
        finally:
            await unsubscribe(subscription)
        return [self._result(index) for index in range(len(self._messages))]

    async def _send_all(self, inbox: str) -> None:
        step = max(1, self._window // 4)
        for start in range(0, len(self._messages), step):
            await self._wait_until(self._window - step)
            numbers = range(start, min(start + step, len(self._messages)))
            commands = [self._command(inbox, index) for index in numbers]
            self._in_flight += sum(1 for command in commands if command)
            self._sent_count = numbers.stop
            await write(self._nc, commands, "publish")
        await self._wait_until(0)

    def _command(self, inbox: str, index: int) -> bytes:
        message = self._messages[index]
        headers, reply = headers_of(message), f"{inbox}.{index}"
        try:
            return encode(self._nc, message.subject, message.payload, headers, reply=reply)
        except MessageTooLargeError as error:
            self._responses[index] = error
        except ValueError as error:
            self._responses[index] = BusRefusedError(str(error))
        # Not sent, because the result is already known.
        return b""

    def _receive(self, message: Incoming) -> None:
        index = int(message.subject.rsplit(".", 1)[1])
        if self._responses[index] is None:
            self._responses[index] = message
            self._in_flight -= 1
            if self._in_flight <= self._max_in_flight:
                self._progress.set()

    def _handle_denial(self, denial: Denial) -> bool:
        """Use a denial as the response to every message for its subject.

        Without a subscription to the inbox, no response can arrive, so a denied inbox applies to
        all messages.
        """
        if not isinstance(self._nc, FastClient):
            return False
        is_inbox_denied = self._nc.denials.inbox_denial is denial
        denied = [
            index
            for index in range(self._sent_count)
            if self._responses[index] is None
            and (is_inbox_denied or denial.concerns(self._messages[index].subject))
        ]
        for index in denied:
            self._responses[index] = self._nc.denial_error(denial)
        self._in_flight -= len(denied)
        if self._in_flight <= self._max_in_flight:
            self._progress.set()
        return bool(denied)

    def _handle_loss(self) -> None:
        self._is_lost = True
        self._progress.set()

    async def _wait_until(self, limit: int) -> None:
        """Wait until at most `limit` messages are in flight.

        Raises:
            TimeoutError: no response arrived in time, or the connection was lost.
        """
        self._max_in_flight = limit
        while (previous := self._in_flight) > limit:
            if self._is_lost:
                raise TimeoutError
            self._progress.clear()
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    await self._progress.wait()
            except TimeoutError:
                if self._in_flight == previous:
                    raise

    def _result(self, index: int) -> PublishAck | BusError:
        response = self._responses[index]
        if isinstance(response, BusError):
            return response
        message = self._messages[index]
        if response is None:
            return BusUnavailableError(
                f"publish to {message.subject}: no response, so the result is unknown"
            )
        try:
            ack = read_acknowledgement(response, (message,))
        except BusError as error:
            return error
        return PublishAck(ack.stream, ack.seq, ack.duplicate)
