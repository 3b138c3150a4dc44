"""The clocks of the simulated processes: the loop's time as a date, each with its own error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """One process's clock."""

    def __init__(self, time: Callable[[], float], offset_seconds: float = 0.0) -> None:
        self._time = time
        self._offset = offset_seconds

    def now(self) -> datetime:
        """Return the date according to this process."""
        return _EPOCH + timedelta(seconds=self._time() + self._offset)


def seconds_of(at: datetime) -> float:
    """Return the loop's time for a date on an accurate clock."""
    return (at - _EPOCH).total_seconds()


def date_of(time: float) -> datetime:
    """Return the date on an accurate clock for a time of the loop."""
    return _EPOCH + timedelta(seconds=time)
