"""What to do when somebody has removed a stream or a consumer under a running process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from infra.bus.streams import INTAKE, LOG
from infra.jetstream.errors import NotFoundOnBusError, StreamReplacedError
from infra.jetstream.reads import StoredMessage, read_subject, stream_state

LOG_GONE: Final = (
    "this process stops, because it has read a different log; restore the log from a backup, "
    "or create an empty one with `reconciler init`"
)

_LOOKED_AT: Final = 100
"""So many of the log's newest events are read: an unreadable one must not stop everybody."""


@contextmanager
def telling_what_to_do() -> Generator[None]:
    """Add to an error about a stream or consumer that is gone what to do about it."""
    try:
        yield
    except StreamReplacedError as error:
        raise StreamReplacedError(f"{error}; {LOG_GONE}") from error
    except NotFoundOnBusError as error:
        raise NotFoundOnBusError(
            f"{error}; run `reconciler init`, which creates missing streams, then start the "
            f"process again (if stream {LOG} itself is missing, restore it from a backup first)"
        ) from error


async def check_intake_positions(nc: Client) -> None:
    """Check that the intake counts on from what the log knows of it: it is the logical clock.

    Raises ``StreamReplacedError`` if somebody has made the intake anew, and it counts from 1: all
    that comes in would look older than what was decided long ago, and be ignored.
    """
    newest = (await stream_state(nc, LOG)).last_seq
    if not newest:
        return
    first = max(1, newest + 1 - _LOOKED_AT)
    messages = await read_subject(nc, LOG, "log.>", start_seq=first)
    known = max(map(_cause_position, messages), default=0)
    last = (await stream_state(nc, INTAKE)).last_seq
    if last < known:
        raise StreamReplacedError(
            f"stream {INTAKE} is at position {last}, but the log refers to its position "
            f"{known}, so another client recreated the stream. Delete it (`nats stream rm "
            f"{INTAKE}`), then run `reconciler init`, which creates it with the right position"
        )


def _cause_position(message: StoredMessage) -> int:
    try:
        return decode_log(message.payload).causeposition
    except InvalidMessageError:
        return 0
