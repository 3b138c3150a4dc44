"""Settings of the fleet that differ from the defaults, for every case."""

from __future__ import annotations

from events.provider_config import Limits, ProviderConfigSpec

LONG_RESYNC_SECONDS = 3_600.0
"""Long enough that no listing runs during a phase, so all counts belong to the phase."""

SHORT_RESYNC_SECONDS = 1.0
"""Interval of listings while objects are deleted out of band."""

SETTLE_SECONDS = 0.5
"""Time to observe an idle phase after the system has become idle."""

PAGE_SIZE = Limits().page_size


def config(endpoint: str, resync_seconds: float) -> ProviderConfigSpec:
    """Return the configuration of the API, with defaults for all other fields."""
    return ProviderConfigSpec("shapes", endpoint, resync_seconds=resync_seconds)


def pages(shapes: int) -> int:
    """Return the number of requests that one listing takes."""
    return max(1, -(-shapes // PAGE_SIZE))
