"""Listings that external observers publish on ``listing.<config>.<kind>.<id>``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_listing_part
from events.intake import ListingPart
from infra.bus.retries import retry_read
from infra.bus.streams import LISTINGS
from infra.jetstream.errors import NotFoundOnBusError, StreamReplacedError
from infra.jetstream.follow import Follower, follow
from infra.jetstream.reads import StoredMessage, stream_state
from reconciler.ports import ListingDelivery

_MISSING_SECONDS = 1.0
"""Interval between checks for whether a deleted stream exists again."""

_logger = structlog.get_logger(__name__)


class JetStreamListingReader:
    """Implements ``reconciler.ports.ListingReader``.

    It reads only new messages, because a listing that began earlier would be incomplete, and its
    observer will publish another one.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._follower: Follower | None = None
        self._stack = AsyncExitStack()

    async def next_batch(self) -> Sequence[ListingDelivery]:
        """Wait for the next listing parts, and return them.

        If the stream is deleted meanwhile, it keeps waiting until the stream exists again.
        Raises ``NotFoundOnBusError`` if the first call finds no stream.
        """
        if self._follower is None:
            self._follower = await retry_read(self._nc, self._follow_new)
        while True:
            try:
                return [_parse_part(message) for message in await anext(self._follower)]
            except StreamReplacedError as error:
                self._follower = await self._reopen(error)

    async def _reopen(self, error: StreamReplacedError) -> Follower:
        """Follow the stream again. Its observers will publish the lost listings again."""
        _logger.warning(
            "listings from other services are not read until `reconciler init` has recreated the "
            "stream",
            stream=LISTINGS,
            reason=str(error),
        )
        await self._stack.aclose()
        while True:
            try:
                return await retry_read(self._nc, self._follow_new)
            except NotFoundOnBusError:
                await asyncio.sleep(_MISSING_SECONDS)

    async def _follow_new(self) -> Follower:
        last = (await stream_state(self._nc, LISTINGS)).last_seq
        parts = follow(self._nc, LISTINGS, start_seq=last + 1)
        return await self._stack.enter_async_context(parts)

    async def close(self) -> None:
        """Stop reading."""
        await self._stack.aclose()


def _parse_part(message: StoredMessage) -> ListingDelivery:
    part: ListingPart | None
    try:
        part = decode_listing_part(message.payload)
    except InvalidMessageError:
        part = None
    return ListingDelivery(message.seq, message.subject, message.time, message.payload, part)
