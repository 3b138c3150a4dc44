"""The bus clock, shared by all processes and independent of their machines' clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from nats.aio.client import Client

from infra.bus.streams import LOG
from infra.jetstream.connection import api_request

MAX_CLOCK_DIFFERENCE: Final = timedelta(seconds=30)
"""Difference above which a clock counts as wrong; a role may take seconds to store an event."""

_ZERO = timedelta(0)


class BusClock(NamedTuple):
    """The offset of the bus clock from this machine's clock.

    Attributes:
        offset: bus time minus local time.
        margin: possible error of `offset`, in either direction.
    """

    offset: timedelta
    margin: timedelta

    @property
    def difference(self) -> timedelta:
        """The smallest possible difference between the two clocks."""
        return max(abs(self.offset) - self.margin, _ZERO)

    def now(self) -> datetime:
        """Return the current bus time."""
        return datetime.now(UTC) + self.offset


async def read_clock(nc: Client) -> BusClock:
    """Read the bus clock from a response.

    Raises:
        BusError: the request failed.
    """
    sent_at = time.time()
    response = await api_request(nc, f"STREAM.INFO.{LOG}", None)
    return compute_clock(str(response["ts"]), sent_at, time.time())


def compute_clock(bus_time: str, sent_at: float, received_at: float) -> BusClock:
    """Compare a bus time with the local times before and after the request, in seconds."""
    offset = datetime.fromisoformat(bus_time).timestamp() - (sent_at + received_at) / 2
    return BusClock(timedelta(seconds=offset), timedelta(seconds=(received_at - sent_at) / 2))
