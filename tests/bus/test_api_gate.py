"""The gates of one process on the real bus: when they close, for which calls, and their reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.client import Client

from events.intake import ApiReported, NewerObject
from events.log import (
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    HoldApproved,
    LogEvent,
    ResourceEvent,
    SpecDeclared,
    TwinDetected,
    event_type,
)
from events.provider_config import Breaker, CredentialsRef, Limits, ProviderConfigSpec
from infra.bus.rates import JetStreamRates
from reconciler.errors import (
    ConfigurationError,
    NotDoneError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.ports import IntakeMessageOut
from reconciler.provider.call_permit import CallPermit
from reconciler.roles.gate.api_gate import MAX_WAIT_SECONDS, MAX_WAITING_ACTIONS, GateClosedError
from reconciler.roles.gate.api_gates import PAUSE_SECONDS, ApiGates, gate_name
from reconciler.roles.runtime.configurations import Configurations

DOWN = NotDoneError("no connection")
API = ProviderConfigSpec("test", "http://api.test/v1", breaker=Breaker(failures=3))
TIMEOUT_SECONDS = 30.0


class Process:
    """The gates of a process with two configurations of one API, and one of another."""

    def __init__(self, bus: Client, api: ProviderConfigSpec = API) -> None:
        self.is_certain = True
        self.reported: list[ApiReported] = []
        self.configurations = Configurations()
        self.gates = ApiGates(
            name="test",
            configurations=self.configurations,
            intake=self,
            rates=JetStreamRates(bus),
            log=self,
        )
        self._versions: dict[str, int] = {}
        self._tasks = asyncio.create_task(self.gates.run())
        self.declare("first", api)
        self.declare("second", api)
        self.declare("other", ProviderConfigSpec("test", "http://other.test"))

    def declare(self, name: str, spec: ProviderConfigSpec) -> None:
        fields = {"provider": spec.provider, "endpoint": spec.endpoint}
        limits = {
            "requestsPerSecond": spec.limits.requests_per_second,
            "burst": spec.limits.burst,
        }
        fields |= {"limits": limits, "breaker": {"failures": spec.breaker.failures}}
        self.log(name, SpecDeclared(1, "", "", name, fields))

    def log(self, name: str, data: ResourceEvent) -> int:
        version = self._versions[name] = self._versions.get(name, 0) + 1
        key = f"system/ProviderConfig/{name}"
        event = LogEvent(f"{key}@{version}", "", event_type(data), key, _now(), version, data)
        self.configurations.apply(event)
        self.gates.apply(event)
        return version

    def open_breaker(self, name: str = "first", seconds: float = 60.0) -> int:
        until = _now() + timedelta(seconds=seconds)
        return self.log(name, BreakerOpened(until, seconds, 3, "down"))

    def call(self, error: ProviderError | ConfigurationError | None, name: str = "first") -> None:
        """Make a call that raises the given error, if any."""
        try:
            with self.gates.of(name).calls(name):
                if error is not None:
                    raise error
        except (ProviderError, ConfigurationError):
            pass

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        self.reported += [each.data for each in messages if isinstance(each.data, ApiReported)]

    async def last_position(self) -> int:
        return 0

    async def wait_until_certain(self, seconds: float) -> bool:
        assert 0 < seconds <= MAX_WAIT_SECONDS
        return self.is_certain

    async def reports(self) -> list[tuple[str, int]]:
        await asyncio.sleep(0.01)
        return [(each.state, each.as_of) for each in self.reported]

    def stop(self) -> None:
        self._tasks.cancel()


@pytest.fixture
async def process(bus: Client):
    process = Process(bus)
    yield process
    process.stop()


def test_the_same_endpoint_and_account_share_a_gate() -> None:
    account = CredentialsRef(env="TOKEN")
    assert gate_name(API) == gate_name(ProviderConfigSpec("x", "HTTP://API.test/v1/"))
    assert gate_name(API) != gate_name(ProviderConfigSpec("x", "http://api.test/v2"))
    assert gate_name(API) != gate_name(ProviderConfigSpec("x", API.endpoint, account))


async def test_an_event_for_one_configuration_closes_the_gate_for_both(process: Process) -> None:
    process.open_breaker("first")
    assert not process.gates.of("second").may_send_now
    assert process.gates.of("other").may_send_now
    with pytest.raises(GateClosedError, match="breaker for API 'first' open until"):
        await process.gates.of("second").enter("second")
    process.log("first", BreakerClosed())
    assert process.gates.of("second").may_send_now


async def test_consecutive_failures_close_the_gate_immediately_and_are_reported(
    process: Process,
) -> None:
    for _ in range(2):
        process.call(DOWN)
    process.call(None)
    for _ in range(2):
        process.call(UnknownResultError("timeout"))
    assert process.gates.of("first").may_send_now
    process.call(DOWN)
    assert not process.gates.of("first").may_send_now  # before the log records it
    process.call(DOWN)  # a call that was in progress
    assert await process.reports() == [("Failing", 0)]


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("no", status=422),
        NotDoneError("still running", status=409),
        NotDoneError("the listing has too many pages", responded=True),
        NotDoneError("a success with an invalid body", status=200),
        ThrottledError("too many requests", status=429, retry_after_seconds=0.0),
        ConfigurationError("not declared"),
        GateClosedError("closed"),
    ],
)
async def test_an_api_that_responds_with_a_reason_is_not_down(
    process: Process, error: ProviderError | ConfigurationError
) -> None:
    for _ in range(20):
        process.call(error)
    assert process.gates.of("first").may_send_now
    assert await process.reports() == []


@pytest.mark.parametrize("status", [302, 401, 408, 500, 502, 503, 504])
async def test_an_api_that_serves_no_client_is_down(process: Process, status: int) -> None:
    for _ in range(3):
        process.call(UnknownResultError("unexpected response", status=status))
    assert not process.gates.of("first").may_send_now


def call_for_object(process: Process, error: ProviderError | None) -> None:
    with suppress(ProviderError), process.gates.of("first").calls("first", proves_failure=False):
        if error is not None:
            raise error


async def test_calls_for_objects_lead_to_a_check_and_only_a_failed_check_closes_the_gate(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = process.gates.of("first")
    for _ in range(10):
        call_for_object(process, UnknownResultError("timeout"))
    assert gate.may_send_now
    assert gate.begin_check("first")
    assert not gate.begin_check("first"), "one check at a time"
    process.call(None)
    gate.end_check()
    for _ in range(10):
        call_for_object(process, UnknownResultError("timeout"))
    assert not gate.begin_check("first"), "it was checked recently"
    monkeypatch.setattr(gate, "_next_check_at", 0.0)
    assert gate.begin_check("first")
    process.call(DOWN)
    gate.end_check()
    assert not gate.may_send_now
    assert await process.reports() == [("Failing", 0)]


async def test_a_success_ends_a_suspicion(process: Process) -> None:
    gate = process.gates.of("first")
    for _ in range(10):
        call_for_object(process, UnknownResultError("timeout"))
    call_for_object(process, None)
    assert not gate.begin_check("first")


async def test_a_call_that_began_before_a_breaker_event_proves_nothing(process: Process) -> None:
    with suppress(NotDoneError), process.gates.of("second").calls("second"):
        process.open_breaker("first", seconds=0.0)
        raise DOWN
    with process.gates.of("second").calls("second"):
        process.open_breaker("first", seconds=0.0)
    assert await process.reports() == []


async def test_timeouts_in_a_suspended_process_are_not_attributed_to_the_api(
    process: Process,
) -> None:
    gate = process.gates.of("first")
    calls = [gate.calls("first") for _ in range(API.breaker.failures)]
    await asyncio.sleep(0)  # let the gates read the clock
    time.sleep(PAUSE_SECONDS + 0.5)  # noqa: ASYNC251 - like a suspended process
    for _ in range(2):
        await asyncio.sleep(0.01)
    for call in calls:
        with suppress(NotDoneError), call:
            raise DOWN
    assert gate.may_send_now
    assert await process.reports() == []
    for _ in range(API.breaker.failures):
        process.call(DOWN)
    assert not gate.may_send_now


async def test_one_call_is_the_probe_and_the_others_wait_for_its_result(process: Process) -> None:
    version = process.open_breaker(seconds=0.0)
    gate = process.gates.of("second")
    waiting = [asyncio.create_task(gate.enter("second")) for _ in range(5)]
    while ("Probing", version) not in await process.reports():
        pass
    probed = BreakerProbed(_now() + timedelta(seconds=5), 5.0, process.reported[0].reporter)
    version = process.log("first", probed)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_SECONDS)
    assert [each.result() for each in waiting if each.done()] == [True]
    with gate.calls("second", is_probe=True):
        await CallPermit().before_request()
    assert ("Responding", version) in await process.reports()
    process.log("first", BreakerClosed())
    results = await asyncio.gather(*waiting)
    assert sum(results) == 1


async def test_a_probe_by_another_process_is_not_repeated(process: Process) -> None:
    process.open_breaker(seconds=0.0)
    process.log("first", BreakerProbed(_now() + timedelta(seconds=60), 60.0, "another"))
    with pytest.raises(GateClosedError):
        await process.gates.of("first").enter("first")
    assert process.gates.of("first").reject_long_wait("first") is not None
    assert await process.reports() == []


async def test_a_process_that_stops_reports_that_it_will_not_probe(process: Process) -> None:
    process.open_breaker(seconds=0.0)
    with pytest.raises(GateClosedError, match="until its probe succeeds"):
        await process.gates.of("first").enter("first")
    process.log("first", BreakerProbed(_now() + timedelta(seconds=60), 60.0, "another"))
    process.stop()
    await process.gates.close()
    assert process.reported[-1].state == "Stopping"


async def test_a_throttle_is_honored_by_all_configurations_and_reported_once(
    process: Process,
) -> None:
    throttled = ThrottledError("slower", status=429, retry_after_seconds=60.0)
    for _ in range(10):
        process.call(throttled)
    assert await process.reports() == [("Throttled", 0)]
    assert process.reported[0].retry_after_seconds == 60.0
    rejection = process.gates.of("second").reject_long_wait("second")
    assert rejection is not None
    assert 30 < (rejection.retry_after_seconds or 0) <= 60
    assert rejection.error_class == "Throttled"
    assert rejection.message.startswith("API 'second' does not accept calls for ")
    process.log("first", ApiThrottled(_now() + timedelta(seconds=90), 90.0, "slower"))
    rejection = process.gates.of("second").reject_long_wait("second")
    assert rejection is not None
    assert rejection.error_class == "Throttled"
    assert rejection.message.startswith("API 'first' does not accept calls before 20")


async def test_a_call_refused_by_an_open_breaker_is_not_reported_as_throttled(
    process: Process,
) -> None:
    process.open_breaker(seconds=60.0)
    rejection = process.gates.of("first").reject_long_wait("first")
    assert rejection is not None
    assert rejection.error_class == "NotDone"


async def test_status_503_with_retry_after_is_a_throttle(process: Process) -> None:
    process.call(NotDoneError("maintenance", status=503, retry_after_seconds=30.0))
    assert process.gates.of("second").closed_seconds > 15


@pytest.mark.parametrize(
    "error",
    [
        NotDoneError("maintenance", status=503, retry_after_seconds=3600.0),
        UnknownResultError("maintenance", status=503, retry_after_seconds=1.0),
        ThrottledError("slower", status=429, retry_after_seconds=3600.0),
    ],
)
async def test_a_pause_requested_for_an_object_closes_the_gate_only_if_a_check_confirms_it(
    process: Process, error: ProviderError, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = process.gates.of("first")
    call_for_object(process, error)
    assert gate.begin_check("first")
    process.call(None)
    gate.end_check()
    assert not gate.begin_check("first"), "one request for a pause leads to one check"
    assert gate.may_send_now
    assert await process.reports() == []

    monkeypatch.setattr(gate, "_next_check_at", 0.0)
    call_for_object(process, error)
    assert gate.begin_check("first")
    process.call(error)
    gate.end_check()
    assert not gate.may_send_now
    assert await process.reports() == [("Throttled", 0)]


async def test_a_listing_for_which_an_api_requests_a_pause_closes_no_gate_if_the_api_responds(
    process: Process,
) -> None:
    pause = NotDoneError("busy", status=503, retry_after_seconds=60.0, responded=True)
    process.call(pause)
    assert process.gates.of("first").may_send_now


async def test_a_short_rate_limit_closes_the_gate_at_once(process: Process) -> None:
    call_for_object(process, ThrottledError("slower", status=429, retry_after_seconds=20.0))
    assert process.gates.of("first").closed_seconds > 15
    assert not process.gates.of("first").begin_check("first")


async def test_the_headers_of_a_response_prove_that_an_api_responds(process: Process) -> None:
    gate = process.gates.of("first")
    with suppress(NotDoneError), gate.calls("first") as calls:
        CallPermit().record_status(503)
        assert not calls.has_response
        assert not gate.responds
        CallPermit().record_status(200)
        assert calls.has_response
        assert gate.responds
        raise NotDoneError("its body never ends", status=200)
    assert gate.responds


async def test_a_limited_number_of_actions_waits_for_a_short_throttle(
    process: Process,
) -> None:
    until = _now() + timedelta(seconds=0.2)
    process.log("first", ApiThrottled(until, 0.2, "slower"))
    gate = process.gates.of("first")
    assert gate.reject_long_wait("first") is None
    gate.running_actions = MAX_WAITING_ACTIONS + 1
    assert gate.reject_long_wait("first") is not None
    assert await gate.enter("first") is False
    assert _now() >= until
    assert gate.may_send_now


async def test_a_clock_that_is_behind_does_not_extend_a_throttle(
    process: Process,
) -> None:
    process.log("first", ApiThrottled(_now() + timedelta(hours=1), 8.0, "slower"))
    assert process.gates.of("first").closed_seconds <= 8.0


async def test_a_later_request_for_an_action_is_also_blocked(process: Process) -> None:
    requests: list[int] = []
    with suppress(GateClosedError), process.gates.of("first").calls("first"):
        for number in range(3):
            await CallPermit().before_request()
            requests.append(number)
            process.open_breaker("first")
    assert requests == [0]


async def test_no_api_is_called_while_the_identity_of_the_log_is_uncertain(
    process: Process,
) -> None:
    with process.gates.of("first").calls("first"):
        await CallPermit().before_request()
        process.is_certain = False
        with pytest.raises(GateClosedError, match="the bus connection was lost"):
            await CallPermit().before_request()
        process.is_certain = True
        await CallPermit().before_request()
    assert await process.reports() == []


async def test_actions_beyond_the_rate_are_rejected_until_their_turns(
    bus: Client,
) -> None:
    limited = ProviderConfigSpec("test", API.endpoint, limits=Limits(requests_per_second=10.0))
    process = Process(bus, limited)
    gate = process.gates.of("first")
    assert not gate.may_send_now
    gate.running_actions = 10
    assert gate.reject_long_wait("first") is None
    gate.running_actions = 30
    turns: list[float] = []
    for _ in range(5):
        rejection = gate.reject_long_wait("second")
        assert rejection is not None
        turns.append(rejection.retry_after_seconds or 0.0)
    assert turns == pytest.approx([3.0, 3.1, 3.2, 3.3, 3.4], abs=0.05)
    process.stop()


async def test_a_new_declaration_opens_the_gate(process: Process) -> None:
    process.open_breaker("first")
    process.declare("first", API)
    assert process.gates.of("first").may_send_now


def _now() -> datetime:
    return datetime.now(UTC)


async def test_writes_are_refused_for_every_configuration_of_a_held_api(
    process: Process,
) -> None:
    newer = NewerObject("Shape", "foo", "u1", "default/Shape/foo@9", 1)
    process.log("first", TwinDetected((newer,), 1))
    with pytest.raises(GateClosedError, match="newer than this log"):
        process.gates.of("second").check_writes()
    process.gates.of("other").check_writes()
    process.declare("first", API)
    with pytest.raises(GateClosedError):
        process.gates.of("first").check_writes()
    process.log("first", HoldApproved("DeletionGuard"))
    with pytest.raises(GateClosedError):
        process.gates.of("first").check_writes()
    process.log("first", HoldApproved("Twin"))
    process.gates.of("second").check_writes()
    assert process.gates.of("first").may_send_now
