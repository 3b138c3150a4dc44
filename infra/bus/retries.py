"""Retry reads during a short outage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from nats.aio.client import Client

from infra.jetstream.errors import BusUnavailableError

MAX_RETRY_SECONDS: Final = 35.0  # covers three timeouts; an election takes up to 8 s
_PAUSE_SECONDS: Final = 0.2

T = TypeVar("T")


async def retry_read(
    nc: Client, read: Callable[[], Awaitable[T]], *, seconds: float = MAX_RETRY_SECONDS
) -> T:
    """Retry a read until it succeeds, for at most `seconds`.

    A server that is starting reports that its streams have no leader or do not respond, and a
    stream whose leader has failed does not respond until a new one is elected.

    Raises:
        BusUnavailableError: the read did not succeed in time, or the connection was closed.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await read()
        except BusUnavailableError:
            if nc.is_closed or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)
