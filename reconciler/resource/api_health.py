"""Health of an external API: throttling, circuit breaker, listings and silence.

The breaker follows Nygard, "Release It!" (2007): closed, open, and half-open for one probe. Reports
are level-triggered. Several reports of the same condition are recorded once, because each names the
version of the breaker at which its call began, and throttled times are rounded up to whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from events.excerpt import list_first
from events.hold import Hold
from events.intake import ApiReported, ListingFailure
from events.log import (
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    ListingsFailed,
    ListingsResumed,
    ResourceEvent,
    TwinDetected,
    UndeclaredCounted,
)
from events.provider_config import ProviderConfigSpec, Retry, is_config
from events.wording import plural
from reconciler.provider.kind import Readiness
from reconciler.resource.api_silence import record_silence
from reconciler.resource.backoff import delay, is_over
from reconciler.resource.new_scope import MAX_NAMES, conclude_new_scope, is_count_news
from reconciler.resource.state import ApiHealth, ResourceState, Twin
from reconciler.resource.turn import NOTHING_NEW, CommandResult, Conclusion, Context, on_hold

MAX_THROTTLED_SECONDS = 3_600.0
"""Maximum throttling in seconds. An absurd ``Retry-After`` must not stop all users of the API."""

PROBE_TIMEOUTS = 2
"""Timeout of a probe, as a multiple of the request timeout. Another process may then probe."""

MAX_NEWER_OBJECTS = 20
"""Maximum number of newer objects to record and list."""

LISTINGS_FAILED: Final = "ListingsFailed"
"""Reason for a degraded configuration: listings of at least one kind do not complete (ADR 0069)."""

_MAX_MESSAGE_CHARACTERS = 200
_MAX_LISTED_OBJECTS = 3


def report(data: ApiReported, state: ResourceState, context: Context) -> CommandResult:
    """Return the event for a report, if the report is new."""
    event = _new_event(data, state, context)
    return NOTHING_NEW if event is None else CommandResult((event,))


def _new_event(data: ApiReported, state: ResourceState, context: Context) -> ResourceEvent | None:
    is_in_effect = state.desired.is_declared or state.holds.users is not None
    if not is_config(context.key) or not is_in_effect:
        return None
    # before the version check: the reporter's own probe request may have changed the breaker
    if data.state == "Stopping":
        return _end_probe(data, state, context)
    if data.state == "Twin":
        return _record_twin(data, state.api.twin)
    if data.state in ("ListingsFailed", "ListingsResumed"):
        return _record_listings(data, state, context)
    if data.state == "UndeclaredCounted":
        return _record_undeclared(data, state)
    if data.state in ("Silent", "SilenceEnded"):
        return record_silence(data, state.api.silence, context)
    if data.state != "Throttled" and data.as_of != state.api.version:
        return None  # the call began before the breaker changed
    match data.state:
        case "Throttled":
            return _record_throttling(data, state, context)
        case "Failing":
            return _record_failure(data, state, context)
        case "Probing":
            return _record_probe(data, state, context)
        case "Responding":
            return None if state.api.open_until is None else BreakerClosed()
        case _:
            assert_never(data.state)


def hold_for_newer_objects(health: ApiHealth) -> Conclusion | None:
    """Return the hold of a ProviderConfig whose API has objects newer than the log, or None."""
    return on_hold(Hold.TWIN, _describe(health.twin)) if health.twin.objects else None


def conclude_api_health(health: ApiHealth) -> Conclusion | None:
    """Return the conclusion for a ProviderConfig whose API is held or unhealthy, or None."""
    held = hold_for_newer_objects(health)
    if held is not None:
        return held
    undeclared = conclude_new_scope(health.undeclared or {})
    if undeclared is not None:
        return undeclared
    if health.open_until is None:
        return _conclude_unobserved(health.failed_listings) if health.failed_listings else None
    why = f": {health.message}" if health.message else ""
    return Conclusion(
        "Degraded",
        "BreakerOpen",
        f"breaker open until {health.open_until:%Y-%m-%dT%H:%M:%SZ}, after "
        f"{plural(health.failures, 'consecutive failure')}{why}",
    )


def _record_throttling(
    data: ApiReported, state: ResourceState, context: Context
) -> ApiThrottled | None:
    """Return the event for a throttled API, unless a later time has already been recorded."""
    wait = min(max(data.retry_after_seconds, 0.0), MAX_THROTTLED_SECONDS)
    until = _round_up_to_second(min(data.at, context.bus_now) + timedelta(seconds=wait))
    known = state.api.throttled_until
    is_known = _is_pending(known, state.api.throttled_seconds, context)
    if until <= context.bus_now or (is_known and known is not None and until <= known):
        return None
    seconds = round((until - context.bus_now).total_seconds(), 3)
    return ApiThrottled(until, seconds, data.message[:_MAX_MESSAGE_CHARACTERS])


def _record_failure(
    data: ApiReported, state: ResourceState, context: Context
) -> BreakerOpened | None:
    """Return the event that opens the breaker. It stays open longer after each failed probe."""
    health = state.api
    if _is_pending(health.open_until, health.open_seconds, context):
        return None
    breaker = _read_config(state).breaker
    backoff = Retry(breaker.initial_seconds, breaker.max_seconds)
    wait = delay(backoff, health.openings + 1, context.jitter)
    seconds = round(wait.total_seconds(), 3)
    failures = health.failures + max(data.failures, 1)
    message = data.message[:_MAX_MESSAGE_CHARACTERS]
    return BreakerOpened(context.bus_now + wait, seconds, failures, message)


def _record_probe(
    data: ApiReported, state: ResourceState, context: Context
) -> BreakerProbed | None:
    """Return permission to probe, if the breaker's wait is over and no other probe is running."""
    health = state.api
    if health.open_until is None or _is_pending(health.open_until, health.open_seconds, context):
        return None
    if _is_pending(health.probe_until, health.probe_seconds, context):
        return None
    seconds = PROBE_TIMEOUTS * _read_config(state).limits.request_timeout_seconds
    return BreakerProbed(context.bus_now + timedelta(seconds=seconds), seconds, data.reporter)


def _end_probe(data: ApiReported, state: ResourceState, context: Context) -> BreakerProbed | None:
    """End the probe of a process that stops, so that another one need not wait for its deadline."""
    health = state.api
    if health.probe_by != data.reporter or health.open_until is None:
        return None
    return BreakerProbed(context.bus_now, 0.0, "")


def _is_pending(until: datetime | None, seconds: float, context: Context) -> bool:
    """Return whether a recorded time is in the future, and plausible for its duration."""
    return until is not None and not is_over(until, seconds, context.bus_now)


def _record_twin(data: ApiReported, known: Twin) -> TwinDetected | None:
    """Return the event for newer objects that have not been recorded yet."""
    if data.as_of != known.version:
        return None  # the report is older than the current hold or its approval
    actions = {(each.uid, each.action) for each in known.objects}
    new = [each for each in data.newer if (each.uid, each.action) not in actions]
    if not new:
        return None
    objects = (*known.objects, *new)[:MAX_NEWER_OBJECTS]
    return TwinDetected(objects, known.total + max(data.total - len(data.newer), 0) + len(new))


def _record_listings(
    data: ApiReported, state: ResourceState, context: Context
) -> ListingsFailed | ListingsResumed | None:
    """Return the event if the listings of a kind have begun to fail, or complete again."""
    if data.as_of != state.desired.generation:
        return None  # the report concerns a different generation, possibly with a different API
    is_known = data.kind in state.api.failed_listings
    if data.state == "ListingsResumed":
        is_new_system = data.system_id not in ("", state.api.systems.get(data.kind))
        return ListingsResumed(data.kind, data.system_id) if is_known or is_new_system else None
    if is_known or data.failure is None:
        return None
    failure = replace(
        data.failure,
        since=min(data.failure.since, context.bus_now),
        message=data.failure.message[:_MAX_MESSAGE_CHARACTERS],
    )
    return ListingsFailed(data.kind, failure)


def _record_undeclared(data: ApiReported, state: ResourceState) -> UndeclaredCounted | None:
    """Return the event for a new scope's undeclared objects, if their count must be recorded."""
    counts = state.api.undeclared if state.desired.is_declared else None
    if data.as_of != state.desired.generation or data.undeclared is None or counts is None:
        return None
    known = counts.get(data.kind)
    if not is_count_news(None if known is None else known.count, data.undeclared.count):
        return None
    names = tuple(name[:_MAX_MESSAGE_CHARACTERS] for name in data.undeclared.names[:MAX_NAMES])
    return UndeclaredCounted({**counts, data.kind: replace(data.undeclared, names=names)})


def _conclude_unobserved(failed: Mapping[str, ListingFailure]) -> Conclusion:
    kinds = [
        f"no listing of {kind} has completed since {each.since:%Y-%m-%dT%H:%M:%SZ}: {each.message}"
        for kind, each in sorted(failed.items())
    ]
    return Conclusion(
        "Degraded",
        LISTINGS_FAILED,
        f"{list_first(kinds, '; ')}; until a listing completes, Reconciler detects neither drift "
        "nor deletions of these objects. Correct the cause of the error",
        ready=Readiness(True, "Declared"),  # reads and writes of individual objects still work
    )


def _describe(twin: Twin) -> str:
    first = ", ".join(
        f"{each.kind} {each.name!r} (uid {each.uid}) by {each.action}, but this log has the "
        f"resource only up to version {each.known_version}"
        for each in twin.objects[:_MAX_LISTED_OBJECTS]
    )
    more = (
        f" and {twin.total - _MAX_LISTED_OBJECTS} more" if twin.total > _MAX_LISTED_OBJECTS else ""
    )
    return (
        f"{plural(twin.total, 'object was', 'objects were')} written by actions that this log does "
        f"not contain: {first}"
        f"{more}; another installation is running on a copy of this log, or this log was copied or "
        "restored from an older state. Reconciler does not write to this API. Stop the other "
        "installation, then approve"
    )


def _read_config(state: ResourceState) -> ProviderConfigSpec:
    assert state.desired.spec is not None
    try:
        return msgspec.convert(state.desired.spec.fields, ProviderConfigSpec)
    except msgspec.ValidationError:  # written by another release
        return ProviderConfigSpec("", "")


def _round_up_to_second(at: datetime) -> datetime:
    floor = at.replace(microsecond=0)
    return floor if floor == at else floor + timedelta(seconds=1)
