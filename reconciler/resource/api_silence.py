"""Whether an API responds: two events for each outage, and the decisions that use them (ADR 0080).

An observer reports the silence of an API until it is recorded. The decider records no short outage,
and frequent outages only if they last longer, so a flapping API adds few events.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from events.intake import ApiReported
from events.log import ApiFellSilent, ApiSilenceEnded
from reconciler.resource.state import Silence
from reconciler.resource.turn import Context

MIN_SILENT_SECONDS: Final = 5.0
"""Time without a response after which an outage is recorded. Most restarts take less."""

MAX_SILENT_SECONDS: Final = 600.0
"""Maximum of that time, which doubles with each outage in quick succession."""

CALM_SECONDS: Final = 3_600.0
"""Time with responses after which earlier outages no longer count."""

_MAX_DOUBLINGS: Final = 16


def record_silence(
    data: ApiReported, silence: Silence, context: Context
) -> ApiFellSilent | ApiSilenceEnded | None:
    """Return the event if an API has stopped responding, or responds again."""
    if data.as_of != silence.version:
        return None  # the reporter had not read the newest event
    if data.state == "SilenceEnded":
        return None if silence.since is None else ApiSilenceEnded()
    if silence.since is not None:
        return None
    now = context.bus_now
    since = now - timedelta(seconds=max(data.silent_seconds, 0.0))
    ended_at = silence.ended_at
    # Another observer may have had a response since.
    newest = since if ended_at is None else max(since, ended_at)
    is_calm = ended_at is None or since - ended_at >= timedelta(seconds=CALM_SECONDS)
    outages = 0 if is_calm else silence.outages
    if (now - newest).total_seconds() < required_seconds(outages):
        return None
    return ApiFellSilent(since.replace(microsecond=0), outages + 1)


def required_seconds(outages: int) -> float:
    """Return how long an API must be silent, after this many outages in quick succession."""
    return min(MIN_SILENT_SECONDS * 2.0 ** min(outages, _MAX_DOUBLINGS), MAX_SILENT_SECONDS)
