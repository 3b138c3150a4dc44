"""A ProviderConfig records when its API stops responding, and when it responds again (ADR 0080)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
from msgspec.structs import replace

from events.intake import ApiReported, UsersReported
from events.log import ApiFellSilent, ApiSilenceEnded, ResourceEvent
from reconciler.resource.api_silence import (
    CALM_SECONDS,
    MAX_SILENT_SECONDS,
    MIN_SILENT_SECONDS,
    record_silence,
    required_seconds,
)
from reconciler.resource.state import Silence
from tests.resource.building import Story, names, only
from tests.resource.test_api_health import (
    FIELDS,
    config_story,
    declare,
    report_failing,
    report_responding,
)


def report_silent(
    story: Story, seconds: float = MIN_SILENT_SECONDS, *, as_of: int | None = None
) -> list[ResourceEvent]:
    version = story.state.api.silence.version if as_of is None else as_of
    return story.turn(ApiReported("Silent", "o1", story.now, version, silent_seconds=seconds))


def report_end(story: Story, *, as_of: int | None = None) -> list[ResourceEvent]:
    version = story.state.api.silence.version if as_of is None else as_of
    return story.turn(ApiReported("SilenceEnded", "o1", story.now, version))


def test_an_outage_adds_two_events_and_no_outcome():
    story = config_story()
    last_response = story.now - timedelta(seconds=30)
    event = only(ApiFellSilent, events := report_silent(story, 30.0))
    assert names(events) == ["ApiFellSilent"]
    assert (event.since, event.outages) == (last_response.replace(microsecond=0), 1)
    for _ in range(3):
        story.now += timedelta(seconds=60)
        assert report_silent(story, 90.0) == []
    assert names(report_end(story)) == ["ApiSilenceEnded"]
    assert report_end(story) == []


def test_a_restart_of_an_api_is_not_recorded():
    story = config_story()
    assert report_silent(story, MIN_SILENT_SECONDS - 0.1) == []
    assert report_end(story) == []


def test_a_report_from_before_the_newest_event_is_ignored():
    story = config_story()
    before = story.state.api.silence.version
    report_silent(story)
    silent = story.state.api.silence.version
    report_end(story)
    story.now += timedelta(seconds=1_000)
    assert report_silent(story, 1_000, as_of=before) == []
    assert names(report_silent(story, 500)) == ["ApiFellSilent"]
    assert report_end(story, as_of=silent) == []


def test_a_report_about_the_api_of_an_earlier_declaration_is_ignored():
    story = config_story()
    before = story.state.api.silence.version
    declare(story, {**FIELDS, "endpoint": "http://other"})
    assert report_silent(story, as_of=before) == []
    assert report_silent(story) != []


def test_a_silence_lasts_over_a_declaration_until_the_api_responds():
    story = config_story()
    report_silent(story)
    declare(story, {**FIELDS, "endpoint": "http://other"})
    assert story.state.api.silence.since is not None
    assert names(report_end(story)) == ["ApiSilenceEnded"]


def test_the_end_of_a_withdrawn_configuration_ends_the_silence():
    story = config_story()
    report_silent(story)
    story.withdraw()
    ended = names(story.turn(UsersReported(2, 0)))
    assert ended == ["UsersCounted", "ApiSilenceEnded", "OutcomeRecorded"]
    assert report_silent(story) == []
    declare(story, FIELDS)
    assert story.state.api.silence.since is None


def count_events(silent_seconds: Callable[[int], float], *, hours: float) -> int:
    """Count the events if observers report both states every 5 s, without a whole history."""
    context, silence, count = config_story().context, Silence(), 0
    for number in range(int(hours * 3_600 / 5)):
        context = replace(context, now=context.now + timedelta(seconds=5))
        for state in ("Silent", "SilenceEnded"):
            seconds = silent_seconds(number) if state == "Silent" else 0.0
            data = ApiReported(state, "o1", context.now, silence.version, silent_seconds=seconds)
            match record_silence(data, silence, context):
                case ApiFellSilent(since, outages):
                    silence = Silence(silence.version + 1, since, outages)
                case ApiSilenceEnded():
                    silence = Silence(silence.version + 1, None, silence.outages, context.now)
                case None:
                    continue
            count += 1
    return count


def test_a_flapping_api_must_be_silent_for_longer_each_time():
    assert count_events(lambda number: 5.0 * (number % 12), hours=24) < 24 * 2 * 12


def test_an_observer_that_cannot_reach_the_api_reports_less_and_less_often():
    """Its last response is a day old, but another observer has a response at each listing."""
    assert count_events(lambda _: 86_400.0, hours=24) < 2 * (24 * 3_600 / MAX_SILENT_SECONDS + 10)


def test_after_a_calm_time_a_short_outage_is_recorded_again():
    story = config_story()
    for outages in range(3):
        story.now += timedelta(seconds=MAX_SILENT_SECONDS)
        assert only(ApiFellSilent, report_silent(story, 300)).outages == outages + 1
        story.now += timedelta(seconds=1)
        only(ApiSilenceEnded, report_end(story))
    story.now += timedelta(seconds=10)
    assert report_silent(story) == []
    story.now += timedelta(seconds=CALM_SECONDS)
    assert only(ApiFellSilent, report_silent(story)).outages == 1


def test_the_bound_of_one_outage_is_limited():
    assert required_seconds(0) == MIN_SILENT_SECONDS
    assert required_seconds(1_000_000) == MAX_SILENT_SECONDS


def test_a_breaker_neither_begins_nor_ends_a_silence():
    story = config_story()
    report_silent(story)
    since = story.state.api.silence.since
    report_failing(story)
    assert story.state.api.silence.since == since
    report_responding(story)
    assert story.state.api.silence.since == since
    stored = msgspec.msgpack.encode(story.state)
    story.state = msgspec.msgpack.decode(stored, type=type(story.state))
    assert names(report_end(story)) == ["ApiSilenceEnded"]
