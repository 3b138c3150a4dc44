"""The gates of all configured APIs in one process, which follow the log and report to it."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import ClassVar
from urllib.parse import urlsplit

import structlog

from events.intake import ApiReported
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
from events.names import SYSTEM_NAMESPACE
from events.provider_config import (
    PROVIDER_CONFIG_KIND,
    Breaker,
    ProviderConfigSpec,
    config_key,
    config_name,
)
from reconciler.ports import (
    EventLog,
    IntakeMessageOut,
    IntakeWriter,
    LogCertainty,
    NotStoredError,
    RateStore,
)
from reconciler.roles.gate.api_gate import ApiGate, GateReport
from reconciler.roles.gate.api_member import GateMember
from reconciler.roles.gate.rate_limit import RateLimiter
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.runtime import REAL, Runtime

PAUSE_SECONDS = 3.0
"""Gap between two clock checks that proves that this process was paused."""

_CHECK_SECONDS = 0.5
_RETRY_SECONDS = 0.5
_LAST_REPORTS_SECONDS = 2.0
_logger = structlog.get_logger(__name__)


def gate_name(config: ProviderConfigSpec) -> str:
    """Return the name of a configuration's gate, which its API and account determine."""
    url = urlsplit(config.endpoint)
    address = f"{url.scheme.lower()}://{url.netloc.lower()}{url.path.rstrip('/')}"
    reference = config.credentials_ref
    account = "" if reference is None else f"{reference.env}\n{reference.file}"
    return hashlib.sha256(f"{address}\n{account}".encode()).hexdigest()[:24]


class ApiGates:
    """One gate per API and account.

    ``apply`` must receive every log event of the types in ``event_types``. Gate reports are
    published by ``run``.
    """

    event_types: ClassVar = frozenset(
        {
            SpecDeclared,
            SpecWithdrawn,
            ApiThrottled,
            BreakerOpened,
            BreakerProbed,
            BreakerClosed,
            TwinDetected,
            HoldApproved,
        }
    )

    def __init__(
        self,
        *,
        name: str,
        configurations: Configurations,
        intake: IntakeWriter,
        rates: RateStore,
        log: LogCertainty | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self._reporter = f"{name}#{runtime.new_id()[:8]}"
        self._configurations = configurations
        self._intake = intake
        self._rates = rates
        self._log = log
        self._now = runtime.now
        self._clock = runtime.clock
        self._jitter = runtime.jitter
        self._new_id = runtime.new_id
        self._members: dict[str, GateMember] = {}
        self._gates: dict[str, ApiGate] = {}
        self._by_config: dict[str, ApiGate] = {}
        self._undeclared = self._new_gate()
        self._reports: dict[tuple[str, str], GateReport] = {}
        self._has_reports = asyncio.Event()
        self._is_loaded = False
        configurations.listen(lambda _name: self._assign_gates())

    async def load(self, log: EventLog) -> None:
        """Read the state of the APIs from the log. The configurations must be loaded."""
        for stored in await log.read_kind(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND):
            self.apply(stored.event)
        self._assign_gates()
        self._is_loaded = True

    def of(self, config_name: str) -> ApiGate:
        """Return the gate of a configuration, which is open if the configuration is undeclared."""
        return self._by_config.get(config_name, self._undeclared)

    def apply(self, event: LogEvent) -> None:
        """Fold an event of any resource; events unrelated to an API are ignored."""
        if type(event.data) not in self.event_types:
            return
        name = config_name(event.subject)
        if name is None:
            return
        member = self._members.setdefault(name, GateMember(name, Breaker().failures))
        if event.resourceversion > member.newest_version:
            self.of(name).apply(member, event, self._now())
            if self._is_loaded:
                _log_change(name, event)

    async def run(self) -> None:
        """Publish reports, and detect pauses of this process, until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_reports())
            tasks.create_task(self._detect_pauses())

    async def close(self) -> None:
        """Publish the remaining reports, and report that this process starts no more probes."""
        for gate in self._gates.values():
            gate.stop()
        with suppress(Exception):  # if the bus is unreachable, the probe expires
            async with asyncio.timeout(_LAST_REPORTS_SECONDS):
                await self._intake.publish([self._message(each) for each in self._reports.values()])

    async def _detect_pauses(self) -> None:
        """Ignore the results of calls that timed out while this process was paused.

        Otherwise one paused process would open the breaker for all others.
        """
        while True:
            checked_at = self._clock()
            await asyncio.sleep(_CHECK_SECONDS)
            if self._clock() - checked_at > PAUSE_SECONDS:
                for gate in self._gates.values():
                    gate.ignore_running_calls()

    async def _publish_reports(self) -> None:
        while True:
            await self._has_reports.wait()
            self._has_reports.clear()
            reports, self._reports = self._reports, {}
            try:
                await self._intake.publish([self._message(each) for each in reports.values()])
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                if isinstance(error, NotStoredError):
                    entries = list(reports.items())
                    reports = dict(entries[index] for index in error.missing)
                _logger.warning("failed to report an API's health; retrying", error=str(error))
                self._reports = reports | self._reports
                self._has_reports.set()
                await asyncio.sleep(_RETRY_SECONDS)

    def _new_gate(self) -> ApiGate:
        return ApiGate(
            reporter=self._reporter,
            report=self._queue_report,
            log=self._log,
            clock=self._clock,
            jitter=self._jitter,
        )

    def _queue_report(self, report: GateReport) -> None:
        """Queue a report. Only the newest one per configuration and state is sent."""
        self._reports[report.config, report.state] = report
        self._has_reports.set()

    def _message(self, report: GateReport) -> IntakeMessageOut:
        data = ApiReported(
            report.state,
            self._reporter,
            self._now(),
            report.as_of,
            round(report.retry_after_seconds, 3),
            report.failures,
            report.message,
        )
        return IntakeMessageOut("result", config_key(report.config), data, self._new_id())

    # --- assigning configurations to gates

    def _assign_gates(self) -> None:
        """Assign each declared configuration to the gate of its API and account."""
        declared = self._configurations.by_name
        self._by_config = {}
        for gate in self._gates.values():
            gate.members = {}
        for name, config in declared.items():
            gate = self._gates.setdefault(gate_name(config), self._new_gate())
            member = self._members.setdefault(name, GateMember(name, config.breaker.failures))
            member.failures_to_open = config.breaker.failures
            gate.members[name] = member
            self._by_config[name] = gate
        for name, gate in self._gates.items():
            self._set_rate_limit(name, gate, [declared[member] for member in gate.members])
            gate.refresh()

    def _set_rate_limit(self, name: str, gate: ApiGate, configs: list[ProviderConfigSpec]) -> None:
        """Set a gate's rate limit to the strictest limit of its configurations."""
        limits = [each.limits for each in configs]
        rates = [
            each.requests_per_second for each in limits if each.requests_per_second is not None
        ]
        if not rates:
            gate.limiter = None
            return
        burst = min(each.burst for each in limits if each.requests_per_second is not None)
        if gate.limiter is None:
            gate.limiter = RateLimiter(
                self._rates,
                name,
                per_second=min(rates),
                burst=burst,
                clock=self._clock,
                jitter=self._jitter,
            )
        gate.limiter.per_second, gate.limiter.burst = min(rates), burst


def _log_change(name: str, event: LogEvent) -> None:
    """Log a change in an API's state."""
    match event.data:
        case ApiThrottled(until=until, message=reason) | BreakerOpened(until=until, message=reason):
            _logger.warning(
                "calls to an API are suspended", config=name, until=f"{until:%FT%TZ}", reason=reason
            )
        case BreakerClosed():
            _logger.info("calls to an API resume", config=name)
        case TwinDetected(objects=objects, total=total):
            _logger.warning(
                "an API has objects that are newer than this log; nothing is written to it",
                config=name,
                total=total,
                example=objects[0].action,
            )
        case _:
            pass
