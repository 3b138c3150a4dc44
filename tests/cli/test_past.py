"""How it stood: `--at`, `--since` and `--until` of a log that is known, and its timeline."""

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
from tests.cli.runner import STOP_SECONDS, Cli, Inside, Ran

BEGAN = datetime(2026, 1, 2, 12, 0, 0, 123_456, tzinfo=UTC)
FOO = ResourceKey("default", "Shape", "foo")
BAR = ResourceKey("team", "Shape", "bar")


def at(position: int) -> datetime:
    """When the event at a position was."""
    return BEGAN + timedelta(minutes=position)


def shape_object(name: str, color: str) -> ExternalObject:
    return ExternalObject(name, {"type": "Square", "color": color}, f"uid-{name}", "1")


def declared(name: str, generation: int, color: str, **labels: str) -> SpecDeclared:
    fields = {"type": "Square", "color": color}
    return SpecDeclared(generation, "shapes/v1", "default", name, fields, labels)


def life(name: str, generation: int, color: str, **labels: str) -> Sequence[ResourceEvent]:
    """One generation, from its declaration until it has converged: four events."""
    operation = "Create" if generation == 1 else "Update"
    action = f"{name}@{generation}"
    fields = {"type": "Square", "color": color}
    return (
        declared(name, generation, color, **labels),
        ActionDecided(Action(action, action, operation, generation, "default", name, (), fields)),
        ActionSucceeded(action, operation, 1, shape_object(name, color)),
        OutcomeRecorded("Converged", generation, "AsDeclared"),
    )


STORY: tuple[tuple[ResourceKey, Sequence[ResourceEvent]], ...] = (
    (FOO, life("foo", 1, "Red", team="a")),  # 1 to 4
    (BAR, life("bar", 1, "Blue")),  # 5 to 8
    (FOO, life("foo", 2, "Purple")),  # 9 to 12
    (  # 13 and 14
        FOO,
        (
            ExternalObserved("default", "foo", shape_object("foo", "Green"), "Read", 7),
            DriftDetected(2, differences=(FieldDifference("color", "Purple", "Green"),)),
        ),
    ),
    (BAR, (SpecWithdrawn(2), OutcomeRecorded("Failed", 2, "Refused", "no"))),  # 15 and 16
)


class Past(Cli):
    """Commands on a server with a known log, where no role runs."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url
        self._inside = Inside(folder)

    def run(self, *arguments: str, text: str | None = None, **environment: str) -> Ran:
        environment = {"RECONCILER_NATS_URL": self.url, **environment}
        return self._inside.run(*arguments, text=text, **environment)

    def json(self, command: str) -> Any:
        return self.ok(*command.split(), "-o", "json").json


async def write(url: str) -> None:
    nc = await connect(url, name="test")
    await ensure_topology(nc)
    log = await open_log(nc)
    versions: dict[ResourceKey, int] = {}
    heads: dict[ResourceKey, int] = {}
    position = 0
    for key, what in STORY:
        for data in what:
            position += 1
            versions[key] = versions.get(key, 0) + 1
            actor = "cli:ann" if isinstance(data, SpecDeclared) else "reconciler@a"
            one = replace(event(key, versions[key], data), time=at(position), actor=actor)
            [heads[key]] = await log.append([ResourceAppend(key, [one], heads.get(key, 0))])
    await close(nc)


@contextmanager
def recorded_log(folder: Path) -> Generator[str]:
    """Run a server that has the story; gives its address."""
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
def past(url: str, tmp_path: Path) -> Past:
    return Past(tmp_path, url)


# --- get --at


def standing(past: Past, when: str, *more: str) -> dict[str, tuple[int, str]]:
    rows = past.ok("get", "-A", "--at", when, "-o", "json", *more).json
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
def test_the_fleet_is_shown_as_it_stood_at_a_position_and_at_its_time(
    past: Past, position: int, rows: dict[str, tuple[int, str]]
) -> None:
    assert standing(past, str(position)) == rows
    time_text = at(position).isoformat(timespec="milliseconds")  # as tables show it
    assert standing(past, time_text) == rows
    assert standing(past, time_text.replace("+00:00", "")) == rows  # without a zone it is UTC
    assert standing(past, str(at(position) + timedelta(seconds=30))) == rows
    an_hour_east = at(position) + timedelta(hours=1)
    assert standing(past, f"{an_hour_east:%Y-%m-%dT%H:%M:%S.%f}+01:00") == rows


def test_what_stood_is_what_a_fold_of_the_whole_log_says_of_each_position(past: Past) -> None:
    """A filter on the server, as for one namespace, changes no row."""
    for position in range(1, 17):
        everything = past.json(f"get -A --at {position}")
        for namespace, kind, name in (("default", "Shape", "foo"), ("team", "shapes", "bar")):
            some = [row for row in everything if row["metadata"]["name"] == name]
            assert past.json(f"get -n {namespace} --at {position}") == some
            if some:
                assert past.json(f"get {kind} {name} -n {namespace} --at {position}") == some[0]


def test_the_table_says_at_which_position_and_time_it_holds(past: Past) -> None:
    lines = past.ok("get", "--at", "4").out.splitlines()
    assert lines[0] == "as of position 4, 2026-01-02T12:04:00.123Z"
    assert lines[2].split()[:3] == ["Shape", "foo", "Converged"]
    lines = past.ok("get", "--at", "2026-01-02T12:04:30").out.splitlines()
    assert lines[0] == "as of 2026-01-02T12:04:30.000Z (position 4, at 2026-01-02T12:04:00.123Z)"
    newest = past.ok("get", "--at", "1s").out.splitlines()[0]
    assert newest.endswith(" (position 16, the newest event, at 2026-01-02T12:16:00.123Z)")
    for_programs = past.ok("get", "-o", "name", "--at", "4")
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
def test_a_moment_of_which_the_log_has_nothing_is_an_error_that_says_what_it_has(
    past: Past, when: str, status: int, message: str
) -> None:
    for command in (("get", "-A"), ("describe", "foo")):
        ran = past.run(*command, "--at", when)
        assert (ran.status, ran.out) == (status, "")
        assert message in ran.err
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1


def test_spans_are_added_up_and_lead_back_from_now(past: Past) -> None:
    age = datetime.now(UTC) - at(4)
    minutes = int(age.total_seconds() // 60) - 1  # a minute later than event 4, before event 5
    days, rest = divmod(minutes, 24 * 60)
    assert standing(past, f"{days}d{rest}m") in (
        {"foo": (1, "Converged")},
        {"foo": (1, "Converged"), "bar": (1, "")},  # the minute is over meanwhile
    )


def test_a_resource_that_did_not_exist_is_an_error_that_names_the_time(past: Past) -> None:
    ran = past.run("get", "Shape", "bar", "-n", "team", "--at", "4")
    assert ran.status == 1
    assert "Shape 'bar' did not exist in namespace team at position 4, 2026-01-02T12:04" in ran.err
    assert "`reconciler get -A --at 4`" in ran.err


# --- describe --at


def test_29_one_resource_and_what_we_owned_are_described_as_they_stood(past: Past) -> None:
    description = past.json("describe foo --at 4")
    assert description["spec"]["fields"]["color"] == "Red"
    assert description["status"]["position"] == description["asOf"]["position"] == 4
    assert description["ownership"]["owned"]
    assert description["observed"]["object"]["fields"]["color"] == "Red"
    assert [line["position"] for line in description["events"]] == [1, 2, 3, 4]
    assert past.json("describe foo --at 10")["action"]["operation"] == "Update"
    assert past.json("describe foo --at 13")["observed"]["object"]["fields"]["color"] == "Green"
    assert past.json("describe foo")["asOf"] is None
    lines = past.ok("describe", "foo", "--at", "4").out.splitlines()
    assert lines[:2] == ["default/Shape/foo", "as of position 4, 2026-01-02T12:04:00.123Z"]


def test_what_was_not_known_yet_is_not_described_as_nothing(past: Past) -> None:
    ran = past.run("describe", "bar", "--at", "4")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == (
        "error: team/Shape/bar did not exist yet at position 4, 2026-01-02T12:04:00.123Z: "
        "its history begins at position 5, 2026-01-02T12:05:00.123Z\n"
    )
    assert past.run("describe", "foo", "--at", "4", "--live").status == 2


# --- history --since --until


def positions(past: Past, command: str) -> list[int]:
    return [line["position"] for line in past.json(command)]


def test_a_history_cut_at_both_ends_reads_as_in_the_whole(past: Past) -> None:
    assert positions(past, "history foo --since 4 --until 10") == [4, 9, 10]
    assert positions(past, "history foo --since 2026-01-02T12:04:00.123Z --until 9") == [4, 9]
    assert positions(past, "history foo --until 2026-01-02T12:04:00.124Z") == [1, 2, 3, 4]
    assert positions(past, "history foo --since 2020-01-01 --limit 2") == [13, 14]
    assert positions(past, "history foo --until 2126-01-01 --since 13") == [13, 14]
    [line] = past.json("history foo --since 9 --until 9")
    assert line["what"] == (
        "ann declared generation 2, which changes color: Red → Purple, labels.team: a → removed"
    )
    raw = past.json("history foo --raw --since 9 --until 9")
    assert [one["data"]["event"] for one in raw] == ["SpecDeclared"]


def test_a_part_of_a_history_without_events_says_where_it_has_some(past: Past) -> None:
    ran = past.ok("history", "foo", "--since", "5", "--until", "8")
    assert ran.err == (
        "no events in this range: the history of default/Shape/foo covers "
        "position 1, 2026-01-02T12:01:00.123Z to position 14, 2026-01-02T12:14:00.123Z\n"
    )
    assert past.json("history foo --since 1m") == []


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
    past: Past, command: str, span: str, status: int, message: str
) -> None:
    ran = past.run(*command.split(), *span.split())
    assert (ran.status, ran.out) == (status, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


# --- events


@pytest.mark.parametrize(
    ("options", "found"),
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
def test_the_fleets_timeline_has_what_is_asked_for_newest_last(
    past: Past, monkeypatch: pytest.MonkeyPatch, options: str, found: list[int]
) -> None:
    assert positions(past, f"events {options}") == found
    monkeypatch.setattr("reconciler.sdk.timeline._FIRST_WINDOW", 1)  # looks that are much smaller
    monkeypatch.setattr("reconciler.sdk.timeline._WINDOW_GROWTH", 2)
    if "--limit" in options:
        assert positions(past, f"events {options}") == found


def test_an_event_is_described_with_the_declaration_before_it(past: Past) -> None:
    [line] = past.json("events --since 9 --until 9")
    assert line["resource"] == "default/Shape/foo"
    assert line["what"] == (
        "ann declared generation 2, which changes color: Red → Purple, labels.team: a → removed"
    )
    [line] = past.json("events --since 10 --until 10")  # not an orphan that is released
    assert line["what"] == "Reconciler decided to update foo with type: Square, color: Purple"


def test_the_timeline_is_a_table_with_time_place_and_a_sentence(past: Past) -> None:
    lines = past.ok("events", "--limit", "2").out.splitlines()
    assert lines[0].split() == ["TIME", "POSITION", "RESOURCE", "WHAT"]
    assert re.split(" {2,}", lines[1]) == [
        *("2026-01-02T12:15:00Z", "15", "team/Shape/bar"),
        "Reconciler withdrew the declaration, as generation 2",
    ]
    nothing = past.ok("events", "--outcome", "Deleted")
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
def test_a_wide_table_has_the_names_of_the_log_too(past: Past, command: str, headings: str) -> None:
    lines = past.ok(*command.split(), "-o", "wide").out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("TIME")]
    assert lines[at].split() == headings.split()
    assert lines[at + 1].startswith("2026-01-02T12:")
    assert " SpecWithdrawn " in "".join(lines[at + 1 :])
    assert " reconciler@a " in "".join(lines[at + 1 :])


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ("--outcome Bogus", 2, "--outcome Bogus: unknown outcome; use one of Converged, "),
        ("--outcome Rejected", 2, "--outcome Rejected: unknown outcome"),
        ("--event Bogus", 2, "--event Bogus: unknown event; use one of AbsenceDoubted, "),
        ("--event SpecDeclared --event Bogus", 2, "--event Bogus: unknown event"),
        ("--kind Shap", 1, "kind 'Shap' is unknown"),
        ("--kind Volume", 1, "the log contains no Volume; `reconciler get -A` lists"),
        ("-n nowhere", 1, "namespace nowhere never had a resource"),
        ("-n a.b", 2, "namespace 'a.b' is not allowed"),
        ("--limit 0", 2, "--limit 0: must be at least 1"),
        ("--limit=-1 -f", 2, "--limit -1: must be at least 1"),
        ("--limit 9999999999", 2, "--limit: must be at most 1000000000"),
        ("-f --until 4", 2, "--follow: not allowed with --until"),
    ],
)
def test_a_mistyped_name_is_an_error_and_no_empty_timeline(
    past: Past, options: str, status: int, message: str
) -> None:
    ran = past.run("events", *options.split())
    assert (ran.status, ran.out) == (status, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_limit_of_zero_events_is_refused(past: Past) -> None:
    ran = past.run("history", "one", "--limit", "0")
    assert (ran.status, ran.out) == (2, "")
    assert "--limit 0: must be at least 1" in ran.err


def test_the_timeline_is_followed_until_it_is_interrupted(cli: Cli) -> None:
    with recorded_log(cli.folder / "bus") as url:
        process = cli.start(
            *["events", "-f", "-n", "default", "--limit", "2", "-o", "json", "--nats-url"], url
        )
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline())["position"] for _ in range(2)]
        assert seen == [13, 14]
        asyncio.run(append(url, ResourceKey("default", "Late", "late")))
        assert json.loads(process.stdout.readline())["resource"] == "default/Late/late"
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=STOP_SECONDS)
        assert (process.returncode, err) == (0, "")


async def append(url: str, key: ResourceKey) -> None:
    nc = await connect(url, name="test")
    what = event(key, 1, declared(key.name, 1, "Red"))
    await (await open_log(nc)).append([ResourceAppend(key, [what], 0)])
    await close(nc)


# --- diff


def differences(past: Past, command: str) -> dict[tuple[str, str], tuple[Any, Any]]:
    ran = past.run(*command.split(), "-o", "json")
    assert ran.status == (2 if ran.json["changes"] else 0), ran
    return {
        (one["part"], one["path"]): (one.get("before"), one.get("after"))
        for one in ran.json["changes"]
    }


def test_changes_between_two_moments_are_listed_field_by_field(past: Past) -> None:
    assert differences(past, "diff foo --from 4 --to 12") == {
        ("declared", "metadata.labels.team"): ("a", None),
        ("declared", "spec.color"): ("Red", "Purple"),
        ("object", "fields.color"): ("Red", "Purple"),
        ("status", "generation"): (1, 2),
        ("status", "observedGeneration"): (1, 2),
    }
    assert differences(past, "diff foo --from 2026-01-02T12:12:30") == {
        ("object", "fields.color"): ("Purple", "Green"),
        ("status", "drifts"): (0, 1),
    }
    born = differences(past, "diff Shape bar --from 4 --to 8")
    assert born["declared", "spec.color"] == (None, "Blue")
    assert born["ownership", "owned"] == (False, True)
    withdrawn = differences(past, "diff bar --from 8")
    assert withdrawn["declared", "spec.color"] == ("Blue", None)
    assert withdrawn["status", "outcome"] == ("Converged", "Failed")
    assert differences(past, "diff foo --from 14 --to 16") == {}


def test_two_generations_are_compared_as_they_stood_in_the_end(past: Past) -> None:
    assert differences(past, "diff foo --from-generation 1 --to-generation 2") == differences(
        past, "diff foo --from 4 --to 14"
    )
    assert differences(past, "diff foo --from-generation 2 --to 14") == {}


def test_differences_are_a_table_that_says_between_which_moments(past: Past) -> None:
    ran = past.run("diff", "foo", "--from", "4", "--to", "12")
    assert ran.status == 2
    lines = ran.out.splitlines()
    assert lines[:3] == [
        "default/Shape/foo",
        "from position 4, 2026-01-02T12:04:00.123Z",
        "to   position 12, 2026-01-02T12:12:00.123Z",
    ]
    assert lines[3].split() == ["PART", "FIELD", "BEFORE", "AFTER"]
    assert ["declared", "metadata.labels.team", "a", "not", "set"] in map(str.split, lines)
    nothing = past.ok("diff", "foo", "--from", "16").out.splitlines()
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
def test_what_cannot_be_compared_is_an_error(past: Past, options: str, message: str) -> None:
    ran = past.run("diff", *options.split())
    assert (ran.status, ran.out) == (1, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_values_that_python_takes_for_the_same_are_different() -> None:
    def with_size(size: object) -> list[StoredEvent]:
        fields: dict[str, Any] = {"size": size, "empty": {}, "none": None}
        return [StoredEvent(1, event(FOO, 1, SpecDeclared(1, "v1", "default", "foo", fields)))]

    for one, another in ((1, True), (1, 1.0), (0, False), ([1], [True])):
        existing_changes = list(changes(FOO, with_size(one), with_size(another)))
        assert existing_changes == [Change("declared", "spec.size", one, another)]
        assert not list(changes(FOO, with_size(one), with_size(one)))
