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
from tests.cli.runner import COMMAND, Cli, CommandResult, shape

ESCAPE = "\x1b[31mred\x1b[0m\x07\x9b1m"


def run_in_shell(cli: Cli, line: str) -> CommandResult:
    """Run a line of bash in which ``reconciler`` is a function."""
    process = subprocess.run(
        ["bash", "-c", f'reconciler() {{ {COMMAND[0]} -m reconciler "$@"; }}; {line}'],
        cwd=cli.folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=cli.environment(),
        check=False,
    )
    return CommandResult(process.returncode, process.stdout, process.stderr)


@pytest.mark.parametrize(
    ("command", "redirection"), [("get -A", ">&-"), ("get -A", "<&- >&- 2>&-"), ("--help", ">&-")]
)
def test_closed_streams_are_not_an_error(live: Cli, command: str, redirection: str) -> None:
    result = run_in_shell(live, f"reconciler {command} {redirection}")
    assert (result.status, result.err) == (0, "")


@pytest.mark.parametrize("command", ["get -A", "--help"])
def test_output_to_a_full_disk_is_reported_in_one_line(live: Cli, command: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    result = run_in_shell(live, f"reconciler {command} > /dev/full")
    assert result.status == 1
    assert result.err.startswith("error: ")
    assert "No space left on device" in result.err
    assert result.err.count("\n") == 1


def test_the_exit_status_is_correct_even_if_the_output_is_not_read(live: Cli) -> None:
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
        # `exec true` exits immediately, so later writes into the pipe have no reader.
        result = run_in_shell(
            live, f"(sleep 0.2; reconciler {command}; echo $? > status) | exec true; cat status"
        )
        assert (result.out, result.err) == (f"{status}\n", ""), command


@pytest.mark.parametrize("output", ["2>&1 | exec true", "> /dev/null 2> /dev/full"])
@pytest.mark.parametrize("command", ["apply -f unread.yaml", "apply -f unread.yaml --set unread"])
def test_a_declaration_succeeds_even_if_the_output_is_not_read(
    live: Cli, command: str, output: str, unique: str
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    first, second = unique.lower(), f"{unique.lower()}-too"
    live.write("unread.yaml", f"{shape(first)}---\n{shape(second)}")
    live.write("status", "")
    bus = json.loads((live.folder / "reconciler-data" / "up.json").read_text())["natsUrl"]
    result = run_in_shell(
        live,
        f"(sleep 0.2; reconciler {command} --nats-url {bus}; echo $? > status) {output}; "
        "until [ -s status ]; do sleep 0.1; done; cat status",
    )
    assert (result.out, result.err) == ("0\n", "")
    live.ok("wait", "Shape", first, second)


@pytest.mark.parametrize("columns", ["0", "1", "20"])
def test_help_works_on_a_narrow_terminal(local_cli: Cli, columns: str) -> None:
    result = local_cli.run("get", "--help", COLUMNS=columns)
    assert result.status == 0
    assert "Usage" in result.out


def test_control_characters_from_other_users_are_escaped(
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


def test_a_table_on_a_terminal_escapes_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[str] = []

    def add_row(_table: Table, *cells: object) -> None:
        rows.extend(map(str, cells))

    monkeypatch.setattr(Table, "add_row", add_row)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(["A"], [[ESCAPE]])
    assert rows == ["A", r"\x1b[31mred\x1b[0m\x07\x9b1m"]


def test_restore_names_an_unreadable_file_before_it_connects(local_cli: Cli) -> None:
    result = local_cli.run("restore", "not/there")
    assert (result.status, result.err) == (1, "error: not/there: No such file or directory\n")
