"""`get`, and how all commands select resources."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import get_args

import pytest

from events.log import OutcomeName
from reconciler.cli.options import Filter
from reconciler.cli.selection import parse_selection
from tests.cli.runner import STOP_SECONDS, Cli, shape


@pytest.fixture
def teams(live: Cli, unique: str) -> str:
    """Declare two shapes, of teams a and b; return their namespace."""
    name = unique.lower()
    manifests = "".join(
        f"apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: {name}-{team}, namespace: {name}, "
        f"labels: {{team: {team}, tier: web}}, annotations: {{note: kept}}}}\n"
        "spec: {type: Square, color: Red, policy: {deletion: Orphan}}\n---\n"
        for team in ("a", "b")
    )
    live.ok("apply", "-f", "-", "--wait", text=manifests)
    return name


def names(live: Cli, *arguments: str) -> list[str]:
    return live.ok("get", *arguments, "-o", "name").out.split()


def test_an_unknown_outcome_is_an_error_that_names_the_known_ones(live: Cli) -> None:
    result = live.run("get", "-A", "--outcome", "Bogus")
    assert result.status == 2
    for outcome in {*get_args(OutcomeName), "Pending"} - {"Rejected"}:
        assert outcome in result.err


@pytest.mark.parametrize("outcome", ["converged", "Pending", "FAILED"])
def test_outcomes_are_case_insensitive(live: Cli, outcome: str) -> None:
    live.ok("get", "-A", "--outcome", outcome)


def test_a_kind_without_objects_has_no_ownership(live: Cli, teams: str) -> None:
    def owned_cell(*arguments: str) -> str:
        headings, row = live.ok("get", *arguments).out.splitlines()
        return row[headings.index("OWNED") :].split()[0]

    assert owned_cell("ProviderConfig", "default") == "-"
    assert owned_cell("Shape", f"{teams}-a", "-n", teams) == "yes"


def test_a_second_deletion_reports_the_earlier_withdrawal(live: Cli, teams: str) -> None:
    live.ok("delete", f"{teams}/Shape/{teams}-a", "--wait")
    row = live.ok("delete", f"{teams}/Shape/{teams}-a").out.splitlines()[1]
    assert row.split(maxsplit=4)[3:] == ["Unchanged", "the declaration was already withdrawn"]


# --- which resources


@pytest.mark.parametrize(
    "words",
    [
        ("{0}-a",),
        ("shape", "{0}-a", "-n", "{0}"),
        ("Shapes", "{0}-a", "-n", "{0}"),
        ("Shape/{0}-a", "-n", "{0}"),
        ("{0}/Shape/{0}-a",),
        ("-l", "team=a", "-n", "{0}"),
        ("-A", "-l", "team in (a, x),!none,tier", "{0}-a", "{0}-b"),
        ("-n", "{0}", "-l", "team!=b"),
        ("shape", "-n", "{0}", "-l", "team notin (b)"),
    ],
    ids=" ".join,
)
def test_a_resource_can_be_selected_in_every_form(
    live: Cli, teams: str, words: tuple[str, ...]
) -> None:
    arguments = [word.format(teams) for word in words]
    assert names(live, *arguments) == [f"{teams}/Shape/{teams}-a"]


def test_several_resources_can_be_selected_in_different_forms(live: Cli, teams: str) -> None:
    selected_names = names(live, f"{teams}-a", f"{teams}/Shape/{teams}-b")
    assert selected_names == [f"{teams}/Shape/{teams}-a", f"{teams}/Shape/{teams}-b"]


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("get Shpe", 1, "did you mean Shape?"),
        ("get Shape ghost", 1, "Shape 'ghost' does not exist in namespace default"),
        ("get Shape/ghost", 1, "Shape 'ghost' does not exist in namespace default"),
        ("get a/b/c/d", 2, "use NAME, KIND/NAME or NAMESPACE/KIND/NAME"),
        ("get -A -n team", 2, "--namespace and --all-namespaces: use only one of them"),
        ("get -l =a", 2, "--selector '=a': '=a' is not a condition"),
        ("get -l a,,b", 2, "is not a condition"),
        ("get -l !a=b", 2, "is not a condition"),
        ("get --at 1 --watch", 2, "--watch: not allowed with --at"),
        ("delete", 2, "delete: no resource given; use KIND NAME..."),
        ("delete Shape", 2, "delete: no Shape named; use at least one name, or -l LABELS"),
        ("delete -l team=nobody", 1, "nothing to delete"),
        ("wait", 2, "wait: no resource given; use KIND NAME..."),
        ("wait foo --for Bogus", 2, "--for Bogus: unknown outcome; use one of"),
        ("wait foo --for condition=", 2, "--for condition=: must name a type"),
        ("wait Shape ghost", 1, "default/Shape/ghost was never declared"),
        ("pause Shape", 2, "pause: no Shape named; use at least one name, or -l LABELS"),
    ],
)
def test_missing_and_ambiguous_names_are_reported(
    live: Cli, command: str, status: int, message: str
) -> None:
    result = live.run(*command.split())
    assert (result.status, result.out) == (status, "")
    assert message in result.err
    assert result.err.count("\n") == 1


# --- manifests


@pytest.mark.parametrize("output_format", ["json", "yaml"])
def test_applying_printed_manifests_changes_nothing(
    live: Cli, teams: str, output_format: str
) -> None:
    printed = live.ok("get", "-n", teams, "-o", output_format).out
    replies = live.ok("apply", "-f", "-", "-o", "json", text=printed).json
    assert [reply["reason"] for reply in replies] == ["Unchanged", "Unchanged"]
    (manifest, _) = live.ok("get", "-n", teams, "-o", "json").json
    assert manifest["spec"]["policy"] == {"deletion": "Orphan"}
    assert manifest["metadata"]["annotations"] == {"note": "kept"}
    assert manifest["status"]["outcome"] == "Converged"


def test_get_at_a_position_prints_the_manifest_of_that_time(live: Cli, teams: str) -> None:
    resource = f"{teams}/Shape/{teams}-a"
    manifest_before = live.ok("get", resource, "-o", "json").json
    changed = {**manifest_before, "spec": {**manifest_before["spec"], "color": "Blue"}}
    live.ok("apply", "-f", "-", "--wait", text=json.dumps(changed))
    earlier = live.ok(
        "get", resource, "-o", "json", "--at", str(manifest_before["status"]["position"])
    ).json
    assert (earlier["spec"]["color"], earlier["metadata"]["generation"]) == ("Red", 1)
    current = live.ok("get", resource, "-o", "json").json
    assert (current["spec"]["color"], current["metadata"]["generation"]) == ("Blue", 2)


# --- watching


def test_changes_are_printed_as_they_arrive(live: Cli, teams: str) -> None:
    process = live.start("get", "-n", teams, "-l", "team=a", "-w", "-o", "json")
    try:
        first = _read_row(process)
        assert first["status"]["outcome"] == "Converged"
        live.ok("delete", "-n", teams, "-l", "tier=web")
        while _read_row(process)["status"]["outcome"] != "Released":
            pass
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=STOP_SECONDS)
    assert (process.returncode, err) == (0, "")
    assert f"{teams}-b" not in out


def _read_row(process: subprocess.Popen[str]) -> dict[str, dict[str, str]]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_a_watched_table_has_one_heading_line(live: Cli, teams: str) -> None:
    process = live.start("get", "-n", teams, "-w")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    live.ok("apply", "-f", "-", text=shape(f"{teams}-c", namespace=teams))
    while "Converged" not in (line := process.stdout.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=STOP_SECONDS)
    assert lines[0].startswith("KIND")
    assert "KIND" not in line + out
    assert line.split()[:3] == ["Shape", f"{teams}-c", "Converged"]


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ((), "default.*.*"),
        (("shapes",), "default.Shape.*"),
        (("ProviderConfig",), "system.ProviderConfig.*"),
        (("Shape", "foo"), "default.Shape.foo"),
        (("shape/foo",), "default.Shape.foo"),
        (("team/shape/foo",), "team.Shape.foo"),
        (("team/gadget/foo",), "team.*.foo"),
        (("foo",), "*.*.*"),
        (("Shape", "foo", "bar"), "*.Shape.*"),
        (("Shape/foo", "File/bar"), "*.*.*"),
    ],
)
def test_only_the_selected_subjects_of_the_log_are_read(
    words: tuple[str, ...], pattern: str
) -> None:
    assert parse_selection(words).tokens == pattern


def test_a_namespace_narrows_the_subjects_that_are_read() -> None:
    assert parse_selection((), Filter(namespace="team")).tokens == "team.*.*"
    assert parse_selection(("foo",), Filter(namespace="team")).tokens == "team.*.*"
    assert parse_selection(("Shape", "a", "b"), Filter(namespace="team")).tokens == "team.Shape.*"
    assert parse_selection((), Filter(all_namespaces=True)).tokens == "*.*.*"
