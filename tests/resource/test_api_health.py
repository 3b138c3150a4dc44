"""A ProviderConfig records the health of its API: throttling and circuit breaker, scenario 14."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from events.intake import ApiReported, Declared, ListingFailure, UsersReported, Withdrawn
from events.log import (
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    ListingsFailed,
    ListingsResumed,
    OutcomeRecorded,
    ResourceEvent,
)
from events.manifest import RECONCILER_API_VERSION
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND
from reconciler.provider.kind import PROVIDER_CONFIG
from reconciler.resource.api_health import MAX_THROTTLED_SECONDS, PROBE_TIMEOUTS
from reconciler.resource.state import ApiHealth, Silence
from tests.resource.building import Story, every, manifest, names, only

BILLING = ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, "billing")
TIMEOUT_SECONDS = 4.0
FIELDS: dict[str, Any] = {
    "provider": "tests",
    "endpoint": "http://localhost",
    "limits": {"requestTimeoutSeconds": TIMEOUT_SECONDS},
    "breaker": {"failures": 3, "initialSeconds": 2.0, "maxSeconds": 60.0},
}


def config_story(fields: dict[str, Any] = FIELDS) -> Story:
    story = Story(key=BILLING, kind=PROVIDER_CONFIG)
    declare(story, fields)
    return story


def declare(story: Story, fields: dict[str, Any]) -> list[ResourceEvent]:
    declared = manifest(fields, key=BILLING, api_version=RECONCILER_API_VERSION)
    return story.turn(Declared(declared))


def report_failing(
    story: Story, *, as_of: int | None = None, failures: int = 3
) -> list[ResourceEvent]:
    known_version = story.state.api.version if as_of is None else as_of
    return story.turn(
        ApiReported("Failing", "w1", story.now, known_version, failures=failures, message="refused")
    )


@pytest.mark.parametrize("hours", [1, -1])
def test_a_decider_with_an_inaccurate_clock_uses_bus_time_for_throttling_and_the_breaker(
    hours: int,
) -> None:
    """Otherwise it would drop each report, or close the API to all workers for an hour."""
    story = config_story()
    bus_time = story.stored_at = story.now
    story.now += timedelta(hours=hours)
    throttle_event = only(
        ApiThrottled,
        story.turn(ApiReported("Throttled", "w1", bus_time, 0, retry_after_seconds=10.0)),
    )
    assert (throttle_event.until, throttle_event.delay_seconds) == (
        bus_time + timedelta(seconds=10),
        10.0,
    )
    known_version = story.state.api.version
    opened = only(
        BreakerOpened, story.turn(ApiReported("Failing", "w1", bus_time, known_version, failures=3))
    )
    assert bus_time < opened.until <= bus_time + timedelta(seconds=4)
    assert story.turn(ApiReported("Probing", "w1", bus_time, story.state.api.version)) == []
    story.stored_at = bus_time + timedelta(seconds=5)
    probed = only(
        BreakerProbed, story.turn(ApiReported("Probing", "w1", bus_time, story.state.api.version))
    )
    assert probed.until == story.stored_at + timedelta(seconds=PROBE_TIMEOUTS * TIMEOUT_SECONDS)


def report_probing(story: Story, reporter: str = "w1") -> list[ResourceEvent]:
    return story.turn(ApiReported("Probing", reporter, story.now, story.state.api.version))


def report_responding(story: Story, *, as_of: int | None = None) -> list[ResourceEvent]:
    known_version = story.state.api.version if as_of is None else as_of
    return story.turn(ApiReported("Responding", "w1", story.now, known_version))


def report_throttled(story: Story, seconds: float, *, age: float = 0.0) -> list[ResourceEvent]:
    at = story.now - timedelta(seconds=age)
    return story.turn(ApiReported("Throttled", "w1", at, retry_after_seconds=seconds))


def report_listings_failed(
    story: Story, kind: str = "Block", *, minutes: float = 5, as_of: int | None = None
) -> list[ResourceEvent]:
    failure = ListingFailure(story.now - timedelta(minutes=minutes), "page 2: refused")
    known_generation = story.state.desired.generation if as_of is None else as_of
    return story.turn(
        ApiReported("ListingsFailed", "o1", story.now, known_generation, kind=kind, failure=failure)
    )


def report_listings_resumed(
    story: Story, kind: str = "Block", *, as_of: int | None = None, system_id: str = ""
) -> list[ResourceEvent]:
    known_generation = story.state.desired.generation if as_of is None else as_of
    report = ApiReported(
        "ListingsResumed", "o1", story.now, known_generation, kind=kind, system_id=system_id
    )
    return story.turn(report)


def test_a_breaker_opens_temporarily_and_reports_the_reason():
    story = config_story()
    events = report_failing(story)
    opened = only(BreakerOpened, events)
    assert (opened.failures, opened.delay_seconds) == (3, 1.5)  # jitter 0.5 of 2 s
    outcome = only(OutcomeRecorded, events)
    assert (outcome.outcome, outcome.reason) == ("Degraded", "BreakerOpen")
    assert "after 3 consecutive failures: refused" in outcome.message


def test_a_failure_that_several_workers_report_is_recorded_once():
    story = config_story()
    assert names(report_failing(story)) == ["BreakerOpened", "OutcomeRecorded"]
    story.wake(3600)
    assert report_failing(story, as_of=0) == []  # their calls began before the breaker opened
    assert report_responding(story, as_of=0) == []


def test_a_successful_probe_closes_the_breaker():
    story = config_story()
    report_failing(story)
    assert report_probing(story) == []  # too early
    story.wake(1.5)
    assert only(BreakerProbed, report_probing(story)).by == "w1"
    assert report_probing(story, "w2") == []
    events = report_responding(story)
    assert names(events) == ["BreakerClosed", "OutcomeRecorded"]
    assert only(OutcomeRecorded, events).outcome == "Converged"
    silence = Silence(version=1)
    assert story.state.api == ApiHealth(version=story.state.version - 1, silence=silence)


def test_another_worker_probes_after_the_first_one_dies():
    story = config_story()
    report_failing(story)
    story.wake(1.5)
    report_probing(story)
    story.wake(PROBE_TIMEOUTS * TIMEOUT_SECONDS)
    assert only(BreakerProbed, report_probing(story, "w2")).by == "w2"


def test_another_worker_probes_immediately_after_the_first_one_stops():
    story = config_story()
    report_failing(story)
    story.wake(1.5)
    report_probing(story)
    assert report_probing(story, "w2") == []
    stopping = ApiReported("Stopping", "another", story.now)
    assert story.turn(stopping) == []
    assert (
        only(BreakerProbed, story.turn(msgspec.structs.replace(stopping, reporter="w1"))).by == ""
    )
    assert only(BreakerProbed, report_probing(story, "w2")).by == "w2"
    assert story.turn(ApiReported("Stopping", "w1", story.now)) == []


def test_a_failed_probe_doubles_the_delay_up_to_the_maximum():
    story = config_story()
    waits = [only(BreakerOpened, report_failing(story)).delay_seconds]
    for _ in range(6):
        story.wake(waits[-1])
        report_probing(story)
        waits.append(only(BreakerOpened, report_failing(story)).delay_seconds)
    assert waits == [1.5, 3.0, 6.0, 12.0, 24.0, 45.0, 45.0]
    story.wake(45)
    report_probing(story)
    report_responding(story)
    assert only(BreakerOpened, report_failing(story)).delay_seconds == 1.5


def test_a_throttled_api_is_not_called_before_the_time_that_it_named():
    story = config_story()
    events = report_throttled(story, 7.2)
    assert only(ApiThrottled, events).until == story.now + timedelta(seconds=8)
    assert names(events) == ["ApiThrottled"]  # the status of the configuration is unchanged
    assert report_throttled(story, 7.9) == []
    assert report_throttled(story, 3) == []
    assert names(report_throttled(story, 9)) == ["ApiThrottled"]


def test_a_throttle_that_is_reported_late_is_over_or_shorter():
    story = config_story()
    assert report_throttled(story, 7, age=30) == []
    assert only(ApiThrottled, report_throttled(story, 7, age=5)).delay_seconds == 2.0


def test_a_throttle_from_a_clock_that_is_ahead_does_not_hide_a_later_one():
    story = config_story()
    story.now += timedelta(hours=1)
    report_throttled(story, 30)
    story.now -= timedelta(hours=1)
    assert only(ApiThrottled, report_throttled(story, 30)).until == story.now + timedelta(
        seconds=30
    )


def test_a_breaker_that_was_opened_with_a_clock_that_is_ahead_is_probed():
    story = config_story()
    story.now += timedelta(hours=1)
    report_failing(story)
    story.wake(1.5)
    report_probing(story)
    story.now -= timedelta(hours=1)
    assert only(BreakerProbed, report_probing(story, "w2")).by == "w2"
    assert only(BreakerOpened, report_failing(story)).delay_seconds == 3.0


def test_an_absurd_throttle_and_a_clock_that_is_ahead_are_bounded():
    story = config_story()
    assert only(ApiThrottled, report_throttled(story, 1e9, age=-1e6)).delay_seconds == (
        MAX_THROTTLED_SECONDS
    )


def test_a_new_declaration_resets_the_health():
    story = config_story()
    report_failing(story)
    report_throttled(story, 60)
    events = declare(story, {**FIELDS, "endpoint": "http://elsewhere"})
    assert only(OutcomeRecorded, events).outcome == "Converged"
    assert story.state.api.open_until is story.state.api.throttled_until is None
    assert report_failing(story, as_of=0) == []  # about the old endpoint
    assert every(BreakerOpened, report_failing(story))


def test_reports_without_a_declared_configuration_are_not_recorded():
    story = Story()
    story.declare()
    assert report_failing(story) == []
    story = config_story()
    story.turn(Withdrawn(), UsersReported(2, 0))
    assert report_failing(story) == []


def test_a_breaker_survives_a_restart():
    story = config_story()
    report_failing(story)
    story.state = msgspec.msgpack.decode(
        msgspec.msgpack.encode(story.state), type=type(story.state)
    )
    story.wake(1.4)
    assert report_probing(story) == []
    story.wake(0.1)
    assert names(report_probing(story)) == ["BreakerProbed"]


@pytest.mark.parametrize("state", ["Failing", "Responding", "Probing", "Throttled"])
def test_a_repeated_report_is_ignored(state: Any):
    story = config_story()
    if state != "Failing":
        report_failing(story)
        story.wake(1.5)
    report = ApiReported(state, "w1", story.now, story.state.api.version, 7.0, 3)
    story.turn(report)
    version = story.state.version
    story.turn(report)
    assert story.state.version == version


def test_closing_a_closed_breaker_is_not_recorded():
    story = config_story()
    assert report_responding(story) == []
    assert every(BreakerClosed, [event.data for event in story.log]) == []


# --- listings that do not complete


def test_a_configuration_whose_listings_fail_is_degraded_until_one_completes():
    story = config_story()
    events = report_listings_failed(story)
    assert names(events) == ["ListingsFailed", "OutcomeRecorded"]
    outcome = only(OutcomeRecorded, events)
    assert (outcome.outcome, outcome.reason) == ("Degraded", "ListingsFailed")
    assert "no listing of Block has completed since 2025-12-31T23:55:00Z: page 2: refused" in (
        outcome.message
    )
    degraded = {each.type: each.status for each in outcome.conditions}
    assert degraded == {"Converged": "False", "Ready": "True", "Degraded": "True"}
    assert report_listings_failed(story, minutes=9) == []
    events = report_listings_resumed(story)
    assert names(events) == ["ListingsResumed", "OutcomeRecorded"]
    assert only(OutcomeRecorded, events).outcome == "Converged"
    assert report_listings_resumed(story) == []


def test_the_failed_listings_of_each_kind_are_reported_separately():
    story = config_story()
    report_listings_failed(story, "Block")
    report_listings_failed(story, "Anvil", minutes=7)
    outcome = story.state.outcome
    assert outcome is not None
    assert outcome.message.startswith(
        "no listing of Anvil has completed since 2025-12-31T23:53:00Z"
    )
    assert "no listing of Block" in outcome.message
    events = report_listings_resumed(story, "Anvil")
    assert names(events) == ["ListingsResumed", "OutcomeRecorded"]
    assert only(OutcomeRecorded, events).outcome == "Degraded"
    assert "Anvil" not in only(OutcomeRecorded, events).message


def test_an_open_breaker_hides_failed_listings_and_does_not_end_them():
    story = config_story()
    report_listings_failed(story)
    assert only(OutcomeRecorded, report_failing(story)).reason == "BreakerOpen"
    story.wake(1.5)
    report_probing(story)
    assert only(OutcomeRecorded, report_responding(story)).reason == "ListingsFailed"


def test_a_report_about_listings_under_an_older_declaration_changes_nothing():
    story = config_story()
    report_listings_failed(story)
    events = declare(story, {**FIELDS, "endpoint": "http://elsewhere"})
    assert only(OutcomeRecorded, events).outcome == "Converged"
    assert report_listings_failed(story, as_of=1) == []
    assert every(ListingsFailed, report_listings_failed(story))
    assert report_listings_resumed(story, as_of=1) == []
    assert every(ListingsResumed, report_listings_resumed(story))


def test_a_listed_system_is_recorded_once_for_each_kind_and_declaration():
    story = config_story()
    assert names(report_listings_resumed(story, system_id="a")) == ["ListingsResumed"]
    assert report_listings_resumed(story, system_id="a") == []
    assert names(report_listings_resumed(story, "Anvil", system_id="a")) == ["ListingsResumed"]
    assert story.state.api.systems == {"Block": "a", "Anvil": "a"}
    report_listings_failed(story)
    assert report_failing(story)
    story.wake(1.5)
    report_probing(story)
    report_responding(story)
    report_listings_resumed(story)
    assert story.state.api.systems == {"Block": "a", "Anvil": "a"}, "the breaker keeps them"
    assert names(report_listings_resumed(story, system_id="b")) == ["ListingsResumed"]
    assert story.state.api.systems["Block"] == "b"
    declare(story, {**FIELDS, "endpoint": "http://elsewhere"})
    assert story.state.api.systems == {}, "it may be another system"
    assert report_listings_resumed(story, as_of=1, system_id="b") == []


def test_failed_listings_survive_a_restart():
    story = config_story()
    report_listings_failed(story)
    stored = msgspec.msgpack.encode(story.state)
    story.state = msgspec.msgpack.decode(stored, type=type(story.state))
    assert report_listings_failed(story) == []
    assert names(report_listings_resumed(story)) == ["ListingsResumed", "OutcomeRecorded"]


def test_a_time_in_the_future_is_recorded_as_now():
    story = config_story()
    assert (
        only(ListingsFailed, report_listings_failed(story, minutes=-60)).failure.since == story.now
    )


def test_listings_without_a_declared_configuration_are_not_recorded():
    story = Story()
    story.declare()
    assert report_listings_failed(story) == []
    story = config_story()
    story.turn(Withdrawn(), UsersReported(2, 0))
    assert report_listings_failed(story) == []
