"""Progress toward readiness: recorded when it happens, and reported as missing after a deadline.

The log contains the times, so a restart does not lose them. An idle resource does not add events.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from events.external import ExternalObject
from events.log import ProgressNoted
from reconciler.provider.kind import IS_STALLED, STALLED, Readiness
from reconciler.resource.situation import Situation
from reconciler.resource.state import Spec


def with_progress(
    ready: Readiness, existing: ExternalObject, spec: Spec, situation: Situation
) -> Readiness | ProgressNoted:
    """Return the readiness of an object, or the progress event to record first.

    The bus's clock determines whether the deadline has passed, as in `renewal`.
    """
    kind, context = situation.kind, situation.context
    known, now = situation.state.progress, context.bus_now
    assert kind.progress is not None
    progress = None if ready.is_ready else kind.progress(spec.fields, existing)
    if progress is None:  # no progress is expected
        return ready if known is None else ProgressNoted("", now)
    if known is None or known.mark != progress.mark:
        at = now + timedelta(seconds=progress.deadline_seconds)
        return ProgressNoted(progress.mark, now, at, progress.deadline_seconds)
    if known.at is None:
        since = f"{known.since:%Y-%m-%dT%H:%M:%SZ}"
        return Readiness(False, STALLED, f"no progress since {since}: {ready.message}")
    return ready if now < known.at else ProgressNoted(known.mark, known.since)


def show_stall(existing: ExternalObject, spec: Spec, situation: Situation) -> ExternalObject:
    """Return the object with an output if its parts have missed their deadline for progress."""
    kind, known = situation.kind, situation.state.progress
    if kind.progress is None or known is None or known.at is not None:
        return existing
    progress = kind.progress(spec.fields, existing)
    if progress is None or progress.mark != known.mark:  # the deadline was that of other parts
        return existing
    return msgspec.structs.replace(existing, outputs={**existing.outputs, IS_STALLED: True})
