"""`--at`, `--since`, `--until`, `events` and `diff` on a recorded log."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import (
    Action,
    ActionDecided,
    ActionSucceeded,
    DriftDetected,
    ExternalObserved,
    FieldDifference,
    OutcomeRecorded,
    ResourceEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.names import ResourceKey
from infra.bus.event_log import open_log
from infra.bus.streams import ensure_topology
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import close, connect
from reconciler.cli.past.diff import Change, changes
from reconciler.ports import ResourceAppend, StoredEvent
from tests.bus.histories import event
from tests.cli.runner import STOP_SECONDS, Cli, CommandResult, InProcessCli

START = datetime(2026, 1, 2, 12, 0, 0, 123_456, tzinfo=UTC)
FOO = ResourceKey("default", "Shape", "foo")
BAR = ResourceKey("team", "Shape", "bar")


def time_at(position: int) -> datetime:
    """Return the time of the event at ``position``."""
    return START + timedelta(minutes=position)


def shape_object(name: str, color: str) -> ExternalObject:
    return ExternalObject(name, {"type": "Square", "color": color}, f"uid-{name}", "1")


def build_declaration(name: str, generation: int, color: str, **labels: str) -> SpecDeclared:
    fields = {"type": "Square", "color": color}
    return SpecDeclared(generation, "shapes/v1", "default", name, fields, labels)


def build_generation(
    name: str, generation: int, color: str, **labels: str
) -> Sequence[ResourceEvent]:
    """Return the four events of a generation, from its declaration until it has converged."""
    operation = "Create" if generation == 1 else "Update"
    action = f"{name}@{generation}"
    fields = {"type": "Square", "color": color}
    return (
        build_declaration(name, generation, color, **labels),
        ActionDecided(Action(action, action, operation, generation, "default", name, (), fields)),
        ActionSucceeded(action, operation, 1, shape_object(name, color)),
        OutcomeRecorded("Converged", generation, "AsDeclared"),
    )


HISTORY: tuple[tuple[ResourceKey, Sequence[ResourceEvent]], ...] = (
    (FOO, build_generation("foo", 1, "Red", team="a")),  # 1 to 4
    (BAR, build_generation("bar", 1, "Blue")),  # 5 to 8
    (FOO, build_generation("foo", 2, "Purple")),  # 9 to 12
    (  # 13 and 14
        FOO,
        (
            ExternalObserved("default", "foo", shape_object("foo", "Green"), "Read", 7),
            DriftDetected(2, differences=(FieldDifference("color", "Purple", "Green"),)),
        ),
    ),
    (BAR, (SpecWithdrawn(2), OutcomeRecorded("Failed", 2, "Refused", "no"))),  # 15 and 16
)


class RecordedCli(Cli):
    """Commands on a server with a known log, where no role is running."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url
        self._in_process = InProcessCli(folder)

    def run(self, *arguments: str, text: str | None = None, **environment: str) -> CommandResult:
        environment = {"RECONCILER_NATS_URL": self.url, **environment}
        return self._in_process.run(*arguments, text=text, **environment)

    def json(self, command: str) -> Any:
        return self.ok(*command.split(), "-o", "json").json


async def write(url: str) -> None:
    nc = await connect(url, name="test")
    await ensure_topology(nc)
    log = await open_log(nc)
    versions: dict[ResourceKey, int] = {}
    heads: dict[ResourceKey, int] = {}
    position = 0
    for key, events in HISTORY:
        for data in events:
            position += 1
            versions[key] = versions.get(key, 0) + 1
            actor = "cli:ann" if isinstance(data, SpecDeclared) else "reconciler@a"
            entry = replace(event(key, versions[key], data), time=time_at(position), actor=actor)
            [heads[key]] = await log.append([ResourceAppend(key, [entry], heads.get(key, 0))])
    await close(nc)


@contextmanager
def recorded_log(folder: Path) -> Generator[str]:
    """Run a server with the recorded history; yield its URL."""
    server = EmbeddedServer()
    asyncio.run(server.start(folder))
    asyncio.run(write(server.url))
    yield server.url
    asyncio.run(server.stop())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with recorded_log(tmp_path_factory.mktemp("bus")) as url:
        yield url


@pytest.fixture
def log_cli(url: str, tmp_path: Path) -> RecordedCli:
    return RecordedCli(tmp_path, url)


# --- get --at


def list_rows(log_cli: RecordedCli, when: str, *more: str) -> dict[str, tuple[int, str]]:
    rows = log_cli.ok("get", "-A", "--at", when, "-o", "json", *more).json
    return {
        row["metadata"]["name"]: (row["metadata"]["generation"], row["status"].get("outcome", ""))
        for row in rows
    }


@pytest.mark.parametrize(
    ("position", "rows"),
    [
        (1, {"foo": (1, "")}),
        (4, {"foo": (1, "Converged")}),
        (5, {"foo": (1, "Converged"), "bar": (1, "")}),
        (9, {"foo": (2, "Converged"), "bar": (1, "Converged")}),
        (16, {"foo": (2, "Converged"), "bar": (2, "Failed")}),
    ],
)
def test_get_at_a_position_or_its_time_shows_the_rows_of_that_time(
    log_cli: RecordedCli, position: int, rows: dict[str, tuple[int, str]]
) -> None:
    assert list_rows(log_cli, str(position)) == rows
    time_text = time_at(position).isoformat(timespec="milliseconds")  # as tables show it
    assert list_rows(log_cli, time_text) == rows
    assert list_rows(log_cli, time_text.replace("+00:00", "")) == rows  # without a zone it is UTC
    assert list_rows(log_cli, str(time_at(position) + timedelta(seconds=30))) == rows
    an_hour_east = time_at(position) + timedelta(hours=1)
    assert list_rows(log_cli, f"{an_hour_east:%Y-%m-%dT%H:%M:%S.%f}+01:00") == rows


def test_filters_do_not_change_a_row_at_any_position(log_cli: RecordedCli) -> None:
    """A filter, such as one for a namespace, is applied on the server."""
    for position in range(1, 17):
        everything = log_cli.json(f"get -A --at {position}")
        for namespace, kind, name in (("default", "Shape", "foo"), ("team", "shapes", "bar")):
            matching_rows = [row for row in everything if row["metadata"]["name"] == name]
            assert log_cli.json(f"get -n {namespace} --at {position}") == matching_rows
            if matching_rows:
                assert (
                    log_cli.json(f"get {kind} {name} -n {namespace} --at {position}")
                    == matching_rows[0]
                )


def test_the_table_shows_its_position_and_time(log_cli: RecordedCli) -> None:
    lines = log_cli.ok("get", "--at", "4").out.splitlines()
    assert lines[0] == "as of position 4, 2026-01-02T12:04:00.123Z"
    assert lines[2].split()[:3] == ["Shape", "foo", "Converged"]
    lines = log_cli.ok("get", "--at", "2026-01-02T12:04:30").out.splitlines()
    assert lines[0] == "as of 2026-01-02T12:04:30.000Z (position 4, at 2026-01-02T12:04:00.123Z)"
    newest = log_cli.ok("get", "--at", "1s").out.splitlines()[0]
    assert newest.endswith(" (position 16, the newest event, at 2026-01-02T12:16:00.123Z)")
    for_programs = log_cli.ok("get", "-o", "name", "--at", "4")
    assert for_programs.out == "default/Shape/foo\n"
    assert for_programs.err == "as of position 4, 2026-01-02T12:04:00.123Z\n"


@pytest.mark.parametrize(
    ("when", "status", "message"),
    [
        ("0", 1, "position 0: must be at least 1"),
        (
            "17",
            1,
            "position 17: after the end of the log; its newest event is at position 16, from 2026",
        ),
        ("999999999999999999", 1, "position 999999999999999999: after the end of the log"),
        (
            "2026-01-02",
            1,
            "2026-01-02T00:00:00.000Z is before the start of the log, 2026-01-02T12:0",
        ),
        ("1000000d", 2, "is not a point in time"),
        ("5000w", 1, "is before the start of the log"),
        (
            "2126-01-01",
            1,
            "2126-01-01T00:00:00.000Z is in the future; the newest event of the log is",
        ),
        ("0001-01-01T00:00+14:00", 2, "is not a point in time"),
        ("2026-02-30", 2, "is not a point in time"),
        ("12:00", 2, "is not a point in time"),
        ("yesterday", 2, "use a log position (1234), a time (2026-01-31, "),
        ("2 h", 2, "or a duration before now (30m, 2h, 7d)"),
        ("", 2, "is not a point in time"),
        ("9" * 5000, 2, "is not a point in time"),
        ("٣", 2, "is not a point in time"),
        ("1.5", 2, "is not a point in time"),
    ],
)
def test_a_time_outside_the_log_is_an_error_that_states_the_range(
    log_cli: RecordedCli, when: str, status: int, message: str
) -> None:
    for command in (("get", "-A"), ("describe", "foo")):
        result = log_cli.run(*command, "--at", when)
        assert (result.status, result.out) == (status, "")
        assert message in result.err
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1


def test_the_units_of_a_duration_before_now_add_up(log_cli: RecordedCli) -> None:
    age = datetime.now(UTC) - time_at(4)
    minutes = int(age.total_seconds() // 60) - 1  # a minute later than event 4, before event 5
    days, rest = divmod(minutes, 24 * 60)
    assert list_rows(log_cli, f"{days}d{rest}m") in (
        {"foo": (1, "Converged")},
        {"foo": (1, "Converged"), "bar": (1, "")},  # if the minute has passed by now
    )


def test_a_resource_that_did_not_exist_is_an_error_that_names_the_time(
    log_cli: RecordedCli,
) -> None:
    result = log_cli.run("get", "Shape", "bar", "-n", "team", "--at", "4")
    assert result.status == 1
    assert (
        "Shape 'bar' did not exist in namespace team at position 4, 2026-01-02T12:04" in result.err
    )
    assert "`reconciler get -A --at 4`" in result.err


# --- describe --at


def test_29_describe_at_a_position_shows_the_resource_and_its_ownership(
    log_cli: RecordedCli,
) -> None:
    description = log_cli.json("describe foo --at 4")
    assert description["spec"]["fields"]["color"] == "Red"
    assert description["status"]["position"] == description["asOf"]["position"] == 4
    assert description["ownership"]["owned"]
    assert description["observed"]["object"]["fields"]["color"] == "Red"
    assert [line["position"] for line in description["events"]] == [1, 2, 3, 4]
    assert log_cli.json("describe foo --at 10")["action"]["operation"] == "Update"
    assert log_cli.json("describe foo --at 13")["observed"]["object"]["fields"]["color"] == "Green"
    assert log_cli.json("describe foo")["asOf"] is None
    lines = log_cli.ok("describe", "foo", "--at", "4").out.splitlines()
    assert lines[:2] == ["default/Shape/foo", "as of position 4, 2026-01-02T12:04:00.123Z"]


def test_describe_before_the_first_event_is_an_error(log_cli: RecordedCli) -> None:
    result = log_cli.run("describe", "bar", "--at", "4")
    assert (result.status, result.out) == (1, "")
    assert result.err == (
        "error: team/Shape/bar did not exist yet at position 4, 2026-01-02T12:04:00.123Z: "
        "its history begins at position 5, 2026-01-02T12:05:00.123Z\n"
    )
    assert log_cli.run("describe", "foo", "--at", "4", "--live").status == 2


# --- history --since --until


def positions(log_cli: RecordedCli, command: str) -> list[int]:
    return [line["position"] for line in log_cli.json(command)]


def test_a_range_of_a_history_has_the_same_lines_as_the_whole_history(log_cli: RecordedCli) -> None:
    assert positions(log_cli, "history foo --since 4 --until 10") == [4, 9, 10]
    assert positions(log_cli, "history foo --since 2026-01-02T12:04:00.123Z --until 9") == [4, 9]
    assert positions(log_cli, "history foo --until 2026-01-02T12:04:00.124Z") == [1, 2, 3, 4]
    assert positions(log_cli, "history foo --since 2020-01-01 --limit 2") == [13, 14]
    assert positions(log_cli, "history foo --until 2126-01-01 --since 13") == [13, 14]
    [line] = log_cli.json("history foo --since 9 --until 9")
    assert line["what"] == (
        "ann declared generation 2, which changes color: Red → Purple, labels.team: a → removed"
    )
    raw = log_cli.json("history foo --raw --since 9 --until 9")
    assert [line["data"]["event"] for line in raw] == ["SpecDeclared"]


def test_a_range_without_events_names_the_range_of_the_history(log_cli: RecordedCli) -> None:
    result = log_cli.ok("history", "foo", "--since", "5", "--until", "8")
    assert result.err == (
        "no events in this range: the history of default/Shape/foo covers "
        "position 1, 2026-01-02T12:01:00.123Z to position 14, 2026-01-02T12:14:00.123Z\n"
    )
    assert log_cli.json("history foo --since 1m") == []


@pytest.mark.parametrize("command", ["history foo", "events"])
@pytest.mark.parametrize(
    ("span", "status", "message"),
    [
        ("--since 9 --until 4", 1, "the end is before the start"),
        ("--since 2026-01-02T12:09:30 --until 2026-01-02T12:09:10", 1, "before the start"),
        ("--since 17", 1, "position 17: after the end of the log"),
        ("--until 17", 1, "position 17: after the end of the log"),
        ("--since 2126-01-01", 1, "is in the future"),
        ("--until 2020-01-01", 1, "is before the start of the log"),
        ("--since soon", 2, "'soon' is not a point in time"),
    ],
)
def test_an_impossible_span_is_an_error(
    log_cli: RecordedCli, command: str, span: str, status: int, message: str
) -> None:
    result = log_cli.run(*command.split(), *span.split())
    assert (result.status, result.out) == (status, "")
    assert message in result.err
    assert result.err.count("\n") == 1


# --- events


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", [*range(1, 17)]),
        ("--limit 3", [14, 15, 16]),
        ("-n team", [5, 6, 7, 8, 15, 16]),
        ("-n team --limit 3", [8, 15, 16]),
        ("--kind shapes --since 14", [14, 15, 16]),
        ("--outcome converged", [4, 8, 12]),
        ("--outcome Converged -n team", [8]),
        ("--outcome Deleted", []),
        ("--actor cli:ann", [1, 5, 9]),
        ("--actor cli:*", [1, 5, 9]),
        ("--actor cli", []),
        ("--actor cli:ann --until 8 --limit 1", [5]),
        ("--since 2026-01-02T12:09:00Z --until 10", [9, 10]),
        ("--event SpecWithdrawn", [15]),
        ("--event specdeclared --limit 2", [5, 9]),
        ("--event SpecDeclared --event SpecWithdrawn -n team", [5, 15]),
        ("--event OutcomeRecorded --outcome Converged", [4, 8, 12]),
        ("--event SpecDeclared --outcome Converged", []),
        ("--event SpecDeclared --actor cli:ann --since 6", [9]),
    ],
)
def test_events_lists_the_matching_events_newest_last(
    log_cli: RecordedCli, monkeypatch: pytest.MonkeyPatch, options: str, expected: list[int]
) -> None:
    assert positions(log_cli, f"events {options}") == expected
    monkeypatch.setattr("reconciler.sdk.timeline._FIRST_WINDOW", 1)  # much smaller reads
    monkeypatch.setattr("reconciler.sdk.timeline._WINDOW_GROWTH", 2)
    if "--limit" in options:
        assert positions(log_cli, f"events {options}") == expected


def test_an_event_is_described_with_the_declaration_before_it(log_cli: RecordedCli) -> None:
    [line] = log_cli.json("events --since 9 --until 9")
    assert line["resource"] == "default/Shape/foo"
    assert line["what"] == (
        "ann declared generation 2, which changes color: Red → Purple, labels.team: a → removed"
    )
    [line] = log_cli.json("events --since 10 --until 10")  # not an orphan that is released
    assert line["what"] == "Reconciler decided to update foo with type: Square, color: Purple"


def test_the_timeline_is_a_table_with_time_position_and_sentence(log_cli: RecordedCli) -> None:
    lines = log_cli.ok("events", "--limit", "2").out.splitlines()
    assert lines[0].split() == ["TIME", "POSITION", "RESOURCE", "WHAT"]
    assert re.split(" {2,}", lines[1]) == [
        *("2026-01-02T12:15:00Z", "15", "team/Shape/bar"),
        "Reconciler withdrew the declaration, as generation 2",
    ]
    nothing = log_cli.ok("events", "--outcome", "Deleted")
    assert (nothing.out, nothing.err) == ("", "no events match\n")


@pytest.mark.parametrize(
    ("command", "headings"),
    [
        ("events --limit 2", "TIME POSITION RESOURCE VERSION EVENT CAUSE ACTOR WHAT"),
        ("history bar --limit 2", "TIME POSITION VERSION EVENT CAUSE ACTOR WHAT"),
        ("describe bar --events 2", "TIME POSITION VERSION EVENT CAUSE ACTOR WHAT"),
        ("why bar", "TIME POSITION VERSION EVENT CAUSE ACTOR WHAT"),
    ],
)
def test_a_wide_table_also_has_the_fields_of_the_log_event(
    log_cli: RecordedCli, command: str, headings: str
) -> None:
    lines = log_cli.ok(*command.split(), "-o", "wide").out.splitlines()
    (heading,) = [number for number, line in enumerate(lines) if line.startswith("TIME")]
    assert lines[heading].split() == headings.split()
    assert lines[heading + 1].startswith("2026-01-02T12:")
    assert " SpecWithdrawn " in "".join(lines[heading + 1 :])
    assert " reconciler@a " in "".join(lines[heading + 1 :])


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ("--outcome Bogus", 2, "--outcome Bogus: unknown outcome; use one of Converged, "),
        ("--outcome Rejected", 2, "--outcome Rejected: unknown outcome"),
        ("--event Bogus", 2, "--event Bogus: unknown event; use one of AbsenceDoubted, "),
        ("--event SpecDeclared --event Bogus", 2, "--event Bogus: unknown event"),
        ("--kind Shap", 1, "kind 'Shap' is unknown"),
        ("--kind Volume", 1, "the log contains no Volume; `reconciler get -A` lists"),
        ("-n nowhere", 1, "namespace nowhere has never had a resource"),
        ("-n a.b", 2, "namespace 'a.b' is not allowed"),
        ("--limit 0", 2, "--limit 0: must be at least 1"),
        ("--limit=-1 -f", 2, "--limit -1: must be at least 1"),
        ("--limit 9999999999", 2, "--limit: must be at most 1000000000"),
        ("-f --until 4", 2, "--follow: not allowed with --until"),
    ],
)
def test_a_mistyped_name_is_an_error_and_not_an_empty_timeline(
    log_cli: RecordedCli, options: str, status: int, message: str
) -> None:
    result = log_cli.run("events", *options.split())
    assert (result.status, result.out) == (status, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_limit_of_zero_events_is_refused(log_cli: RecordedCli) -> None:
    result = log_cli.run("history", "one", "--limit", "0")
    assert (result.status, result.out) == (2, "")
    assert "--limit 0: must be at least 1" in result.err


def test_the_timeline_is_followed_until_it_is_interrupted(cli: Cli) -> None:
    with recorded_log(cli.folder / "bus") as url:
        process = cli.start(
            *["events", "-f", "-n", "default", "--limit", "2", "-o", "json", "--nats-url"], url
        )
        assert process.stdout is not None
        first_positions = [json.loads(process.stdout.readline())["position"] for _ in range(2)]
        assert first_positions == [13, 14]
        asyncio.run(append(url, ResourceKey("default", "Late", "late")))
        assert json.loads(process.stdout.readline())["resource"] == "default/Late/late"
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=STOP_SECONDS)
        assert (process.returncode, err) == (0, "")


async def append(url: str, key: ResourceKey) -> None:
    nc = await connect(url, name="test")
    late_event = event(key, 1, build_declaration(key.name, 1, "Red"))
    await (await open_log(nc)).append([ResourceAppend(key, [late_event], 0)])
    await close(nc)


# --- diff


def differences(log_cli: RecordedCli, command: str) -> dict[tuple[str, str], tuple[Any, Any]]:
    result = log_cli.run(*command.split(), "-o", "json")
    assert result.status == (2 if result.json["changes"] else 0), result
    return {
        (change["part"], change["path"]): (change.get("before"), change.get("after"))
        for change in result.json["changes"]
    }


def test_changes_between_two_times_are_listed_field_by_field(log_cli: RecordedCli) -> None:
    assert differences(log_cli, "diff foo --from 4 --to 12") == {
        ("declared", "metadata.labels.team"): ("a", None),
        ("declared", "spec.color"): ("Red", "Purple"),
        ("object", "fields.color"): ("Red", "Purple"),
        ("status", "generation"): (1, 2),
        ("status", "observedGeneration"): (1, 2),
    }
    assert differences(log_cli, "diff foo --from 2026-01-02T12:12:30") == {
        ("object", "fields.color"): ("Purple", "Green"),
        ("status", "drifts"): (0, 1),
    }
    creation = differences(log_cli, "diff Shape bar --from 4 --to 8")
    assert creation["declared", "spec.color"] == (None, "Blue")
    assert creation["ownership", "owned"] == (False, True)
    withdrawal = differences(log_cli, "diff bar --from 8")
    assert withdrawal["declared", "spec.color"] == ("Blue", None)
    assert withdrawal["status", "outcome"] == ("Converged", "Failed")
    assert differences(log_cli, "diff foo --from 14 --to 16") == {}


def test_generations_are_compared_by_their_last_states(log_cli: RecordedCli) -> None:
    assert differences(log_cli, "diff foo --from-generation 1 --to-generation 2") == differences(
        log_cli, "diff foo --from 4 --to 14"
    )
    assert differences(log_cli, "diff foo --from-generation 2 --to 14") == {}


def test_the_table_of_differences_shows_both_times(log_cli: RecordedCli) -> None:
    result = log_cli.run("diff", "foo", "--from", "4", "--to", "12")
    assert result.status == 2
    lines = result.out.splitlines()
    assert lines[:3] == [
        "default/Shape/foo",
        "from position 4, 2026-01-02T12:04:00.123Z",
        "to   position 12, 2026-01-02T12:12:00.123Z",
    ]
    assert lines[3].split() == ["PART", "FIELD", "BEFORE", "AFTER"]
    assert ["declared", "metadata.labels.team", "a", "not", "set"] in map(str.split, lines)
    nothing = log_cli.ok("diff", "foo", "--from", "16").out.splitlines()
    assert nothing[2].endswith(", the newest event")
    assert nothing[3] == "no differences"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("foo", "--from and --from-generation: use exactly one of them"),
        ("foo --from 1 --from-generation 1", "--from and --from-generation: use exactly one"),
        ("foo --from 1 --to 2 --to-generation 1", "--to and --to-generation: use only one"),
        ("foo --from 17", "position 17: after the end of the log"),
        ("foo --from 2020-01-01", "is before the start of the log"),
        (
            "foo --from-generation 7",
            "default/Shape/foo has no generation 7; declared generations: 1, 2",
        ),
        ("bar --from 1 --to 4", "existed at neither time; its first event is at position 5"),
        ("ghost --from 1", "the log has no resource 'ghost'"),
    ],
)
def test_an_impossible_comparison_is_an_error(
    log_cli: RecordedCli, options: str, message: str
) -> None:
    result = log_cli.run("diff", *options.split())
    assert (result.status, result.out) == (1, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_values_that_python_considers_equal_are_different() -> None:
    def with_size(size: object) -> list[StoredEvent]:
        fields: dict[str, Any] = {"size": size, "empty": {}, "none": None}
        return [StoredEvent(1, event(FOO, 1, SpecDeclared(1, "v1", "default", "foo", fields)))]

    for first, second in ((1, True), (1, 1.0), (0, False), ([1], [True])):
        actual_changes = list(changes(FOO, with_size(first), with_size(second)))
        assert actual_changes == [Change("declared", "spec.size", first, second)]
        assert not list(changes(FOO, with_size(first), with_size(first)))
