"""Moments of the log: a time or position that a user names, and the end of the log then."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from nats.aio.client import Client

from infra.bus.bus_clock import read_clock
from infra.bus.log_moments import (
    MILLISECOND,
    first_event_from,
    last_position_before,
    log_range,
    truncate_to_millisecond,
)
from reconciler.errors import NoSuchMomentError
from reconciler.ports import StoredEvent

When = int | datetime
"""A position of the log, or a time. A time without a zone is UTC."""


class Moment(msgspec.Struct, frozen=True, rename="camel"):
    """The state after the event at ``position``, of ``time``. ``newest`` is the last position.

    ``asked`` is the requested time, if there is one.
    """

    position: int
    time: datetime
    newest: int
    asked: datetime | None = None

    def __str__(self) -> str:
        newest = ", the newest event" if self.position == self.newest else ""
        if self.asked is None:
            return f"position {self.position}, {shown(self.time)}{newest}"
        return f"{shown(self.asked)} (position {self.position}{newest}, at {shown(self.time)})"


def shown(time: datetime) -> str:
    """Format a time as in all tables: UTC, to the millisecond."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_utc(time: datetime) -> datetime:
    """Interpret a time without a zone as UTC.

    Raises ``OverflowError`` at the ends of the calendar.
    """
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


async def moment(nc: Client, when: When | None) -> Moment:
    """Find a moment; None is now.

    Raises ``NoSuchMomentError``, which names the moments in the log.
    """
    first, newest = await log_range(nc)
    if not newest:
        raise NoSuchMomentError("the log is empty")
    if when is None or isinstance(when, int):
        return await _at_position(nc, newest if when is None else when, newest)
    asked = as_utc(when)
    position = await last_position_before(nc, truncate_to_millisecond(asked) + MILLISECOND)
    if not position:
        raise await _before_the_log(nc, asked, first)
    event = (await _event(nc, position)).event
    if position == newest and await _is_to_come(nc, asked):
        raise NoSuchMomentError(
            f"{shown(asked)} is in the future; the newest event of the log is from "
            f"{shown(event.time)} (position {newest})"
        )
    return Moment(position, event.time, newest, asked)


async def _is_to_come(nc: Client, time: datetime) -> bool:
    """Return whether a time is in the future by the clock of the bus."""
    return time > datetime.now(UTC) and time > (await read_clock(nc)).now()


async def _before_the_log(nc: Client, asked: datetime, first: int) -> NoSuchMomentError:
    began = await _event(nc, first)
    return NoSuchMomentError(
        f"{shown(asked)} is before the start of the log, {shown(began.event.time)} (position "
        f"{began.position}); use a later time"
    )


async def _at_position(nc: Client, position: int, newest: int) -> Moment:
    if position < 1:
        raise NoSuchMomentError(f"position {position}: must be at least 1")
    if position > newest:
        last = await _event(nc, newest)
        raise NoSuchMomentError(
            f"position {position}: after the end of the log; its newest event is at position "
            f"{newest}, from {shown(last.event.time)}"
        )
    return Moment(position, (await _event(nc, position)).event.time, newest)


async def _event(nc: Client, position: int) -> StoredEvent:
    event = await first_event_from(nc, position)
    if event is None or event.position != position:
        raise NoSuchMomentError(
            f"position {position}: the log is damaged there and has no readable event; use "
            "another position, and see `reconciler replay --verify`"
        )
    return event


class Span(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the log: after ``after``, up to ``up_to``; None for no upper end."""

    after: int = 0
    up_to: int | None = None

    def __contains__(self, position: int) -> bool:
        return position > self.after and (self.up_to is None or position <= self.up_to)


async def span(nc: Client, since: When | None, until: When | None) -> Span:
    """Find the events between two moments, both included.

    A ``since`` before the log's first event and an ``until`` after its newest one are valid. Raises
    ``NoSuchMomentError`` for an impossible span: a position that does not exist, a ``since`` in the
    future, an end before the start, or before the start of the log.
    """
    after = 0 if since is None else await _before(nc, since)
    if until is None:
        return Span(after)
    if isinstance(until, int):
        up_to = (await moment(nc, until)).position
    else:
        up_to = await last_position_before(nc, truncate_to_millisecond(as_utc(until)) + MILLISECOND)
        first, newest = await log_range(nc)
        if newest and not up_to:
            raise await _before_the_log(nc, as_utc(until), first)
    is_turned = (
        isinstance(since, datetime)
        and isinstance(until, datetime)
        and as_utc(until) < as_utc(since)
    )
    if up_to < after or is_turned:
        raise NoSuchMomentError("the end is before the start; swap them")
    return Span(after, up_to)


async def _before(nc: Client, since: When) -> int:
    if isinstance(since, int):
        return (await moment(nc, since)).position - 1
    since = as_utc(since)
    if await _is_to_come(nc, since):
        raise NoSuchMomentError(f"{shown(since)} is in the future; use an earlier time")
    return await last_position_before(nc, truncate_to_millisecond(since))
