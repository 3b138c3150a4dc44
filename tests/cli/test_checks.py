"""The checks of `doctor` and `replay --verify`, on prepared inputs."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pytest
from nats.aio.client import Client

from events.excerpt import list_first
from events.intake import ListingFailure
from events.provider_config import ProviderConfigSpec
from infra.bus.replicas import StreamReplicas
from infra.jetstream.errors import BusUnavailableError, IncompatibleServerError
from infra.jetstream.reads import StreamState
from projections.status import StatusRow
from reconciler.cli.api_state import find_blocked_api, find_failed_listings
from reconciler.cli.checks.apis import check_api
from reconciler.cli.checks.bus import check_stage, check_storage
from reconciler.cli.checks.clocks import check_clock
from reconciler.cli.checks.cluster import judge_replicas
from reconciler.cli.checks.finding import Finding
from reconciler.cli.checks.log import check_holds, check_ownership, check_provider_configs
from reconciler.cli.checks.space import judge_stream_limits
from reconciler.cli.connection import BusOptions, Connection, UpFile, bus, read_up_file
from reconciler.cli.doctor import diagnose, point_to_full_storage, run_check, run_checks
from reconciler.cli.row_comparison import differences
from reconciler.errors import ConfigurationError
from reconciler.provider.kind import KindRegistry
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from shapes_api.kinds.records import RECORD
from shapes_api.kinds.shapes import SHAPE
from tests.hostile_server import HEAD, MIB, Answer, hostile_server, send

NOON = "2026-01-02T12:00:00.000000000Z"
NOON_SECONDS = 1767355200.0


@pytest.mark.parametrize(
    ("offset", "verdict"), [(0.0, "ok"), (0.5, "ok"), (-3.0, "warn"), (3.0, "warn"), (60.0, "fail")]
)
def test_the_verdict_depends_on_the_clock_difference(offset: float, verdict: str) -> None:
    now = NOON_SECONDS + offset
    assert check_clock(NOON, now - 0.01, now + 0.01).verdict == verdict


def test_a_tiny_clock_difference_is_reported_as_zero() -> None:
    now = NOON_SECONDS + 0.0001
    assert check_clock(NOON, now, now).details.endswith("by +0.000 s")


def test_a_slow_response_does_not_count_as_a_clock_difference() -> None:
    """The server may have read its clock at any time between the request and the response."""
    assert check_clock(NOON, NOON_SECONDS - 8, NOON_SECONDS + 0.01).verdict == "ok"
    assert check_clock(NOON, NOON_SECONDS - 8, NOON_SECONDS - 3).verdict == "warn"


async def test_a_check_is_retried_while_a_cluster_elects_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An election takes about ten seconds."""
    monkeypatch.setattr("reconciler.cli.doctor._PAUSE_SECONDS", 0.01)
    silent = [True, False]

    async def check() -> list[Finding]:
        if silent.pop(0):
            raise BusUnavailableError("no response")
        return [Finding("streams", "ok", "as required")]

    assert [finding.verdict for finding in await run_check(check, attempts=3, may_elect=True)] == [
        "ok"
    ]
    for may_elect in (True, False):
        silent = [True, True]
        with pytest.raises(BusUnavailableError):
            await run_check(check, attempts=3, may_elect=may_elect)


class _FakeConnection:
    """A connection that counts its moves to other servers."""

    moves = 0
    is_connected = True

    async def force_reconnect(self) -> None:
        self.moves += 1


@pytest.mark.parametrize(("failures", "verdict"), [(1, "ok"), (2, "fail")])
async def test_doctor_tries_another_server_in_the_cluster_before_it_reports_no_leader(
    failures: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is cut off from the others responds that no stream has a leader."""
    nc = _FakeConnection()
    moves_at_attempts: list[int] = []

    @asynccontextmanager
    async def bus(_: Connection) -> AsyncGenerator[_FakeConnection]:
        yield nc

    async def open_log(nc: _FakeConnection) -> None:
        moves_at_attempts.append(nc.moves)
        if len(moves_at_attempts) <= failures:
            raise BusUnavailableError("stream LOG_1 has no leader at the moment")

    async def run_checks(*_: object, **__: object) -> list[Finding]:
        return [Finding("streams", "ok", "as required")]

    for fake in (bus, open_log, run_checks):
        monkeypatch.setattr(f"reconciler.cli.doctor.{fake.__name__}", fake)
    findings = await diagnose(Connection(nats_url="a:4222,b:4222"), full=False)
    assert [finding.verdict for finding in findings] == [verdict]
    assert moves_at_attempts == [0, 1]
    if verdict == "fail":
        assert "an election takes about 10 seconds" in findings[0].remedy
    moves_at_attempts.clear()
    with pytest.raises(BusUnavailableError):
        await diagnose(Connection(nats_url="a:4222"), full=False)
    assert len(moves_at_attempts) == 1


async def test_a_server_that_disabled_jetstream_is_reported_with_its_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server with a full disk does so: it still responds, but without its streams."""
    health = Finding(
        "server health", "fail", "JetStream is disabled, possibly because of a full disk"
    )

    @asynccontextmanager
    async def bus(_: Connection) -> AsyncGenerator[None]:
        raise IncompatibleServerError("JetStream is disabled on the server at a:4222")
        yield

    async def check_health(_: str) -> list[Finding]:
        return [health]

    for fake in (bus, check_health):
        monkeypatch.setattr(f"reconciler.cli.doctor.{fake.__name__}", fake)
    connection = Connection(nats_url="a:4222")
    findings = await diagnose(connection, full=False, monitoring_url="http://a:8222")
    assert findings[-2] == health
    assert findings[-1].details == "JetStream is disabled on the server at a:4222"
    with pytest.raises(IncompatibleServerError):
        await diagnose(connection, full=False)


async def test_the_server_health_is_unknown_without_a_monitoring_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server with a full disk still responds to all requests except publishes."""

    async def run_check(*_: object, **__: object) -> list[Finding]:
        return []

    def check_sync(_: Client) -> Finding:
        return Finding("sync", "ok", "unknown")

    monkeypatch.setattr("reconciler.cli.doctor.run_check", run_check)
    monkeypatch.setattr("reconciler.cli.doctor.check_sync", check_sync)
    findings = await run_checks(cast("Client", None), full=False)
    [health] = [finding for finding in findings if finding.check == "server health"]
    assert health.details.startswith("unknown: a server reports a full disk only at its monitoring")


async def test_a_command_switches_from_a_server_without_a_leader_to_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nc = _FakeConnection()

    async def connect(*_: object, **__: object) -> _FakeConnection:
        return nc

    async def require_jetstream(nc: _FakeConnection) -> None:
        if not nc.moves:
            raise BusUnavailableError("JetStream system temporarily unavailable")

    async def do_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr("reconciler.cli.connection.connect", connect)
    monkeypatch.setattr("reconciler.cli.connection.require_jetstream", require_jetstream)
    for name in ("warn_of_clock_difference", "close"):
        monkeypatch.setattr(f"reconciler.cli.connection.{name}", do_nothing)
    async with bus(Connection(nats_url="a:4222,b:4222")):
        assert nc.moves == 1
    nc = _FakeConnection()
    with pytest.raises(BusUnavailableError):
        async with bus(Connection(nats_url="a:4222")):
            pass


async def test_a_temporary_problem_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a decider's pulls, a gap that grows on a busy machine, no request is waiting."""
    monkeypatch.setattr("reconciler.cli.doctor._PAUSE_SECONDS", 0.01)
    waiting = [0, 0, 1]

    async def check() -> list[Finding]:
        return [check_stage("intake", "decider", [{"num_waiting": waiting.pop(0)}])]

    assert [finding.verdict for finding in await run_check(check, attempts=3)] == ["ok"]
    waiting = [0, 0, 0]
    assert [finding.verdict for finding in await run_check(check, attempts=3)] == ["warn"]


def test_storage_near_its_limit_is_reported() -> None:
    assert check_storage({"storage": 5, "limits": {"max_storage": -1}}).verdict == "ok"
    nearly_full = check_storage({"storage": 9_500_000, "limits": {"max_storage": 10_000_000}})
    assert (nearly_full.verdict, "95%" in nearly_full.details) == ("warn", True)
    too_little = check_storage({"storage": 9_999_000, "limits": {"max_storage": 10_000_000}})
    assert (too_little.verdict, "99%" in too_little.details) == ("fail", True)
    full = check_storage({"storage": 266, "limits": {"max_storage": 100}})
    assert (full.verdict, "266%" in full.details) == ("fail", True)
    assert check_storage({"storage": 0, "limits": {"max_storage": 0}}).verdict == "fail"
    tiers = {
        "R1": {"storage": 5, "limits": {"max_storage": 100}},
        "R3": {"storage": 120, "limits": {"max_storage": 100}},
    }
    tiered = check_storage({"storage": 365, "limits": {"max_storage": 0}, "tiers": tiers})
    assert (tiered.verdict, "120%" in tiered.details) == ("fail", True)


def test_the_remedy_for_lost_actions_is_to_fix_full_storage_first() -> None:
    """The workers may still hold the results, and the usual remedy would stop them."""
    waiting = Finding("lost actions", "fail", "1 without a result: a", "Stop the workers, …")
    other_finding = Finding("intake", "fail", "no decider", "Start one.")
    full = Finding("storage", "fail", "100% of the limit", "Give the account more storage.")
    [_, lost_finding, untouched] = point_to_full_storage([full, waiting, other_finding])
    assert lost_finding.remedy.startswith("Fix the storage check first")
    assert untouched == other_finding
    nearly_full = msgspec.structs.replace(full, verdict="warn")
    assert point_to_full_storage([nearly_full, waiting, other_finding]) == [
        nearly_full,
        waiting,
        other_finding,
    ]


@pytest.mark.parametrize(
    ("limits", "used", "verdict"),
    [
        ({"max_bytes": -1, "max_msgs": -1}, (9, 10**9), "ok"),
        ({"max_bytes": 10**6, "max_msgs": -1}, (1, 950_000), "warn"),
        ({"max_bytes": 10**6, "max_msgs": -1}, (1, 999_000), "fail"),
        ({"max_bytes": -1, "max_msgs": 100}, (80, 10**9), "ok"),
        ({"max_bytes": -1, "max_msgs": 100}, (95, 10**9), "warn"),
        ({"max_bytes": -1, "max_msgs": 100}, (100, 10**9), "fail"),
    ],
)
def test_a_stream_is_full_at_its_byte_limit_or_its_message_limit(
    limits: dict[str, int], used: tuple[int, int], verdict: str
) -> None:
    messages, size = used
    state = StreamState(1, messages, messages, size, limits, "")
    finding = judge_stream_limits(
        {"LOG_1": state, "INTAKE": msgspec.structs.replace(state, config={})}
    )
    assert finding.verdict == verdict
    assert ("LOG_1" in finding.details, bool(finding.remedy)) == (verdict != "ok",) * 2


@pytest.mark.parametrize(
    ("consumer", "verdict"),
    [
        ({"num_pending": 0, "num_waiting": 1}, "ok"),
        ({"num_pending": 9, "num_waiting": 1}, "ok"),
        ({"num_pending": 90_000, "num_waiting": 1}, "warn"),
        ({"num_pending": 0, "num_waiting": 0}, "warn"),
        ({"num_pending": 1, "num_waiting": 0}, "fail"),
        ({"num_ack_pending": 1, "num_waiting": 0}, "fail"),
        ({}, "warn"),
    ],
)
def test_a_stage_is_judged_by_its_pending_messages_and_waiting_requests(
    consumer: dict[str, int], verdict: str
) -> None:
    finding = check_stage("intake", "decider", [consumer])
    assert finding.verdict == verdict
    assert bool(finding.remedy) == (verdict != "ok")


@pytest.mark.parametrize("pending", [0, 1])
def test_the_first_remedy_is_to_restore_a_missing_server_in_the_cluster(pending: int) -> None:
    """The role may be running and still reconnecting."""
    replicas = [{"name": "b", "current": True}, {"name": "c", "current": False}]
    consumer = {"num_pending": pending, "num_waiting": 0, "cluster": {"replicas": replicas}}
    finding = check_stage("intake", "decider", [consumer])
    assert finding.verdict == ("fail" if pending else "warn")
    assert "server c of the cluster is down or does not respond" in finding.details
    assert finding.remedy.startswith("First fix what the `replicas` check reports.")


def test_the_remedy_for_an_outdated_replica_names_hanging_servers_and_disks() -> None:
    degraded_stream = StreamReplicas("LOG_1", 3, 3, "a", ("c (not up to date)",))
    finding = judge_replicas([degraded_stream])
    assert (finding.verdict, "LOG_1 on c (not up to date)" in finding.details) == ("warn", True)
    assert "restart those that do not respond" in finding.remedy
    assert "disk" in finding.remedy


def test_the_remedy_for_a_missing_leader_is_to_wait_for_an_election() -> None:
    degraded_stream = StreamReplicas("LOG_1", 3, 3, "node-0", ("node-2 (offline)",))
    finding = judge_replicas([degraded_stream, StreamReplicas("INTAKE", 3, 3, "", ())])
    assert (finding.verdict, finding.details) == (
        "fail",
        "no leader: INTAKE; replicas are missing or outdated: LOG_1 on node-2 (offline)",
    )
    finding = judge_replicas([StreamReplicas("LOG_1", 3, 3, "", ())])
    assert (finding.verdict, finding.details) == ("fail", "no leader: LOG_1")
    assert finding.remedy.startswith("Wait 10 seconds for an election, and run `reconciler doctor`")


@pytest.mark.parametrize(
    ("expected", "present"), [(1, 1), (2, 2), pytest.param(3, 2, id="a server was removed")]
)
def test_a_stream_with_fewer_replicas_than_the_others_is_named(expected: int, present: int) -> None:
    complete_streams = [StreamReplicas(name, 3, 3, "a", ()) for name in ("INTAKE", "STATES")]
    finding = judge_replicas(
        [*complete_streams, StreamReplicas("LOG_1", expected, present, "a", ())]
    )
    assert (finding.verdict, finding.details) == (
        "warn",
        f"too few replicas: LOG_1 has {present} of 3",
    )
    assert "`reconciler init --replicas 3`" in finding.remedy


def test_one_replica_per_stream_is_enough_on_a_single_server() -> None:
    finding = judge_replicas([StreamReplicas(name, 1, 1, "a", ()) for name in ("LOG_1", "INTAKE")])
    assert finding.verdict == "ok"


def test_a_blocked_api_is_reported_and_not_called() -> None:
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    later, earlier = noon + timedelta(seconds=9), noon - timedelta(seconds=9)
    billing = partial(StatusRow, "system", "ProviderConfig", "billing")
    assert find_blocked_api(None, noon) is None
    assert find_blocked_api(billing(throttled_until=earlier), noon) is None
    throttled = find_blocked_api(billing(throttled_until=later, throttled_seconds=9.0), noon)
    assert throttled is not None
    assert (throttled.verdict, "before 2026-01-02T12:00:09Z" in throttled.details) == ("warn", True)
    implausible = billing(throttled_until=noon + timedelta(hours=1), throttled_seconds=30.0)
    assert find_blocked_api(implausible, noon) is None, "the clock has since been set back"
    for until in (earlier, later):  # a breaker stays open until its probe succeeds
        broken = find_blocked_api(billing(breaker_until=until, message="open because"), noon)
        assert broken is not None
        assert (broken.verdict, broken.details) == ("fail", "open because")
        assert "reconciler history system/ProviderConfig/billing" in broken.remedy


def test_a_kind_without_listings_is_reported_with_the_missed_intervals() -> None:
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    since = noon - timedelta(minutes=6)
    assert find_failed_listings(None, 30.0, noon) is None
    row = StatusRow("system", "ProviderConfig", "billing")
    assert find_failed_listings(row, 30.0, noon) is None
    row.failed_listings = {"Shape": ListingFailure(since, "GET /shapes?page=2: 500")}
    finding = find_failed_listings(row, 30.0, noon)
    assert finding is not None
    assert (finding.check, finding.verdict) == ("API billing", "fail")
    assert finding.details == (
        "no listing of Shape has completed since 2026-01-02T11:54:00Z (12 resync intervals): GET "
        "/shapes?page=2: 500"
    )
    assert "reconciler history system/ProviderConfig/billing" in finding.remedy
    finding = find_failed_listings(row, 3_600.0, noon)
    assert finding is not None
    assert "(less than 1 resync interval)" in finding.details


@pytest.mark.parametrize(
    ("provider", "kinds", "expected", "remedy"),
    [
        (
            "shapes",
            ("Record", "Shpae"),
            "spec.kinds names Record, Shpae, but provider 'shapes' has only Shape here",
            "omit spec.kinds",
        ),
        ("dns", (), "provider 'dns' has no kind installed here", "Install the package"),
        ("dns", ("Zone",), "provider 'dns' has no kind installed here", "Install the package"),
    ],
)
async def test_a_configuration_without_a_watched_kind_is_reported_with_the_reason(
    provider: str, kinds: tuple[str, ...], expected: str, remedy: str
) -> None:
    config = ProviderConfigSpec(provider=provider, endpoint="http://127.0.0.1:1", kinds=kinds)
    registry = KindRegistry([SHAPE, RECORD])
    pool = ProviderPool(registry, Configurations())
    finding = await check_api(None, "zone", config, registry, pool)
    assert (finding.verdict, finding.details) == ("warn", expected)
    assert remedy in finding.remedy


def send_no_body(connection: socket.socket, _head: bytes) -> None:
    connection.sendall(HEAD + b"Content-Length: 99\r\n\r\n")
    connection.recv(1)  # until the client disconnects


@pytest.mark.parametrize(
    ("responder", "expected"),
    [
        (send(HEAD + b"\r\n", repeat=bytes(MIB), times=1024), "longer than 32 MiB"),
        (send_no_body, "no response within"),
    ],
)
async def test_an_api_whose_response_is_too_long_or_never_ends_fails_its_own_check(
    responder: Answer, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.checks.apis._TIMEOUT_SECONDS", 2.0)
    registry = KindRegistry([SHAPE])
    with hostile_server(responder) as port:
        config = ProviderConfigSpec("shapes", f"http://127.0.0.1:{port}")
        configurations = Configurations()
        configurations.by_name["zone"] = config
        pool = ProviderPool(registry, configurations)
        finding = await check_api(None, "zone", config, registry, pool)
        await pool.close()
    assert finding.verdict == "fail"
    assert expected in finding.details


def plain_row(**values: object) -> StatusRow:
    plain = {"namespace": "default", "kind": "Shape", "name": "foo", **values}
    return msgspec.convert(plain, StatusRow)


def test_undeclared_owned_objects_and_unserved_declarations_are_reported() -> None:
    row = partial(plain_row, providerConfig="default")
    healthy = row(declared=True, owned=True, outcome="Converged")
    config = plain_row(kind="ProviderConfig", declared=True, outcome="Held")
    reference = plain_row(kind="ShapeRef", declared=True, outcome="Held", reason="Dangling")
    assert [finding.verdict for finding in check_ownership([healthy, config, reference])] == [
        "ok",
        "ok",
    ]
    deleting = row(owned=True, actionId="a")
    held_row = row(owned=True, outcome="Held", reason="Finalizers")
    owned, _ = check_ownership([deleting])
    assert (owned.verdict, owned.details) == ("ok", "1, all in progress")
    owned, _ = check_ownership([held_row])
    assert owned.details == "1: default/Shape/foo (Held, Finalizers)"
    _, expected_finding = check_ownership([row(declared=True)])
    assert (expected_finding.verdict, expected_finding.details) == (
        "warn",
        "1: default/Shape/foo (Pending)",
    )


def test_resources_whose_provider_config_was_withdrawn_are_reported() -> None:
    config = plain_row(kind="ProviderConfig", name="second", declared=True)
    own_row = plain_row(declared=True, owned=True, outcome="Converged", providerConfig="second")
    unmanaged = plain_row(name="bar", outcome="Unowned", providerConfig="third")
    assert check_provider_configs([config, own_row, unmanaged]).verdict == "ok"
    reference = plain_row(kind="ShapeRef", declared=True, outcome="Held")
    assert check_provider_configs([config, own_row, reference]).verdict == "ok"
    deleted_row = msgspec.structs.replace(config, declared=False)
    finding = check_provider_configs([deleted_row, own_row, unmanaged])
    assert (finding.verdict, finding.details) == ("warn", "1: default/Shape/foo (second)")


def test_held_resources_are_counted_by_reason() -> None:
    healthy = plain_row(declared=True, owned=True, outcome="Converged")
    assert check_holds([healthy]).verdict == "ok"
    held_rows = [plain_row(name=name, outcome="Held", reason="LossGuard") for name in ("a", "b")]
    dangling = plain_row(name="c", kind="ShapeRef", outcome="Held", reason="Dangling")
    finding = check_holds([healthy, dangling, *held_rows])
    assert finding.verdict == "warn"
    assert finding.details == (
        "3 (2 LossGuard, 1 Dangling), for example default/ShapeRef/c, default/Shape/a"
    )


def test_rows_that_differ_are_reported() -> None:
    old = _status(5)
    assert differences({"status.a.b.c": old}, {"status.a.b.c": old}) == []
    reported_differences = differences(
        {"status.a.b.c": old, "fleet": b"1", "ownership.a.b.c": b"2"},
        {"status.a.b.c": _status(4), "fleet": b"1", "status.a.b.d": old},
    )
    assert [(row.row, row.problem) for row in reported_differences] == [
        ("ownership.a.b.c", "missing"),
        ("status.a.b.c", "different"),
        ("status.a.b.d", "unexpected"),
    ]


def _status(position: int) -> bytes:
    return msgspec.json.encode(StatusRow("a", "b", "c", position=position))


def test_the_bus_comes_from_an_option_the_environment_or_a_running_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECONCILER_NATS_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with pytest.raises(
        ConfigurationError, match="no `reconciler up` is running in this directory; start"
    ):
        _ = BusOptions().url
    folder = tmp_path / "reconciler-data"
    folder.mkdir()
    up_file = UpFile("nats://127.0.0.1:5", None, os.getpid())
    (folder / "up.json").write_bytes(msgspec.json.encode(up_file))
    with (folder / "up.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert BusOptions().url == "nats://127.0.0.1:5"
    with pytest.raises(ConfigurationError, match="`reconciler up` in this directory has stopped;"):
        _ = BusOptions().url
    monkeypatch.setenv("RECONCILER_NATS_URL", "nats://env:4")
    assert BusOptions().url == "nats://env:4"
    assert BusOptions(nats_url="nats://given:4").url == "nats://given:4"


def test_the_up_file_of_a_killed_up_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have reused its pid."""
    up_file = UpFile("nats://x:1", None, os.getpid())
    (tmp_path / "up.json").write_bytes(msgspec.json.encode(up_file))
    assert read_up_file(tmp_path) is None
    with (tmp_path / "up.lock").open("ab") as lock:
        assert read_up_file(tmp_path) is None
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_up_file(tmp_path) == up_file
        monkeypatch.setattr("sys.platform", "win32")
        assert read_up_file(tmp_path) is None, "`up` does not run on Windows"
        monkeypatch.undo()
        (tmp_path / "up.json").write_text("{")
        assert read_up_file(tmp_path) is None


def test_an_excerpt_counts_the_omitted_items() -> None:
    assert list_first(["a", "b"]) == "a, b"
    assert list_first(list("abcde")) == "a, b, c and 2 more"
