"""How `up` starts and stops, and the errors when it cannot."""

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

from tests.cli.importing import OPTIONAL_LIBRARIES, PROVIDERS, ImportListingCli, read_imports
from tests.cli.runner import STOP_SECONDS, Cli, InProcessCli, Up, idle_bus, shape, up

BLOB = "apiVersion: blobs/v1\nkind: Blob\nmetadata: {name: a}\nspec: {}\n"


def test_a_data_directory_in_use_is_reported_in_one_line(running_up: tuple[Cli, Up]) -> None:
    cli, running = running_up
    refused = InProcessCli(cli.folder).run("up", "--port", "0", "--api-port", "0")
    assert refused.status == 1
    assert refused.err == (
        "error: data directory reconciler-data is in use by another `reconciler up` "
        f"(pid {running.process.pid}, {running.ready['natsUrl']}); stop that process, "
        "or use another directory with --data\n"
    )


def test_up_restarts_with_the_data_of_a_killed_up(cli: Cli) -> None:
    with up(cli) as killed:
        killed.process.kill()
        killed.process.communicate(timeout=STOP_SECONDS)
        with up(cli) as restarted:
            assert restarted.stop(signal.SIGINT) == (0, "")


def test_up_stops_and_reports_when_its_server_dies(cli: Cli) -> None:
    with up(cli, "--log-level", "error") as running:
        os.kill(_find_child(running.process.pid, "nats-server"), signal.SIGKILL)
        _out, err = running.process.communicate(timeout=STOP_SECONDS)
        assert running.process.returncode == 1
        assert err.splitlines()[-1].startswith("error: nats-server exited unexpectedly")


def test_up_restarts_the_example_api_when_it_dies(cli: Cli) -> None:
    with up(cli, "--log-level", "warning") as running:
        (line,) = subprocess.run(
            ["pgrep", "-P", str(running.process.pid), "-f", "shapes_api"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        os.kill(int(line), signal.SIGKILL)
        cli.ok("apply", "-f", "-", "--wait", text=shape("after-the-restart"))
        status, err = running.stop()
    assert status == 0
    assert "the example API is running again" in err


def test_doctor_reports_its_local_checks_when_the_server_does_not_respond(cli: Cli) -> None:
    with up(cli, "--no-api") as running:
        server = _find_child(running.process.pid, "nats-server")
        os.kill(server, signal.SIGSTOP)
        try:
            result = cli.run("doctor", "-o", "json")
        finally:
            os.kill(server, signal.SIGCONT)
    checks = {check["check"]: check["status"] for check in result.json}
    assert checks["disk"] == "ok"
    assert (checks["server health"], checks["bus"]) == ("warn", "fail")
    assert result.status == 1


def test_a_server_that_dies_during_startup_is_reported(cli: Cli) -> None:
    process = cli.start("up", "--port", "0", "--no-api", "--log-level", "error")
    log = cli.folder / "reconciler-data" / "nats" / "nats.log"
    deadline = time.monotonic() + STOP_SECONDS
    while not (log.exists() and "Server is ready" in log.read_text()):
        assert time.monotonic() < deadline, "nats-server did not start"
        time.sleep(0.01)
    os.kill(_find_child(process.pid, "nats-server"), signal.SIGKILL)
    _out, err = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("error: nats-server exited unexpectedly")


def test_default_ports_in_use_are_replaced_and_reported(cli: Cli) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another process may already listen on it
            listener.bind(("127.0.0.1", 4222))
            listener.listen()
        ready = start_and_stop(cli)
    port = ready["natsUrl"].rsplit(":", 1)[1]
    assert ready["notes"] == [f"port 4222 is in use; NATS listens on {port}"]
    assert ready["apiUrl"] is None

    restarted = start_and_stop(cli)
    assert restarted["natsUrl"] == ready["natsUrl"], "clients must find the same address"
    assert restarted["notes"] == [
        f"port 4222 was in use at an earlier startup; NATS listens on {port}"
    ]
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen()
        assert start_and_stop(cli)["natsUrl"] != ready["natsUrl"]


def start_and_stop(cli: Cli) -> dict[str, Any]:
    """Start `up` on its default ports; return what it reports when it is ready."""
    process = cli.start("up", "--no-api", "--roles", "none", "--output", "json")
    assert process.stdout is not None
    ready: dict[str, Any] = json.loads(process.stdout.readline())
    process.terminate()
    process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0
    return ready


def test_a_command_without_a_selected_bus_fails(cli: Cli) -> None:
    """A `delete` must not reach an unrelated server on the default port."""
    cli.write("home/.keep", "")
    home = str(cli.folder / "home")
    for command in (("get",), ("delete", "Shape", "foo"), ("doctor",), ("run", "decider")):
        result = cli.run(*command, HOME=home, XDG_CONFIG_HOME=home)
        assert result.status == 1
        assert result.err == (
            "error: no NATS server is selected: no `reconciler up` is running in this directory; "
            "start it, or set --nats-url, $RECONCILER_NATS_URL or nats-url in reconciler.toml\n"
        )
    with up(cli, "--no-api", "--roles", "none") as running:
        assert cli.run("get").status == 0
        running.stop(signal.SIGKILL)
    result = cli.run("delete", "Shape", "foo", HOME=home, XDG_CONFIG_HOME=home)
    assert (result.status, result.err.count("\n")) == (1, 1)
    assert "the `reconciler up` in this directory has stopped; start it" in result.err


def test_a_writing_command_names_the_bus_unless_it_belongs_to_the_directory(
    live: Cli, running_up: tuple[Cli, Up], local_cli: InProcessCli
) -> None:
    url = running_up[1].ready["natsUrl"]
    assert live.run("apply", "-f", "-", text=shape("named-bus")).err == ""
    local_cli.url = url
    first_line = f"bus: {url} (environment RECONCILER_NATS_URL)\n"
    assert local_cli.run("apply", "-f", "-", text=shape("named-bus", "Green")).err == first_line
    assert local_cli.run("deadletters", "list").err == ""
    assert local_cli.run("get").err == ""
    first_line = f"bus: {url} (flag --nats-url)\n"
    assert local_cli.run("delete", "Shape", "named-bus", "--nats-url", url).err == first_line


def test_a_requested_port_is_not_replaced(local_cli: Cli) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        refused = local_cli.run("up", "--port", str(listener.getsockname()[1]))
    assert refused.status == 1
    assert "address already in use" in refused.err
    assert refused.err.count("\n") == 1


def test_an_external_server_is_used(running_up: tuple[Cli, Up], cli: Cli) -> None:
    url = running_up[1].ready["natsUrl"]
    with up(cli, "--nats-url", url, "--no-api", "--roles", "projector") as second:
        assert second.ready["natsUrl"] == url
        assert second.ready["roles"] == ["projector"]
        assert cli.ok("init").out.count("unchanged") > 10
        status, log_text = second.stop()
    assert status == 0
    assert {json.loads(line)["level"] for line in log_text.splitlines()} <= {"info"}, log_text


def test_a_single_role_runs_in_its_own_process(live: Cli) -> None:
    process = live.start("run", "worker")
    assert process.stderr is not None
    assert json.loads(process.stderr.readline())["event"] == "role is running"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0


def test_the_banner_lists_addresses_and_directories(cli: Cli) -> None:
    data = "d" * 90
    process = cli.start("up", "--port", "0", "--api-port", "0", "--data", data)
    assert process.stdout is not None
    banner = ""
    while "Press Ctrl-C to stop" not in banner:
        line = process.stdout.readline()
        assert line, banner
        banner += line
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
        assert word in banner
    assert data in "".join(banner.split()), "the path must not be truncated"
    assert "\x1b" not in banner


def test_up_imports_only_what_it_starts(tmp_path: Path) -> None:
    # On this bus no kind is defined at run time, which would need more libraries.
    with (
        idle_bus(tmp_path / "bus") as url,
        up(
            ImportListingCli(tmp_path), "--no-api", "--nats-url", url, "--roles", "projector"
        ) as running,
    ):
        status, err = running.stop()
    assert status == 0
    servers = {"infra.embedded.server", "shapes_api.server"}
    assert read_imports(err) & {*OPTIONAL_LIBRARIES, *PROVIDERS, *servers, "rich.console"} == set()


def test_a_kind_that_is_installed_while_up_runs_is_reported_as_needing_a_restart(
    cli: Cli,
) -> None:
    local_cli = InProcessCli(cli.folder)
    with up(cli, "--no-api"):
        (reply,) = local_cli.run("apply", "-f", "-", "-o", "json", text=BLOB).json
        assert "kind 'Blob' is not registered; install its package" in reply["message"]

        info = "blobs-1.0.dist-info"  # as pip writes it, into a folder where `up` looks for modules
        cli.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: blobs\nVersion: 1.0\n")
        cli.write(f"{info}/entry_points.txt", "[reconciler.kinds]\nBlob = blobs:BLOB\n")
        first_message = message = reply["message"]
        while message == first_message:  # the roles search for new kinds every few seconds
            (reply,) = local_cli.run("apply", "-f", "-", "-o", "json", text=BLOB).json
            message = reply["message"]
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
def test_invalid_options_and_directories_are_reported(
    local_cli: Cli, arguments: tuple[str, ...], status: int, message: str
) -> None:
    local_cli.write("a-file", "")
    refused = local_cli.run("up", *arguments)
    assert refused.status == status
    assert message in refused.err
    assert refused.err.count("\n") == 1


def test_a_full_disk_for_the_data_directory_is_reported(
    local_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_with_full_disk(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("infra.embedded.server._spawn", fail_with_full_disk)
    refused = local_cli.run("up", "--port", "0", "--no-api")
    assert refused.status == 1
    assert refused.err == (
        "error: data directory reconciler-data: No space left on device; free disk space, or use "
        "another directory with --data\n"
    )


def _find_child(parent: int, name: str) -> int:
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        output = subprocess.run(
            ["pgrep", "-P", str(parent), "-x", name], capture_output=True, text=True, check=False
        ).stdout.split()
        if output:
            return int(output[0])
    raise AssertionError(f"{parent} has no child {name}")


STUBBORN_PROGRAM = """
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


def test_a_second_signal_ends_a_process_immediately(cli: Cli) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN_PROGRAM],
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
