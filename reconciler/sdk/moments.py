"""Moments of the log: a requested time or position, and the newest event at that point."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from nats.aio.client import Client

from infra.bus.bus_clock import read_clock
from infra.bus.log_times import (
    MILLISECOND,
    first_event_from,
    last_position_before,
    log_range,
    truncate_to_millisecond,
)
from reconciler.errors import PositionNotFoundError
from reconciler.ports import StoredEvent

When = int | datetime
"""A position of the log, or a time, which is UTC if it has no zone."""


class Moment(msgspec.Struct, frozen=True, rename="camel"):
    """The log after the event at ``position``, stored at ``time``.

    ``newest``: the log's last position. ``asked``: the time that the caller requested, or None.
    """

    position: int
    time: datetime
    newest: int
    asked: datetime | None = None

    def __str__(self) -> str:
        newest = ", the newest event" if self.position == self.newest else ""
        if self.asked is None:
            return f"position {self.position}, {format_time(self.time)}{newest}"
        time = format_time(self.time)
        return f"{format_time(self.asked)} (position {self.position}{newest}, at {time})"


def format_time(time: datetime) -> str:
    """Return a time in the format that all tables use: UTC, to the millisecond."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_utc(time: datetime) -> datetime:
    """Convert a time to UTC, its default zone; raises ``OverflowError`` at the calendar's ends."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


async def moment(nc: Client, when: When | None) -> Moment:
    """Return a moment; None is now. Raises ``PositionNotFoundError`` with the extent of the log."""
    first, newest = await log_range(nc)
    if not newest:
        raise PositionNotFoundError("the log is empty")
    if when is None or isinstance(when, int):
        return await _at_position(nc, newest if when is None else when, newest)
    requested = as_utc(when)
    position = await last_position_before(nc, truncate_to_millisecond(requested) + MILLISECOND)
    if not position:
        raise await _build_too_early_error(nc, requested, first)
    event = (await _event(nc, position)).event
    if position == newest and await _is_in_the_future(nc, requested):
        raise PositionNotFoundError(
            f"{format_time(requested)} is in the future; the newest event of the log is from "
            f"{format_time(event.time)} (position {newest})"
        )
    return Moment(position, event.time, newest, requested)


async def _is_in_the_future(nc: Client, time: datetime) -> bool:
    """Return whether a time is in the future for the bus, because the local clock may lag."""
    return time > datetime.now(UTC) and time > (await read_clock(nc)).now()


async def _build_too_early_error(
    nc: Client, requested: datetime, first: int
) -> PositionNotFoundError:
    first_event = await _event(nc, first)
    return PositionNotFoundError(
        f"{format_time(requested)} is before the start of the log, "
        f"{format_time(first_event.event.time)} (position {first_event.position}); use a later time"
    )


async def _at_position(nc: Client, position: int, newest: int) -> Moment:
    if position < 1:
        raise PositionNotFoundError(f"position {position}: must be at least 1")
    if position > newest:
        last = await _event(nc, newest)
        raise PositionNotFoundError(
            f"position {position}: after the end of the log; its newest event is at position "
            f"{newest}, from {format_time(last.event.time)}"
        )
    return Moment(position, (await _event(nc, position)).event.time, newest)


async def _event(nc: Client, position: int) -> StoredEvent:
    event = await first_event_from(nc, position)
    if event is None or event.position != position:
        raise PositionNotFoundError(
            f"position {position}: the log is damaged there and has no readable event; use "
            "another position, and see `reconciler replay --verify`"
        )
    return event


class Span(msgspec.Struct, frozen=True, rename="camel"):
    """A range of the log: after position ``after``, up to ``up_to``, or the log's end if None."""

    after: int = 0
    up_to: int | None = None

    def __contains__(self, position: int) -> bool:
        return position > self.after and (self.up_to is None or position <= self.up_to)


async def span(nc: Client, since: When | None, until: When | None) -> Span:
    """Return the range between two moments, inclusive.

    ``since`` may precede the log's first event, and ``until`` may follow its newest one. Raises
    ``PositionNotFoundError`` for a missing position, a ``since`` in the future, and an ``until``
    before ``since`` or the log's start.
    """
    after = 0 if since is None else await _position_before(nc, since)
    if until is None:
        return Span(after)
    if isinstance(until, int):
        up_to = (await moment(nc, until)).position
    else:
        up_to = await last_position_before(nc, truncate_to_millisecond(as_utc(until)) + MILLISECOND)
        first, newest = await log_range(nc)
        if newest and not up_to:
            raise await _build_too_early_error(nc, as_utc(until), first)
    is_reversed = (
        isinstance(since, datetime)
        and isinstance(until, datetime)
        and as_utc(until) < as_utc(since)
    )
    if up_to < after or is_reversed:
        raise PositionNotFoundError("the end is before the start; swap them")
    return Span(after, up_to)


async def _position_before(nc: Client, since: When) -> int:
    if isinstance(since, int):
        return (await moment(nc, since)).position - 1
    since = as_utc(since)
    if await _is_in_the_future(nc, since):
        raise PositionNotFoundError(f"{format_time(since)} is in the future; use an earlier time")
    return await last_position_before(nc, truncate_to_millisecond(since))
