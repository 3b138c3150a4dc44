"""Process listings from other observers, by the same rules as Reconciler's own."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from events.intake import ListingBegan, ListingCompleted, ListingItem
from reconciler.errors import ConfigurationError, ProviderError
from reconciler.ports import (
    DeadLetter,
    DecisionSink,
    IntakeDelivery,
    ListingDelivery,
    ListingReader,
)
from reconciler.response_budget import MAX_LISTING_BYTES, decoded_bytes
from reconciler.roles.observer.listing import ListingAssembler, ListingRefusedError, check_scope
from reconciler.roles.observer.observer import Observer
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.roles.runtime.runtime import REAL, Runtime

ABANDONED_SECONDS = 300.0
"""Age at which an incomplete listing is abandoned."""

MAX_OPEN_BYTES = 2 * MAX_LISTING_BYTES
"""Limit on the total bytes of incomplete listings, which may come from several tenants."""

_MIB = 1024 * 1024
_MAX_OPEN_LISTINGS = 256
_MAX_REJECTED_SUBJECTS = 1_000
_SUBJECT_TOKENS = 4

_logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _OpenListing:
    """An incomplete listing, with its first part and the total size of its objects."""

    since: float
    listing: ListingAssembler
    beginning: ListingDelivery
    size: int = 0


class ForeignListings:
    """Assembles listings from the bus. An invalid one proves nothing and becomes a dead letter."""

    def __init__(
        self,
        *,
        reader: ListingReader,
        sink: DecisionSink,
        observer: Observer,
        configurations: Configurations,
        providers: ProviderPool,
        runtime: Runtime = REAL,
    ) -> None:
        self._reader = reader
        self._sink = sink
        self._observer = observer
        self._configurations = configurations
        self._providers = providers
        self._clock = runtime.clock
        self._open: dict[str, _OpenListing] = {}
        self._size = 0
        self._rejected_subjects: dict[str, None] = {}

    async def run(self) -> None:
        """Process parts until canceled."""
        while True:
            for delivery in await self._reader.next_batch():
                try:
                    await self._process_part(delivery)
                except (ListingRefusedError, ConfigurationError, ProviderError) as error:
                    await self._reject(delivery, str(error))
                except Exception as error:
                    _logger.debug(
                        "failed to process a listing", subject=delivery.subject, exc_info=True
                    )
                    await self._reject(delivery, f"{type(error).__name__}: {error}")

    async def _process_part(self, delivery: ListingDelivery) -> None:
        """Process one part; raises ``ListingRefusedError`` if it makes the listing invalid."""
        subject, part = delivery.subject, delivery.part
        if isinstance(part, ListingBegan):
            self._rejected_subjects.pop(subject, None)
            await self._reject_abandoned()
            self._begin(subject, part, delivery)
        elif subject in self._rejected_subjects:
            return  # already reported
        elif isinstance(part, ListingItem):
            entry = self._get_open(subject)
            entry.listing.add([part.object])
            await self._count_bytes(entry, decoded_bytes(delivery.payload))
        elif isinstance(part, ListingCompleted):
            await self._complete(subject, part)
        else:
            raise ListingRefusedError("the listing has an unreadable part; publish a new listing")

    def _begin(self, subject: str, part: ListingBegan, delivery: ListingDelivery) -> None:
        tokens = subject.split(".")
        if len(tokens) != _SUBJECT_TOKENS or tokens[1:3] != [part.provider_config, part.kind]:
            raise ListingRefusedError(
                f"the listing is for {part.provider_config}.{part.kind}, but its subject is "
                f"{subject}; publish on listing.<provider config>.<kind>.<id>"
            )
        config = self._configurations.by_name.get(part.provider_config)
        if config is None:
            raise ListingRefusedError(
                f"ProviderConfig {part.provider_config!r} is not declared; declare it"
            )
        check_scope(part, config)
        capabilities = self._providers.capabilities(part.kind)
        listing = ListingAssembler(
            part,
            delivery.stored_at,
            unique_names=capabilities is None or capabilities.deterministic_names,
            path_names=capabilities is not None and capabilities.path_names,
        )
        self._close(subject)
        self._open[subject] = _OpenListing(self._clock(), listing, delivery)

    def _get_open(self, subject: str) -> _OpenListing:
        entry = self._open.get(subject)
        if entry is None:
            raise ListingRefusedError(
                "the start of the listing is missing, or the listing was dropped earlier; publish "
                "a new listing"
            )
        return entry

    async def _count_bytes(self, entry: _OpenListing, size: int) -> None:
        """Count an object's bytes. Above the total limit, reject the largest listing.

        Raises:
            ListingRefusedError: this listing alone is too large.
        """
        entry.size += size
        self._size += size
        if entry.size > MAX_LISTING_BYTES:
            raise ListingRefusedError(
                f"the objects of the listing exceed the limit of {MAX_LISTING_BYTES // _MIB} MiB "
                "of memory; split the scope of its ProviderConfig"
            )
        if self._size > MAX_OPEN_BYTES:
            largest = max(self._open.values(), key=lambda each: each.size)
            await self._reject(
                largest.beginning,
                "the unfinished listings together exceed the limit of "
                f"{MAX_OPEN_BYTES // _MIB} MiB of memory, and this one is the largest; publish it "
                "again later",
            )

    def _close(self, subject: str) -> None:
        entry = self._open.pop(subject, None)
        if entry is not None:
            self._size -= entry.size

    async def _complete(self, subject: str, part: ListingCompleted) -> None:
        listing = self._get_open(subject).listing
        self._close(subject)
        objects = listing.complete(part.count)
        began = listing.began
        provider = self._providers.get(began.provider_config, began.kind)
        # Waiting would delay the listings of other APIs.
        await self._observer.publish_changes(listing, objects, provider, waits=False)

    async def _reject_abandoned(self) -> None:
        """Reject abandoned listings, and the oldest one if there are too many."""
        oldest = self._clock() - ABANDONED_SECONDS
        for entry in list(self._open.values()):
            if entry.since < oldest:
                await self._reject(
                    entry.beginning,
                    f"the listing was not completed within {ABANDONED_SECONDS:g} s; publish a new "
                    "one",
                )
            elif len(self._open) >= _MAX_OPEN_LISTINGS:
                await self._reject(
                    entry.beginning,
                    f"the listing was dropped, because {_MAX_OPEN_LISTINGS} newer ones are "
                    "unfinished; publish fewer listings at the same time",
                )

    async def _reject(self, delivery: ListingDelivery, reason: str) -> None:
        subject = delivery.subject
        self._close(subject)
        self._rejected_subjects[subject] = None
        while len(self._rejected_subjects) > _MAX_REJECTED_SUBJECTS:
            del self._rejected_subjects[next(iter(self._rejected_subjects))]
        _logger.warning("rejected a listing", subject=subject, reason=reason)
        letter = IntakeDelivery(
            position=delivery.position,
            subject=subject,
            payload=delivery.payload,
            message_id=f"{subject}@{delivery.position}",
            reply_to=None,
            delivered=1,
            receipt=None,
        )
        try:
            if await self._sink.store_dead_letters([DeadLetter("listing", reason, letter)]):
                _logger.warning(
                    "the DEADLETTERS stream is full; dropped a dead letter", subject=subject
                )
        except Exception as error:  # noqa: BLE001 - its observer will publish another listing
            _logger.warning("failed to store a dead letter", subject=subject, error=str(error))
