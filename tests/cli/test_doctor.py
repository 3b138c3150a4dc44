"""`doctor` on a real bus: each check fails for a real reason and passes without it."""

from __future__ import annotations

import msgspec
from nats.aio.client import Client

from events.intake import TimerFired
from events.log import OutcomeRecorded
from events.provider_config import Retry
from events.subjects import log
from infra.bus.actions import JetStreamActionReader
from infra.bus.rows import JetStreamRows
from infra.bus.streams import DEADLETTERS, LOG, TIMERS, worker_consumer
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request
from infra.jetstream.publish import publish
from reconciler.cli.checks.actions import check_actions
from reconciler.cli.checks.bus import check_sources, check_stages
from reconciler.cli.checks.finding import Finding
from reconciler.cli.checks.monitoring import check_health, check_monitoring
from reconciler.cli.doctor import run_checks
from reconciler.cli.folded_log import replay_for_checks
from tests.bus.histories import event
from tests.scenarios.conftest import api_url, world
from tests.scenarios.conftest import bare_world_on_own_server as bare_world
from tests.scenarios.harness import World, api_config, manifest, shape

__all__ = ["api_url", "bare_world", "world"]

NAMES = [f"foo-{number}" for number in range(3)]


async def run_actions_check(nc: Client) -> Finding:
    async with replay_for_checks(nc, full=True) as replay:
        await replay.advance()
        return await check_actions(nc, replay)


async def run_workers_check(nc: Client) -> Finding:
    return {finding.check: finding for finding in await check_stages(nc)}["actions"]


async def run_all_checks(world: World) -> dict[str, Finding]:
    return {finding.check: finding for finding in await run_checks(world.nc, full=True)}


async def decide_creations_without_a_worker(world: World) -> None:
    """Wait until three creations have been decided, while no worker is running."""
    await world.start_reconciler(["decider", "observer", "projector"])
    await world.configure(api_config(world.human.url))
    await world.declare_all([manifest(name) for name in NAMES])

    async def are_decided() -> bool:
        return all([len(await world.history(name)) >= 2 for name in NAMES])

    await world.until(are_decided, "the creations have been decided")


async def test_no_check_fails_for_a_converged_fleet(world: World) -> None:
    await world.declare_all([manifest(name) for name in NAMES])
    for name in NAMES:
        await world.until_outcome(name, "Converged")
    await world.until_settled()

    reported_findings = await run_all_checks(world)

    failures = [finding for finding in reported_findings.values() if finding.verdict == "fail"]
    assert failures == []
    assert reported_findings["lost actions"].details == "none; 0 in flight, all accounted for"
    assert reported_findings["log"].details.endswith("events read, none missing or changed")
    assert reported_findings["timers"].verdict == reported_findings["streams"].verdict == "ok"


async def test_an_action_that_another_client_acknowledged_is_reported_as_lost(
    bare_world: World,
) -> None:
    world = bare_world
    assert (await run_workers_check(world.nc)).verdict == "ok", "no ProviderConfig is declared"
    await decide_creations_without_a_worker(world)
    details = "no worker is pulling messages for 1 ProviderConfig: default"

    async def is_reported() -> bool:  # once the projector has written the configuration's row
        finding = await run_workers_check(world.nc)
        return (finding.verdict, finding.details) == ("fail", details)

    await world.until(is_reported, details)
    waiting = await run_actions_check(world.nc)
    assert (waiting.verdict, waiting.details) == ("ok", "none; 3 in flight, all accounted for")

    reader = JetStreamActionReader(world.nc)
    await reader.add_queue("default", len(NAMES))
    deliveries = [*await reader.next_batch()]
    while len(deliveries) < len(NAMES):
        deliveries += await reader.next_batch()
    assert (await run_actions_check(world.nc)).verdict == "ok"  # leased
    await world.configure(api_config(world.human.url), "without-queue")
    details = "no worker is pulling messages for 1 ProviderConfig: without-queue"

    async def has_warning() -> bool:
        finding = await run_workers_check(world.nc)
        return (finding.verdict, finding.details) == ("warn", details)

    await world.until(has_warning, details)

    await reader.ack([deliveries[1]])
    await world.nc.flush()
    lost_finding = await run_actions_check(world.nc)
    assert lost_finding.verdict == "fail"
    assert "without a worker" in lost_finding.details

    await reader.ack([deliveries[0], deliveries[2]])
    await world.nc.flush()
    lost_finding = await run_actions_check(world.nc)
    assert lost_finding.details.startswith("3 without a worker or a result: default/Shape/foo-0")

    # The reported remedy: redeliver all actions.
    await reader.close()
    consumer = worker_consumer("default")
    await api_request(world.nc, f"CONSUMER.DELETE.{LOG}.{consumer}", None)
    assert (await run_actions_check(world.nc)).verdict == "ok", "they wait for the next worker"
    assert (await run_workers_check(world.nc)).verdict == "fail"
    await world.restart_reconciler()
    for name in NAMES:
        await world.until_outcome(name, "Converged")
    assert (await run_actions_check(world.nc)).verdict == "ok"
    assert await world.human.effects() == ["POST"] * len(NAMES)


async def test_a_retry_without_its_timer_is_reported(world: World) -> None:
    await world.configure(
        api_config(world.human.url, retry=Retry(initial_seconds=600, max_seconds=600))
    )
    await world.human.inject_faults(error_rate=1.0, methods=["POST"])
    await world.declare("foo")
    await world.until_outcome("foo", "Degraded")
    await world.until_settled()
    assert (await run_actions_check(world.nc)).details == "none; 1 in flight, all accounted for"

    await api_request(world.nc, f"STREAM.PURGE.{TIMERS}", {})

    finding = await run_actions_check(world.nc)
    assert (finding.verdict, finding.details) == (
        "warn",
        "1 with a retry but no timer: default/Shape/foo",
    )


async def test_a_retry_that_a_hold_blocks_needs_no_timer(world: World) -> None:
    retry = Retry(initial_seconds=600, max_seconds=600)
    await world.configure(api_config(world.human.url, retry=retry))
    await world.human.inject_faults(error_rate=1.0, methods=["POST"])
    await world.declare("foo")
    await world.until_outcome("foo", "Degraded")
    await world.until_settled()
    await world.configure(api_config(world.human.url, retry=retry, provider="records"))
    await world.publish(shape("foo"), TimerFired("Sweep"), "timer")
    await world.until_outcome("foo", "Held", reason="WrongProvider")

    await api_request(world.nc, f"STREAM.PURGE.{TIMERS}", {})

    finding = await run_actions_check(world.nc)
    assert (finding.verdict, finding.details) == ("ok", "none; 1 in flight, all accounted for")
    assert "1 WrongProvider" in (await run_all_checks(world))["held"].details


async def test_a_log_with_an_unreadable_event_and_a_gap_is_reported(world: World) -> None:
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.stop_reconciler()
    await publish(world.nc, log(shape("bar"), "fact"), b"from a newer release")
    gap = event(shape("foo"), 9, OutcomeRecorded("Converged", 1, "AsDeclared"))
    await publish(world.nc, log(shape("foo"), "outcome"), msgspec.json.encode(gap))

    reported_findings = await run_all_checks(world)

    assert reported_findings["log"].verdict == "fail"
    assert reported_findings["log"].details.startswith("damaged in 2 places")
    assert reported_findings["stored rows"].verdict == "warn"


async def test_rows_that_another_client_changed_are_reported(world: World) -> None:
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    async def is_written() -> bool:
        row = await world.status("foo")
        return row is not None and row.outcome == "Converged"

    await world.until(is_written, "the row is written")
    await world.stop_reconciler()
    assert (await run_all_checks(world))["stored rows"].verdict == "ok"
    rows = await JetStreamRows(world.nc).load()
    changed_row = rows["status.default.Shape.foo"].replace(b"Converged", b"Failed")
    await publish(world.nc, "$KV.reconciler.status.default.Shape.foo", changed_row)

    reported_findings = await run_all_checks(world)
    assert reported_findings["stored rows"].verdict == "fail"
    assert (
        reported_findings["stored rows"].details
        == "1 row differs from the log: status.default.Shape.foo"
    )
    assert (
        reported_findings["intake"].verdict == reported_findings["actions"].verdict == "warn"
    )  # no role is running
    assert "no decider is pulling messages" in reported_findings["intake"].details


async def test_open_dead_letters_are_counted_by_stage_until_they_are_handled(
    world: World,
) -> None:
    assert (await run_all_checks(world))["dead letters"].verdict == "ok"
    await world.ask_raw("rec.desired.default.Shape.foo", b"not JSON")
    await world.ask_raw("rec.wished.default.Shape.foo", b"{}")

    checks = (await run_all_checks(world))["dead letters"]
    assert checks.verdict == "warn"
    assert checks.details.startswith("2 open (2 intake); oldest from 20")

    for letter in await world.client.dead_letters():
        await world.client.dismiss_dead_letter(letter, note="a test")
    assert (await run_all_checks(world))["dead letters"].verdict == "ok"


async def test_an_unreachable_api_and_a_stream_with_different_settings_are_reported(
    world: World,
) -> None:
    await world.configure(api_config("http://127.0.0.1:1", resync=3600), "away")
    config = (await api_request(world.nc, f"STREAM.INFO.{DEADLETTERS}", None))["config"]
    await api_request(world.nc, f"STREAM.UPDATE.{DEADLETTERS}", {**config, "max_age": 0})

    reported_findings = await run_all_checks(world)

    assert (reported_findings["API default"].verdict, reported_findings["API away"].verdict) == (
        "ok",
        "fail",
    )
    assert (
        reported_findings["streams"].details
        == f"differ from the definitions of this release: {DEADLETTERS} (max_age)"
    )


async def test_doctor_reports_whether_the_server_syncs_every_write(world: World) -> None:
    other_server = EmbeddedServer()
    for sync_always, verdict in ((True, "ok"), (False, "warn")):
        folder = world.server.data_dir.parent / f"other-{sync_always}"
        await other_server.start(folder, http_port=0, sync_always=sync_always)
        sync, disk = await check_monitoring(other_server.monitoring_url)
        (health,) = await check_health(other_server.monitoring_url)
        await other_server.stop()
        assert (sync.verdict, disk.verdict, health.verdict) == (verdict, "ok", "ok")
    for check in (check_monitoring, check_health):
        (finding,) = await check("http://127.0.0.1:1")
        assert "does not respond" in finding.details


def test_lagging_and_inactive_sources_are_reported() -> None:
    def intake(lag: int, active: int) -> dict[str, object]:
        return {"sources": [{"name": TIMERS, "lag": lag, "active": active}]}

    assert check_sources(intake(0, 10**9)).verdict == "ok"
    assert "is 9000 messages behind TIMERS" in check_sources(intake(9_000, 10**9)).details
    assert "receives nothing from TIMERS" in check_sources(intake(0, -1)).details
    assert check_sources(intake(0, 90 * 10**9)).verdict == "warn"


async def test_a_missing_observer_is_a_failure_until_one_runs(bare_world: World) -> None:
    world = bare_world
    await world.start_reconciler(["decider", "worker", "projector"])
    assert (await run_all_checks(world))["observers"].verdict == "warn", "there is no API"
    await world.configure(api_config(world.human.url))

    async def verdict() -> str:
        return (await run_all_checks(world))["observers"].verdict

    async def has_failed() -> bool:
        return await verdict() == "fail"

    async def is_ok() -> bool:
        return await verdict() == "ok"

    await world.until(has_failed, "the missing observer is a failure")
    await world.stop_reconciler()
    await world.start_reconciler()
    await world.until(is_ok, "the observer is found")
    await world.stop_reconciler()
    await world.until(has_failed, "the stopped observer is a failure")
