"""How the API of a ``ProviderConfig`` stands, by the log: what `get` and `doctor` tell of it."""

from __future__ import annotations

from datetime import datetime

from projections.status import StatusRow
from reconciler.cli.checks.finding import Finding
from reconciler.cli.output import time_text
from reconciler.resource.backoff import is_over


def throttled(row: StatusRow, now: datetime) -> str:
    """Say until when an API wants no call; nothing if that is over, or never was."""
    until = row.throttled_until
    if until is None or is_over(until, row.throttled_seconds, now):
        return ""
    return f"the API allows no call before {time_text(until)}"


def left_alone(row: StatusRow | None, now: datetime) -> Finding | None:
    """Tell of an API that no worker calls now; None if it may be asked."""
    if row is None:
        return None
    check = f"API {row.name}"
    if row.breaker_until is not None:
        remedy = (
            "One process probes the API after that time. When it responds, all waiting actions"
            f" continue. `reconciler history {row.key}` shows the failures."
        )
        return Finding(check, "fail", row.message, remedy)
    text = throttled(row, now)
    if text:
        remedy = "Nothing to do. If it happens often, set spec.limits.requestsPerSecond."
        return Finding(check, "warn", text, remedy)
    return None
