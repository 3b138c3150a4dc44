"""Timers: messages that the server delivers to another subject at a given time.

A stream of timers allows schedules, and so roll-ups and purges. One schedule a subject: a second
one replaces the first. Timers are hints: late by up to a quarter of a second, sometimes twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from nats.aio.client import Client

from infra.jetstream.acknowledgement import PublishAck
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish, publish_many


@dataclass(slots=True, frozen=True)
class Schedule:
    """A message for later.

    Attributes:
        subject: the schedule's own subject, its identity.
        target: where the message arrives, a subject of the same stream.
        at: when, with a time zone. A time in the past means at once.
        keep_seconds: after which the message that arrives is deleted from the stream; 0 for never.
    """

    subject: str
    target: str
    at: datetime
    payload: bytes = b""
    headers: Mapping[str, str] | None = None
    keep_seconds: int = 0


async def schedule(
    nc: Client,
    *,
    subject: str,
    target: str,
    at: datetime,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
    keep_seconds: int = 0,
) -> PublishAck:
    """Store a timer, in the place of an earlier one on the same subject.

    Raises:
        BusUnavailableError: no answer: unknown; repeat it.
        BusRefusedError: the stream doesn't allow schedules, or doesn't have `target`.
        ValueError: `at` has no time zone.
    """
    one = _outgoing(Schedule(subject, target, at, payload, headers, keep_seconds))
    return await publish(nc, one.subject, one.payload, headers=one.headers)


async def schedule_many(nc: Client, schedules: Sequence[Schedule]) -> list[PublishAck | BusError]:
    """Store many timers, pipelined; each one's result is in its place.

    Raises:
        ValueError: an `at` without a time zone; nothing was stored.
    """
    return await publish_many(nc, [_outgoing(one) for one in schedules])


async def cancel(nc: Client, stream: str, subject: str) -> bool:
    """Remove the timer of a subject; whether there was one.

    Raises:
        NotFoundOnBusError: the stream doesn't exist.
        BusUnavailableError: no answer; repeat it.
    """
    answer = await api_request(nc, f"STREAM.PURGE.{stream}", {"filter": subject})
    return int(answer["purged"]) > 0


def _outgoing(one: Schedule) -> OutgoingMessage:
    if one.at.tzinfo is None:
        raise ValueError(f"schedule {one.subject}: {one.at} must have a time zone")
    at = one.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = {
        **(one.headers or {}),
        "Nats-Schedule": f"@at {at}",
        "Nats-Schedule-Target": one.target,
    }
    if one.keep_seconds:
        headers["Nats-Schedule-TTL"] = f"{one.keep_seconds}s"
    return OutgoingMessage(one.subject, one.payload, headers)
