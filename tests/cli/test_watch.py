"""`watch` reports unknown names immediately, and shows drift between the outcomes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.cli.runner import STOP_SECONDS, Cli, Up, shape


def read_lines_until(
    process: subprocess.Popen[str], is_last: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Read JSON lines until ``is_last``; then stop the process, which must succeed."""
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    for line in process.stdout:
        lines.append(json.loads(line))
        if is_last(lines[-1]):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0
    return lines


def summarize(line: dict[str, Any]) -> str:
    return line.get("outcome") or f"drift: {line['drift']}"


@pytest.mark.parametrize("command", ["watch Shap", "watch Shap foo", "watch fo --since-start"])
def test_an_unknown_kind_is_an_error_with_a_hint(live: Cli, command: str) -> None:
    result = live.run(*command.split())
    assert result.status == 1
    assert result.err.startswith(
        f"error: {command.split()[1]!r} is neither a kind nor the name of a res"
    )
    hint = "Shape" if "Shap" in command else "`reconciler kinds` lists the kinds"
    assert hint in result.err


@pytest.mark.parametrize(
    "arguments",
    ["Shape not-declared-yet", "default/Shape/ghost"],
)
def test_an_unknown_name_is_reported_immediately(live: Cli, arguments: str) -> None:
    process = live.start("watch", *arguments.split())
    assert process.stderr is not None
    assert "no events in the log yet" in process.stderr.readline()
    assert process.poll() is None  # a watch may start before the declaration
    process.send_signal(signal.SIGINT)
    assert process.wait(STOP_SECONDS) == 0


def test_a_watch_that_starts_first_shows_later_declarations(live: Cli) -> None:
    process = live.start("watch", "Shape", "later", "-o", "json")
    assert process.stderr is not None
    process.stderr.readline()
    live.ok("apply", "-f", "-", "--wait", text=shape("later"))
    live.ok("apply", "-f", "-", "--wait", text=shape("later-too"))
    live.ok("delete", "Shape", "later", "--wait")
    lines = read_lines_until(process, lambda line: line["outcome"] == "Deleted")
    assert {line["resource"] for line in lines} == {"default/Shape/later"}
    assert [line["outcome"] for line in lines] == ["Converged", "Deleted"]


def test_drift_is_shown_between_the_outcomes(live: Cli, running_up: tuple[Cli, Up]) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("drifts-away"))
    process = live.start("watch", "Shape", "drifts-away", "--since-start", "-o", "json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    httpx.delete(f"{running_up[1].ready['apiUrl']}/shapes/drifts-away").raise_for_status()
    lines = read_lines_until(process, lambda line: line.get("outcome") == "Converged")
    assert list(map(summarize, [first, *lines])) == [
        "Converged",
        "drift: The object was deleted outside of Reconciler",
        "Converged",
    ]
    assert [line["generation"] for line in lines] == [1, 1]

    second_process = live.start("watch", "Shape", "drifts-away", "--since-start")
    assert second_process.stdout is not None
    output_lines = [second_process.stdout.readline() for _ in [*lines, first]]
    second_process.send_signal(signal.SIGINT)
    second_process.communicate(timeout=STOP_SECONDS)
    assert [line.split()[2] for line in output_lines] == ["Converged", "Drift", "Converged"]
    assert "generation 1  The object was deleted outside of Reconciler" in output_lines[1]


@pytest.mark.parametrize("command", ["watch -n nowhere", "get -n nowhere", "events -n nowhere"])
def test_an_unknown_namespace_is_an_error_that_names_the_known_ones(
    live: Cli, command: str
) -> None:
    result = live.run(*command.split())
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(
        "error: namespace nowhere has never had a resource; the namespaces are: "
    )
    assert "default" in result.err


def test_a_rejected_declaration_is_also_shown(live: Cli) -> None:
    live.run("apply", "-f", "-", "--validate", "server", text=shape("refused", "Mauve"))
    process = live.start("watch", "Shape", "refused", "--since-start", "-o", "json")
    assert summarize(read_lines_until(process, lambda _line: True)[0]) == "Rejected"
