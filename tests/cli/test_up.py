"""How `up` starts and ends, and what it says when it cannot."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.importing import OTHERS, PROVIDERS, Listing, imported
from tests.cli.runner import STOP_SECONDS, Cli, Inside, Up, idle_bus, shape, up

BLOB = "apiVersion: blobs/v1\nkind: Blob\nmetadata: {name: a}\nspec: {}\n"


def test_a_folder_in_use_is_reported_in_one_line(running_up: tuple[Cli, Up]) -> None:
    cli, running = running_up
    refused = Inside(cli.folder).run("up", "--port", "0", "--api-port", "0")
    assert refused.status == 1
    assert refused.err == (
        "error: data directory reconciler-data is in use by another `reconciler up` "
        f"(pid {running.process.pid}, {running.ready['natsUrl']}); stop that process, "
        "or use another directory with --data\n"
    )


def test_a_killed_up_leaves_a_folder_that_works(cli: Cli) -> None:
    with up(cli) as killed:
        killed.process.kill()
        killed.process.communicate(timeout=STOP_SECONDS)
        with up(cli) as again:
            assert again.stop(signal.SIGINT) == (0, "")


def test_the_death_of_the_server_ends_it_and_is_reported(cli: Cli) -> None:
    with up(cli, "--log-level", "error") as running:
        os.kill(_child_named(running.process.pid, "nats-server"), signal.SIGKILL)
        _out, err = running.process.communicate(timeout=STOP_SECONDS)
        assert running.process.returncode == 1
        assert err.splitlines()[-1].startswith("error: nats-server exited unexpectedly")


def test_the_doctor_reports_what_it_can_see_of_a_server_that_is_silent(cli: Cli) -> None:
    with up(cli, "--no-api") as running:
        server = _child_named(running.process.pid, "nats-server")
        os.kill(server, signal.SIGSTOP)
        try:
            result = cli.run("doctor", "-o", "json")
        finally:
            os.kill(server, signal.SIGCONT)
    checks = {each["check"]: each["status"] for each in result.json}
    assert checks["disk"] == "ok"
    assert (checks["server health"], checks["bus"]) == ("warn", "fail")
    assert result.status == 1


def test_the_death_of_the_server_is_reported_while_the_roles_still_start(cli: Cli) -> None:
    process = cli.start("up", "--port", "0", "--no-api", "--log-level", "error")
    log = cli.folder / "reconciler-data" / "nats" / "nats.log"
    deadline = time.monotonic() + STOP_SECONDS
    while not (log.exists() and "Server is ready" in log.read_text()):
        assert time.monotonic() < deadline, "nats-server does not start"
        time.sleep(0.01)
    os.kill(_child_named(process.pid, "nats-server"), signal.SIGKILL)
    _out, err = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("error: nats-server exited unexpectedly")


def test_taken_default_ports_are_replaced_and_reported(cli: Cli) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another process has it, which is as good
            listener.bind(("127.0.0.1", 4222))
            listener.listen()
        ready = started_and_stopped(cli)
    port = ready["natsUrl"].rsplit(":", 1)[1]
    assert ready["notes"] == [f"port 4222 is in use; NATS listens on {port}"]
    assert ready["apiUrl"] is None

    again = started_and_stopped(cli)
    assert again["natsUrl"] == ready["natsUrl"], "clients find it again"
    assert again["notes"] == [f"port 4222 was in use at an earlier start; NATS listens on {port}"]
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen()
        assert started_and_stopped(cli)["natsUrl"] != ready["natsUrl"]


def started_and_stopped(cli: Cli) -> dict[str, Any]:
    """Start `up` on its default ports; return what it reports when it is ready."""
    process = cli.start("up", "--no-api", "--roles", "none", "--output", "json")
    assert process.stdout is not None
    ready: dict[str, Any] = json.loads(process.stdout.readline())
    process.terminate()
    process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0
    return ready


def test_without_a_bus_of_its_own_a_command_refuses(cli: Cli) -> None:
    """A `delete` must not reach whatever server listens on the default port."""
    cli.write("home/.keep", "")
    home = str(cli.folder / "home")
    for command in (("get",), ("delete", "Shape", "foo"), ("doctor",), ("run", "decider")):
        ran = cli.run(*command, HOME=home, XDG_CONFIG_HOME=home)
        assert ran.status == 1
        assert ran.err == (
            "error: no NATS server is selected: no `reconciler up` is running in this directory; "
            "start it, or set --nats-url, $RECONCILER_NATS_URL or nats-url in reconciler.toml\n"
        )
    with up(cli, "--no-api", "--roles", "none") as running:
        assert cli.run("get").status == 0
        running.stop(signal.SIGKILL)
    ran = cli.run("delete", "Shape", "foo", HOME=home, XDG_CONFIG_HOME=home)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "the `reconciler up` of this directory has stopped; start it" in ran.err


def test_a_command_that_sends_names_the_bus_unless_it_is_its_own(
    live: Cli, running_up: tuple[Cli, Up], inside: Inside
) -> None:
    url = running_up[1].ready["natsUrl"]
    assert live.run("apply", "-f", "-", text=shape("named-bus")).err == ""
    inside.url = url
    first_line = f"bus: {url} (environment RECONCILER_NATS_URL)\n"
    assert inside.run("apply", "-f", "-", text=shape("named-bus", "Green")).err == first_line
    assert inside.run("deadletters", "list").err == ""
    assert inside.run("get").err == ""
    first_line = f"bus: {url} (flag --nats-url)\n"
    assert inside.run("delete", "Shape", "named-bus", "--nats-url", url).err == first_line


def test_a_port_that_was_asked_for_is_not_replaced(inside: Cli) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        refused = inside.run("up", "--port", str(listener.getsockname()[1]))
    assert refused.status == 1
    assert "address already in use" in refused.err
    assert refused.err.count("\n") == 1


def test_an_external_server_is_used(running_up: tuple[Cli, Up], cli: Cli) -> None:
    url = running_up[1].ready["natsUrl"]
    with up(cli, "--nats-url", url, "--no-api", "--roles", "projector") as second:
        assert second.ready["natsUrl"] == url
        assert second.ready["roles"] == ["projector"]
        assert cli.ok("init").out.count("unchanged") > 10
        status, logged = second.stop()
    assert status == 0
    assert {json.loads(line)["level"] for line in logged.splitlines()} <= {"info"}, logged


def test_one_role_runs_in_a_process_of_its_own(live: Cli) -> None:
    process = live.start("run", "worker")
    assert process.stderr is not None
    assert json.loads(process.stderr.readline())["event"] == "role is running"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0


def test_the_banner_says_where_everything_is(cli: Cli) -> None:
    data = "d" * 90
    process = cli.start("up", "--port", "0", "--api-port", "0", "--data", data)
    assert process.stdout is not None
    told = ""
    while "Press Ctrl-C to stop" not in told:
        line = process.stdout.readline()
        assert line, told
        told += line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0
    for word in (
        "reconciler is ready",
        "NATS server",
        "nats://127.0.0.1:",
        "example API",
        "apply -f",
    ):
        assert word in told
    assert data in "".join(told.split()), "nothing is cut off"
    assert "\x1b" not in told


def test_a_start_imports_what_it_starts_and_no_more(tmp_path: Path) -> None:
    # On a bus on which no kind is defined at run time: those need libraries of theirs.
    with (
        idle_bus(tmp_path / "bus") as url,
        up(Listing(tmp_path), "--no-api", "--nats-url", url, "--roles", "projector") as running,
    ):
        status, err = running.stop()
    assert status == 0
    servers = {"infra.embedded.server", "shapes_api.server"}
    assert imported(err) & {*OTHERS, *PROVIDERS, *servers, "rich.console"} == set()


def test_a_kind_that_is_installed_while_up_runs_needs_a_restart_and_that_is_reported(
    cli: Cli,
) -> None:
    inside = Inside(cli.folder)
    with up(cli, "--no-api"):
        (before,) = inside.run("apply", "-f", "-", "-o", "json", text=BLOB).json
        assert "kind 'Blob' is not registered; install its package" in before["message"]

        info = "blobs-1.0.dist-info"  # as pip writes it, into a folder where `up` looks for modules
        cli.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: blobs\nVersion: 1.0\n")
        cli.write(f"{info}/entry_points.txt", "[reconciler.kinds]\nBlob = blobs:BLOB\n")
        message = before["message"]
        while message == before["message"]:  # the roles look again every few seconds
            (after,) = inside.run("apply", "-f", "-", "-o", "json", text=BLOB).json
            message = after["message"]
        assert (
            "restart the roles, because these kinds were installed after they started: Blob"
            in message
        )


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--roles", "decider,cook"), 2, "'cook' is not a role"),
        (("--port", "70000"), 2, "70000 is not a port"),
        (("--resync", "0"), 2, "--resync 0: must be 0.01 to 31622400 seconds"),
        (("--resync", "1e400"), 2, "--resync inf: must be 0.01 to 31622400 seconds"),
        (("--latency-ms", "1e12"), 2, "--latency-ms 1e+12: must be 0 to 3600000"),
        (("--latency-ms", "nan"), 2, "--latency-ms nan: must be 0 to 3600000"),
        (
            ("--data", "a-file"),
            1,
            "data directory a-file is not usable: File exists; use another directory with --data",
        ),
        (("--data", ""), 2, "--data '': name a file or a directory"),
    ],
)
def test_what_cannot_work_is_reported(
    inside: Cli, arguments: tuple[str, ...], status: int, message: str
) -> None:
    inside.write("a-file", "")
    refused = inside.run("up", *arguments)
    assert refused.status == status
    assert message in refused.err
    assert refused.err.count("\n") == 1


def test_a_full_disk_of_the_data_directory_is_reported(
    inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("infra.embedded.server._spawn", no_room)
    refused = inside.run("up", "--port", "0", "--no-api")
    assert refused.status == 1
    assert refused.err == (
        "error: data directory reconciler-data: No space left on device; free disk space, or use "
        "another directory with --data\n"
    )


def _child_named(parent: int, name: str) -> int:
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        output = subprocess.run(
            ["pgrep", "-P", str(parent), "-x", name], capture_output=True, text=True, check=False
        ).stdout.split()
        if output:
            return int(output[0])
    raise AssertionError(f"{parent} has no child {name}")


STUBBORN = """
import asyncio
from reconciler.cli.signals import run_until_stopped

async def work():
    print("working", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaning", flush=True)
        await asyncio.Event().wait()

asyncio.run(run_until_stopped(work()))
"""


def test_a_second_signal_ends_it_at_once(cli: Cli) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        stdout=subprocess.PIPE,
        text=True,
        env=cli.environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 130
