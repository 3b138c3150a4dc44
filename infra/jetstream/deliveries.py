"""Messages as a consumer hands them out, and what can be said of each."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from nats.aio.client import Client

from infra.jetstream.wire import send, write

_SECOND: Final = 1_000_000_000


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """A message handed out by a consumer, until it is acknowledged.

    Attributes:
        seq: sequence in the stream.
        delivered: how often it has been handed out, this time included.
        reply: where acknowledgements go.
        time_ns: when it was stored, in nanoseconds since 1970.
        consumer: the consumer that handed it out.
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
    """Report that messages are done with. Without an answer: a lost one means a redelivery.

    Raises:
        BusUnavailableError: the connection is closed, or its buffer is full.
    """
    await write(nc, [f"PUB {one.reply}  0\r\n\r\n".encode() for one in deliveries], "ack")


async def nak(nc: Client, delivery: Delivered, delay_seconds: float = 0) -> None:
    """Ask for a message again, after a delay.

    Raises:
        BusUnavailableError: as for `ack`.
    """
    order = b"-NAK"
    if delay_seconds > 0:
        order += b' {"delay": %d}' % int(delay_seconds * _SECOND)
    await send(nc, delivery.reply, order)


async def in_progress(nc: Client, deliveries: Sequence[Delivered]) -> None:
    """Start the consumer's `ack_wait` afresh for messages that are still worked on.

    Raises:
        BusUnavailableError: as for `ack`.
    """
    commands = [f"PUB {one.reply}  4\r\n+WPI\r\n".encode() for one in deliveries]
    await write(nc, commands, "in progress")


async def terminate(nc: Client, delivery: Delivered, reason: str) -> None:
    """Say that a message is never to be delivered again; the reason goes to the server's advisory.

    Raises:
        BusUnavailableError: as for `ack`.
    """
    await send(nc, delivery.reply, f"+TERM {reason}".encode())
