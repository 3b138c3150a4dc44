"""The observer reports once that an API does not respond, and once that it responds again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from events.intake import ApiReported
from events.log import ApiFellSilent, ApiSilenceEnded, ResourceEvent, SpecDeclared
from events.provider_config import config_key
from projections.read_models import ReadModels
from reconciler.errors import NotDoneError, NotFoundError, ProviderError
from reconciler.ports import IntakeMessageOut
from reconciler.resource.api_silence import MIN_SILENT_SECONDS
from reconciler.roles.gate.api_gate import ApiGate, GateClosedError
from reconciler.roles.observer.silence_reports import REPEAT_SECONDS, SilenceReports
from reconciler.roles.runtime.runtime import Runtime
from tests.bus.histories import event

START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = config_key("billing")
REFUSED = NotDoneError("connection refused")


class Stage:
    """An observer's reports about one API, the gate of its calls, and the log."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.models = ReadModels()
        self.messages: list[ApiReported] = []
        self.is_bus_unavailable = False
        self.start_process()
        self.record(SpecDeclared(1, "reconciler/v1", "", "billing", {}))

    def start_process(self) -> None:
        runtime = Runtime(
            now=lambda: START + timedelta(seconds=self.seconds), clock=lambda: self.seconds
        )
        self.gate = ApiGate(reporter="o1", report=lambda _report: None, clock=runtime.clock)
        self.reports = SilenceReports(
            name="o1",
            intake=self,
            models=self.models,
            gates=self,  # pyright: ignore[reportArgumentType] - only `of` is called
            runtime=runtime,
        )

    def of(self, _config: str) -> ApiGate:
        return self.gate

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        if self.is_bus_unavailable:
            raise ConnectionError("no bus")
        for each in messages:
            assert isinstance(each.data, ApiReported)
            assert (each.what, each.key) == ("result", CONFIG)
            self.messages.append(each.data)

    async def last_position(self) -> int:
        raise AssertionError

    def record(self, data: ResourceEvent) -> None:
        recorded = event(CONFIG, self.models.known_version(CONFIG) + 1, data)
        self.models.apply(self.models.position + 1, recorded)

    async def call(
        self, error: ProviderError | None = None, *, after: float = 1.0, proves: bool = True
    ) -> None:
        self.seconds += after
        self.gate.process_result(error, "billing", self.gate.epoch, proves_failure=proves)
        await self.reports.update("billing")

    @property
    def states(self) -> list[str]:
        return [each.state for each in self.messages]


async def test_silence_and_its_end_are_reported_once_each() -> None:
    stage = Stage()
    await stage.call()
    await stage.call(REFUSED, after=30.0)
    assert stage.states == []
    await stage.call(REFUSED, after=MIN_SILENT_SECONDS)
    (report,) = stage.messages
    assert (report.state, report.as_of) == ("Silent", 1)
    assert report.silent_seconds == 30.0 + MIN_SILENT_SECONDS
    stage.record(ApiFellSilent(START))
    for _ in range(100):
        await stage.call(REFUSED, after=5.0)
    assert len(stage.messages) == 1
    await stage.call()
    assert (stage.states, stage.messages[-1].as_of) == (["Silent", "SilenceEnded"], 2)
    stage.record(ApiSilenceEnded())
    for _ in range(100):
        await stage.call()
    assert len(stage.messages) == 2


async def test_a_restart_of_an_api_is_not_reported_however_many_calls_fail() -> None:
    stage = Stage()
    await stage.call()
    await stage.call(REFUSED, after=30.0)
    for _ in range(20):
        await stage.call(REFUSED, after=MIN_SILENT_SECONDS / 25)
    await stage.call()
    assert stage.states == []


@pytest.mark.parametrize(
    "response", [NotFoundError("no such object", status=404), None], ids=["error", "success"]
)
async def test_any_response_ends_the_silence(response: ProviderError | None) -> None:
    stage = Stage()
    await stage.call(REFUSED)
    await stage.call(response)
    await stage.call(REFUSED, after=60.0)
    assert stage.states == []


async def test_a_page_of_a_listing_that_fails_later_is_a_response() -> None:
    """Its failures are reported as failed listings (ADR 0069)."""
    stage = Stage()
    for _ in range(20):
        stage.gate.record_response()
        await stage.call(REFUSED, after=5.0)
    assert stage.states == []


@pytest.mark.parametrize(("error", "proves"), [(GateClosedError("closed"), True), (REFUSED, False)])
async def test_calls_that_were_not_made_or_concern_one_object_prove_nothing(
    error: ProviderError, *, proves: bool
) -> None:
    stage = Stage()
    await stage.call()
    for _ in range(20):
        await stage.call(error, after=5.0, proves=proves)
    assert stage.states == []


async def test_results_from_before_a_pause_of_this_process_prove_nothing() -> None:
    stage = Stage()
    await stage.call()
    epoch = stage.gate.epoch
    stage.gate.ignore_running_calls()
    for _ in range(20):
        stage.seconds += 5.0
        stage.gate.process_result(REFUSED, "billing", epoch)
        await stage.reports.update("billing")
    assert stage.states == []


async def test_a_lost_report_is_repeated_and_an_ignored_one_only_after_some_time() -> None:
    stage = Stage()
    stage.is_bus_unavailable = True
    await stage.call(REFUSED)
    await stage.call(REFUSED, after=MIN_SILENT_SECONDS)
    stage.is_bus_unavailable = False
    await stage.call(REFUSED)
    await stage.call(REFUSED, after=REPEAT_SECONDS / 2)
    assert stage.states == ["Silent"]
    await stage.call(REFUSED, after=REPEAT_SECONDS / 2)
    assert stage.states == ["Silent"] * 2


async def test_the_next_process_ends_a_silence_only_after_a_response() -> None:
    stage = Stage()
    stage.record(ApiFellSilent(START))
    stage.start_process()
    await stage.reports.update("billing")
    assert stage.states == []
    await stage.call()
    assert stage.states == ["SilenceEnded"]


async def test_a_silence_ends_when_the_observer_has_nothing_to_read() -> None:
    stage = Stage()
    for after in (0.0, MIN_SILENT_SECONDS):
        await stage.call(REFUSED, after=after)
    stage.record(ApiFellSilent(START))
    for _ in range(3):
        await stage.reports.update("billing", is_read=False)
    assert (stage.states, stage.messages[-1].as_of) == (["Silent", "SilenceEnded"], 2)
    stage.record(ApiSilenceEnded())
    stage.seconds += REPEAT_SECONDS
    await stage.reports.update("billing", is_read=False)
    assert len(stage.messages) == 2, "calls still fail, but no object depends on them"
    await stage.reports.update("billing")
    assert stage.states == ["Silent", "SilenceEnded", "Silent"], "an object was declared"
