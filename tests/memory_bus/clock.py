"""The clocks of the simulated processes: the loop's time as a date, each as wrong as it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """One process's clock."""

    def __init__(self, time: Callable[[], float], wrong_by_seconds: float = 0.0) -> None:
        self._time = time
        self._wrong_by = wrong_by_seconds

    def now(self) -> datetime:
        """Give the date as this process sees it."""
        return _EPOCH + timedelta(seconds=self._time() + self._wrong_by)


def seconds_of(at: datetime) -> float:
    """Give the loop's time of a date of a right clock."""
    return (at - _EPOCH).total_seconds()


def date_of(time: float) -> datetime:
    """Give the date of a right clock at a time of the loop."""
    return _EPOCH + timedelta(seconds=time)
