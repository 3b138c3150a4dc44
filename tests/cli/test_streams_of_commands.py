"""Standard streams that are closed, full or without a reader; text with terminal controls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from rich.table import Table

from events.names import InvalidNameError
from reconciler.cli.console import console, print_table
from reconciler.cli.errors import format_error
from tests.cli.runner import COMMAND, Cli, Ran, shape

ESCAPE = "\x1b[31mred\x1b[0m\x07\x9b1m"


def in_shell(cli: Cli, line: str) -> Ran:
    """Run a line of bash, with ``reconciler`` in it."""
    process = subprocess.run(
        ["bash", "-c", f'reconciler() {{ {COMMAND[0]} -m reconciler "$@"; }}; {line}'],
        cwd=cli.folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=cli.environment(),
        check=False,
    )
    return Ran(process.returncode, process.stdout, process.stderr)


@pytest.mark.parametrize(
    ("command", "closed"), [("get -A", ">&-"), ("get -A", "<&- >&- 2>&-"), ("--help", ">&-")]
)
def test_closed_streams_are_no_error(live: Cli, command: str, closed: str) -> None:
    ran = in_shell(live, f"reconciler {command} {closed}")
    assert (ran.status, ran.err) == (0, "")


@pytest.mark.parametrize("command", ["get -A", "--help"])
def test_a_full_disk_under_the_output_is_reported_in_one_line(live: Cli, command: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    ran = in_shell(live, f"reconciler {command} > /dev/full")
    assert ran.status == 1
    assert ran.err.startswith("error: ")
    assert "No space left on device" in ran.err
    assert ran.err.count("\n") == 1


def test_a_refusal_counts_though_its_output_is_not_read(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("unread"))
    live.ok("apply", "-f", "-", "--wait", text=shape("unread", color="Blue"))
    live.write("unread.yaml", shape("unread", color="Green"))
    for command, status in (
        ("plan -f unread.yaml", 2),
        ("diff -f unread.yaml", 2),
        ("diff Shape unread --from-generation 1 --to-generation 2", 2),
        ("approve Shape unread --hold LossGuard", 1),
        ("approve --help", 0),
        ("secrets", 0),
    ):
        # `exec true` ends at once; what is written into the pipe from then on has no reader.
        ran = in_shell(
            live, f"(sleep 0.2; reconciler {command}; echo $? > status) | exec true; cat status"
        )
        assert (ran.out, ran.err) == (f"{status}\n", ""), command


@pytest.mark.parametrize("output", ["2>&1 | exec true", "> /dev/null 2> /dev/full"])
@pytest.mark.parametrize("command", ["apply -f unread.yaml", "apply -f unread.yaml --set unread"])
def test_a_declaration_counts_though_its_output_is_not_read(
    live: Cli, command: str, output: str, unique: str
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    first, second = unique.lower(), f"{unique.lower()}-too"
    live.write("unread.yaml", f"{shape(first)}---\n{shape(second)}")
    live.write("status", "")
    bus = json.loads((live.folder / "reconciler-data" / "up.json").read_text())["natsUrl"]
    ran = in_shell(
        live,
        f"(sleep 0.2; reconciler {command} --nats-url {bus}; echo $? > status) {output}; "
        "until [ -s status ]; do sleep 0.1; done; cat status",
    )
    assert (ran.out, ran.err) == ("0\n", "")
    live.ok("wait", "Shape", first, second)


@pytest.mark.parametrize("columns", ["0", "1", "20"])
def test_a_narrow_terminal_ends_no_command_in_a_loop(inside: Cli, columns: str) -> None:
    ran = inside.run("get", "--help", COLUMNS=columns)
    assert ran.status == 0
    assert "Usage" in ran.out


def test_control_characters_of_others_are_shown_and_do_nothing(
    live: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("escaped"))
    live.ok("finalizer", "add", "Shape", "escaped", "a")
    live.ok("finalizer", "remove", "Shape", "escaped", "a", "--reason", ESCAPE)
    for command in (("history", "escaped"), ("describe", "Shape/escaped")):
        output = live.ok(*command).out
        assert r"a (reason: \x1b[31mred\x1b[0m\x07\x9b1m" in output
        assert not set(output) & set("\x1b\x07\x9b")

    print_table(["A\x1b"], [[ESCAPE]])
    console().print(ESCAPE)
    assert "\x1b" not in capsys.readouterr().out
    assert "\x1b" not in format_error(InvalidNameError(ESCAPE))


def test_a_table_on_a_terminal_is_harmless_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[str] = []

    def add_row(_table: Table, *cells: object) -> None:
        rows.extend(map(str, cells))

    monkeypatch.setattr(Table, "add_row", add_row)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(["A"], [[ESCAPE]])
    assert rows == ["A", r"\x1b[31mred\x1b[0m\x07\x9b1m"]


def test_a_file_that_cannot_be_read_is_named_first(inside: Cli) -> None:
    ran = inside.run("restore", "not/there")
    assert (ran.status, ran.err) == (1, "error: not/there: No such file or directory\n")
