"""Contention: another client repeatedly overwrites the fields that Reconciler writes (ADR 0041).

The first corrections are immediate, because a user may try something, or a job may run once. Each
later correction of that field is delayed longer, up to the resync interval.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from events.excerpt import list_first
from events.log import REPEATED_DRIFT, DriftDetected, PathDrift, RetryScheduled
from reconciler.resource.backoff import delay
from reconciler.resource.situation import Situation
from reconciler.resource.turn import Conclusion

CONTENTION_DRIFTS: Final = 3
CONTENTION_WINDOW: Final = timedelta(hours=1)
"""Number of drifts, and the maximum time between two of them, that count as contention."""

MISSING: Final = ""
"""Path of a drift that concerns the whole object: another client deletes it."""

_MAX_PATHS: Final = 16


def count_drift(
    known: tuple[PathDrift, ...], drift: DriftDetected, at: datetime
) -> tuple[PathDrift, ...]:
    """Return the recent drifts of each path, including a new one.

    Drifts outside the window are dropped. A drift that Reconciler itself may have caused does not
    count.
    """
    if drift.suspected_action:
        return known
    recent = {each.path: each for each in known if at - each.last <= CONTENTION_WINDOW}
    paths = [MISSING] if drift.missing else [each.path for each in drift.differences]
    for path in paths:
        previous = recent.pop(path, PathDrift(path, 0, at, at))  # the newest are last
        recent[path] = replace(previous, times=previous.times + 1, last=at)
    return tuple(recent.values())[-_MAX_PATHS:]


def contention_wait(situation: Situation) -> RetryScheduled | None:
    """Return a wait before the correction, if all differences are contended."""
    contended = _contended_paths(situation)
    if not contended or situation.state.waits.is_contention:
        return None
    config, context = situation.config, situation.context
    retry = replace(config.retry, max_seconds=config.resync_seconds)
    times = min(each.times for each in contended) - CONTENTION_DRIFTS + 1
    wait = delay(retry, times, context.jitter)
    return RetryScheduled(context.bus_now + wait, round(wait.total_seconds(), 3), REPEATED_DRIFT)


def report_contention(situation: Situation) -> Conclusion | None:
    """Return the outcome while all differences are contended; None if others need correction."""
    contended = _contended_paths(situation)
    if not contended:
        return None
    descriptions = list_first([_describe(each) for each in contended], "; ")
    return Conclusion(
        "Degraded",
        REPEATED_DRIFT,
        f"{descriptions}; each repair waits longer than the previous one",
    )


def _contended_paths(situation: Situation) -> list[PathDrift]:
    """Return the contended paths if they are all of the differences; empty otherwise."""
    state, comparison = situation.state, situation.comparison
    if not state.recent_drifts:
        return []
    known = {each.path: each for each in state.recent_drifts if each.times >= CONTENTION_DRIFTS}
    paths = (
        [MISSING] if comparison.existing is None else [each.path for each in comparison.differences]
    )
    return [known[path] for path in paths] if all(path in known for path in paths) else []


def _describe(drift: PathDrift) -> str:
    since = f"{drift.since:%Y-%m-%dT%H:%M:%SZ}"
    if drift.path == MISSING:
        return f"another client has deleted the object {drift.times} times since {since}"
    return (
        f"another client has overwritten {drift.path} {drift.times} times since {since} (to accept "
        "its values, use spec.policy.ignoreFields)"
    )
