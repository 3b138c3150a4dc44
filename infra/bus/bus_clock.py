"""The bus's clock: one for all processes, whatever the clocks of their machines show."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from nats.aio.client import Client

from infra.bus.streams import LOG
from infra.jetstream.connection import api_request

WRONG: Final = timedelta(seconds=30)
"""By so much a clock is wrong: a role may take some seconds until it has stored what it writes."""

_NONE = timedelta(0)


class BusClock(NamedTuple):
    """How far the bus's clock is ahead of this machine's, and how far that may be wrong."""

    ahead: timedelta
    margin: timedelta

    @property
    def difference(self) -> timedelta:
        """By how much the two differ at least."""
        return max(abs(self.ahead) - self.margin, _NONE)

    def now(self) -> datetime:
        """Return the time by the bus's clock."""
        return datetime.now(UTC) + self.ahead


async def read_clock(nc: Client) -> BusClock:
    """Read the bus's clock off an answer; raises ``BusError``."""
    asked = time.time()
    answer = await api_request(nc, f"STREAM.INFO.{LOG}", None)
    return clock_of(str(answer["ts"]), asked, time.time())


def clock_of(bus_time: str, asked: float, answered: float) -> BusClock:
    """Compare a time of the bus with those of ours before and after the request for it."""
    ahead = datetime.fromisoformat(bus_time).timestamp() - (asked + answered) / 2
    return BusClock(timedelta(seconds=ahead), timedelta(seconds=(answered - asked) / 2))
