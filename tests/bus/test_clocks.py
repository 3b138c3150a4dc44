"""Wrong clocks: `doctor` checks use the bus's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from events.envelope import encode_intake
from events.intake import IntakeData, Observed, TimerFired
from events.log import SOURCE, RetryScheduled, SpecDeclared
from events.names import ResourceKey
from events.subjects import Intake, intake
from infra.bus.bus_clock import read_clock
from infra.bus.event_log import JetStreamLog
from infra.bus.streams import end_restoration, ensure_topology, find_log
from infra.jetstream.publish import publish
from reconciler.cli.checks.actions import check_actions
from reconciler.cli.checks.clocks import check_role_clocks
from reconciler.cli.checks.finding import Finding
from reconciler.cli.folded_log import replay_for_checks
from reconciler.ports import ResourceAppend
from tests.bus.histories import event, new_key
from tests.jetstream.helpers import until

HOUR = timedelta(hours=1)
DECLARED = SpecDeclared(1, "shapes/v1", "default", "foo", {})


@pytest.fixture
def module_bus_url(fresh_bus_url: str) -> str:
    """Each test has its own log, because its events have different times."""
    return fresh_bus_url


async def append_retry(log: JetStreamLog, ahead: timedelta, seconds: float) -> ResourceKey:
    """Append the events of a decider whose clock is ahead by ``ahead``."""
    key, now = new_key(), datetime.now(UTC) + ahead
    retry = RetryScheduled(now + timedelta(seconds=seconds), seconds, "NotDone")
    events = [event(key, 1, DECLARED), event(key, 2, retry)]
    await log.append([ResourceAppend(key, [replace(each, time=now) for each in events], 0)])
    return key


async def check_lost_actions(nc: Client) -> Finding:
    async with replay_for_checks(nc, full=True) as replay:
        await replay.advance()
        return await check_actions(nc, replay)


async def test_a_decider_whose_clock_is_behind_has_not_lost_an_action(
    bus: Client, log: JetStreamLog
) -> None:
    await append_retry(log, -HOUR, 600.0)
    assert (await check_lost_actions(bus)).verdict == "ok"


@pytest.mark.parametrize("ahead", [HOUR, timedelta(0), -HOUR])
async def test_an_overdue_action_is_detected_whatever_its_deciders_clock(
    bus: Client, log: JetStreamLog, ahead: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.checks.actions.OVERDUE", timedelta(0))
    key = await append_retry(log, ahead, 0.1)

    async def is_overdue_reported() -> bool:
        finding = await check_lost_actions(bus)
        return (finding.verdict, finding.details) == ("fail", f"1 with an overdue retry: {key}")

    await until(is_overdue_reported)


async def test_the_bus_clock_is_read_from_a_response(bus: Client) -> None:
    clock = await read_clock(bus)
    assert clock.difference < timedelta(seconds=1)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)


async def publish_as(
    nc: Client, source: str, channel: Intake, data: IntakeData, ahead: timedelta
) -> None:
    key = new_key()
    payload = encode_intake("m1", source, data, time=datetime.now(UTC) + ahead)
    await publish(nc, intake(channel, key), payload)


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (HOUR, "3600 s ahead"),
        (-HOUR, "3600 s behind, or its messages were stored with a delay"),
        (timedelta(0), ""),
    ],
)
async def test_a_wrong_clock_is_reported_with_its_role(
    bus: Client, log: JetStreamLog, ahead: timedelta, expected: str
) -> None:
    observation = Observed("default", "foo", None, "CompleteListing", 1, datetime.now(UTC))
    await publish_as(bus, "reconciler@b:2", "observed", observation, timedelta(0))
    await publish_as(bus, SOURCE, "timer", TimerFired("Retry"), -HOUR)  # set an hour ago
    assert [each.verdict for each in await check_role_clocks(bus)] == ["ok"]
    await append_retry(log, ahead, 600.0)
    await publish_as(bus, "reconciler@a:1", "observed", observation, ahead)
    [finding] = await check_role_clocks(bus)
    if not expected:
        assert (finding.verdict, finding.remedy) == ("ok", "")
        return
    assert finding.verdict == "fail"
    assert finding.details == (
        f"differ from the bus's clock: a decider ({expected}), observer reconciler@a:1 ({expected})"
    )


async def test_a_timely_message_after_a_delayed_one_shows_that_the_clock_is_correct(
    bus: Client,
) -> None:
    observation = Observed("default", "foo", None, "CompleteListing", 1, datetime.now(UTC))
    await publish_as(bus, "reconciler@a:1", "observed", observation, -HOUR)
    assert [each.verdict for each in await check_role_clocks(bus)] == ["fail"]
    await publish_as(bus, "reconciler@a:1", "observed", observation, timedelta(0))
    assert [each.verdict for each in await check_role_clocks(bus)] == ["ok"]


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_an_event_that_a_restore_copied_is_not_used_to_check_clocks(
    bus: Client, log: JetStreamLog, ahead: timedelta
) -> None:
    """The replaced log may have continued after the backup, so the event may be newer."""
    await append_retry(log, -HOUR / 2, 600.0)
    assert [each.verdict for each in await check_role_clocks(bus)] == ["fail"]
    as_of = f"{datetime.now(UTC) - HOUR:%Y-%m-%dT%H:%M:%SZ}"
    identity = replace(await find_log(bus), epoch="e1", restored_as_of=as_of)
    await end_restoration(bus, identity)
    assert [each.verdict for each in await check_role_clocks(bus)] == ["ok"]
    await ensure_topology(bus)
    assert [each.verdict for each in await check_role_clocks(bus)] == ["ok"]
    await append_retry(log, ahead, 600.0)
    assert [each.verdict for each in await check_role_clocks(bus)] == ["fail"], (
        "a new event shows the clock"
    )
