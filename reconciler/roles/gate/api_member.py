"""The state of an API in the log of one ``ProviderConfig``, in this process's time."""

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
class Member:
    """One configuration of an API. Times are seconds of the monotonic clock.

    ``newest_version``: that of its newest event. ``version``: that of the last event that changed
    its breaker. ``shown_until``: the time for messages. ``has_twin``: it is held, because it has
    objects that are newer than the log (ADR 0065).
    """

    name: str
    failures_to_open: int
    newest_version: int = 0
    version: int = 0
    throttled_until: float = 0.0
    is_broken: bool = False
    open_until: float = 0.0
    shown_until: datetime | None = None
    probe_by: str = ""
    probe_since: float = 0.0
    probe_until: float = 0.0
    has_twin: bool = False

    def fold(self, event: LogEvent, now: datetime, clock: float) -> bool:
        """Fold an event. Return whether its breaker changed."""
        previous_version, self.newest_version = self.version, event.resourceversion
        match event.data:
            case SpecDeclared() | SpecWithdrawn():
                self.version = event.resourceversion if self.version else 0
                self.throttled_until, self.is_broken, self.probe_by = 0.0, False, ""
            case ApiThrottled(until=until, delay_seconds=most):
                self.throttled_until = clock + _remaining(until, now, most)
                self.shown_until = until
            case BreakerOpened(until=until, delay_seconds=most):
                self.version, self.is_broken, self.shown_until = event.resourceversion, True, until
                self.open_until = clock + _remaining(until, now, most)
                self.probe_by, self.probe_until = "", 0.0
            case BreakerProbed(until=until, delay_seconds=most, by=by):
                self.version, self.probe_by, self.probe_since = event.resourceversion, by, clock
                self.probe_until = clock + _remaining(until, now, most)
            case BreakerClosed():
                self.version, self.is_broken = event.resourceversion, False
            case TwinDetected():
                self.has_twin = True
            case HoldApproved(hold=Hold.TWIN):
                self.has_twin = False
            case _:
                pass
        return self.version != previous_version


def _remaining(until: datetime, now: datetime, most: float) -> float:
    """Return the seconds until a recorded time, bounded against an incorrect local clock."""
    return min(max((until - now).total_seconds(), 0.0), most)
