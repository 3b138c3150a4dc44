"""How an external API answers as a whole: throttling and circuit breaker of a ``ProviderConfig``.

The breaker is that of Nygard, "Release It!" (2007): closed, open, and half-open for one probe.
Reports are level-triggered: what several workers report of one state is recorded once, since a
report says which state of the breaker its call began with, and a throttled time is rounded up to a
whole second.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from events.intake import ApiReported
from events.log import (
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    LogEvent,
    ShapeEvent,
)
from events.manifest import PROVIDER_CONFIG_KIND, ProviderConfigSpec, Retry
from reconciler.shape.backoff import delay
from reconciler.shape.inputs import Context
from reconciler.shape.standing import Standing
from reconciler.shape.state import ApiHealth, ShapeState

MOST_THROTTLED_SECONDS = 3_600.0
"""No API is left alone for longer at once: an absurd ``Retry-After`` would stop all that use it."""

PROBE_TIMEOUTS = 2
"""How many of its calls' time limits a probe may take before another one is let through."""

_LONGEST_MESSAGE = 200


def news(state: ShapeState, data: ApiReported, context: Context) -> ShapeEvent | None:
    """Give the event that a report leads to, or None if it says nothing new."""
    if context.key.kind != PROVIDER_CONFIG_KIND or not state.declared:
        return None
    if data.state != "Throttled" and data.as_of != state.api.version:
        return None  # its call began before the breaker moved
    return _REPORTS[data.state](state, data, context)


def standing_of_api(health: ApiHealth) -> Standing | None:
    """Tell how a configuration stands whose API's breaker is open."""
    if health.open_until is None:
        return None
    why = f": {health.message}" if health.message else ""
    return Standing(
        "Degraded",
        "BreakerOpen",
        f"breaker open until {health.open_until:%Y-%m-%dT%H:%M:%SZ}, after {health.failures}"
        f" failures in a row{why}",
    )


def _throttled(state: ShapeState, data: ApiReported, context: Context) -> ApiThrottled | None:
    wait = min(max(data.retry_after_seconds, 0.0), MOST_THROTTLED_SECONDS)
    until = _whole_second(min(data.at, context.now) + timedelta(seconds=wait))
    known = state.api.throttled_until
    if until <= context.now or (known is not None and until <= known):
        return None
    seconds = round((until - context.now).total_seconds(), 3)
    return ApiThrottled(until, seconds, data.message[:_LONGEST_MESSAGE])


def _failing(state: ShapeState, data: ApiReported, context: Context) -> BreakerOpened | None:
    health = state.api
    if health.open_until is not None and context.now < health.open_until:
        return None
    breaker = _config(state).breaker
    back_off = Retry(breaker.initial_seconds, breaker.max_seconds)
    wait = delay(back_off, health.openings + 1, context.jitter)
    seconds = round(wait.total_seconds(), 3)
    failures = health.failures + max(data.failures, 1)
    message = data.message[:_LONGEST_MESSAGE]
    return BreakerOpened(context.now + wait, seconds, failures, message)


def _probing(state: ShapeState, data: ApiReported, context: Context) -> BreakerProbed | None:
    health = state.api
    if health.open_until is None or context.now < health.open_until:
        return None
    if health.probe_until is not None and context.now < health.probe_until:
        return None
    seconds = PROBE_TIMEOUTS * _config(state).limits.request_timeout_seconds
    return BreakerProbed(context.now + timedelta(seconds=seconds), seconds, data.reporter)


def _answered(state: ShapeState, _data: ApiReported, _context: Context) -> BreakerClosed | None:
    return None if state.api.open_until is None else BreakerClosed()


_REPORTS: dict[
    Literal["Throttled", "Failing", "Probing", "Answered"],
    Callable[[ShapeState, ApiReported, Context], ShapeEvent | None],
] = {
    "Throttled": _throttled,
    "Failing": _failing,
    "Probing": _probing,
    "Answered": _answered,
}


def _config(state: ShapeState) -> ProviderConfigSpec:
    assert state.spec is not None
    try:
        return msgspec.convert(state.spec.fields, ProviderConfigSpec)
    except msgspec.ValidationError:  # written by another release
        return ProviderConfigSpec("", "")


def _whole_second(at: datetime) -> datetime:
    floor = at.replace(microsecond=0)
    return floor if floor == at else floor + timedelta(seconds=1)


# --- folds


def renewed(health: ApiHealth, event: LogEvent) -> ApiHealth:
    """Begin anew with a new declaration: the endpoint may be another."""
    return ApiHealth(version=event.shapeversion if health.version else 0)


def throttled(state: ShapeState, data: ApiThrottled, event: LogEvent) -> ShapeState:
    """Fold that an API wants no call for a while."""
    api = replace(state.api, throttled_until=data.until)
    return replace(state, version=event.shapeversion, api=api)


def opened(state: ShapeState, data: BreakerOpened, event: LogEvent) -> ShapeState:
    """Fold that a breaker opened, or that its probe failed."""
    api = ApiHealth(
        version=event.shapeversion,
        throttled_until=state.api.throttled_until,
        open_until=data.until,
        openings=state.api.openings + 1,
        failures=data.failures,
        message=data.message,
    )
    return replace(state, version=event.shapeversion, api=api)


def probed(state: ShapeState, data: BreakerProbed, event: LogEvent) -> ShapeState:
    """Fold that somebody makes the probe."""
    api = replace(state.api, version=event.shapeversion, probe_until=data.until)
    return replace(state, version=event.shapeversion, api=api)


def closed(state: ShapeState, _data: BreakerClosed, event: LogEvent) -> ShapeState:
    """Fold that a breaker closed."""
    api = ApiHealth(version=event.shapeversion, throttled_until=state.api.throttled_until)
    return replace(state, version=event.shapeversion, api=api)
