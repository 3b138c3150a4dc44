"""Report to a ``ProviderConfig`` that listings of a kind fail, or complete again (ADR 0069).

Reports are level-triggered. This process compares its observations with the log, so that a lost
report is repeated, and an unchanged fleet costs no event.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, Literal

import structlog

from events.intake import ApiReported, ListingFailure
from events.log import ListingsResumed, LogEvent
from events.provider_config import ProviderConfigSpec, config_key, is_config
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut, IntakeWriter
from reconciler.roles.runtime.pauses import with_pauses
from reconciler.roles.runtime.runtime import REAL, Runtime
from reconciler.secrecy import Secrecy

Place = tuple[str, str]
"""The name of a configuration, and a kind that is listed there."""

FAILED_INTERVALS: Final = 3
"""Number of resync intervals without a complete listing after which it is reported."""

LEAST_FAILED_SECONDS: Final = 60.0
"""Minimum time without a complete listing before a report, even for short intervals."""

LEAST_FAILURES: Final = 3
"""Minimum number of consecutive failed listings before a report, because one may take an hour."""

_MAX_MESSAGE_CHARACTERS: Final = 200
_logger = structlog.get_logger(__name__)


def is_observed(row: StatusRow, place: Place) -> bool:
    """Return whether a resource depends on reading its object through a configuration."""
    is_there = (row.provider_config, row.kind) == place
    return is_there and (row.declared or row.owned or row.doubted or row.is_unconfirmed)


class ListingHealth:
    """The results of one kind's listings at one configuration, as observed by this process.

    Time during which the API's gate was closed does not count, because its breaker is reported.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended_at = self._listed_at = clock()
        self._failures = 0
        self._failed_seconds = 0.0
        self._judged_seconds = 0.0
        self._patience = 1

    @property
    def age_seconds(self) -> float:
        """Seconds since the last complete listing, or since the start of this process."""
        return self._clock() - self._listed_at

    def listed(self) -> None:
        """Record that a listing of any process has completed."""
        self._ended_at = self._listed_at = self._clock()
        self._failed_seconds = self._judged_seconds = 0.0

    def succeeded(self) -> None:
        """Record that a listing of this process has completed."""
        self.listed()
        self._failures, self._patience = 0, 1

    def failed(self) -> None:
        """Record that a listing of this process has failed."""
        now = self._clock()
        self._failures += 1
        self._failed_seconds += now - self._ended_at
        self._ended_at = now

    def postponed(self) -> None:
        """Record that no listing was made because the gate of the API is closed."""
        self._ended_at = self._clock()

    def contradicted(self) -> None:
        """Record that another observer completes listings, and report failures here later.

        The time doubles, so that two observers of which only one can list report ever more rarely.
        """
        if self._failures:
            self.listed()
            self._patience *= 2

    def begin_anew(self) -> None:
        """Reset the failures, because they belong to an earlier declaration."""
        self._failed_seconds = self._judged_seconds = 0.0
        self._failures, self._patience = 0, 1

    def is_overdue(self, resync_seconds: float) -> bool:
        """Return whether failures must be judged: after the bound, and after each further one."""
        bound = max(FAILED_INTERVALS * resync_seconds, LEAST_FAILED_SECONDS) * self._patience
        is_long = self._failed_seconds - self._judged_seconds >= bound
        return is_long and self._failures >= LEAST_FAILURES

    def judged(self) -> None:
        """Record that the log contains the failures up to now."""
        self._judged_seconds = self._failed_seconds


class ListingReports:
    """The listings of all kinds at all configurations, and the reports about them."""

    def __init__(
        self,
        *,
        name: str,
        intake: IntakeWriter,
        models: ReadModels,
        secrecy: Secrecy,
        runtime: Runtime = REAL,
    ) -> None:
        self._name = name
        self._intake = intake
        self._models = models
        self._secrecy = secrecy
        self._now = runtime.now
        self._clock = runtime.clock
        self._new_id = runtime.new_id
        self._healths: dict[Place, ListingHealth] = {}

    def of(self, place: Place) -> ListingHealth:
        """Return the results of a place's listings."""
        if place not in self._healths:
            self._healths[place] = ListingHealth(self._clock)
        return self._healths[place]

    def begin_anew(self, config_name: str) -> None:
        """Reset the failures of a configuration that was declared again."""
        for (name, _kind), health in self._healths.items():
            if name == config_name:
                health.begin_anew()

    def notice(self, event: LogEvent) -> None:
        """Process an event of the log: another observer may have completed a listing."""
        if isinstance(event.data, ListingsResumed) and is_config(event.key):
            health = self._healths.get((event.key.name, event.data.kind))
            if health is not None:
                health.contradicted()

    async def failed(self, place: Place, config: ProviderConfigSpec, error: str) -> None:
        """Record that a listing has failed, and report it if none has completed for too long."""
        health, row = self.of(place), self._row(place)
        if row is None or row.breaker_until is not None:
            health.postponed()
            return
        health.failed()
        if not health.is_overdue(config.resync_seconds):
            return
        is_used = await self._is_used(place)
        if is_used and not self._is_recorded(place):
            since = self._now() - timedelta(seconds=health.age_seconds)
            message = self._secrecy.hide_start(error, _MAX_MESSAGE_CHARACTERS)
            failure = ListingFailure(since.replace(microsecond=0), message)
            _logger.warning(
                "no listing completes", config=place[0], kind=place[1], since=f"{since:%FT%TZ}"
            )
            is_done = await self._report("ListingsFailed", place, failure)
        elif not is_used:
            is_done = await self._resumed(place)
        else:
            is_done = True
        if is_done:
            health.judged()

    async def completed(self, place: Place) -> None:
        """Record that a complete listing was published, and report it if required."""
        self.of(place).listed()
        await self._resumed(place)

    async def end(self, place: Place) -> None:
        """Remove a place that is no longer listed, and end its reported failure."""
        self._healths.pop(place, None)
        await self._resumed(place)

    async def _resumed(self, place: Place) -> bool:
        if not self._is_recorded(place):
            return True
        return await self._report("ListingsResumed", place)

    async def _report(
        self,
        state: Literal["ListingsFailed", "ListingsResumed"],
        place: Place,
        failure: ListingFailure | None = None,
    ) -> bool:
        """Publish a report. Return whether it is stored; if not, a later listing repeats it."""
        name, kind = place
        row = self._row(place)
        generation = 0 if row is None else row.generation
        data = ApiReported(state, self._name, self._now(), generation, kind=kind, failure=failure)
        message = IntakeMessageOut("result", config_key(name), data, self._new_id())
        try:
            await self._intake.publish([message])
        except Exception as error:  # noqa: BLE001 - such as an unreachable bus
            _logger.warning(
                "reporting the listings of a kind failed", config=name, kind=kind, error=str(error)
            )
            return False
        return True

    def _row(self, place: Place) -> StatusRow | None:
        return self._models.status.get(str(config_key(place[0])))

    def _is_recorded(self, place: Place) -> bool:
        row = self._row(place)
        return row is not None and place[1] in (row.failed_listings or {})

    async def _is_used(self, place: Place) -> bool:
        is_used = False
        async for some in with_pauses(list(self._models.status.values())):
            is_used = is_used or any(is_observed(row, place) for row in some)
        return is_used
