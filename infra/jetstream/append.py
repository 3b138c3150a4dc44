"""Append one message or one atomic batch, with compare-and-set."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.nuid import NUID

from infra.jetstream.acknowledgement import TIMEOUT_SECONDS, read_acknowledgement
from infra.jetstream.errors import BusRefusedError
from infra.jetstream.outgoing import OutgoingMessage, check_expectation, headers_of, subjects_of
from infra.jetstream.wire import check_size, encode, fail_on_denial, request, write

MAX_BATCH: Final = 1_000  # the server's limit on messages in one atomic batch (10199)

# The beginning of a batch was lost in a reconnection, or the batch exceeded the server's limit of
# 50 open batches. Nothing was stored, so it can be sent again.
_INCOMPLETE: Final = 10176
_INCOMPLETE_ATTEMPTS: Final = 5
_INCOMPLETE_WAIT_SECONDS: Final = 0.05
_batch_ids = NUID()

Step = Callable[[], Awaitable[None]]


async def append(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    *,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - passed on to nats-py
    before_commit: Step | None = None,
) -> list[int]:
    """Store all messages or none, and return their stream sequences.

    One message is a plain publish. Several messages are one atomic batch of at most 1,000, in one
    stream that allows atomic batches.

    Args:
        timeout: seconds to wait for the acknowledgement.
        before_commit: called after all messages of a batch except the last have been sent.

    Raises:
        AppendConflictError: an expectation does not hold; nothing was stored.
        BusUnavailableError: no response before the timeout; it is *unknown* whether the messages
            were stored.
        StreamFullError, MessageTooLargeError, BusRefusedError: nothing was stored.
        ValueError: too many messages, or an invalid expectation.
    """
    if len(messages) > MAX_BATCH:
        raise ValueError(f"{len(messages)} messages in one append: at most {MAX_BATCH} are allowed")
    if not messages:
        return []
    _, sequences = await append_acknowledged(nc, messages, timeout, before_commit)
    return sequences


async def append_acknowledged(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    timeout_seconds: float,
    before_commit: Step | None = None,
) -> tuple[str, list[int]]:
    """Append as `append` does, and return the stream's name and the sequences."""
    for message in messages:
        if message.expected_filter is not None:  # most messages of a batch have no expectation
            check_expectation(message)
    if len(messages) > 1:
        return await _append_batch(nc, messages, timeout_seconds, before_commit)
    message = messages[0]
    response = await request(
        nc, message.subject, message.payload, headers=headers_of(message), timeout=timeout_seconds
    )
    ack = read_acknowledgement(response, messages)
    return ack.stream, [ack.seq]


async def _append_batch(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    timeout_seconds: float,
    before_commit: Step | None,
) -> tuple[str, list[int]]:
    """Send the batch, and resend it if the server reports that it is incomplete."""
    for attempt in range(1, _INCOMPLETE_ATTEMPTS + 1):
        try:
            response = await _send_batch(nc, messages, timeout_seconds, before_commit)
            ack = read_acknowledgement(response, messages)
        except BusRefusedError as error:
            if error.err_code != _INCOMPLETE or attempt == _INCOMPLETE_ATTEMPTS:
                raise
            await asyncio.sleep(_INCOMPLETE_WAIT_SECONDS * attempt)
        else:
            # The server acknowledges only the last message. A batch is contiguous in its stream.
            return ack.stream, list(range(ack.seq - len(messages) + 1, ack.seq + 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _send_batch(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    timeout_seconds: float,
    before_commit: Step | None,
) -> Msg:
    """Send every message, and return the response to the last one, which commits the batch."""
    batch_id = _batch_ids.next().decode()
    commands = [
        encode(nc, message.subject, message.payload, headers_of(message, batch_id, number))
        for number, message in enumerate(messages[:-1], start=1)
    ]
    last = messages[-1]
    commit = headers_of(last, batch_id, len(messages))
    commit["Nats-Batch-Commit"] = "1"
    # Before the first message is sent, check that the last one is not too long.
    check_size(nc, last.subject, last.payload, commit)
    async with fail_on_denial(nc, [message.subject for message in messages]):
        await write(nc, commands, f"append to {subjects_of(messages)}")
        if before_commit is not None:
            await before_commit()
        return await request(
            nc, last.subject, last.payload, headers=commit, timeout=timeout_seconds
        )
