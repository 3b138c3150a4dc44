"""The gate of one external API and account, which decides when calls may be made.

Its state comes from the log: the events of each ``ProviderConfig`` record how long its API is
throttled or its breaker is open. This process's own observations count before they are in the log.
All processes follow the log, so one worker's observation closes every process's gate.

Without a rate limit, an open gate costs the caller one check and no wait.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from events.log import BreakerClosed, BreakerOpened, LogEvent
from reconciler.errors import (
    ConfigurationError,
    NotCalledError,
    ProviderError,
    ThrottledError,
    is_failure,
)
from reconciler.ports import LogCertainty
from reconciler.provider.call_permit import CALL_GATE, CallGate
from reconciler.resource.api_silence import MIN_SILENT_SECONDS
from reconciler.roles.gate.api_member import GateMember
from reconciler.roles.gate.rate_limit import RateLimiter

MAX_WAIT_SECONDS = 2.0
"""Longest wait at the gate. Beyond it, a call is rejected, and its action is rescheduled."""

MAX_WAITING_ACTIONS = 128
"""Limit on actions in this process that wait for one API while its gate is closed."""

THROTTLED_SECONDS = 1.0
"""Pause after a throttling response that has no retry time."""

MAX_UNCONFIRMED_SECONDS = 30.0
"""Longest throttling of the API that a call for one object can cause. Rate limits are per account
and short. A longer one, or a 503 with a retry time, counts if a call without an object gets it."""

LOCAL_OPENING_SECONDS = 1.0
"""Time for which local failures close a gate before the log has recorded them."""

PROBE_WAIT_SECONDS = 1.0
"""Time for which a call waits for a probe's result before it is rejected."""

CHECK_SECONDS = 5.0
"""Minimum time between two checks of an API that responds, and time limit of a check."""

MIN_UNANSWERED = 2
"""Minimum consecutive failed calls before an API counts as silent."""

_PROBE_REQUEST_SECONDS = 1.0
_SPREAD_SECONDS = 0.5
_NOTICEABLE_SECONDS = 0.01
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class GateReport:
    """A gate's report about one of its configurations."""

    config: str
    state: Literal["Throttled", "Failing", "Probing", "Responding", "Stopping"]
    as_of: int = 0
    retry_after_seconds: float = 0.0
    failures: int = 0
    message: str = ""


class GateClosedError(NotCalledError):
    """The gate is closed.

    ``throttled``: the API or a rate limit does not permit a call now. If false, the API is failing,
    or the log is uncertain.
    """

    def __init__(
        self, message: str, *, retry_after_seconds: float | None = None, throttled: bool = False
    ) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        if throttled:
            self.error_class = "Throttled"


class ApiGate:
    """The gate of one API and account, shared by all configurations that use both.

    ``running_actions``: number of this process's running actions. ``epoch`` counts breaker changes
    and this process's pauses. A call from an earlier epoch proves nothing.
    """

    def __init__(
        self,
        *,
        reporter: str,
        report: Callable[[GateReport], None],
        log: LogCertainty | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.limiter: RateLimiter | None = None
        self.members: dict[str, GateMember] = {}
        self.running_actions = 0
        self.epoch = 0
        self._reporter = reporter
        self._report = report
        self._log = log
        self._clock = clock
        self._jitter = jitter
        self._may_be_closed = False
        self._failures = 0
        self._suspicions = 0  # failures that the objects of one tenant may have caused
        self._is_throttling_suspected = False  # the same, for a long pause
        self._responded_at = self._clock()
        self._has_responded = False
        self._unanswered = 0  # consecutive failures, for the silence of the API
        self._unanswered_since = 0.0
        self._is_checking = False
        self._next_check_at = float("-inf")
        self._local_throttle_until = 0.0
        self._local_opening_until = 0.0
        self._used_grant = ("", 0)
        self._requested_at = float("-inf")
        self._rejected_until = 0.0
        self._changed = asyncio.Event()

    @property
    def may_send_now(self) -> bool:
        """Whether a request may be sent without waiting."""
        return not self._may_be_closed and self.limiter is None and self.is_log_certain

    @property
    def closed_seconds(self) -> float:
        """Seconds until the next call is possible; also 0.0 while a probe is in progress."""
        return max(0.0, self._closed_until() - self._clock())

    @property
    def interval_seconds(self) -> float:
        """Seconds between requests under the rate limit; 0.0 if there is none."""
        return 0.0 if self.limiter is None else self.limiter.interval

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since the last response; None if the API responds or may be restarting."""
        if self._unanswered < MIN_UNANSWERED:
            return None
        now = self._clock()
        is_long = now - self._unanswered_since >= MIN_SILENT_SECONDS
        return now - self._responded_at if is_long else None

    @property
    def responds(self) -> bool:
        """Whether the newest result of this process is a response."""
        return self._has_responded and not self._unanswered

    def record_response(self) -> None:
        """Record a response, such as a page of a listing, which may still fail."""
        self._responded_at = self._clock()
        self._has_responded, self._unanswered = True, 0

    @property
    def is_log_certain(self) -> bool:
        """Whether the log is known to be the one in which the calls were decided."""
        return self._log is None or self._log.is_certain

    # --- waiting

    async def wait_for_log(self) -> None:
        """Wait until the log is certain; raises ``GateClosedError`` after `MAX_WAIT_SECONDS`."""
        if self._log is not None and not await self._log.wait_until_certain(MAX_WAIT_SECONDS):
            raise GateClosedError(
                (
                    "the bus connection was lost: this process does not call any API until it has "
                    "verified that the log is still the one that it read before"
                ),
                retry_after_seconds=PROBE_WAIT_SECONDS,
            )

    def reject_long_wait(self, config: str) -> GateClosedError | None:
        """Return an error, without waiting, if a call would have to wait too long."""
        if self._may_be_closed:
            wait = self.closed_seconds
            is_crowded = self.running_actions > MAX_WAITING_ACTIONS and (
                wait > 0 or bool(self._open_breakers())
            )
            if wait > MAX_WAIT_SECONDS or is_crowded or self._is_probe_slow():
                return self._build_closed_error(config, wait)
        if self.limiter is not None:
            return self._check_rate(self.limiter)
        return None

    async def enter(self, config: str) -> bool:
        """Wait until a call may be made. Return whether it is the breaker's probe.

        Raises:
            GateClosedError: the wait would be too long. Nothing was called; retry later.
        """
        if not self._may_be_closed:
            return False
        started_at = self._clock()
        while self._may_be_closed:
            closed, waited = self.closed_seconds, self._clock() - started_at
            if closed > MAX_WAIT_SECONDS or waited > MAX_WAIT_SECONDS:
                raise self._build_closed_error(config, closed)
            if closed > 0:
                await self._wait_for_change(closed)
                continue
            broken = self._open_breakers()
            if not broken:
                self._may_be_closed = False
            elif self._use_grant(broken):
                return True
            elif self._is_probe_slow():
                raise self._build_closed_error(config, closed)
            else:
                self._request_probe(broken)
                await self._wait_for_change(PROBE_WAIT_SECONDS / 4)
        waited = self._clock() - started_at
        if waited > _NOTICEABLE_SECONDS:  # spread out calls that waited together
            await asyncio.sleep(self._jitter() * min(waited, _SPREAD_SECONDS))
        return False

    def calls(self, config: str, *, is_probe: bool = False, proves_failure: bool = True) -> Calls:
        """Return the context for the requests of an action or a listing.

        Without `proves_failure`, a failure may be due to the object, not to the API.
        """
        return Calls(self, config, is_probe=is_probe, proves_failure=proves_failure)

    def begin_check(self, config: str) -> bool:
        """Return whether the caller must check the API, because calls for objects failed.

        One long pause that the API requests for an object is enough. A check is a call that does
        not depend on any tenant's objects. `end_check` must follow.
        """
        member = self.members.get(config)
        is_due = (
            member is not None
            and (self._is_throttling_suspected or self._suspicions >= member.failures_to_open)
            and not (self._is_checking or self._may_be_closed)
            and self._clock() >= self._next_check_at
        )
        if is_due:
            self._is_checking, self._is_throttling_suspected = True, False
        return is_due

    def end_check(self) -> None:
        """Wait some time before the next check. A failed check counts as enough failures."""
        self._is_checking = False
        self._next_check_at = self._clock() + CHECK_SECONDS

    def check_open(self, config: str) -> None:
        """Raise ``GateClosedError`` if a call would have to wait, or be the breaker's probe."""
        if self._may_be_closed and (self.closed_seconds > 0 or self._open_breakers()):
            raise self._build_closed_error(config, self.closed_seconds)

    def check_writes(self) -> None:
        """Raise ``GateClosedError`` while another copy of the log may write to the API."""
        for member in self.members.values():
            if member.has_twin:
                raise GateClosedError(
                    f"ProviderConfig {member.name!r} is held, because its API has objects that are "
                    "newer than this log",
                    retry_after_seconds=PROBE_WAIT_SECONDS,
                )

    def _closed_until(self) -> float:
        until = max(self._local_throttle_until, self._local_opening_until)
        for member in self.members.values():
            until = max(until, member.throttled_until)
            if member.is_broken:
                until = max(until, member.open_until)
        return until

    def _open_breakers(self) -> list[GateMember]:
        return [member for member in self.members.values() if member.is_broken]

    def _use_grant(self, broken: list[GateMember]) -> bool:
        """Use the probe that the log has granted to this process, but only once."""
        for member in broken:
            grant = (member.name, member.breaker_version)
            if member.probe_by == self._reporter and grant != self._used_grant:
                self._used_grant = grant
                return True
        return False

    def _is_probe_slow(self) -> bool:
        """Return whether a probe in progress takes longer than expected."""
        now = self._clock()
        return any(
            member.is_broken and member.probe_since + PROBE_WAIT_SECONDS < now < member.probe_until
            for member in self.members.values()
        )

    def _request_probe(self, broken: list[GateMember]) -> None:
        now = self._clock()
        if any(now < member.probe_until for member in broken):
            return  # a probe is already in progress
        if now >= self._requested_at + _PROBE_REQUEST_SECONDS:
            self._requested_at = now
            first = min(broken, key=lambda member: member.name)
            self._report(GateReport(first.name, "Probing", first.breaker_version))

    async def _wait_for_change(self, seconds: float) -> None:
        changed = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    # --- rejecting calls

    def _build_closed_error(self, config: str, wait: float) -> GateClosedError:
        wait = max(wait, PROBE_WAIT_SECONDS)
        for member in self._open_breakers():
            is_due = member.open_until <= self._clock()
            until = "its probe succeeds" if is_due else _format_end(member.suspended_until)
            reason = f"breaker for API {member.name!r} open until {until}"
            return GateClosedError(reason, retry_after_seconds=wait)
        now = self._clock()
        for member in self.members.values():
            if member.throttled_until > now:
                end = _format_end(member.suspended_until)
                reason = f"API {member.name!r} does not accept calls before {end}"
                return GateClosedError(reason, retry_after_seconds=wait, throttled=True)
        # The log has not recorded the throttling yet, so its end is unknown.
        if self._local_throttle_until > now:
            reason = (
                f"API {config!r} does not accept calls for {self._local_throttle_until - now:.0f} s"
            )
            return GateClosedError(reason, retry_after_seconds=wait, throttled=True)
        reason = f"calls to API {config!r} are suspended briefly after failures"
        return GateClosedError(reason, retry_after_seconds=wait)

    def _check_rate(self, limiter: RateLimiter) -> GateClosedError | None:
        """Return an error with its own retry time if a call would wait too long for a slot."""
        expected = limiter.expected_wait(self.running_actions)
        if expected <= MAX_WAIT_SECONDS:
            return None
        now = self._clock()
        turn = max(self._rejected_until, now + expected)
        self._rejected_until = turn + limiter.interval
        return GateClosedError(
            f"waiting for the rate limit ({limiter.per_second:g} per second)",
            retry_after_seconds=turn - now,
            throttled=True,
        )

    # --- results of calls

    def process_result(
        self,
        error: ProviderError | ConfigurationError | None,
        config: str,
        epoch: int,
        *,
        proves_failure: bool = True,
    ) -> None:
        """Process the result of a call that started in ``epoch``."""
        if error is None:
            self.record_response()
            if self._failures or self._suspicions or self._may_be_closed:
                self._process_response(epoch)
            return
        if isinstance(error, (ConfigurationError, NotCalledError)):
            return  # no call was made
        if not proves_failure and _needs_confirmation(error):
            self._is_throttling_suspected = True
        else:
            self.report_throttling(error, config)
        if not error.proves_failure:
            self.record_response()
            self._process_response(epoch)
        elif proves_failure or self._may_be_closed:
            self._record_no_response(epoch)
            self._process_failure(error, config, epoch)
        else:
            self._suspicions += epoch == self.epoch

    def report_throttling(self, error: ProviderError, config: str) -> None:
        """Process only the throttling that an error reports."""
        wait = _throttle_seconds(error)
        if wait:
            self._process_throttle(error, config, wait)

    def stop(self) -> None:
        """Report that this process abandons a running probe, and will not start another one."""
        for member in self._open_breakers():
            self._report(GateReport(member.name, "Stopping"))

    def ignore_running_calls(self) -> None:
        """Ignore the results of running calls, because this process itself was paused."""
        self.epoch += 1

    def _record_no_response(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        if not self._unanswered:
            self._unanswered_since = self._clock()
        self._unanswered += 1

    def _process_response(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        self._failures = self._suspicions = 0
        for member in self._open_breakers():
            self._report(GateReport(member.name, "Responding", member.breaker_version))

    def _process_throttle(self, error: ProviderError, config: str, wait: float) -> None:
        until = self._clock() + wait
        if until > self._closed_until():
            self._local_throttle_until = until
            self._may_be_closed = True
            report = GateReport(
                config, "Throttled", retry_after_seconds=wait, message=error.message
            )
            self._report(report)

    def _process_failure(self, error: ProviderError, config: str, epoch: int) -> None:
        member = self.members.get(config)
        if member is None or epoch != self.epoch:
            return
        self._failures += 1
        if self._is_checking and not _throttle_seconds(error):
            self._failures = max(self._failures, member.failures_to_open)
        broken = self._open_breakers()
        should_report = self._failures >= member.failures_to_open or bool(broken)
        if not should_report or self._local_opening_until > self._clock():
            return
        self._local_opening_until = self._clock() + LOCAL_OPENING_SECONDS
        self._may_be_closed = True
        for failing in broken or [member]:
            self._report(
                GateReport(
                    failing.name,
                    "Failing",
                    failing.breaker_version,
                    failures=self._failures,
                    message=error.message,
                )
            )

    # --- state from the log

    def apply(self, member: GateMember, event: LogEvent, now: datetime) -> None:
        """Fold an event of one of this gate's configurations."""
        if member.fold(event, now, self._clock()):
            self.epoch += 1
        if isinstance(event.data, (BreakerOpened, BreakerClosed)):
            self._failures = self._suspicions = 0
            self._local_opening_until = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Update the state after a change, and wake waiting calls."""
        self._may_be_closed = bool(self._open_breakers()) or self.closed_seconds > 0
        self._changed.set()
        self._changed = asyncio.Event()


class Calls:
    """Context that permits the requests of one action or listing, and processes their results."""

    __slots__ = (
        "_config",
        "_epoch",
        "_gate",
        "_is_probe",
        "_previous_permit",
        "_proves_failure",
        "has_response",
    )

    def __init__(
        self, gate: ApiGate, config: str, *, is_probe: bool, proves_failure: bool = True
    ) -> None:
        self._gate = gate
        self._config = config
        self._is_probe = is_probe
        self._proves_failure = proves_failure
        self._epoch = gate.epoch
        self.has_response = False
        self._previous_permit: CallGate | None = None

    def __enter__(self) -> Self:
        """Make this object the permit of the current task."""
        self._previous_permit = CALL_GATE.get()
        CALL_GATE.set(self)
        return self

    def __exit__(self, _class: object, error: BaseException | None, _traceback: object) -> None:
        """Process the result. An unexpected error proves nothing about the API."""
        if CALL_GATE.get() is self:  # an abandoned generator is finalized in another context
            CALL_GATE.set(self._previous_permit)
        if error is None or isinstance(error, (ProviderError, ConfigurationError)):
            self._gate.process_result(
                error, self._config, self._epoch, proves_failure=self._proves_failure
            )

    @property
    def may_send_now(self) -> bool:
        """Whether the next request may be sent immediately."""
        return self._gate.may_send_now

    @property
    def interval_seconds(self) -> float:
        """Seconds between requests under the rate limit; 0.0 if there is none."""
        return self._gate.interval_seconds

    def record_status(self, status: int) -> None:
        """Record the status of a response, whose body may still be too large or too slow."""
        if not is_failure(status):
            self.has_response = True
            self._gate.record_response()

    async def wait(self, *, has_priority: bool = False) -> None:
        """Wait until the next request may be sent; raises ``GateClosedError``."""
        gate = self._gate
        if not gate.is_log_certain:
            await gate.wait_for_log()
        if not self._is_probe and await gate.enter(self._config):
            self._is_probe, self._epoch = True, gate.epoch
        if gate.limiter is not None:
            await gate.limiter.take(has_priority=has_priority)


def _needs_confirmation(error: ProviderError) -> bool:
    """Return whether a pause that an API requests for an object may concern only that object."""
    wait = _throttle_seconds(error)
    if wait is None:
        return False
    return not isinstance(error, ThrottledError) or wait > MAX_UNCONFIRMED_SECONDS


def _throttle_seconds(error: ProviderError) -> float | None:
    """Return the seconds for which an error throttles the whole API, or None."""
    wait = error.retry_after_seconds
    if isinstance(error, ThrottledError):
        return THROTTLED_SECONDS if wait is None else wait
    is_server_error = error.status is not None and error.status >= _SERVER_ERROR
    return wait if is_server_error and not error.responded else None


def _format_end(at: datetime | None) -> str:
    return "its probe succeeds" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"
