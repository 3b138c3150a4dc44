"""Listings that other observers publish, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from events.envelope import InvalidMessageError, decode_listing_part
from events.intake import ListingPart
from reconciler.ports import ListingDelivery
from tests.memory_bus.clock import date_of
from tests.memory_bus.network import Network
from tests.memory_bus.reading import Pushed


class Listings:
    """The listings as the server stores them."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.parts: list[ListingDelivery] = []
        self.after_store: list[Callable[[], None]] = []

    def store(self, subject: str, payload: bytes) -> None:
        """Store a part."""
        part: ListingPart | None
        try:
            part = decode_listing_part(payload)
        except InvalidMessageError:
            part = None
        stored_at = date_of(self._time())
        self.parts.append(ListingDelivery(len(self.parts) + 1, subject, stored_at, payload, part))
        for hook in self.after_store:
            hook()


class MemoryListingReader:
    """Implements ``reconciler.ports.ListingReader`` for one process; reads only new parts."""

    def __init__(self, listings: Listings, network: Network) -> None:
        self._listings = listings
        self._network = network
        self._pushed: Pushed[ListingDelivery] | None = None

    async def next_batch(self) -> Sequence[ListingDelivery]:
        if self._pushed is None:
            parts = self._listings.parts
            self._pushed = Pushed(parts, self._network, len(parts), "feed")
            self._listings.after_store.append(self._pushed.send)
        return await self._pushed.next()

    async def close(self) -> None: ...
