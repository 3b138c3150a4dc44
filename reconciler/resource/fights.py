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

FIGHT_DRIFTS: Final = 3
FIGHT_WINDOW: Final = timedelta(hours=1)
"""So often, with never so long between two, somebody else writes what we write: it is a fight."""

MISSING: Final = ""
"""In the place of a path: the whole object, which somebody keeps deleting."""

_MAX_PATHS: Final = 16


def with_drift(
    known: tuple[PathDrift, ...], drift: DriftDetected, at: datetime
) -> tuple[PathDrift, ...]:
    """Count a drift for each of its paths; what is long past, or was our own, does not count."""
    if drift.suspected_action:
        return known
    recent = {each.path: each for each in known if at - each.last <= FIGHT_WINDOW}
    paths = [MISSING] if drift.missing else [each.path for each in drift.differences]
    for path in paths:
        before = recent.pop(path, PathDrift(path, 0, at, at))  # the newest stand last
        recent[path] = replace(before, times=before.times + 1, last=at)
    return tuple(recent.values())[-_MAX_PATHS:]


def wait_in_fight(situation: Situation) -> RetryScheduled | None:
    """Let a repair wait if all that it would mend is fought about."""
    fought = _fought(situation)
    if not fought or situation.state.waits.is_fight:
        return None
    config, context = situation.config, situation.context
    retry = replace(config.retry, max_seconds=config.resync_seconds)
    times = min(each.times for each in fought) - FIGHT_DRIFTS + 1
    wait = delay(retry, times, context.jitter)
    return RetryScheduled(context.now + wait, round(wait.total_seconds(), 3), REPEATED_DRIFT)


def waiting_in_fight(situation: Situation) -> Conclusion | None:
    """Report the fight that a repair waits for; None where something else has to be mended."""
    fought = _fought(situation)
    if not fought:
        return None
    told = some([_told(each) for each in fought], "; ")
    return Conclusion(
        "Degraded", REPEATED_DRIFT, f"{told}; each repair waits longer than the previous one"
    )


def _fought(situation: Situation) -> list[PathDrift]:
    """Return the fights about all that differs; none if anything else differs, too."""
    state, compared = situation.state, situation.compared
    known = {each.path: each for each in state.fights if each.times >= FIGHT_DRIFTS}
    found = [MISSING] if compared.seen is None else [each.path for each in compared.differences]
    return [known[path] for path in found] if all(path in known for path in found) else []


def _told(fight: PathDrift) -> str:
    since = f"{fight.since:%Y-%m-%dT%H:%M:%SZ}"
    if fight.path == MISSING:
        return f"another client has deleted the object {fight.times} times since {since}"
    return (
        f"another client has overwritten {fight.path} {fight.times} times since {since} (to accept "
        "its values, use spec.policy.ignoreFields)"
    )
