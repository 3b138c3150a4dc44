"""Restarts of APIs whose objects end with their process, as evidence for the loss guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from events.intake import LossCount
from events.provider_config import ProviderConfigSpec
from reconciler.roles.observer.listing import ListingAssembler
from reconciler.roles.observer.listing_reports import ListingTarget

UPTIME_ERROR_SECONDS: Final = 1.0
"""Error of an uptime, because an API reports its start or its current time in whole seconds."""


class _Listing(NamedTuple):
    config: ProviderConfigSpec
    began_monotonic: float


class Restarts:
    """The last listing of each API that contained the owned objects.

    It is only in memory. After a restart of this process, the loss guard therefore holds a loss.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[ListingTarget, _Listing] = {}

    def record_listing(
        self, listing: ListingAssembler, losses: LossCount, config: ProviderConfigSpec
    ) -> None:
        """Record a complete listing, unless it lacks too many or all of the owned objects."""
        if contains_objects(losses, config) and listing.began_monotonic is not None:
            self._last[_target(listing)] = _Listing(config, listing.began_monotonic)

    def is_younger(
        self, uptime_seconds: float | None, listing: ListingAssembler, config: ProviderConfigSpec
    ) -> bool:
        """Return whether a process started after the last listing that contained the objects.

        False if the configuration has changed since: it may name another API.
        """
        last = self._last.get(_target(listing))
        if uptime_seconds is None or last is None or last.config != config:
            return False
        return uptime_seconds < self._clock() - last.began_monotonic + UPTIME_ERROR_SECONDS


def contains_objects(losses: LossCount, config: ProviderConfigSpec) -> bool:
    """Return whether a listing lacks only a few of the owned objects, and not all of them."""
    is_empty = 0 < losses.owned <= losses.missing
    return not (is_empty or config.loss_guard.doubts(losses.missing, losses.owned))


def _target(listing: ListingAssembler) -> ListingTarget:
    return listing.began.provider_config, listing.began.kind
