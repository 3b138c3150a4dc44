"""An API's state according to the events of one ``ProviderConfig``, on the local clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from events.hold import Hold
from events.log import (
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    HoldApproved,
    LogEvent,
    SpecDeclared,
    SpecWithdrawn,
    TwinDetected,
)


@dataclass(slots=True)
class GateMember:
    """One configuration of an API. Times are seconds on the monotonic clock.

    ``breaker_version``: version of the last event that changed the breaker. ``suspended_until``:
    end of the suspension, for messages. ``has_twin``: the API is held, because it has objects that
    are newer than the log (ADR 0065).
    """

    name: str
    failures_to_open: int
    newest_version: int = 0
    breaker_version: int = 0
    throttled_until: float = 0.0
    is_broken: bool = False
    open_until: float = 0.0
    suspended_until: datetime | None = None
    probe_by: str = ""
    probe_since: float = 0.0
    probe_until: float = 0.0
    has_twin: bool = False

    def fold(self, event: LogEvent, now: datetime, clock: float) -> bool:
        """Fold an event. Return whether the breaker changed."""
        previous_version, self.newest_version = self.breaker_version, event.resourceversion
        match event.data:
            case SpecWithdrawn(until_unused=True):
                pass  # calls continue
            case SpecDeclared() | SpecWithdrawn():
                self.breaker_version = event.resourceversion if self.breaker_version else 0
                self.throttled_until, self.is_broken, self.probe_by = 0.0, False, ""
            case ApiThrottled(until=until, delay_seconds=limit):
                self.throttled_until = clock + _remaining(until, now, limit)
                self.suspended_until = until
            case BreakerOpened(until=until, delay_seconds=limit):
                self.breaker_version, self.is_broken = event.resourceversion, True
                self.suspended_until = until
                self.open_until = clock + _remaining(until, now, limit)
                self.probe_by, self.probe_until = "", 0.0
            case BreakerProbed(until=until, delay_seconds=limit, by=by):
                self.breaker_version = event.resourceversion
                self.probe_by, self.probe_since = by, clock
                self.probe_until = clock + _remaining(until, now, limit)
            case BreakerClosed():
                self.breaker_version, self.is_broken = event.resourceversion, False
            case TwinDetected():
                self.has_twin = True
            case HoldApproved(hold=Hold.TWIN):
                self.has_twin = False
            case _:
                pass
        return self.breaker_version != previous_version


def _remaining(until: datetime, now: datetime, limit: float) -> float:
    """Return the seconds until a recorded time, bounded in case the local clock is wrong."""
    return min(max((until - now).total_seconds(), 0.0), limit)
