"""The process: command line, start and exit."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from shapes_api import ExampleApiError
from shapes_api.__main__ import main
from tests.example_api.requests import create, create_client, shape
from tests.faulty_api import FaultyApi

COMMAND = [sys.executable, "-m", "tests.faulty_api"]


async def test_it_can_be_started_stopped_and_restarted(
    own_process: FaultyApi, tmp_path: Path
) -> None:
    assert not own_process.is_running
    url = await own_process.start(tmp_path / "data")
    assert own_process.is_running
    assert (own_process.url, url) == (url, f"http://127.0.0.1:{own_process.port}")
    assert os.getsid(own_process.pid) == own_process.pid
    async with create_client(url) as client:
        await create(client, "a")
    await own_process.stop()
    assert not own_process.is_running
    assert await own_process.start(tmp_path / "data", port=own_process.port) == url
    async with create_client(url) as client:
        assert (await client.get("/shapes/a")).status_code == 200


async def test_latency_applies_from_the_start(own_process: FaultyApi, tmp_path: Path) -> None:
    url = await own_process.start(tmp_path / "data", latency_ms=150)
    async with create_client(url) as client:
        response = await create(client, "a")
        assert response.elapsed.total_seconds() >= 0.15
        await client.delete("/_faults")
        assert (await client.get("/shapes/a")).elapsed.total_seconds() >= 0.15


async def test_a_second_start_is_refused(own_process: FaultyApi, tmp_path: Path) -> None:
    await own_process.start(tmp_path / "data")
    with pytest.raises(ExampleApiError, match="already running"):
        await own_process.start(tmp_path / "data")
    assert own_process.is_running


async def test_a_process_that_exited_on_its_own_can_be_restarted(
    own_process: FaultyApi, tmp_path: Path
) -> None:
    await own_process.start(tmp_path / "data")
    os.kill(own_process.pid, signal.SIGKILL)
    await asyncio.to_thread(wait_for_exit, own_process)
    await own_process.start(tmp_path / "data", port=own_process.port)
    assert own_process.is_running


def wait_for_exit(process: FaultyApi) -> None:
    deadline = time.monotonic() + 60
    while process.is_running:
        assert time.monotonic() < deadline


async def test_a_process_that_was_never_started_has_a_clear_error() -> None:
    process = FaultyApi()
    await process.stop()
    await process.kill()
    with pytest.raises(ExampleApiError, match="was not started"):
        _ = process.url


async def test_a_folder_in_use_is_refused_in_one_line(
    own_process: FaultyApi, tmp_path: Path
) -> None:
    await own_process.start(tmp_path / "data")
    second = FaultyApi()
    with pytest.raises(ExampleApiError, match="in use by another process") as refused:
        await second.start(tmp_path / "data")
    assert "\n" not in str(refused.value)
    assert not second.is_running


async def test_a_port_in_use_is_refused_in_one_line(own_process: FaultyApi, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(ExampleApiError, match="Address already in use") as refused:
            await own_process.start(tmp_path / "data", port=listener.getsockname()[1])
        assert "\n" not in str(refused.value)


async def test_a_folder_that_is_a_file_is_refused(own_process: FaultyApi, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(ExampleApiError, match="cannot be started"):
        await own_process.start(tmp_path / "data")


async def test_a_file_that_is_not_a_database_is_refused(
    own_process: FaultyApi, tmp_path: Path
) -> None:
    (tmp_path / "example-api.db").write_text("not a database " * 1000)
    with pytest.raises(ExampleApiError, match="is not usable: file is not a database"):
        await own_process.start(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--data", "x", "--port", "70000"],
        ["--data", "x", "--port", "http"],
        ["--data", "x", "--latency-ms", "-1"],
        ["--data", "x", "--latency-ms", "nan"],
        ["--data", "x", "--frobnicate"],
    ],
)
def test_bad_options_are_refused_in_one_line(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(options)
    assert exit_info.value.code == 2
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 1
    assert output.out == ""


def test_a_host_that_is_not_local_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path), "--host", "192.0.2.1"]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("example-api: cannot listen on 192.0.2.1 port 0: ")
    assert len(output.err.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_status_zero(tmp_path: Path, number: signal.Signals) -> None:
    command = [*COMMAND, "--data", str(tmp_path), "--access-log"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:")
        url = line.removeprefix("listening on ").strip()
        assert httpx.post(f"{url}/shapes", json=shape("a")).status_code == 201
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
        assert process.stdout.read() == ""
        assert '"POST /shapes HTTP/1.1" 201' in process.stderr.read()


async def test_it_exits_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from tests.faulty_api import FaultyApi\n"
        "async def main():\n"
        "    print(await FaultyApi().start(pathlib.Path(sys.argv[1])), flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    url = (await parent.stdout.readline()).decode().strip()
    async with create_client(url) as client:
        assert (await client.get("/healthz")).status_code == 200
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(60):
        while await is_responding(url):
            pass


async def is_responding(url: str) -> bool:
    async with create_client(url) as client:
        try:
            await client.get("/healthz")
        except httpx.TransportError:
            return False
    return True
