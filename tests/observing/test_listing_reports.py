"""Listings that keep failing are reported once, and healthy listings are not reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ApiReported, ListingFailure
from events.log import (
    BreakerClosed,
    BreakerOpened,
    ExternalObserved,
    ListingsFailed,
    ListingsResumed,
    ResourceEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, config_key
from projections.read_models import ReadModels
from reconciler.ports import IntakeMessageOut
from reconciler.roles.observer.listing_reports import (
    FAILED_INTERVALS,
    MIN_FAILED_SECONDS,
    MIN_FAILURES,
    ListingReports,
)
from reconciler.roles.runtime.runtime import Runtime
from reconciler.secrecy import Secrecy
from tests.bus.histories import event

START = datetime(2026, 1, 1, tzinfo=UTC)
LISTING = ("billing", "Shape")
RETRY_SECONDS = 5.0
CONFIG = ProviderConfigSpec("shapes", "http://test", resync_seconds=30.0)
BOUND_SECONDS = FAILED_INTERVALS * CONFIG.resync_seconds
ERROR = "GET /shapes?page=2: 500"


@dataclass
class Stage:
    """The reports of an observer, and the log that it has read."""

    models: ReadModels = field(default_factory=ReadModels)
    seconds: float = 1_000.0
    reports: list[ApiReported] = field(default_factory=list[ApiReported])
    is_bus_unavailable: bool = False
    config: ProviderConfigSpec = CONFIG

    def __post_init__(self) -> None:
        self.start_process()

    def start_process(self) -> None:
        runtime = Runtime(
            now=lambda: START + timedelta(seconds=self.seconds), clock=lambda: self.seconds
        )
        self.listings = ListingReports(
            name="o1", intake=self, models=self.models, secrecy=Secrecy(), runtime=runtime
        )
        self.listings.get_health(LISTING)

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        if self.is_bus_unavailable:
            raise ConnectionError("no bus")
        for each in messages:
            assert isinstance(each.data, ApiReported)
            assert (each.what, each.key) == ("result", config_key("billing"))
            self.reports.append(each.data)

    async def last_position(self) -> int:
        raise AssertionError

    def record(self, data: ResourceEvent, key: ResourceKey | None = None) -> None:
        key = key or config_key("billing")
        recorded = event(key, self.models.known_version(key) + 1, data)
        self.models.apply(self.models.position + 1, recorded)
        self.listings.handle_event(recorded)

    def decide(self) -> None:
        """Record the newest report as the aggregate does."""
        report = self.reports[-1]
        if report.state == "ListingsFailed":
            assert report.failure is not None
            self.record(ListingsFailed(report.kind, report.failure))
        else:
            self.record(ListingsResumed(report.kind, report.system_id))

    async def fail_for(self, seconds: float, *, every: float = RETRY_SECONDS) -> None:
        """Let listings fail for this long."""
        for _ in range(round(seconds / every)):
            self.seconds += every
            await self.listings.record_failure(LISTING, self.config, ERROR)

    async def complete(self) -> None:
        self.seconds += self.config.resync_seconds
        await self.listings.record_completion(LISTING)
        self.listings.get_health(LISTING).record_success()

    @property
    def states(self) -> list[str]:
        return [each.state for each in self.reports]


def stage_with_resource(key: str = "default/Shape/foo") -> Stage:
    """Return a stage with a configuration and one declared resource of the kind."""
    stage = Stage()
    stage.record(SpecDeclared(1, "reconciler/v1", "", "billing", {}))
    declared = SpecDeclared(1, "shapes/v1", "billing", "foo", {})
    stage.record(declared, ResourceKey.parse(key))
    return stage


async def test_a_listed_system_is_reported_once_until_it_changes() -> None:
    stage = stage_with_resource()
    reported: list[str] = []
    for system_id in ("", "a", "a", "", "b", "a"):
        await stage.listings.record_completion(LISTING, system_id)
        if len(stage.reports) > len(reported):
            reported.append(stage.reports[-1].system_id)
            stage.decide()
    assert reported == ["a", "b", "a"]
    assert stage.listings.recorded_system(LISTING) == "a"
    stage.record(SpecDeclared(2, "reconciler/v1", "", "billing", {}))
    assert stage.listings.recorded_system(LISTING) == ""
    await stage.listings.record_completion(LISTING, "a")
    assert (stage.reports[-1].system_id, stage.reports[-1].as_of) == ("a", 2)


async def test_listings_that_fail_for_the_bound_are_reported_once() -> None:
    stage = stage_with_resource()
    await stage.complete()
    last = stage.seconds
    await stage.fail_for(BOUND_SECONDS - RETRY_SECONDS)
    assert stage.reports == []
    await stage.fail_for(RETRY_SECONDS)
    (report,) = stage.reports
    assert (report.state, report.kind, report.as_of) == ("ListingsFailed", "Shape", 1)
    assert report.failure == ListingFailure(START + timedelta(seconds=last), ERROR)
    stage.decide()
    await stage.fail_for(10 * BOUND_SECONDS)
    assert len(stage.reports) == 1


async def test_a_single_failed_listing_is_not_reported_even_after_a_long_time() -> None:
    stage = stage_with_resource()
    await stage.fail_for(3_600, every=3_600)
    assert stage.reports == []
    await stage.complete()
    await stage.fail_for(3_600 * (MIN_FAILURES - 1), every=3_600)
    assert stage.reports == []
    await stage.fail_for(3_600, every=3_600)
    assert stage.states == ["ListingsFailed"]


async def test_failures_at_a_short_interval_are_reported_after_the_minimum_time() -> None:
    stage = stage_with_resource()
    stage.config = replace(CONFIG, resync_seconds=1.0)
    await stage.fail_for(MIN_FAILED_SECONDS - 1, every=1)
    assert stage.reports == []
    await stage.fail_for(1, every=1)
    assert stage.states == ["ListingsFailed"]


async def test_the_next_complete_listing_ends_the_failure_once() -> None:
    stage = stage_with_resource()
    await stage.complete()
    assert stage.reports == []
    await stage.fail_for(BOUND_SECONDS)
    stage.decide()
    await stage.complete()
    assert stage.states == ["ListingsFailed", "ListingsResumed"]
    assert (stage.reports[-1].kind, stage.reports[-1].as_of) == ("Shape", 1)
    stage.decide()
    await stage.complete()
    await stage.fail_for(BOUND_SECONDS - RETRY_SECONDS)
    assert len(stage.reports) == 2


async def test_a_report_that_is_missing_from_the_log_is_published_again() -> None:
    stage = stage_with_resource()
    await stage.fail_for(BOUND_SECONDS)
    assert stage.states == ["ListingsFailed"]
    await stage.fail_for(BOUND_SECONDS)  # a decider has rejected it, or a restored log lacks it
    assert stage.states == ["ListingsFailed"] * 2


async def test_a_report_that_the_bus_did_not_store_is_repeated_on_the_next_listing() -> None:
    stage = stage_with_resource()
    stage.is_bus_unavailable = True
    await stage.fail_for(BOUND_SECONDS)
    stage.is_bus_unavailable = False
    await stage.fail_for(RETRY_SECONDS)
    assert stage.states == ["ListingsFailed"]
    stage.decide()
    stage.is_bus_unavailable = True
    await stage.complete()
    stage.is_bus_unavailable = False
    await stage.complete()
    assert stage.states == ["ListingsFailed", "ListingsResumed"]


async def test_a_restarted_process_reports_failures_and_completions() -> None:
    stage = stage_with_resource()
    await stage.fail_for(BOUND_SECONDS - RETRY_SECONDS)
    stage.start_process()
    await stage.fail_for(BOUND_SECONDS)
    assert stage.states == ["ListingsFailed"]
    stage.decide()
    stage.start_process()
    await stage.fail_for(3 * BOUND_SECONDS)
    assert stage.states == ["ListingsFailed"]
    stage.start_process()
    await stage.complete()
    assert stage.states == ["ListingsFailed", "ListingsResumed"]


async def test_a_kind_that_no_resource_uses_is_not_reported() -> None:
    stage = stage_with_resource("default/Record/foo")
    observation = ExternalObserved("billing", "x", ExternalObject("x", {}), "CompleteListing", 1)
    stage.record(observation, ResourceKey("default", "Shape", "x"))
    await stage.fail_for(5 * BOUND_SECONDS)
    assert stage.reports == []


async def test_a_reported_failure_ends_with_the_last_resource_of_the_kind() -> None:
    stage = stage_with_resource()
    await stage.fail_for(BOUND_SECONDS)
    stage.decide()
    stage.record(SpecWithdrawn(2), ResourceKey("default", "Shape", "foo"))
    await stage.fail_for(BOUND_SECONDS)
    assert stage.states == ["ListingsFailed", "ListingsResumed"]


async def test_a_reported_failure_ends_with_the_definition_of_the_kind() -> None:
    stage = stage_with_resource()
    await stage.fail_for(BOUND_SECONDS)
    stage.decide()
    await stage.listings.remove(LISTING)
    assert stage.states == ["ListingsFailed", "ListingsResumed"]


async def test_the_time_during_an_open_breaker_or_a_closed_gate_is_not_counted() -> None:
    stage = stage_with_resource()
    await stage.fail_for(BOUND_SECONDS - RETRY_SECONDS)
    stage.record(BreakerOpened(START, 2.0, 5, "refused"))
    await stage.fail_for(10 * BOUND_SECONDS)
    assert stage.reports == []
    stage.record(BreakerClosed())
    for _ in range(100):
        stage.seconds += RETRY_SECONDS
        stage.listings.get_health(LISTING).record_postponement()
    await stage.fail_for(RETRY_SECONDS)
    assert stage.states == ["ListingsFailed"]


async def test_a_new_declaration_resets_the_health() -> None:
    stage = stage_with_resource()
    await stage.fail_for(BOUND_SECONDS)
    stage.decide()
    stage.record(SpecDeclared(2, "reconciler/v1", "", "billing", {}))
    stage.listings.reset("billing")
    await stage.fail_for(BOUND_SECONDS - RETRY_SECONDS)
    assert len(stage.reports) == 1
    await stage.fail_for(RETRY_SECONDS)
    assert [each.as_of for each in stage.reports] == [1, 2]


async def test_an_observer_backs_off_if_another_one_keeps_listing_successfully() -> None:
    stage = stage_with_resource()
    waits: list[float] = []
    for number in range(1, 5):
        started_at = stage.seconds
        while len(stage.reports) < number:
            await stage.fail_for(RETRY_SECONDS)
        waits.append(stage.seconds - started_at)
        stage.decide()
        stage.record(ListingsResumed("Shape"))  # by the other one
    assert waits == [BOUND_SECONDS * each for each in (1, 2, 4, 8)]
    await stage.complete()
    await stage.fail_for(BOUND_SECONDS)
    assert len(stage.reports) == 5


async def test_a_listing_from_another_team_ends_a_reported_failure() -> None:
    stage = stage_with_resource()
    await stage.fail_for(BOUND_SECONDS)
    stage.decide()
    await stage.listings.record_completion(LISTING)
    assert stage.states == ["ListingsFailed", "ListingsResumed"]
    stage.decide()
    await stage.fail_for(BOUND_SECONDS)
    assert len(stage.reports) == 2
    await stage.fail_for(BOUND_SECONDS)
    assert len(stage.reports) == 3
