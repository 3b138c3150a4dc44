"""The state of a ``ProviderConfig``'s API in the log, for `get`, `describe` and `doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from events.excerpt import list_first
from events.intake import ListingFailure
from events.provider_config import config_key
from events.wording import plural
from projections.status import StatusRow
from reconciler.cli.checks.finding import Finding
from reconciler.cli.output import time_text
from reconciler.resource.backoff import is_over

_LESS_THAN_ONE_INTERVAL = "less than 1 resync interval"


def describe_throttling(row: StatusRow, now: datetime) -> str:
    """Describe how long an API will not accept calls, or return ""."""
    until = row.throttled_until
    if until is None or is_over(until, row.throttled_seconds, now):
        return ""
    return f"the API does not accept calls before {time_text(until)}"


def find_silent_api(row: StatusRow | None) -> Finding | None:
    """Return a finding if an API does not respond, or None."""
    if row is None or row.silent_since is None:
        return None
    text = f"no response since {time_text(row.silent_since)}"
    breaker = "" if row.breaker_until is None else f"; {row.message}"
    remedy = (
        "Start the API, or correct spec.endpoint. Until it responds, `get`, `describe` and `wait` "
        "show its objects with Ready Unknown. Their outcomes do not change. "
        f"`reconciler history {row.key}` shows the outages."
    )
    return Finding(f"API {row.name}", "fail", f"{text}{breaker}", remedy)


def find_blocked_api(row: StatusRow | None, now: datetime) -> Finding | None:
    """Return a finding if workers are currently not calling an API, or None."""
    if row is None:
        return None
    check = f"API {row.name}"
    if row.breaker_until is not None:
        remedy = (
            "One process probes the API after that time. When it responds, all waiting actions"
            f" continue. `reconciler history {row.key}` shows the failures."
        )
        return Finding(check, "fail", row.message, remedy)
    text = describe_throttling(row, now)
    if text:
        remedy = "Nothing to do. If this happens often, set spec.limits.requestsPerSecond."
        return Finding(check, "warn", text, remedy)
    return None


def find_failed_listings(
    row: StatusRow | None, resync_seconds: float, now: datetime
) -> Finding | None:
    """Return a finding with the kinds whose listings do not complete, or None."""
    if row is None or not row.failed_listings:
        return None
    kinds: list[str] = []
    for kind, each in sorted(row.failed_listings.items()):
        intervals = int((now - each.since).total_seconds() / resync_seconds)
        elapsed = plural(intervals, "resync interval") if intervals > 0 else _LESS_THAN_ONE_INTERVAL
        since = time_text(each.since)
        kinds.append(
            f"no listing of {kind} has completed since {since} ({elapsed}): {each.message}"
        )
    remedy = (
        "Fix the cause of the error in the API or in the ProviderConfig. Until a listing "
        "completes, Reconciler detects neither drift nor deletions of these objects. If you do not "
        "use a kind, omit it from spec.kinds. The observer's log shows the error for each listing, "
        f"and `reconciler history {row.key}` shows when they began to fail."
    )
    return Finding(f"API {row.name}", "fail", list_first(kinds, "; "), remedy)


def find_listing_failure(row: StatusRow, rows: Mapping[str, StatusRow]) -> ListingFailure | None:
    """Return the failure of the listings that observe a resource's object, or None."""
    if not row.provider_config:
        return None
    config = rows.get(str(config_key(row.provider_config)))
    return None if config is None else (config.failed_listings or {}).get(row.kind)


def describe_listing_failure(failure: ListingFailure) -> str:
    """Return a warning that drift is not detected, with the time of the first failure."""
    since = time_text(failure.since)
    return f"drift and deletions are not detected: no listing has completed since {since}"
