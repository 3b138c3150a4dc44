"""Progress towards being ready: noted when something moves, and missed when nothing has for long.

The moments are in the log, so a restart forgets none, and an idle resource writes no event.
"""

from __future__ import annotations

from datetime import timedelta

from events.external import ExternalObject
from events.log import ProgressNoted
from reconciler.provider.kind import STALLED, Readiness
from reconciler.resource.situation import Situation
from reconciler.resource.state import Spec


def with_progress(
    ready: Readiness, existing: ExternalObject, spec: Spec, situation: Situation
) -> Readiness | ProgressNoted:
    """Return whether an object can be used, with its deadline; or the movement to note first.

    Whether the deadline is reached is read off the clock of the bus, as in `due`.
    """
    kind, context = situation.kind, situation.context
    known, now = situation.state.progress, context.bus_time or context.now
    assert kind.progress is not None
    progress = None if ready.is_ready else kind.progress(spec.fields, existing)
    if progress is None:  # nothing is waited for
        return ready if known is None else ProgressNoted("", now)
    if known is None or known.mark != progress.mark:
        at = now + timedelta(seconds=progress.deadline_seconds)
        return ProgressNoted(progress.mark, now, at, progress.deadline_seconds)
    if known.at is None:
        since = f"{known.since:%Y-%m-%dT%H:%M:%SZ}"
        return Readiness(False, STALLED, f"no progress since {since}: {ready.message}")
    return ready if now < known.at else ProgressNoted(known.mark, known.since)
