"""Output for users: durations, tables, errors and help."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from cyclopts import App, Argument, Token

from infra.jetstream.errors import BusUnavailableError
from reconciler.cli.app import build_app
from reconciler.cli.client import RetryNotice
from reconciler.cli.commands import COMMANDS, first_page
from reconciler.cli.console import colored, console, print_table
from reconciler.cli.errors import UsageError, format_error, report
from reconciler.cli.exits import Exit
from reconciler.cli.main import main
from reconciler.cli.options import parse_duration
from reconciler.cli.output import as_yaml
from reconciler.cli.results import Result, exit_status
from reconciler.errors import WaitTimeoutError

COLUMNS = 80
SUBCOMMANDS = (
    "config view",
    "deadletters list",
    "deadletters show",
    "deadletters retry",
    "deadletters dismiss",
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("2m", 120), ("1.5h", 5400), ("7", 7)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "-1s", "s", "1 s"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["87601h", "9" * 400 + "s"])
def test_a_duration_that_exceeds_the_range_of_dates_is_refused(text: str) -> None:
    assert parse_duration("87600h") == 315_360_000
    with pytest.raises(UsageError, match="must be at most 87600h"):
        parse_duration(text)


def test_a_table_in_a_pipe_is_fit_for_awk(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "MESSAGE"), [("a", colored("Failed")), ("longer", "x" * 300)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["NAME    MESSAGE", "a       Failed", f"longer  {'x' * 300}"]


def test_output_without_a_terminal_has_no_color(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("ready", style="bold green")
    assert capsys.readouterr().out == "ready\n"


def test_yaml_keeps_the_order_of_keys() -> None:
    assert as_yaml({"b": 1, "a": ["x"]}) == "b: 1\na:\n- x\n"


def test_each_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup(
        "many", [BusUnavailableError("away\nfrom here"), ExceptionGroup("in", [KeyError("x")])]
    )
    assert report(group) == Exit.FAILED
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: away from here"
    assert lines[1].startswith(
        "error: unexpected KeyError: 'x'; this is a bug. "
        "Please report it with the output of --debug"
    )


def test_a_timeout_has_its_own_exit_status() -> None:
    assert report(WaitTimeoutError("late")) == Exit.TIMEOUT
    assert format_error(WaitTimeoutError("late")) == "late"


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([Result("a", True, "", outcome="Converged")], Exit.OK),
        ([Result("a", True, "", outcome="Failed")], Exit.FAILED),
        ([Result("a", False, "Invalid")], Exit.FAILED),
        ([Result("a", True, "", timed_out=True)], Exit.TIMEOUT),
        ([Result("a", True, "", timed_out=True), Result("b", True, "", outcome="Failed")], 1),
    ],
)
def test_the_worst_result_determines_the_exit_status(results: list[Result], status: int) -> None:
    assert exit_status(results, ("Converged",)) == status


def test_the_help_overview_names_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"  {name} " in output for name, *_ in COMMANDS)
    assert max(map(len, first_page().splitlines())) <= COLUMNS


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from reconciler.cli.main import main; main(['--help']);"
        "print([m for m in ('cyclopts', 'rich', 'nats', 'msgspec') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [*(name for name, *_ in COMMANDS), *SUBCOMMANDS])
def test_every_command_has_help_with_examples_that_fits_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(2 * COLUMNS))
    assert main([*command.split(), "--help"]) == 0
    output = capsys.readouterr().out
    description = output.partition("╭")[0]
    assert max(map(len, description.splitlines())) <= COLUMNS
    assert output.startswith(f"Usage: reconciler {command}")
    assert f"    reconciler {command}" in output
    assert "For example:" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aply"], "unknown command 'aply': did you mean apply?"),
        (["xyzzy"], "unknown command 'xyzzy': the commands are up, init"),
        (["get", "--outputt", "json"], "--outputt"),
        (["get", "-o", "xml"], 'Invalid value "xml"'),
        (["run", "cook"], 'Invalid value "cook"'),
        (["run", "x\x1b[31m\x9b"], 'Invalid value "x\\x1b[31m\\x9b"'),
        (["--x\x1b[31m"], 'Unknown command "--x\\x1b[31m"'),
        (["apply"], "reconciler apply --help"),
        (["apply", "-f", "x", "--timeout", "5x"], "'5x' is not a duration"),
        (["init", "--replicas", "9"], "--replicas 9: must be 1 to 5"),
        (["up", "--replicas", "0"], "--replicas 0: must be 1 to 5"),
        (["init", "--replicas", "9" * 20], "must be an integer with at most 18 digits"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == Exit.USAGE
    error_text = capsys.readouterr().err
    assert message in error_text
    assert error_text.startswith("error: ")
    assert error_text.count("\n") == 1


@pytest.mark.parametrize("arguments", [["x"], ["get", "-o", "x"], ["--x"], ["run", "worker", "x"]])
def test_a_long_argument_is_shortened_in_the_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments[:-1], arguments[-1] + "y" * 100_000]) == Exit.USAGE
    error_text = capsys.readouterr().err
    assert "more characters" in error_text
    assert len(error_text) < 5_000


def _integers(app: App) -> Iterator[Argument]:
    """Yield every option and argument that takes integers."""
    for name in app:
        if not name.startswith("-"):
            yield from _integers(app[name])
    if app.default_command is not None:
        for argument in app.assemble_argument_collection():
            if re.search(r"\bint\b", str(argument.hint)) and "datetime" not in str(argument.hint):
                yield argument


def test_no_fraction_is_rounded_to_an_integer() -> None:
    integer_options = list(_integers(build_app()))
    assert {option.name for option in integer_options} >= {
        "--replicas",
        "--port",
        "--limit",
        "NUMBERS",
    }
    for option in integer_options:
        convert = cast("Callable[..., object] | None", option.parameter.converter)
        assert convert is not None, f"{option.name}: use `Integer`"
        with pytest.raises(UsageError, match=r"'1.5': must be an integer"):
            convert(option.hint, [Token(keyword=option.name, value="1.5")])


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()[0].isdigit()


def test_a_command_reports_once_that_its_messages_are_not_confirmed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notice = RetryNotice()
    notice(2)
    notice(1)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("waiting: the server has not confirmed 2 messages")
    assert "full or missing" in line
