"""Reading again through a short outage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from nats.aio.client import Client

from infra.jetstream.errors import BusUnavailableError

PATIENCE_SECONDS: Final = 35.0  # three answers that do not come; an election takes up to 8 s
_PAUSE_SECONDS: Final = 0.2

T = TypeVar("T")


async def patiently(
    nc: Client, read: Callable[[], Awaitable[T]], *, seconds: float = PATIENCE_SECONDS
) -> T:
    """Read until it works; raises ``BusUnavailableError`` after some time, or when closed.

    A server that starts does not know its streams yet, and answers so; a stream whose leader is
    gone does not answer until there is another one.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return await read()
        except BusUnavailableError:
            if nc.is_closed or time.monotonic() > end:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)
