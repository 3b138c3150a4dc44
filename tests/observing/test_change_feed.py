"""An API's change feed triggers listings, and a broken feed costs little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

import msgspec
import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import BreakerClosed, BreakerOpened, ResourceEvent, SpecDeclared, SpecWithdrawn
from events.manifest import Policy
from events.names import ResourceKey
from events.provider_config import Breaker, ProviderConfigSpec, Retry, Scope
from projections.read_models import ReadModels
from reconciler.errors import NotDoneError, ThrottledError
from reconciler.ports import IntakeMessageOut
from reconciler.provider import Capabilities, Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.provider.secrets import Secrets
from reconciler.roles.gate.api_gate import GateClosedError
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.observer import change_feed
from reconciler.roles.observer.hint_calls import HintCalls
from reconciler.roles.observer.observer import JITTER, Observer
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from tests.bus.histories import event
from tests.bus.test_worker import NoRates

TIMEOUT_SECONDS = 30.0
MIN_RESYNC_SECONDS = 0.1
MIN_INTERVAL_SECONDS = 0.05
TIMER_TOLERANCE_SECONDS = 0.02
"""An event loop's timer may fire this much early."""

RETRY = Retry(initial_seconds=0.1, max_seconds=60)
CONFIG = ProviderConfigSpec(
    "test",
    "http://test",
    resync_seconds=3600,
    least_resync_seconds=MIN_RESYNC_SECONDS,
    retry=RETRY,
)
CONFIG_KEY = ResourceKey("system", "ProviderConfig", "default")


class Api:
    """Records the times of listings and change requests; ``report_changes`` serves the latter."""

    def __init__(self, report_changes: Callable[[str | None], Awaitable[str]]) -> None:
        self.report_changes = report_changes
        self.listed_at: list[float] = []
        self.requested_at: list[float] = []
        self.open_requests = 0

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        assert (config.provider, secrets.credential) == ("test", None)
        return self

    async def create(self, action: object) -> Effect:
        raise AssertionError(action)

    update = delete = create

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        raise AssertionError(external_name)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        assert scope == Scope()
        assert page_size
        await CallPermit().before_request()
        self.listed_at.append(time.monotonic())
        yield []

    async def changes(self, after: str | None) -> str:
        await CallPermit().before_request()
        self.requested_at.append(time.monotonic())
        self.open_requests += 1
        try:
            return await self.report_changes(after)
        finally:
            self.open_requests -= 1

    async def close(self) -> None: ...


class Intake:
    """Accepts no message, because there is nothing to observe."""

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        assert not messages

    async def last_position(self) -> int:
        return 1


class Stage:
    """An observer of one API."""

    def __init__(self, api: Api, config: ProviderConfigSpec = CONFIG) -> None:
        kind = Kind(
            "Shape",
            "test/v1",
            ProviderConfigSpec,
            provider="test",
            connect=api,
            capabilities=Capabilities(
                idempotency_keys=True,
                deterministic_names=True,
                labels=True,
                conditional_writes=True,
                watch=True,
            ),
        )
        kinds, intake = KindRegistry([kind]), Intake()
        self.configurations = Configurations()
        self.gates = ApiGates(
            name="test", configurations=self.configurations, intake=intake, rates=NoRates()
        )
        self.observer = Observer(
            intake=intake,
            configurations=self.configurations,
            providers=ProviderPool(kinds, self.configurations),
            kinds=kinds,
            models=ReadModels(),
            log_id="log",
            gates=self.gates,
        )
        self._version = 0
        self.declare(config)

    def declare(self, config: ProviderConfigSpec) -> None:
        fields = msgspec.to_builtins(config, str_keys=True)
        self.report_changes(
            SpecDeclared(1, "reconciler/v1", "", "default", fields, policy=Policy()),
        )

    def report_changes(self, data: ResourceEvent) -> None:
        """Apply an event of the configuration."""
        self._version += 1
        reported_event = event(CONFIG_KEY, self._version, data)
        self.configurations.apply(reported_event)
        self.gates.apply(reported_event)


@asynccontextmanager
async def running_observer(stage: Stage) -> AsyncGenerator[None]:
    observer_task = asyncio.create_task(stage.observer.run())
    try:
        yield
        assert not observer_task.done()
    finally:
        observer_task.cancel()
        await asyncio.wait({observer_task}, timeout=TIMEOUT_SECONDS)
    assert observer_task.cancelled()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing reports the end
            await asyncio.sleep(0.005)


def intervals(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "MIN_INTERVAL_SECONDS", MIN_INTERVAL_SECONDS)


async def never_respond(_after: str | None) -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def report_no_change(_after: str | None) -> str:
    return "mark"


async def test_a_change_triggers_the_next_listing() -> None:
    changed = asyncio.Event()

    async def report_changes(after: str | None) -> str:
        if after == "first":
            await changed.wait()
            return "second"
        return "first" if after is None else await never_respond(after)

    api = Api(report_changes)
    async with running_observer(Stage(api)):
        await until(
            lambda: len(api.listed_at) == 2
        )  # the second listing, because the first mark is new
        assert len(api.requested_at) < 3
        changed.set()
        await until(lambda: len(api.listed_at) == 3)


async def test_a_feed_that_always_reports_changes_triggers_listings_at_the_minimum_interval() -> (
    None
):
    marks = count()

    async def always_changed(_after: str | None) -> str:
        return str(next(marks))

    api = Api(always_changed)
    async with running_observer(Stage(api)):
        await until(lambda: len(api.listed_at) >= 5)
    assert min(intervals(api.listed_at)) >= MIN_RESYNC_SECONDS - TIMER_TOLERANCE_SECONDS
    assert min(intervals(api.requested_at)) >= MIN_RESYNC_SECONDS - TIMER_TOLERANCE_SECONDS


async def test_a_feed_that_returns_immediately_without_a_change_does_not_cause_a_hot_loop() -> None:
    api = Api(report_no_change)
    async with running_observer(Stage(api)):
        await until(lambda: len(api.requested_at) >= 10)
    assert min(intervals(api.requested_at)) >= MIN_INTERVAL_SECONDS - TIMER_TOLERANCE_SECONDS
    assert len(api.listed_at) <= 2


@pytest.mark.parametrize(
    "error",
    [
        NotDoneError("down", status=500),
        RuntimeError("Session is closed"),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_failing_feed_is_retried_at_growing_intervals_and_affects_nothing_else(
    error: BaseException,
) -> None:
    """Its failures do not open the breaker, so actions and listings continue."""

    async def fails(_after: str | None) -> str:
        raise error

    api = Api(fails)
    config = replace(CONFIG, resync_seconds=0.3, breaker=Breaker(failures=1))
    stage = Stage(api, config)
    async with running_observer(stage):
        await until(lambda: len(api.requested_at) >= 4 and len(api.listed_at) >= 3)
        assert stage.gates.of("default").may_send_now
    first, *_, last = intervals(api.requested_at[:4])
    assert first >= RETRY.initial_seconds / 2 - TIMER_TOLERANCE_SECONDS
    assert last >= 2 * RETRY.initial_seconds - TIMER_TOLERANCE_SECONDS
    assert min(intervals(api.listed_at)) >= 0.3 * (1 - JITTER) - TIMER_TOLERANCE_SECONDS


async def test_a_feed_that_never_responds_does_not_delay_listings_or_shutdown() -> None:
    api = Api(never_respond)
    async with running_observer(Stage(api, replace(CONFIG, resync_seconds=0.2))):
        await until(lambda: len(api.listed_at) >= 3)
        assert (len(api.requested_at), api.open_requests) == (1, 1)
    assert api.open_requests == 0


async def test_a_feed_is_read_as_long_as_it_is_declared() -> None:
    api = Api(never_respond)
    stage = Stage(api)
    async with running_observer(stage):
        await until(lambda: api.open_requests == 1)
        stage.declare(replace(CONFIG, least_resync_seconds=CONFIG.resync_seconds))
        await until(lambda: api.open_requests == 0)
        stage.declare(CONFIG)
        await until(lambda: api.open_requests == 1)
        stage.report_changes(SpecWithdrawn(2))
        await until(lambda: api.open_requests == 0)


async def test_marks_are_not_used_for_another_api() -> None:
    """An equal mark from the API that the configuration now names is a coincidence."""
    requests: list[str | None] = []

    async def report_changes(after: str | None) -> str:
        requests.append(after)
        return "mark"

    api = Api(report_changes)
    stage = Stage(api)
    async with running_observer(stage):
        await until(lambda: len(requests) >= 2)
        stage.declare(replace(CONFIG, endpoint="http://other"))
        count_before = len(requests)
        await until(lambda: len(requests) >= count_before + 3)
    assert requests[0] is None
    assert requests.count(None) == 2


async def test_a_throttled_feed_closes_the_gate_for_all_calls() -> None:
    async def throttles(_after: str | None) -> str:
        raise ThrottledError("too many", status=429, retry_after_seconds=3600)

    api = Api(throttles)
    stage = Stage(api)
    async with running_observer(stage):
        await until(lambda: stage.gates.of("default").closed_seconds > 0)
        with pytest.raises(GateClosedError):
            await stage.observer.list_once("default", "Shape")


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
async def test_a_feed_is_not_called_while_a_breaker_is_open_and_is_never_its_probe(
    seconds: float,
) -> None:
    stage = Stage(Api(never_respond))
    open_until = datetime.now(UTC) + timedelta(seconds=seconds)
    stage.report_changes(BreakerOpened(open_until, seconds, 5))
    with pytest.raises(GateClosedError), HintCalls(stage.gates.of("default"), "default"):
        await CallPermit().before_request()
    stage.report_changes(BreakerClosed())
    with HintCalls(stage.gates.of("default"), "default"):
        await CallPermit().before_request()
