"""Fights: somebody else overwrites what we write, again and again (ADR 0041).

The first times are mended at once: a person tries something out, a job runs once. From then on the
repair of that field waits, longer each time, up to the resync interval.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from events.excerpt import some
from events.log import REPEATED_DRIFT, DriftDetected, PathDrift, RetryScheduled
from reconciler.resource.backoff import delay
from reconciler.resource.situation import Situation
from reconciler.resource.turn import Conclusion

CONTENTION_DRIFTS: Final = 3
CONTENTION_WINDOW: Final = timedelta(hours=1)
"""So often, with never so long between two, somebody else writes what we write: it is a drift."""

MISSING: Final = ""
"""In the place of a path: the whole object, which somebody keeps deleting."""

_MAX_PATHS: Final = 16


def count_drift(
    known: tuple[PathDrift, ...], drift: DriftDetected, at: datetime
) -> tuple[PathDrift, ...]:
    """Count a drift for each of its paths; what is long past, or was our own, does not count."""
    if drift.suspected_action:
        return known
    recent = {each.path: each for each in known if at - each.last <= CONTENTION_WINDOW}
    paths = [MISSING] if drift.missing else [each.path for each in drift.differences]
    for path in paths:
        before = recent.pop(path, PathDrift(path, 0, at, at))  # the newest stand last
        recent[path] = replace(before, times=before.times + 1, last=at)
    return tuple(recent.values())[-_MAX_PATHS:]


def contention_wait(situation: Situation) -> RetryScheduled | None:
    """Let a repair wait if all that it would mend is contended about."""
    contended = _contended_paths(situation)
    if not contended or situation.state.waits.is_contention:
        return None
    config, context = situation.config, situation.context
    retry = replace(config.retry, max_seconds=config.resync_seconds)
    times = min(each.times for each in contended) - CONTENTION_DRIFTS + 1
    wait = delay(retry, times, context.jitter)
    return RetryScheduled(context.now + wait, round(wait.total_seconds(), 3), REPEATED_DRIFT)


def report_contention(situation: Situation) -> Conclusion | None:
    """Report the fight that a repair waits for; None where something else has to be mended."""
    contended = _contended_paths(situation)
    if not contended:
        return None
    descriptions = some([_describe(each) for each in contended], "; ")
    return Conclusion(
        "Degraded",
        REPEATED_DRIFT,
        f"{descriptions}; each repair waits longer than the previous one",
    )


def _contended_paths(situation: Situation) -> list[PathDrift]:
    """Return the fights about all that differs; none if anything else differs, too."""
    state, compared = situation.state, situation.compared
    known = {each.path: each for each in state.recent_drifts if each.times >= CONTENTION_DRIFTS}
    found = [MISSING] if compared.existing is None else [each.path for each in compared.differences]
    return [known[path] for path in found] if all(path in known for path in found) else []


def _describe(drift: PathDrift) -> str:
    since = f"{drift.since:%Y-%m-%dT%H:%M:%SZ}"
    if drift.path == MISSING:
        return f"another client has deleted the object {drift.times} times since {since}"
    return (
        f"another client has overwritten {drift.path} {drift.times} times since {since} (to accept "
        "its values, use spec.policy.ignoreFields)"
    )
