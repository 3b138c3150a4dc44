"""Availability: a part is available after it has been ready for long enough (`minReadySeconds`).

A process that exits after a second is ready for a moment. A composed kind therefore replaces an old
part only when a new one is available. The log contains the times by the bus's clock, so a replay
reads no clock. An interruption occurs when a part stops being ready, or when its process restarts.

While the API of a part does not respond, its readiness is unknown, so it does not become available
(ADR 0080). After the API has responded, a new reading must show the part.

The same holds for a resource's own object, on which resources with a reference wait (ADR 0085).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from events.composition import CHILDREN, MANIFESTS, Child, children_of
from events.external import ExternalObject
from events.log import AvailabilityNoted, OutcomeRecorded, PartAvailability
from events.manifest import Fields, config_named_in
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from reconciler.provider.kind import Readiness
from reconciler.resource.situation import Situation
from reconciler.resource.state import Availability, ResourceState
from reconciler.resource.turn import ApiSilence, Context

MAX_READY_SECONDS: Final = 600.0
"""Limit of the interval after interruptions. After a part was ready for this long, its earlier
interruptions no longer count."""

REPLACEMENT_READY_SECONDS: Final = 5.0
"""Time for which a replacement must be ready before the replaced object is deleted, and a target
before a resource that references it is created."""

_UNKNOWN: Final = PartAvailability()
_AVAILABLE: Final = PartAvailability(available=True)
_NEVER_SILENT: Final = ApiSilence(0, "")
_MAX_DOUBLINGS: Final = 32
_LISTING_JITTER: Final = 1.1  # the observer delays a listing by up to 10 percent


def note_availability(
    min_seconds: float, existing: ExternalObject, situation: Situation
) -> AvailabilityNoted | None:
    """Return the event that records changes of the parts' availability; None if there are none."""
    configs = _configs_of_parts(existing)
    was_silent = any(each in situation.context.silences for each in configs.values())
    needs_age = min_seconds or was_silent
    age = _max_reading_age(configs.values(), situation) if needs_age else timedelta(0)
    return _note(children_of(existing), configs, min_seconds, age, situation)


def note_flapping_parts(existing: ExternalObject, situation: Situation) -> AvailabilityNoted | None:
    """Return the event that records changes of the availability of parts that may flap, or None.

    Parts of other kinds are available while they are ready.
    """
    children = {
        name: child
        for name, child in children_of(existing).items()
        if situation.context.may_lose_readiness(ResourceKey.parse(name).kind)
    }
    if not children and situation.state.availability.at is None:
        return None
    all_configs = _configs_of_parts(existing)
    configs = {name: all_configs[name] for name in children if name in all_configs}
    age = _max_reading_age(configs.values(), situation)
    return _note(children, configs, REPLACEMENT_READY_SECONDS, age, situation)


def without_momentary_readiness(
    existing: ExternalObject, availability: Availability
) -> ExternalObject:
    """Return the object with only those ready parts that are available, if they may flap."""
    children: Mapping[str, Fields] = existing.outputs.get(CHILDREN, {})
    waiting = {
        name: {**child, "ready": False, "message": "it must stay ready"}
        for name, child in children.items()
        if child.get("ready") and not availability.parts.get(name, _AVAILABLE).available
    }
    if not waiting:
        return existing
    outputs = {**existing.outputs, CHILDREN: {**children, **waiting}}
    return msgspec.structs.replace(existing, outputs=outputs)


def with_ready_parts(existing: ExternalObject) -> ExternalObject:
    """Return the object as if all of its parts were ready."""
    known: Mapping[str, Fields] = existing.outputs.get(CHILDREN, {})
    names: Iterable[str] = {**existing.fields.get(CHILDREN, {}), **known}
    shown: Fields = {name: {**known.get(name, {}), "ready": True} for name in names}
    return msgspec.structs.replace(existing, outputs={**existing.outputs, CHILDREN: shown})


def note_withheld(
    existing: ExternalObject, situation: Situation, *, is_withheld: bool
) -> AvailabilityNoted | None:
    """Return the event that records a change of `withheld_until`, or None.

    The withdrawal of a part cannot be undone. So a part on which it depends must not be ready for
    some seconds, and the readings that show this must not be old.
    """
    known, now = situation.state.availability, situation.context.bus_now
    until = None
    if is_withheld:
        age = _max_reading_age(_configs_of_parts(existing).values(), situation)
        until = known.withheld_until or now + timedelta(seconds=REPLACEMENT_READY_SECONDS) + age
    if until == known.withheld_until:
        return None
    at = known.at or until
    seconds = 0.0 if at is None else round((at - now).total_seconds(), 3)
    return AvailabilityNoted({}, known.at, seconds, until)


def _configs_of_parts(existing: ExternalObject) -> Mapping[str, str]:
    """Return the name of each part's ProviderConfig."""
    bodies: Mapping[str, Fields] = existing.fields.get(MANIFESTS, {})
    contents: Mapping[str, str] = existing.fields.get(CHILDREN, {})
    return {
        name: config_named_in(bodies[content]["spec"])
        for name, content in contents.items()
        if content in bodies
    }


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


def note_own_availability(
    outcome: OutcomeRecorded, state: ResourceState, context: Context
) -> PartAvailability | None:
    """Return for how long the resource's own object has been ready, with this outcome.

    None if its kind keeps its readiness, or if it was never ready. The object becomes available
    only with a read that began late enough, because a listing may be old.
    """
    kind, spec, observed = context.kind, state.desired.spec, state.observed
    if kind is None or not kind.is_readiness_momentary or not state.desired.is_declared:
        return None
    if spec is None or spec.policy.mode == "Absent":
        return None
    outputs = {} if observed.object is None else observed.object.outputs
    child = Child(outcome.outcome, ready=outcome.is_ready, outputs=outputs)
    part = _next_run(state.own_availability, child, context.bus_now)
    if part is None or part.since is None or part.available:
        return part
    is_confirmed = observed.confirmed_at is not None and observed.confirmed_at >= available_from(
        part.since, part.interruptions
    )
    return msgspec.structs.replace(part, available=is_confirmed)


def available_from(since: datetime, interruptions: int) -> datetime:
    """Return the time at which an object that is ready since a time becomes available."""
    return since + _required(REPLACEMENT_READY_SECONDS, interruptions)


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
    return AvailabilityNoted(changes, at, seconds, state.withheld_until)


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
