"""Appends: one message or one atomic batch with compare-and-set, and acknowledged publishes."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.nuid import NUID

from infra.jetstream.errors import (
    AppendConflictError,
    BusError,
    BusRefusedError,
    BusUnavailableError,
    MessageTooLargeError,
)
from infra.jetstream.wire import (
    ApiError,
    check_size,
    encode,
    loss_noticed,
    request,
    status_of,
    subscribe,
    to_bus_error,
    unsubscribe,
    write,
)

MAX_BATCH: Final = 1_000  # the server's limit of messages in one atomic batch (10199)
TIMEOUT_SECONDS: Final = 15.0  # above the 8 s that a cluster took to replace a killed leader
MESSAGE_ID: Final = "Nats-Msg-Id"

_CONFLICT: Final = frozenset({10071, 10164})
# A batch that lost its beginning to a reconnection, or met 50 other open ones. Nothing is stored.
_INCOMPLETE: Final = 10176
_INCOMPLETE_ATTEMPTS: Final = 5
_INCOMPLETE_WAIT_SECONDS: Final = 0.05
_FOUND_SEQUENCE: Final = re.compile(r"sequence: (\d+)")
_batch_ids = NUID()


@dataclass(slots=True, frozen=True)
class OutgoingMessage:
    """A message to publish.

    Attributes:
        headers: the publisher's own; header names of JetStream are added by this module.
        expected_filter: a subject filter that covers `subject`, or None to expect nothing.
        expected_last: the stream sequence of the last message under `expected_filter`, 0 for none.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str] | None = None
    expected_filter: str | None = None
    expected_last: int = 0


class PublishAck(msgspec.Struct, frozen=True):
    """The server's acknowledgement of one stored message."""

    stream: str
    seq: int
    duplicate: bool = False


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    count: int = 0
    error: ApiError | None = None


_ack = msgspec.json.Decoder(_Ack)


async def append(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    *,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - becomes nats-py's own
) -> list[int]:
    """Store all the messages or none, and return their stream sequences.

    One message is a plain publish; several (at most 1,000, of one stream that allows atomic
    batches) are one atomic batch.

    Raises:
        AppendConflictError: an expectation does not hold; nothing was stored.
        BusUnavailableError: no answer in time: *unknown* whether the messages were stored.
        StreamFullError, MessageTooLargeError, BusRefusedError: nothing was stored.
        ValueError: too many messages, or an expectation that can't work.
    """
    if len(messages) > MAX_BATCH:
        raise ValueError(f"{len(messages)} messages in one append: at most {MAX_BATCH}")
    if not messages:
        return []
    _, sequences = await _append(nc, messages, timeout)
    return sequences


async def _append(
    nc: Client, messages: Sequence[OutgoingMessage], patience_seconds: float
) -> tuple[str, list[int]]:
    """Return the stream that took the messages, and their sequences."""
    for message in messages:
        _check_expectation(message)
    if len(messages) > 1:
        return await _append_batch(nc, messages, patience_seconds)
    only = messages[0]
    answer = await request(
        nc, only.subject, only.payload, headers=_headers(only), timeout=patience_seconds
    )
    ack = _checked(answer, messages)
    return ack.stream, [ack.seq]


async def _append_batch(
    nc: Client, messages: Sequence[OutgoingMessage], patience_seconds: float
) -> tuple[str, list[int]]:
    """Send the batch; again when the server says that it did not get all of it."""
    for attempt in range(1, _INCOMPLETE_ATTEMPTS + 1):
        try:
            ack = _checked(await _send_batch(nc, messages, patience_seconds), messages)
        except BusRefusedError as error:
            if error.err_code != _INCOMPLETE or attempt == _INCOMPLETE_ATTEMPTS:
                raise
            await asyncio.sleep(_INCOMPLETE_WAIT_SECONDS * attempt)
        else:
            return ack.stream, list(range(ack.seq - len(messages) + 1, ack.seq + 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _send_batch(
    nc: Client, messages: Sequence[OutgoingMessage], patience_seconds: float
) -> Msg:
    """Send every message, and return the answer to the last, which commits the batch."""
    batch_id = _batch_ids.next().decode()
    commands = [
        encode(nc, one.subject, one.payload, _headers(one, batch_id, number))
        for number, one in enumerate(messages[:-1], start=1)
    ]
    last = messages[-1]
    commit = _headers(last, batch_id, len(messages))
    commit["Nats-Batch-Commit"] = "1"
    check_size(nc, last.subject, last.payload, commit)  # before anything is sent
    await write(nc, commands, f"append to {_subjects(messages)}")
    return await request(nc, last.subject, last.payload, headers=commit, timeout=patience_seconds)


async def publish(
    nc: Client,
    subject: str,
    payload: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    msg_id: str | None = None,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - becomes nats-py's own
) -> PublishAck:
    """Store one message and return its acknowledgement.

    Args:
        msg_id: with it, a repeat within the stream's duplicate window is stored once.

    Raises:
        BusUnavailableError: no answer in time, or no stream takes the subject: unknown.
        StreamFullError, MessageTooLargeError, BusRefusedError: nothing was stored.
    """
    if msg_id is not None:
        headers = {**(headers or {}), MESSAGE_ID: msg_id}
    answer = await request(nc, subject, payload, headers=headers, timeout=timeout)
    ack = _checked(answer, ())
    return PublishAck(ack.stream, ack.seq, ack.duplicate)


async def publish_many(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    *,
    window: int = 1_000,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - a wait without any progress
) -> list[PublishAck | BusError]:
    """Store the messages one by one, pipelined, and return each one's own result, in order.

    A message that fails hinders no other: its error is in its place.

    Args:
        window: how many may be unacknowledged at any time.
        timeout: seconds without any acknowledgement after which the rest counts as unknown
            (BusUnavailableError).
    """
    for message in messages:
        _check_expectation(message)
    return await _Pipeline(nc, messages, window, timeout).run()


async def publish_in_batches(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    *,
    batch: int = 500,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - of each batch
) -> list[PublishAck | BusError]:
    """Do what `publish_many` does, in atomic batches, into one stream that allows them.

    With `sync_interval: always` the server syncs once a batch, not once a message: ten times as
    fast. A batch that is refused is published again one by one, so that each message has its own
    result.
    """
    results: list[PublishAck | BusError] = []
    for start in range(0, len(messages), min(batch, MAX_BATCH)):
        some = messages[start : start + min(batch, MAX_BATCH)]
        try:
            stream, sequences = await _append(nc, some, timeout)
        except BusUnavailableError as error:
            results += [error] * len(some)
        except BusError:
            results += await publish_many(nc, some, timeout=timeout)
        else:
            results += [PublishAck(stream, seq) for seq in sequences]
    return results


class _Pipeline:
    """Publishes in flight: one subscription, whose last token is the message's index."""

    def __init__(
        self, nc: Client, messages: Sequence[OutgoingMessage], window: int, patience: float
    ) -> None:
        self._nc = nc
        self._messages = messages
        self._window = max(1, window)
        self._patience = patience
        self._answers: list[Msg | BusError | None] = [None] * len(messages)
        self._in_flight = 0
        self._lost = False
        self._room = asyncio.Event()
        self._wanted = 0  # the waiter sleeps until no more than these are in flight

    async def run(self) -> list[PublishAck | BusError]:
        inbox = self._nc.new_inbox()
        subscription = await subscribe(self._nc, f"{inbox}.*", self._answered)
        try:
            with loss_noticed(self._nc, self._connection_lost):
                await self._send_all(inbox)
        except (TimeoutError, BusUnavailableError):
            pass  # what has no answer is reported as unknown, in its place
        finally:
            await unsubscribe(subscription)
        return [self._result(index) for index in range(len(self._messages))]

    async def _send_all(self, inbox: str) -> None:
        step = max(1, self._window // 4)
        for start in range(0, len(self._messages), step):
            await self._until(self._window - step)
            numbers = range(start, min(start + step, len(self._messages)))
            commands = [self._command(inbox, index) for index in numbers]
            self._in_flight += sum(1 for one in commands if one)
            await write(self._nc, commands, "publish")
        await self._until(0)

    def _command(self, inbox: str, index: int) -> bytes:
        one = self._messages[index]
        try:
            return encode(
                self._nc, one.subject, one.payload, _headers(one), reply=f"{inbox}.{index}"
            )
        except MessageTooLargeError as error:
            self._answers[index] = error
        except ValueError as error:
            self._answers[index] = BusRefusedError(str(error))
        return b""

    async def _answered(self, message: Msg) -> None:
        index = int(message.subject.rsplit(".", 1)[1])
        if self._answers[index] is None:
            self._answers[index] = message
            self._in_flight -= 1
            if self._in_flight <= self._wanted:
                self._room.set()

    def _connection_lost(self) -> None:
        self._lost = True
        self._room.set()

    async def _until(self, wanted: int) -> None:
        """Wait until at most `wanted` are in flight; TimeoutError when nothing more will come."""
        self._wanted = wanted
        while (before := self._in_flight) > wanted:
            if self._lost:
                raise TimeoutError
            self._room.clear()
            try:
                async with asyncio.timeout(self._patience):
                    await self._room.wait()
            except TimeoutError:
                if self._in_flight == before:
                    raise

    def _result(self, index: int) -> PublishAck | BusError:
        answer = self._answers[index]
        if isinstance(answer, BusError):
            return answer
        message = self._messages[index]
        if answer is None:
            return BusUnavailableError(f"publish to {message.subject}: no answer, unknown")
        try:
            ack = _checked(answer, (message,))
        except BusError as error:
            return error
        return PublishAck(ack.stream, ack.seq, ack.duplicate)


def _headers(
    message: OutgoingMessage, batch_id: str | None = None, number: int = 0
) -> dict[str, str]:
    headers = dict(message.headers) if message.headers else {}
    if message.expected_filter is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(message.expected_last)
        headers["Nats-Expected-Last-Subject-Sequence-Subject"] = message.expected_filter
    if batch_id is not None:
        headers["Nats-Batch-Id"] = batch_id
        headers["Nats-Batch-Sequence"] = str(number)
    return headers


def _check_expectation(message: OutgoingMessage) -> None:
    """Refuse an expectation that the server would accept and misread."""
    if message.expected_filter is None:
        return
    if message.expected_last < 0:
        raise ValueError(f"expected_last {message.expected_last} of {message.subject}: below 0")
    if not subject_matches(message.expected_filter, message.subject):
        raise ValueError(
            f"expected_filter {message.expected_filter!r} doesn't cover {message.subject!r}"
        )


def subject_matches(subject_filter: str, subject: str) -> bool:
    """Whether a subject filter with `*` and `>` covers a subject."""
    if subject_filter.endswith(".>") and subject.startswith(subject_filter[:-1]):
        return len(subject) >= len(subject_filter)  # the common case, without splitting
    wanted, tokens = subject_filter.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":  # noqa: S105 - a token of a subject
            return index < len(tokens)
        if index >= len(tokens) or token not in ("*", tokens[index]):
            return False
    return len(wanted) == len(tokens)


def _checked(answer: Msg, messages: Sequence[OutgoingMessage]) -> _Ack:
    """Return the acknowledgement in an answer, or raise what it says instead."""
    if status_of(answer) == "503":
        raise BusUnavailableError(f"publish: no stream takes {_subjects(messages)}, or it starts")
    ack = _ack.decode(answer.data)
    if ack.error is None:
        return ack
    if ack.error.err_code in _CONFLICT:
        raise _conflict(ack.error, messages)
    raise to_bus_error(ack.error, f"publish to {_subjects(messages)}")


def _conflict(error: ApiError, messages: Sequence[OutgoingMessage]) -> AppendConflictError:
    expected = {
        message.expected_filter: message.expected_last
        for message in messages
        if message.expected_filter is not None
    }
    found = _FOUND_SEQUENCE.search(error.description)
    return AppendConflictError(
        f"append to {_subjects(messages)}: {error.description}",
        filters=expected,
        actual_last=int(found.group(1)) if found else None,
    )


def _subjects(messages: Sequence[OutgoingMessage]) -> str:
    if not messages:
        return "the subject"
    more = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
    return f"{messages[0].subject}{more}"
