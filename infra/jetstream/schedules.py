"""Timers: messages that the server republishes to another subject at a given time.

The timers' stream must allow schedules, roll-ups and purges. A subject has one schedule: a second
one replaces it. Timers are only hints: they fire up to 0.25 s late, and sometimes twice.
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
    """A message to deliver at a later time.

    Attributes:
        subject: the schedule's subject, which identifies it.
        target: subject of the delivered message, in the same stream.
        at: delivery time, with a time zone. A time in the past means immediately.
        keep_seconds: time until the delivered message is deleted from the stream; 0 to keep it.
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
    """Store a timer, replacing an earlier one on the same subject.

    Raises:
        BusUnavailableError: no response, so the result is unknown; repeat the call.
        BusRefusedError: the stream does not allow schedules, or lacks the `target` subject.
        ValueError: `at` has no time zone.
    """
    timer = _outgoing(Schedule(subject, target, at, payload, headers, keep_seconds))
    return await publish(nc, timer.subject, timer.payload, headers=timer.headers)


async def schedule_many(nc: Client, schedules: Sequence[Schedule]) -> list[PublishAck | BusError]:
    """Store many timers in a pipeline, and return the result of each, in order.

    Raises:
        ValueError: an `at` value has no time zone; nothing was stored.
    """
    return await publish_many(nc, [_outgoing(schedule) for schedule in schedules])


async def cancel(nc: Client, stream: str, subject: str) -> bool:
    """Delete the timer on a subject. Return whether it existed.

    Raises:
        NotFoundOnBusError: the stream does not exist.
        BusUnavailableError: no response; repeat the call.
    """
    response = await api_request(nc, f"STREAM.PURGE.{stream}", {"filter": subject})
    return int(response["purged"]) > 0


def _outgoing(timer: Schedule) -> OutgoingMessage:
    if timer.at.tzinfo is None:
        raise ValueError(f"schedule {timer.subject}: {timer.at} must have a time zone")
    at = timer.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = {
        **(timer.headers or {}),
        "Nats-Schedule": f"@at {at}",
        "Nats-Schedule-Target": timer.target,
    }
    if timer.keep_seconds:
        headers["Nats-Schedule-TTL"] = f"{timer.keep_seconds}s"
    return OutgoingMessage(timer.subject, timer.payload, headers)
