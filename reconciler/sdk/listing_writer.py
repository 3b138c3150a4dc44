"""Publish a listing: all objects of a scope, as an external observer has read them."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Final, Self

from events import subjects
from events.external import ExternalObject
from events.intake import ListingBegan, ListingCompleted, ListingItem, ListingPart
from infra.bus.client_bus import JetStreamClientBus

_PARTS_PER_BATCH: Final = 500


class ListingWriter:
    """One listing: ``async with`` it, and ``add`` every object in the scope.

    The listing is complete, and so proves absence, only if the block ends without an error. Call
    the API inside the block, because its start records the logical time of the listing.
    """

    def __init__(
        self,
        bus: JetStreamClientBus,
        provider_config: str,
        kind: str,
        *,
        prefix: str | None,
        labels: dict[str, str],
    ) -> None:
        self._bus = bus
        self._scope = (provider_config, kind, prefix, labels)
        self._subject = subjects.listing(provider_config, kind, uuid.uuid4().hex)
        self._unsent: list[ListingPart] = []
        self._names: set[str] = set()

    @property
    def count(self) -> int:
        """Number of distinct objects that were added."""
        return len(self._names)

    async def __aenter__(self) -> Self:
        """Publish the beginning; raises ``BusError`` on failure."""
        as_of = await self._bus.last_intake_position()
        provider_config, kind, prefix, labels = self._scope
        began = ListingBegan(provider_config, kind, as_of, prefix, labels)
        await self._bus.store_listing_parts(self._subject, [began])
        return self

    async def add(self, external_object: ExternalObject) -> None:
        """Publish an object, no later than the end of the block.

        Raises ``ValueError`` for an object outside the scope, which would invalidate the listing.
        """
        _config, _kind, prefix, labels = self._scope
        if (
            not external_object.name.startswith(prefix or "")
            or not labels.items() <= external_object.labels.items()
        ):
            raise ValueError(
                f"object {external_object.name!r} with labels {external_object.labels}: outside "
                f"the scope of the listing (prefix {prefix!r}, labels {labels}); leave it out"
            )
        self._unsent.append(ListingItem(external_object))
        self._names.add(external_object.name)
        if len(self._unsent) >= _PARTS_PER_BATCH:
            await self._flush()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        await self._flush()
        await self._bus.store_listing_parts(self._subject, [ListingCompleted(self.count)])

    async def _flush(self) -> None:
        parts, self._unsent = self._unsent, []
        if parts:
            await self._bus.store_listing_parts(self._subject, parts)
