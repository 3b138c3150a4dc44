"""Where in the log a time is, and what stands between two positions of it.

Times are those of the events, to the millisecond, as they are shown; the bus's own stamps are those
of the restoration in a log that was restored. Deciders have clocks of their own, which may differ:
where times go back, a moment is one of the places where they pass it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from nats.aio.client import Client

from infra.bus.outcome_feeds import readable
from infra.bus.retries import patiently
from infra.bus.streams import LOG
from infra.jetstream.follow import follow
from infra.jetstream.reads import read_subject, stream_state
from reconciler.ports import StoredEvent

MILLISECOND: Final = timedelta(milliseconds=1)
_EVERY_MESSAGE: Final = ">"


async def ends_of_log(nc: Client) -> tuple[int, int]:
    """Return the log's first and its last position; the last one is 0 if it is empty."""
    state = await patiently(nc, lambda: stream_state(nc, LOG))
    return state.first_seq, state.last_seq


async def event_from(nc: Client, position: int) -> StoredEvent | None:
    """Read the first event at or behind a position that can be read; None for none."""
    while True:
        read = partial(read_subject, nc, LOG, _EVERY_MESSAGE, start_seq=position, limit=1)
        found = await patiently(nc, read)
        if not found:
            return None
        if events := readable(found, LOG):
            return events[0]
        position = found[0].seq + 1


async def last_before(nc: Client, time: datetime) -> int:
    """Find the last position before a time, in some twenty reads of a million; 0 for none."""
    first, last = await ends_of_log(nc)
    known, unknown = first - 1, last
    while known < unknown:
        middle = (known + unknown + 1) // 2
        event = await event_from(nc, middle)
        if event is not None and event.position <= unknown and event.event.time < time:
            known = event.position
        else:
            unknown = middle - 1
    return known if known >= first else 0


def to_the_millisecond(time: datetime) -> datetime:
    """Cut a time off as it is shown."""
    return time.replace(microsecond=time.microsecond // 1_000 * 1_000)


async def log_between(
    nc: Client,
    subject_filter: str,
    *,
    after: int = 0,
    up_to: int | None = None,
    follows: bool = False,
) -> AsyncGenerator[Sequence[StoredEvent]]:
    """Read the log in batches from behind a position; what cannot be decoded is told and left out.

    It ends at ``up_to``, or with all that was there at the start, unless it ``follows``.
    """
    if up_to is not None and up_to <= after:
        return
    follower = follow(nc, LOG, filters=[subject_filter], start_seq=after + 1)
    async with AsyncExitStack() as stack:
        await patiently(nc, lambda: stack.enter_async_context(follower))
        async for messages in follower if follows else follower.replay():
            wanted = [one for one in messages if up_to is None or one.seq <= up_to]
            if events := readable(wanted, LOG):
                yield events
            if up_to is not None and follower.position >= up_to:
                return
