"""Failpoints: how they are armed, when they act, and the errors for invalid ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from infra.embedded import EmbeddedServer
from reconciler.errors import ConfigurationError
from reconciler.failpoints import (
    VARIABLE,
    Failpoint,
    arm,
    arm_from_environment,
    is_armed,
    reach,
)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    arm(None)
    yield
    arm(None)


def test_an_unarmed_failpoint_does_nothing() -> None:
    arm("worker.called=error")
    for point in Failpoint:
        if point is not Failpoint.WORKER_CALLED:
            reach(point, "Create")
    assert is_armed(Failpoint.WORKER_CALLED)
    assert not is_armed(Failpoint.WORKER_CLAIMED)


def test_a_failpoint_acts_once_at_the_named_arrival() -> None:
    arm("decider.took:3=error")
    reach(Failpoint.DECIDER_TOOK)
    reach(Failpoint.DECIDER_TOOK)
    with pytest.raises(OSError, match=r"decider\.took"):
        reach(Failpoint.DECIDER_TOOK)
    reach(Failpoint.DECIDER_TOOK)


def test_a_failpoint_counts_only_the_named_operation() -> None:
    arm("worker.called/Delete=error")
    reach(Failpoint.WORKER_CALLED, "Create")
    with pytest.raises(OSError, match=r"worker\.called"):
        reach(Failpoint.WORKER_CALLED, "Delete")


def test_the_step_between_two_requests_has_its_operation() -> None:
    arm("worker.between_calls/Update:2=error")
    for operation in ("Create", "Update", "Delete"):
        reach(Failpoint.WORKER_BETWEEN_CALLS, operation)
    with pytest.raises(OSError, match=r"worker\.between_calls"):
        reach(Failpoint.WORKER_BETWEEN_CALLS, "Update")


def test_a_failpoint_is_reported_before_it_acts(capfd: pytest.CaptureFixture[str]) -> None:
    arm("decider.took=error")
    with pytest.raises(OSError, match=r"decider\.took"):
        reach(Failpoint.DECIDER_TOOK)
    assert capfd.readouterr().err == "failpoint decider.took reached: error\n"


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_a_failpoint_kills_or_stops_its_own_process(action: str) -> None:
    code = (
        "from reconciler.failpoints import *; arm_from_environment();"
        "reach(Failpoint.DECIDER_TOOK); print('continued', flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, VARIABLE: f"decider.took={action}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if action == "stop":
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=30)
    expected = ("", -signal.SIGKILL) if action == "kill" else ("continued\n", 0)
    assert (output, process.returncode) == expected


def test_a_failpoint_kills_another_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    ) as other_process:
        arm(f"worker.called=kill:{other_process.pid}")
        reach(Failpoint.WORKER_CALLED, "Create")
        assert other_process.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("worker.nowhere", "unknown failpoint 'worker.nowhere'; use one of init.step, "),
        ("worker.called/Paint", "unknown operation 'Paint'; use one of Create, Update, Delete"),
        ("decider.took/Create", "decider.took does not support an operation; omit it"),
        ("worker.called:0", "the arrival must be at least 1"),
        ("worker.called:x", "use NAME[/OPERATION][:ARRIVAL][=ACTION]"),
        ("worker.called=", "use NAME[/OPERATION][:ARRIVAL][=ACTION]"),
        ("worker.called=explode", "unknown action 'explode'; use kill, kill:PID, stop or error"),
        ("worker.called=kill:1", "unknown action 'kill:1'"),
        ("worker.called=stop:77", "unknown action 'stop:77'"),
    ],
)
def test_an_invalid_failpoint_is_one_clear_error(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ConfigurationError) as raised:
        arm_from_environment()
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not any(is_armed(point) for point in Failpoint)


def test_the_command_line_refuses_to_start_with_an_invalid_failpoint(
    nats_server: EmbeddedServer,
) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "reconciler", "init", "--nats-url", nats_server.url],
        env={**os.environ, VARIABLE: "worker.nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    bus, lines = process.stderr.splitlines()
    assert bus.startswith(f"bus: {nats_server.url} ")
    assert lines.startswith(f"error: {VARIABLE}: unknown failpoint 'worker.nowhere'")
