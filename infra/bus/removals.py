"""Remedies for a stream or consumer that was deleted while in use."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from infra.bus.retries import retry_read
from infra.bus.streams import INTAKE, LOG, LogIdentity, find_log
from infra.jetstream.errors import NotFoundOnBusError, StreamReplacedError
from infra.jetstream.reads import StoredMessage, read_subject, stream_state

LOG_REPLACED_REMEDY: Final = (
    "this process is stopping, because it has read a different log; keep all streams, and restore "
    "the log from a backup with `reconciler restore`"
)
INTAKE_REMEDY: Final = (
    "Do not delete anything. Stop all roles. As the account's administrator, run "
    "`reconciler backup NAME.backup`, then `reconciler restore NAME.backup`, which saves the "
    "stream to a file, recreates it with positions after those in the log, and publishes its "
    "declarations again"
)

_RECENT_EVENTS: Final = 100
"""Number of recent log events to read, so that one unreadable event cannot block startup."""


@contextmanager
def with_remedy() -> Generator[None]:
    """Add the remedy to an error about a deleted stream or consumer."""
    try:
        yield
    except StreamReplacedError as error:
        raise StreamReplacedError(f"{error}; {LOG_REPLACED_REMEDY}") from error
    except NotFoundOnBusError as error:
        raise NotFoundOnBusError(
            f"{error}; run `reconciler init`, which creates missing streams, then start the "
            f"process again (if stream {LOG} itself is missing, restore it from a backup first)"
        ) from error


async def check_same_log(nc: Client, identity: LogIdentity) -> None:
    """Check that the log has not been restored since its identity was read.

    Raises:
        StreamReplacedError: the log was restored. New actions would reuse the keys of lost ones.
    """
    if await retry_read(nc, lambda: find_log(nc)) != identity:
        raise StreamReplacedError(
            f"stream {LOG} was restored while this process was starting; start the process again"
        )


async def check_intake_positions(nc: Client) -> None:
    """Check that the intake's positions continue those in the log, as a logical clock must.

    Raises:
        StreamReplacedError: the intake lost its newest messages, or was recreated. New ones would
            appear older than processed ones, and be ignored.
    """
    if problem := await find_intake_problem(nc):
        raise StreamReplacedError(f"{problem}. {INTAKE_REMEDY}")


async def find_intake_problem(nc: Client) -> str:
    """Return the problem if the intake ends before a position that the log refers to, else ""."""
    newest = (await stream_state(nc, LOG)).last_seq
    if not newest:
        return ""
    first = max(1, newest + 1 - _RECENT_EVENTS)
    messages = await read_subject(nc, LOG, "log.>", start_seq=first)
    known = max(map(_cause_position, messages), default=0)
    last = (await stream_state(nc, INTAKE)).last_seq
    if last >= known:
        return ""
    return (
        f"stream {INTAKE} is at position {last}, but the log refers to its position {known}, so "
        "the stream has lost messages, or another client recreated it"
    )


def _cause_position(message: StoredMessage) -> int:
    try:
        return decode_log(message.payload).causationposition
    except InvalidMessageError:
        return 0
