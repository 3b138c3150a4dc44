"""The bus's clock: one for all processes, independent of the clocks of their machines."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from nats.aio.client import Client

from infra.bus.streams import LOG
from infra.jetstream.connection import api_request

WRONG: Final = timedelta(seconds=30)
"""Difference from which a clock counts as wrong. A role may take seconds to store an event."""

_NONE = timedelta(0)


class BusClock(NamedTuple):
    """The offset of the bus's clock from this machine's clock.

    Attributes:
        ahead: bus time minus local time.
        margin: possible error of `ahead`, in both directions.
    """

    ahead: timedelta
    margin: timedelta

    @property
    def difference(self) -> timedelta:
        """The smallest possible difference of the two clocks."""
        return max(abs(self.ahead) - self.margin, _NONE)

    def now(self) -> datetime:
        """Return the bus's current time."""
        return datetime.now(UTC) + self.ahead


async def read_clock(nc: Client) -> BusClock:
    """Read the bus's clock from a response.

    Raises:
        BusError: the request failed.
    """
    sent_at = time.time()
    answer = await api_request(nc, f"STREAM.INFO.{LOG}", None)
    return clock_of(str(answer["ts"]), sent_at, time.time())


def clock_of(bus_time: str, sent_at: float, received_at: float) -> BusClock:
    """Compare a bus time with the local times before and after the request, in seconds."""
    ahead = datetime.fromisoformat(bus_time).timestamp() - (sent_at + received_at) / 2
    return BusClock(timedelta(seconds=ahead), timedelta(seconds=(received_at - sent_at) / 2))
