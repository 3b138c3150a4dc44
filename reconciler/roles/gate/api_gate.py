"""The gate of one external API and account: whether it may be called now, and otherwise when.

Its state comes from the log: the events of each ``ProviderConfig`` contain the time until which its
API is throttled and its breaker is open. What this process observes counts immediately, before it
is in the log. All processes follow the log, so an observation of one worker closes the gate of all.

An open gate without a rate limit costs the caller one check, and no wait.
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
from reconciler.errors import ConfigurationError, NotCalledError, ProviderError, ThrottledError
from reconciler.ports import LogCertainty
from reconciler.provider.call_permit import CALL_GATE, CallGate
from reconciler.roles.gate.api_member import Member
from reconciler.roles.gate.rate_limit import RateLimiter

MAX_WAIT_SECONDS = 2.0
"""Longest wait at the gate. A longer one is rejected, and the action is scheduled in the log."""

MAX_INSIDE = 128
"""Limit of calls of one API that wait in this process while its gate is closed."""

THROTTLED_SECONDS = 1.0
"""Time without calls to an API that throttles without a time."""

OWN_OPENING_SECONDS = 1.0
"""Time for which this process's failures alone close a gate, until the log has recorded them."""

PROBE_PATIENCE_SECONDS = 1.0
"""Time to wait for the result of a probe, without rejecting the call."""

_PROBE_REQUEST_SECONDS = 1.0
_SPREAD_SECONDS = 0.5
_NOTICEABLE_SECONDS = 0.01
_CLIENT_ERROR = 400
_SERVER_ERROR = 500
# Client errors that prove no successful processing: unauthorized, timeout, too early.
_UNSERVED = frozenset({401, 408, 425})


@dataclass(frozen=True, slots=True)
class GateReport:
    """A report that a gate publishes for one of its configurations."""

    config: str
    state: Literal["Throttled", "Failing", "Probing", "Responding", "Stopping"]
    as_of: int = 0
    retry_after_seconds: float = 0.0
    failures: int = 0
    message: str = ""


class TurnedAwayError(NotCalledError):
    """The gate is closed.

    ``throttled``: the API or a rate limit permits no call now. Otherwise the API fails, or its log
    is uncertain.
    """

    def __init__(
        self, message: str, *, retry_after_seconds: float | None = None, throttled: bool = False
    ) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        if throttled:
            self.error_class = "Throttled"


class ApiGate:
    """One API and account, shared by all configurations with both.

    ``inside``: number of actions that this process has started. ``epoch``: number of changes of a
    breaker and of pauses of this process. A call from an earlier epoch proves nothing.
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
        self.members: dict[str, Member] = {}
        self.inside = 0
        self.epoch = 0
        self._reporter = reporter
        self._report = report
        self._log = log
        self._clock = clock
        self._jitter = jitter
        self._is_troubled = False
        self._failures = 0
        self._own_throttle_until = 0.0
        self._own_opening_until = 0.0
        self._grant_taken = ("", 0)
        self._requested_at = float("-inf")
        self._turned_away_until = 0.0
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether calls may be made without waiting."""
        return not self._is_troubled and self.limiter is None

    @property
    def closed_seconds(self) -> float:
        """Seconds until the next call is possible; 0.0 also while a probe is in progress."""
        return max(0.0, self._closed_until() - self._clock())

    @property
    def pace_seconds(self) -> float:
        """Seconds between two requests of the rate limit; 0.0 without one."""
        return 0.0 if self.limiter is None else self.limiter.interval

    @property
    def is_log_certain(self) -> bool:
        """Whether the log is certainly the one in which the calls were decided."""
        return self._log is None or self._log.is_certain

    # --- entering

    async def wait_for_log(self) -> None:
        """Wait for this certainty; raises ``TurnedAwayError`` after `MAX_WAIT_SECONDS`."""
        if self._log is not None and not await self._log.until_certain(MAX_WAIT_SECONDS):
            raise TurnedAwayError(
                (
                    "the bus connection was lost: this process calls no API until it has verified "
                    "that the log is still the one that it read before"
                ),
                retry_after_seconds=PROBE_PATIENCE_SECONDS,
            )

    def turn_away(self, config: str) -> TurnedAwayError | None:
        """Return an error if a call would have to wait too long, without waiting."""
        if self._is_troubled:
            wait = self.closed_seconds
            is_crowded = self.inside > MAX_INSIDE and (wait > 0 or bool(self._open_breakers()))
            if wait > MAX_WAIT_SECONDS or is_crowded or self._probe_takes_long():
                return self._closed(config, wait)
        if self.limiter is not None:
            return self._beyond_rate(self.limiter)
        return None

    async def enter(self, config: str) -> bool:
        """Wait until a call may be made. Return whether it is the breaker's probe.

        Raises:
            TurnedAwayError: the wait would be too long. Nothing was called; retry later.
        """
        began = self._clock()
        while self._is_troubled:
            closed, waited = self.closed_seconds, self._clock() - began
            if closed > MAX_WAIT_SECONDS or waited > MAX_WAIT_SECONDS:
                raise self._closed(config, closed)
            if closed > 0:
                await self._wait_for_change(closed)
                continue
            broken = self._open_breakers()
            if not broken:
                self._is_troubled = False
            elif self._take_grant(broken):
                return True
            elif self._probe_takes_long():
                raise self._closed(config, closed)
            else:
                self._request_probe(broken)
                await self._wait_for_change(PROBE_PATIENCE_SECONDS / 4)
        waited = self._clock() - began
        if waited > _NOTICEABLE_SECONDS:  # spread the calls that waited for the same moment
            await asyncio.sleep(self._jitter() * min(waited, _SPREAD_SECONDS))
        return False

    def calls(self, config: str, *, is_probe: bool = False) -> Calls:
        """Return the context for the requests of an action or a listing."""
        return Calls(self, config, is_probe=is_probe)

    def check_open(self, config: str) -> None:
        """Raise ``TurnedAwayError`` if a call would have to wait, or be the breaker's probe."""
        if self._is_troubled and (self.closed_seconds > 0 or self._open_breakers()):
            raise self._closed(config, self.closed_seconds)

    def check_writes(self) -> None:
        """Raise ``TurnedAwayError`` while another copy of the log may write to the API."""
        for member in self.members.values():
            if member.has_twin:
                raise TurnedAwayError(
                    f"ProviderConfig {member.name!r} is held, because its API has objects that are "
                    "newer than this log",
                    retry_after_seconds=PROBE_PATIENCE_SECONDS,
                )

    def _closed_until(self) -> float:
        until = max(self._own_throttle_until, self._own_opening_until)
        for member in self.members.values():
            until = max(until, member.throttled_until)
            if member.is_broken:
                until = max(until, member.open_until)
        return until

    def _open_breakers(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_broken]

    def _take_grant(self, broken: list[Member]) -> bool:
        """Use the probe that the log has granted to this process, once."""
        for member in broken:
            grant = (member.name, member.version)
            if member.probe_by == self._reporter and grant != self._grant_taken:
                self._grant_taken = grant
                return True
        return False

    def _probe_takes_long(self) -> bool:
        """Return whether a process makes a probe that takes longer than expected."""
        now = self._clock()
        return any(
            member.is_broken
            and member.probe_since + PROBE_PATIENCE_SECONDS < now < member.probe_until
            for member in self.members.values()
        )

    def _request_probe(self, broken: list[Member]) -> None:
        now = self._clock()
        if any(now < member.probe_until for member in broken):
            return  # a process makes it already
        if now >= self._requested_at + _PROBE_REQUEST_SECONDS:
            self._requested_at = now
            first = min(broken, key=lambda member: member.name)
            self._report(GateReport(first.name, "Probing", first.version))

    async def _wait_for_change(self, seconds: float) -> None:
        changed = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    # --- turning away

    def _closed(self, config: str, wait: float) -> TurnedAwayError:
        wait = max(wait, PROBE_PATIENCE_SECONDS)
        for member in self._open_breakers():
            is_over = member.open_until <= self._clock()
            until = "its probe succeeds" if is_over else _moment(member.shown_until)
            why = f"breaker of API {member.name!r} open until {until}"
            return TurnedAwayError(why, retry_after_seconds=wait)
        now = self._clock()
        for member in self.members.values():
            if member.throttled_until > now:
                why = f"API {member.name!r} accepts no call before {_moment(member.shown_until)}"
                return TurnedAwayError(why, retry_after_seconds=wait, throttled=True)
        # The log has not recorded it yet, so the end is not known.
        if self._own_throttle_until > now:
            why = f"API {config!r} accepts no call for {self._own_throttle_until - now:.0f} s"
            return TurnedAwayError(why, retry_after_seconds=wait, throttled=True)
        why = f"calls to API {config!r} are suspended briefly after failures"
        return TurnedAwayError(why, retry_after_seconds=wait)

    def _beyond_rate(self, limiter: RateLimiter) -> TurnedAwayError | None:
        """Reject a call that would wait too long for its slot, each with its own retry time."""
        expected = limiter.expected_wait(self.inside)
        if expected <= MAX_WAIT_SECONDS:
            return None
        now = self._clock()
        turn = max(self._turned_away_until, now + expected)
        self._turned_away_until = turn + limiter.interval
        return TurnedAwayError(
            f"waits for the rate limit ({limiter.per_second:g} per second)",
            retry_after_seconds=turn - now,
            throttled=True,
        )

    # --- what this process sees

    def saw(
        self, error: ProviderError | ConfigurationError | None, config: str, epoch: int
    ) -> None:
        """Process the result of a call that started in an epoch of this gate."""
        if error is None:
            if self._failures or self._is_troubled:
                self._process_response(epoch)
            return
        if isinstance(error, (ConfigurationError, NotCalledError)):
            return  # no call was made
        self.note_throttling(error, config)
        if _is_failure(error):
            self._process_failure(error, config, epoch)
        else:
            self._process_response(epoch)

    def note_throttling(self, error: ProviderError, config: str) -> None:
        """Process only the throttling in an error."""
        wait = _throttle_of(error)
        if wait:
            self._process_throttle(error, config, wait)

    def stop(self) -> None:
        """Report that this process makes no probe, neither a running one nor one granted later."""
        for member in self._open_breakers():
            self._report(GateReport(member.name, "Stopping"))

    def ignore_running_calls(self) -> None:
        """Ignore the results of running calls, because this process itself was paused."""
        self.epoch += 1

    def _process_response(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        self._failures = 0
        for member in self._open_breakers():
            self._report(GateReport(member.name, "Responding", member.version))

    def _process_throttle(self, error: ProviderError, config: str, wait: float) -> None:
        until = self._clock() + wait
        if until > self._closed_until():
            self._own_throttle_until = until
            self._is_troubled = True
            report = GateReport(
                config, "Throttled", retry_after_seconds=wait, message=error.message
            )
            self._report(report)

    def _process_failure(self, error: ProviderError, config: str, epoch: int) -> None:
        member = self.members.get(config)
        if member is None or epoch != self.epoch:
            return
        self._failures += 1
        broken = self._open_breakers()
        is_enough = self._failures >= member.failures_to_open or bool(broken)
        if not is_enough or self._own_opening_until > self._clock():
            return
        self._own_opening_until = self._clock() + OWN_OPENING_SECONDS
        self._is_troubled = True
        for each in broken or [member]:
            self._report(
                GateReport(
                    each.name,
                    "Failing",
                    each.version,
                    failures=self._failures,
                    message=error.message,
                )
            )

    # --- state from the log

    def apply(self, member: Member, event: LogEvent, now: datetime) -> None:
        """Fold an event of one of its configurations."""
        if member.fold(event, now, self._clock()):
            self.epoch += 1
        if isinstance(event.data, (BreakerOpened, BreakerClosed)):
            self._failures = 0
            self._own_opening_until = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Update the state after a change, and wake waiting calls."""
        self._is_troubled = bool(self._open_breakers()) or self.closed_seconds > 0
        self._changed.set()
        self._changed = asyncio.Event()


class Calls:
    """Context that permits the requests of one action or listing, and processes their results."""

    __slots__ = ("_config", "_epoch", "_gate", "_is_probe", "_previous_permit")

    def __init__(self, gate: ApiGate, config: str, *, is_probe: bool) -> None:
        self._gate = gate
        self._config = config
        self._is_probe = is_probe
        self._epoch = gate.epoch
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
            self._gate.saw(error, self._config, self._epoch)

    @property
    def is_free(self) -> bool:
        """Whether the next request may be sent immediately."""
        return self._gate.is_open and self._gate.is_log_certain

    @property
    def pace_seconds(self) -> float:
        """Seconds between two requests of the rate limit; 0.0 without one."""
        return self._gate.pace_seconds

    async def wait(self, *, goes_first: bool = False) -> None:
        """Wait until the next request may be sent; raises ``TurnedAwayError``."""
        gate = self._gate
        if not gate.is_log_certain:
            await gate.wait_for_log()
        if not self._is_probe and await gate.enter(self._config):
            self._is_probe, self._epoch = True, gate.epoch
        if gate.limiter is not None:
            await gate.limiter.take(goes_first=goes_first)


def _throttle_of(error: ProviderError) -> float | None:
    """Return the seconds for which an error throttles the whole API, or None."""
    wait = error.retry_after_seconds
    if isinstance(error, ThrottledError):
        return THROTTLED_SECONDS if wait is None else wait
    is_server_error = error.status is not None and error.status >= _SERVER_ERROR
    return wait if is_server_error else None


def _is_failure(error: ProviderError) -> bool:
    """Return whether the API seems to be down. An API that rejects with a reason is not."""
    if error.error_class not in ("NotDone", "Unknown"):
        return False
    status = error.status
    is_refusal = status is not None and _CLIENT_ERROR <= status < _SERVER_ERROR
    return not is_refusal or status in _UNSERVED


def _moment(at: datetime | None) -> str:
    return "its probe succeeds" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"
