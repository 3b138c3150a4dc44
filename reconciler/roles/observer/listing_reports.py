"""Report to a ``ProviderConfig`` that listings of a kind fail, or complete again (ADR 0069).

They also report a new system, which is evidence for the loss guard (``restarts``), and the
undeclared objects of a new scope (ADR 0082).

Reports are level-triggered: this process compares its observations with the log, so a lost report
is repeated, and an unchanged fleet does not cause events.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, Literal

import structlog
from msgspec.structs import replace

from events.intake import ApiReported, ListingFailure, UndeclaredObjects
from events.log import ListingsResumed, LogEvent
from events.provider_config import ProviderConfigSpec, config_key, is_config
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut, IntakeWriter
from reconciler.roles.runtime.pauses import in_slices
from reconciler.roles.runtime.runtime import REAL, Runtime
from reconciler.secrecy import Secrecy

ListingTarget = tuple[str, str]
"""The name of a configuration, and a kind that it lists."""

FAILED_INTERVALS: Final = 3
"""Number of resync intervals without a complete listing after which a failure is reported."""

MIN_FAILED_SECONDS: Final = 60.0
"""Minimum time without a complete listing before a report, even for short intervals."""

MIN_FAILURES: Final = 3
"""Minimum consecutive failed listings before a report, because a single one may take an hour."""

_MAX_MESSAGE_CHARACTERS: Final = 200
_logger = structlog.get_logger(__name__)


def is_observed(row: StatusRow, target: ListingTarget) -> bool:
    """Return whether a resource depends on reading its object through a configuration."""
    is_listed = (row.provider_config, row.kind) == target
    return is_listed and (row.declared or row.owned or row.doubted or row.is_unconfirmed)


class ListingHealth:
    """The results of one kind's listings at one configuration, as observed by this process.

    Time while the API's gate is closed does not count, because the open breaker is reported.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended_at = self._listed_at = clock()
        self._failures = 0
        self._failed_seconds = 0.0
        self._reported_seconds = 0.0
        self._delay_factor = 1

    @property
    def age_seconds(self) -> float:
        """Seconds since the last complete listing, or since the start of this process."""
        return self._clock() - self._listed_at

    def record_completion(self) -> None:
        """Record that a listing of any process has completed."""
        self._ended_at = self._listed_at = self._clock()
        self._failed_seconds = self._reported_seconds = 0.0

    def record_success(self) -> None:
        """Record that a listing of this process has completed."""
        self.record_completion()
        self._failures, self._delay_factor = 0, 1

    def record_failure(self) -> None:
        """Record that a listing of this process has failed."""
        now = self._clock()
        self._failures += 1
        self._failed_seconds += now - self._ended_at
        self._ended_at = now

    def record_postponement(self) -> None:
        """Record that no listing was made because the gate of the API is closed."""
        self._ended_at = self._clock()

    def record_contradiction(self) -> None:
        """Record that another observer completes listings, and delay failure reports from this one.

        The delay doubles, so that two observers report less and less often if only one can list.
        """
        if self._failures:
            self.record_completion()
            self._delay_factor *= 2

    def reset(self) -> None:
        """Reset the failures, because they belong to an earlier declaration."""
        self._failed_seconds = self._reported_seconds = 0.0
        self._failures, self._delay_factor = 0, 1

    def is_overdue(self, resync_seconds: float) -> bool:
        """Return whether failures have lasted too long, initially and after each report."""
        bound = max(FAILED_INTERVALS * resync_seconds, MIN_FAILED_SECONDS) * self._delay_factor
        is_long = self._failed_seconds - self._reported_seconds >= bound
        return is_long and self._failures >= MIN_FAILURES

    def record_report(self) -> None:
        """Record that the log contains the failures so far."""
        self._reported_seconds = self._failed_seconds


class ListingReports:
    """Tracks the listings of all kinds at all configurations, and reports their failures."""

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
        self._health: dict[ListingTarget, ListingHealth] = {}

    def get_health(self, target: ListingTarget) -> ListingHealth:
        """Return the listing results of a target."""
        if target not in self._health:
            self._health[target] = ListingHealth(self._clock)
        return self._health[target]

    def reset(self, config_name: str) -> None:
        """Reset the failures of a configuration that was declared again."""
        for (name, _kind), health in self._health.items():
            if name == config_name:
                health.reset()

    def handle_event(self, event: LogEvent) -> None:
        """Process a log event: another observer may have completed a listing."""
        if isinstance(event.data, ListingsResumed) and is_config(event.key):
            health = self._health.get((event.key.name, event.data.kind))
            if health is not None:
                health.record_contradiction()

    async def record_failure(
        self, target: ListingTarget, config: ProviderConfigSpec, error: str
    ) -> None:
        """Record that a listing has failed, and report it if none has completed for too long."""
        health, row = self.get_health(target), self._row(target)
        if row is None or row.breaker_until is not None:
            health.record_postponement()
            return
        health.record_failure()
        if not health.is_overdue(config.resync_seconds):
            return
        is_used = await self._is_used(target)
        if is_used and not self._is_recorded(target):
            since = self._now() - timedelta(seconds=health.age_seconds)
            message = self._secrecy.hide_start(error, _MAX_MESSAGE_CHARACTERS)
            failure = ListingFailure(since.replace(microsecond=0), message)
            _logger.warning(
                "no listing has completed",
                config=target[0],
                kind=target[1],
                since=f"{since:%FT%TZ}",
            )
            is_stored = await self._report("ListingsFailed", target, failure)
        elif not is_used:
            is_stored = await self._report_resumed(target)
        else:
            is_stored = True
        if is_stored:
            health.record_report()

    async def record_completion(self, target: ListingTarget, system_id: str = "") -> None:
        """Record that a complete listing was published.

        Report it if a failure was reported, or another system was recorded.
        """
        self.get_health(target).record_completion()
        is_new_system = system_id not in ("", self.recorded_system(target))
        await self._report_resumed(target, system_id if is_new_system else "")

    def recorded_system(self, target: ListingTarget) -> str:
        """Return the id of the system that the last recorded listing showed, or ""."""
        row = self._row(target)
        return "" if row is None else (row.systems or {}).get(target[1], "")

    async def remove(self, target: ListingTarget) -> None:
        """Remove a target that is no longer listed, and end its reported failure."""
        self._health.pop(target, None)
        await self._report_resumed(target)

    async def report_undeclared(self, target: ListingTarget, objects: UndeclaredObjects) -> None:
        """Report the undeclared objects of a kind in a new scope."""
        hide = self._secrecy.hide_start
        names = tuple(hide(name, _MAX_MESSAGE_CHARACTERS) for name in objects.names)
        await self._report("UndeclaredCounted", target, undeclared=replace(objects, names=names))

    async def _report_resumed(self, target: ListingTarget, system_id: str = "") -> bool:
        if not (system_id or self._is_recorded(target)):
            return True
        return await self._report("ListingsResumed", target, system_id=system_id)

    async def _report(
        self,
        state: Literal["ListingsFailed", "ListingsResumed", "UndeclaredCounted"],
        target: ListingTarget,
        failure: ListingFailure | None = None,
        *,
        system_id: str = "",
        undeclared: UndeclaredObjects | None = None,
    ) -> bool:
        """Publish a report. Return whether it is stored; if not, a later listing repeats it."""
        name, kind = target
        row = self._row(target)
        generation = 0 if row is None else row.generation
        data = ApiReported(
            state,
            self._name,
            self._now(),
            generation,
            kind=kind,
            failure=failure,
            system_id=system_id,
            undeclared=undeclared,
        )
        message = IntakeMessageOut("result", config_key(name), data, self._new_id())
        try:
            await self._intake.publish([message])
        except Exception as error:  # noqa: BLE001 - such as an unreachable bus
            _logger.warning(
                "failed to report the listings of a kind", config=name, kind=kind, error=str(error)
            )
            return False
        return True

    def _row(self, target: ListingTarget) -> StatusRow | None:
        return self._models.status.get(str(config_key(target[0])))

    def _is_recorded(self, target: ListingTarget) -> bool:
        row = self._row(target)
        return row is not None and target[1] in (row.failed_listings or {})

    async def _is_used(self, target: ListingTarget) -> bool:
        is_used = False
        async for chunk in in_slices(list(self._models.status.values())):
            is_used = is_used or any(is_observed(row, target) for row in chunk)
        return is_used
