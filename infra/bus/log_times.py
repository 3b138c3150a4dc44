"""Find positions in the log by time, and read the events between two positions.

Times are the events' own, to the millisecond, as commands show them, because a restored log has the
bus timestamps of the restore. Deciders' clocks may differ. Where times decrease, a time maps
to one of the positions at which the log crosses it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from nats.aio.client import Client

from infra.bus.outcome_feeds import decode_readable
from infra.bus.retries import retry_read
from infra.bus.streams import LOG
from infra.jetstream.follow import follow
from infra.jetstream.reads import read_subject, stream_state
from reconciler.ports import StoredEvent

MILLISECOND: Final = timedelta(milliseconds=1)
_EVERY_MESSAGE: Final = ">"


async def log_range(nc: Client) -> tuple[int, int]:
    """Return the log's first and last positions. The last one is 0 if the log is empty."""
    state = await retry_read(nc, lambda: stream_state(nc, LOG))
    return state.first_seq, state.last_seq


async def first_event_from(nc: Client, position: int) -> StoredEvent | None:
    """Return the first readable event at or after a position, or None."""
    while True:
        read = partial(read_subject, nc, LOG, _EVERY_MESSAGE, start_seq=position, limit=1)
        messages = await retry_read(nc, read)
        if not messages:
            return None
        if events := decode_readable(messages, LOG):
            return events[0]
        position = messages[0].seq + 1


async def last_position_before(nc: Client, time: datetime) -> int:
    """Return the last position before a time, or 0. A million events take about twenty reads."""
    # Binary search: the result is between `low` and `high`.
    first, last = await log_range(nc)
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        event = await first_event_from(nc, middle)
        if event is not None and event.position <= high and event.event.time < time:
            low = event.position
        else:
            high = middle - 1
    return low if low >= first else 0


def truncate_to_millisecond(time: datetime) -> datetime:
    """Truncate a time to milliseconds."""
    return time.replace(microsecond=time.microsecond // 1_000 * 1_000)


async def log_between(
    nc: Client,
    subject_filter: str,
    *,
    after: int = 0,
    up_to: int | None = None,
    keep_following: bool = False,
) -> AsyncGenerator[Sequence[StoredEvent]]:
    """Read the log in batches after a position. Unreadable messages are logged and skipped.

    Reading ends after ``up_to`` or, unless ``keep_following`` is set, after the message that was
    last when reading began.
    """
    if up_to is not None and up_to <= after:
        return
    follower = follow(nc, LOG, filters=[subject_filter], start_seq=after + 1)
    async with AsyncExitStack() as stack:
        await retry_read(nc, lambda: stack.enter_async_context(follower))
        async for messages in follower if keep_following else follower.replay():
            selected = [each for each in messages if up_to is None or each.seq <= up_to]
            if events := decode_readable(selected, LOG):
                yield events
            if up_to is not None and follower.position >= up_to:
                return
