"""Appends: one message, or one atomic batch with compare-and-set."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.nuid import NUID

from infra.jetstream.acknowledgement import TIMEOUT_SECONDS, checked
from infra.jetstream.errors import BusRefusedError
from infra.jetstream.outgoing import OutgoingMessage, check_expectation, headers_of, subjects_of
from infra.jetstream.wire import check_size, encode, ended_by_denial, request, write

MAX_BATCH: Final = 1_000  # the server's limit of messages in one atomic batch (10199)

# A batch that lost its beginning to a reconnection, or met 50 other open ones. Nothing is stored.
_INCOMPLETE: Final = 10176
_INCOMPLETE_ATTEMPTS: Final = 5
_INCOMPLETE_WAIT_SECONDS: Final = 0.05
_batch_ids = NUID()

Step = Callable[[], Awaitable[None]]


async def append(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    *,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - becomes nats-py's own
    before_commit: Step | None = None,
) -> list[int]:
    """Store all the messages or none, and return their stream sequences.

    One message is a plain publish; several (at most 1,000, of one stream that allows atomic
    batches) are one atomic batch.

    Args:
        timeout: seconds until the answer.
        before_commit: done when all messages of a batch but the last are sent.

    Raises:
        AppendConflictError: an expectation does not hold; nothing was stored.
        BusUnavailableError: no answer in time: *unknown* whether the messages were stored.
        StreamFullError, MessageTooLargeError, BusRefusedError: nothing was stored.
        ValueError: too many messages, or an expectation that can't work.
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
    patience_seconds: float,
    before_commit: Step | None = None,
) -> tuple[str, list[int]]:
    """Do what `append` does, and return the stream too that took the messages."""
    for message in messages:
        check_expectation(message)
    if len(messages) > 1:
        return await _append_batch(nc, messages, patience_seconds, before_commit)
    only = messages[0]
    answer = await request(
        nc, only.subject, only.payload, headers=headers_of(only), timeout=patience_seconds
    )
    ack = checked(answer, messages)
    return ack.stream, [ack.seq]


async def _append_batch(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    patience_seconds: float,
    before_commit: Step | None,
) -> tuple[str, list[int]]:
    """Send the batch; again when the server says that it did not get all of it."""
    for attempt in range(1, _INCOMPLETE_ATTEMPTS + 1):
        try:
            answer = await _send_batch(nc, messages, patience_seconds, before_commit)
            ack = checked(answer, messages)
        except BusRefusedError as error:
            if error.err_code != _INCOMPLETE or attempt == _INCOMPLETE_ATTEMPTS:
                raise
            await asyncio.sleep(_INCOMPLETE_WAIT_SECONDS * attempt)
        else:
            return ack.stream, list(range(ack.seq - len(messages) + 1, ack.seq + 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _send_batch(
    nc: Client,
    messages: Sequence[OutgoingMessage],
    patience_seconds: float,
    before_commit: Step | None,
) -> Msg:
    """Send every message, and return the answer to the last, which commits the batch."""
    batch_id = _batch_ids.next().decode()
    commands = [
        encode(nc, one.subject, one.payload, headers_of(one, batch_id, number))
        for number, one in enumerate(messages[:-1], start=1)
    ]
    last = messages[-1]
    commit = headers_of(last, batch_id, len(messages))
    commit["Nats-Batch-Commit"] = "1"
    check_size(nc, last.subject, last.payload, commit)  # before anything is sent
    async with ended_by_denial(nc, [one.subject for one in messages]):
        await write(nc, commands, f"append to {subjects_of(messages)}")
        if before_commit is not None:
            await before_commit()
        return await request(
            nc, last.subject, last.payload, headers=commit, timeout=patience_seconds
        )
