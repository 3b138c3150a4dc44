"""How the fleet is set up in every case, where it is not the default."""

from __future__ import annotations

from events.provider_config import Limits, ProviderConfigSpec

RARE_RESYNC_SECONDS = 3_600.0
"""So long that no listing comes in between: what is counted belongs to the phase."""

SHORT_RESYNC_SECONDS = 1.0
"""Between two listings while resources are deleted behind the reconciler's back."""

SETTLE_SECONDS = 0.5
"""A phase that must do nothing is watched so long after it came to rest."""

PAGE_SIZE = Limits().page_size


def config(endpoint: str, resync_seconds: float) -> ProviderConfigSpec:
    """Give the declaration of the one API; all that is not named is the default."""
    return ProviderConfigSpec("shapes", endpoint, resync_seconds=resync_seconds)


def pages(shapes: int) -> int:
    """Count the requests of one listing."""
    return max(1, -(-shapes // PAGE_SIZE))
