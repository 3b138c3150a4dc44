"""An Engine for tests: start, exit with the parent process, and error messages."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infra.components import Component, ComponentError, docker_engine
from infra.components.docker_engine import MAX_FOLDER_BYTES, DockerEngine
from tests.engines import EngineAdmin, http_client
from tests.folders import short_folder

TIMEOUT_SECONDS = 30.0

PARENT = """
import asyncio, os, sys
from pathlib import Path
from infra.components.docker_engine import DockerEngine

async def main():
    await DockerEngine(isolated=True).start(Path(sys.argv[1]))
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path / "docker"


def is_responding(endpoint: str) -> bool:
    with http_client(endpoint) as client:
        try:
            return client.get("/_ping").is_success
        except httpx.HTTPError:
            return False


def find_processes(folder: Path) -> dict[int, str]:
    """Return the processes whose command line contains a folder, by pid."""
    arguments_by_pid: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if bytes(folder) in path.read_bytes():
                arguments_by_pid[int(path.parent.name)] = path.read_text().replace("\0", " ")
        except OSError:
            continue  # it has just exited
    return arguments_by_pid


def find_bridges() -> set[str]:
    return {each.name for each in Path("/sys/class/net").glob("rec*")}


def assert_nothing_is_left(folder: Path) -> None:
    assert find_processes(folder) == {}
    assert str(folder) not in Path("/proc/mounts").read_text()
    shutil.rmtree(folder)  # fails if anything is mounted


@pytest.mark.own_dockerd
async def test_the_engine_can_restart_in_its_folder(folder: Path) -> None:
    engine: Component = DockerEngine(isolated=True)
    try:
        await engine.start(folder)
        assert engine.is_running
        assert is_responding(engine.endpoint)
        assert engine.log.exists()
        with pytest.raises(ComponentError, match="already running"):
            await engine.start(folder)
        with http_client(engine.endpoint) as client:
            client.post("/volumes/create", json={"Name": "kept"})

        await engine.kill()
        assert not engine.is_running
        assert find_processes(folder) == {}
        await engine.start(folder)
        with http_client(engine.endpoint) as client:
            assert client.get("/volumes/kept").is_success
    finally:
        await engine.stop()
    assert not engine.is_running
    assert_nothing_is_left(folder)


@pytest.mark.own_dockerd
async def test_stop_ends_containers_that_survived_a_crash(folder: Path) -> None:
    engine = DockerEngine(isolated=True)
    await engine.start(folder)
    admin = EngineAdmin(engine.endpoint)
    image = admin.import_image("reconciler-test:crash", 'CMD ["/bin/sleep", "1000000"]')
    admin.post("/containers/create", {"Image": image}, name="c1")
    admin.post("/containers/c1/start")
    container = admin.inspect("c1")
    assert container is not None
    process = Path("/proc") / str(container["State"]["Pid"])
    await engine.kill()
    assert process.exists(), "the container survives the crash"
    await engine.stop()
    assert_nothing_is_left(folder)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.exists():
        assert time.monotonic() < deadline, "the container is still running"
        await asyncio.sleep(0.05)


def start_and_kill_parent(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        parent.kill()


@pytest.mark.own_dockerd
async def test_a_container_that_was_starting_during_a_crash_can_be_started(folder: Path) -> None:
    engine = DockerEngine(isolated=True)
    try:
        await engine.start(folder)
        admin = EngineAdmin(engine.endpoint)
        image = admin.import_image("reconciler-test:1")
        body = {"Image": image, "Cmd": ["/bin/sleep", "1000000"]}
        container_id = admin.post("/containers/create", body, name="half")["Id"]
        admin.post(f"/containers/{container_id}/start")
        container = admin.inspect("half")
        assert container is not None
        await engine.kill()
        tasks = folder / "exec" / "containerd" / "daemon" / "io.containerd.runtime.v2.task"
        for name in ("runtime", "shim-binary-path", "init.pid", "options.json"):
            (tasks / "moby" / container_id / name).unlink(
                missing_ok=True
            )  # the files that are written last
        for process in (*find_processes(folder), container["State"]["Pid"]):
            os.kill(process, signal.SIGKILL)
        await engine.start(folder)
        admin.post(f"/containers/{container_id}/start")
    finally:
        await engine.stop()
    assert_nothing_is_left(folder)


@pytest.mark.own_dockerd
async def test_nothing_is_left_in_a_folder_with_special_characters_in_its_name(
    folder: Path,
) -> None:
    special_folder = folder.with_name("dö ck")
    engine = DockerEngine(isolated=True)
    try:
        await engine.start(special_folder)
        admin = EngineAdmin(engine.endpoint)
        body = {"Image": admin.import_image("reconciler-test:1"), "Cmd": ["/bin/sleep", "1000000"]}
        admin.post(f"/containers/{admin.post('/containers/create', body)['Id']}/start")
        await engine.kill()
    finally:
        await engine.stop()
    assert_nothing_is_left(special_folder)


@pytest.mark.own_dockerd
async def test_stop_removes_the_bridge_of_an_earlier_start(folder: Path) -> None:
    bridges_before = find_bridges()
    engine = DockerEngine(isolated=True)
    try:
        await engine.start(folder)
        new_bridges = find_bridges() - bridges_before
        await engine.kill()
        # As in a later start, when no other Engine is running.
        engine._isolated = False  # pyright: ignore[reportPrivateUsage]
    finally:
        await engine.stop()
    assert new_bridges, "the start must create a bridge"
    assert not new_bridges <= find_bridges()


@pytest.mark.own_dockerd
async def test_the_engine_exits_when_its_parent_is_killed_and_the_next_one_waits(
    folder: Path,
) -> None:
    await asyncio.to_thread(start_and_kill_parent, folder)
    engine = DockerEngine(isolated=True)
    try:
        await engine.start(folder)
        assert is_responding(engine.endpoint)
    finally:
        await engine.stop()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while remaining := find_processes(folder):
        assert time.monotonic() < deadline, remaining
        await asyncio.sleep(0.05)


@pytest.mark.own_dockerd
async def test_a_folder_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * MAX_FOLDER_BYTES)
    with pytest.raises(ComponentError, match="too long for"):
        await DockerEngine().start(long)
    assert not long.exists()


@pytest.mark.own_dockerd
async def test_a_file_instead_of_a_folder_is_refused() -> None:
    with short_folder() as path:
        (path / "file").write_text("")
        with pytest.raises(ComponentError, match="is not usable"):
            await DockerEngine().start(path / "file")


async def test_a_missing_dockerd_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(docker_engine, "_TOOLS", str(tmp_path))
    engine = DockerEngine()
    with pytest.raises(ComponentError, match=r"dockerd is not installed; .*docker\.io"):
        await engine.start(tmp_path / "d")
    assert not engine.is_running
    await engine.stop()


async def test_a_user_other_than_root_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dockerd = tmp_path / "dockerd"
    dockerd.write_text("#!/bin/sh\n")
    dockerd.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ComponentError, match="requires root"):
        await DockerEngine().start(tmp_path / "d")
