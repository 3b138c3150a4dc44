"""Messages that a consumer delivered, and their acknowledgements."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from nats.aio.client import Client

from infra.jetstream.wire import send, write

_SECOND: Final = 1_000_000_000


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """A message that a consumer delivered.

    Attributes:
        seq: sequence in the stream.
        delivered: number of delivery attempts, including this one.
        reply: subject for acknowledgements.
        time_ns: storage time, in nanoseconds since 1970.
        consumer: name of the consumer.
    """

    seq: int
    subject: str
    payload: bytes
    headers: Mapping[str, str] | None
    delivered: int
    reply: str
    time_ns: int
    consumer: str


async def ack(nc: Client, deliveries: Sequence[Delivered]) -> None:
    """Acknowledge messages, without confirmation. A lost acknowledgement causes a redelivery.

    Raises:
        BusUnavailableError: the connection is closed, or its buffer is full.
    """
    # One write for all of them: nats-py's `publish` would cost several times as much per message.
    await write(nc, [f"PUB {delivery.reply}  0\r\n\r\n".encode() for delivery in deliveries], "ack")


async def nak(nc: Client, delivery: Delivered, delay_seconds: float = 0) -> None:
    """Request redelivery of a message after a delay.

    Raises:
        BusUnavailableError: as for `ack`.
    """
    command = b"-NAK"
    if delay_seconds > 0:
        command += b' {"delay": %d}' % int(delay_seconds * _SECOND)
    await send(nc, delivery.reply, command)


async def in_progress(nc: Client, deliveries: Sequence[Delivered]) -> None:
    """Restart the `ack_wait` of messages that are still being processed.

    Raises:
        BusUnavailableError: as for `ack`.
    """
    commands = [f"PUB {delivery.reply}  4\r\n+WPI\r\n".encode() for delivery in deliveries]
    await write(nc, commands, "in progress")


async def terminate(nc: Client, delivery: Delivered, reason: str) -> None:
    """Stop redelivering a message. The server publishes `reason` in an advisory.

    Raises:
        BusUnavailableError: as for `ack`.
    """
    await send(nc, delivery.reply, f"+TERM {reason}".encode())
