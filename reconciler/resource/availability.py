"""Availability: a part is available after it has been ready for long enough (`minReadySeconds`).

A process that exits after a second is ready for a moment. A composed kind therefore replaces an old
part only when a new one is available. The log contains the times by the bus's clock, so a replay
reads no clock. An interruption occurs when a part stops being ready, or when its process restarts.

While the API of a part does not respond, its readiness is unknown, so it does not become available
(ADR 0080). After the API has responded, a new reading must show the part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from events.composition import CHILDREN, MANIFESTS, Child, children_of
from events.external import ExternalObject
from events.log import AvailabilityNoted, PartAvailability
from events.manifest import Fields, config_named_in
from events.provider_config import ProviderConfigSpec
from reconciler.provider.kind import Readiness
from reconciler.resource.situation import Situation
from reconciler.resource.state import Availability
from reconciler.resource.turn import ApiSilence

MAX_READY_SECONDS: Final = 600.0
"""Limit of the interval after interruptions. After a part was ready for this long, its earlier
interruptions no longer count."""

REPLACEMENT_READY_SECONDS: Final = 5.0
"""Time for which a replacement must be ready before the replaced object is deleted."""

_UNKNOWN: Final = PartAvailability()
_NEVER_SILENT: Final = ApiSilence(0, "")
_MAX_DOUBLINGS: Final = 32
_LISTING_JITTER: Final = 1.1  # the observer delays a listing by up to 10 percent


def note_availability(
    min_seconds: float, existing: ExternalObject, situation: Situation
) -> AvailabilityNoted | None:
    """Return the event that records changes of the parts' availability; None if there are none."""
    bodies: Mapping[str, Fields] = existing.fields.get(MANIFESTS, {})
    contents: Mapping[str, str] = existing.fields.get(CHILDREN, {})
    configs = {
        name: config_named_in(bodies[content]["spec"])
        for name, content in contents.items()
        if content in bodies
    }
    was_silent = any(each in situation.context.silences for each in configs.values())
    needs_age = min_seconds or was_silent
    age = _max_reading_age(configs.values(), situation) if needs_age else timedelta(0)
    return _note(children_of(existing), configs, min_seconds, age, situation)


def note_replacement(
    existing: ExternalObject, ready: Readiness, situation: Situation
) -> AvailabilityNoted | None:
    """Return the event that records a change of a replacement's availability; None if none.

    It must be available before the replaced object is deleted.
    """
    age = timedelta(seconds=_listing_seconds(situation.config) * _LISTING_JITTER)
    child = Child("Converged", ready=ready.is_ready, outputs=existing.outputs)
    name = _identity(existing)
    configs = {name: situation.state.provider_config}
    return _note({name: child}, configs, REPLACEMENT_READY_SECONDS, age, situation)


def is_available(existing: ExternalObject, availability: Availability) -> bool:
    """Return whether the availability of a replacement is recorded."""
    return availability.parts.get(_identity(existing), _UNKNOWN).available


def _identity(existing: ExternalObject) -> str:
    return existing.uid or existing.name


def _note(
    children: Mapping[str, Child],
    configs: Mapping[str, str],
    min_seconds: float,
    age: timedelta,
    situation: Situation,
) -> AvailabilityNoted | None:
    state, now = situation.state.availability, situation.context.bus_now
    changes: dict[str, PartAvailability | None] = {
        name: None for name in state.parts if name not in children
    }
    ends: list[datetime] = []
    for name, child in children.items():
        known = state.parts.get(name)
        part = _next_run(known, child, now)
        if part is None:
            continue
        if part.since is not None and not part.available:
            silence = situation.context.silences.get(configs.get(name, ""), _NEVER_SILENT)
            end = part.since + _required(min_seconds, part.interruptions)
            end += age if min_seconds else timedelta(0)
            if silence.ended_at is not None:
                end = max(end, silence.ended_at + age)
            if end <= now:
                is_silent = silence.since is not None
                part = msgspec.structs.replace(
                    part, available=not is_silent, api_event=silence.event
                )
            if not part.available:
                ends.append(end)
        if part != known:
            changes[name] = part
    at = min(ends, default=None)
    if not changes and at == state.at:
        return None
    seconds = 0.0 if at is None else round((at - now).total_seconds(), 3)
    return AvailabilityNoted(changes, at, seconds)


def with_availability(existing: ExternalObject, availability: Availability) -> ExternalObject:
    """Return the object with the recorded availability in the status of its parts."""
    children: Mapping[str, Fields] = existing.outputs.get(CHILDREN, {})
    shown: dict[str, Any] = {
        name: {
            **child,
            "available": (known := availability.parts.get(name, _UNKNOWN)).available,
            "interruptions": known.interruptions,
        }
        for name, child in children.items()
    }
    return msgspec.structs.replace(existing, outputs={**existing.outputs, CHILDREN: shown})


def _next_run(
    known: PartAvailability | None, child: Child, now: datetime
) -> PartAvailability | None:
    """Return the record of a part after a reading; None if it has never been ready."""
    if known is None:
        return PartAvailability(child.run, now) if child.ready else None
    if child.ready and known.since is not None and known.run == child.run:
        return known
    if child.ready:
        has_restarted = bool(known.run) and known.run != child.run
        return PartAvailability(child.run, now, _interruptions(known, has_restarted, now))
    if known.since is None:
        return known
    # A part that is being declared or written again has not lost its readiness by itself.
    has_lost_readiness = child.outcome == "Converged"
    run = "" if has_lost_readiness else known.run  # its next start is the same interruption
    return PartAvailability(run, None, _interruptions(known, has_lost_readiness, now))


def _interruptions(known: PartAvailability, is_interrupted: bool, now: datetime) -> int:
    if not is_interrupted:
        return known.interruptions
    since = known.since
    was_stable = since is not None and now - since >= timedelta(seconds=MAX_READY_SECONDS)
    return 1 if was_stable else known.interruptions + 1


def _required(min_seconds: float, interruptions: int) -> timedelta:
    """Return for how long a part must be ready. Each interruption doubles it.

    A process that exits again and again, a little after the interval, would otherwise be available
    in between.
    """
    extended = min_seconds * 2.0 ** min(interruptions, _MAX_DOUBLINGS)
    return timedelta(seconds=max(min_seconds, min(extended, MAX_READY_SECONDS)))


def _max_reading_age(names: Iterable[str], situation: Situation) -> timedelta:
    """Return how old the last reading of a part may be: its own listing, and that of its parent."""
    configs = [situation.context.configs.get(name) for name in names]
    of_parts = max((_listing_seconds(each) for each in configs if each is not None), default=0.0)
    return timedelta(seconds=(of_parts + _listing_seconds(situation.config)) * _LISTING_JITTER)


def _listing_seconds(config: ProviderConfigSpec) -> float:
    return min(config.least_resync_seconds, config.resync_seconds)
