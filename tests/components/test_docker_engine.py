"""An Engine of our own: it starts, ends with its parent, and says what is wrong."""

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

PATIENCE_SECONDS = 30.0

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


def answers(endpoint: str) -> bool:
    with http_client(endpoint) as client:
        try:
            return client.get("/_ping").is_success
        except httpx.HTTPError:
            return False


def mentioning(folder: Path) -> dict[int, str]:
    """The processes whose command names a folder."""
    arguments_by_pid: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if bytes(folder) in path.read_bytes():
                arguments_by_pid[int(path.parent.name)] = path.read_text().replace("\0", " ")
        except OSError:
            continue  # it has just ended
    return arguments_by_pid


def bridges() -> set[str]:
    return {each.name for each in Path("/sys/class/net").glob("rec*")}


def assert_nothing_is_left(folder: Path) -> None:
    assert mentioning(folder) == {}
    assert str(folder) not in Path("/proc/mounts").read_text()
    shutil.rmtree(folder)  # which fails where anything is mounted


@pytest.mark.own_dockerd
async def test_it_starts_and_ends_and_its_folder_can_be_used_again(folder: Path) -> None:
    engine: Component = DockerEngine(isolated=True)
    try:
        await engine.start(folder)
        assert engine.is_running
        assert answers(engine.endpoint)
        assert engine.log.exists()
        with pytest.raises(ComponentError, match="already running"):
            await engine.start(folder)
        with http_client(engine.endpoint) as client:
            client.post("/volumes/create", json={"Name": "kept"})

        await engine.kill()
        assert not engine.is_running
        assert mentioning(folder) == {}
        await engine.start(folder)
        with http_client(engine.endpoint) as client:
            assert client.get("/volumes/kept").is_success
    finally:
        await engine.stop()
    assert not engine.is_running
    assert_nothing_is_left(folder)


@pytest.mark.own_dockerd
async def test_what_ran_on_after_a_crash_is_ended_with_it(folder: Path) -> None:
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
    assert process.exists(), "as after a crash of any dockerd"
    await engine.stop()
    assert_nothing_is_left(folder)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.exists():
        assert time.monotonic() < deadline, "the container still runs"
        await asyncio.sleep(0.05)


def start_and_kill_parent(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        parent.kill()


@pytest.mark.own_dockerd
async def test_what_was_about_to_be_started_at_a_crash_can_be_started(folder: Path) -> None:
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
            )  # those that are written last
        for process in (*mentioning(folder), container["State"]["Pid"]):
            os.kill(process, signal.SIGKILL)
        await engine.start(folder)
        admin.post(f"/containers/{container_id}/start")
    finally:
        await engine.stop()
    assert_nothing_is_left(folder)


@pytest.mark.own_dockerd
async def test_nothing_is_left_where_a_folders_name_is_not_plain(folder: Path) -> None:
    plain = folder.with_name("dö ck")
    engine = DockerEngine(isolated=True)
    try:
        await engine.start(plain)
        admin = EngineAdmin(engine.endpoint)
        body = {"Image": admin.import_image("reconciler-test:1"), "Cmd": ["/bin/sleep", "1000000"]}
        admin.post(f"/containers/{admin.post('/containers/create', body)['Id']}/start")
        await engine.kill()
    finally:
        await engine.stop()
    assert_nothing_is_left(plain)


@pytest.mark.own_dockerd
async def test_the_bridge_of_an_earlier_start_is_not_left(folder: Path) -> None:
    bridges_before = bridges()
    engine = DockerEngine(isolated=True)
    try:
        await engine.start(folder)
        new_bridges = bridges() - bridges_before
        await engine.kill()
        # As at a later start, when no other Engine runs.
        engine._isolated = False  # pyright: ignore[reportPrivateUsage]
    finally:
        await engine.stop()
    assert new_bridges, "others may have made one meanwhile, too"
    assert not new_bridges <= bridges()


@pytest.mark.own_dockerd
async def test_it_ends_with_its_parent_that_is_killed_and_the_next_one_waits_for_that(
    folder: Path,
) -> None:
    await asyncio.to_thread(start_and_kill_parent, folder)
    engine = DockerEngine(isolated=True)
    try:
        await engine.start(folder)
        assert answers(engine.endpoint)
    finally:
        await engine.stop()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while remaining := mentioning(folder):
        assert time.monotonic() < deadline, remaining
        await asyncio.sleep(0.05)


@pytest.mark.own_dockerd
async def test_a_folder_whose_name_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * MAX_FOLDER_BYTES)
    with pytest.raises(ComponentError, match="too long for"):
        await DockerEngine().start(long)
    assert not long.exists()


@pytest.mark.own_dockerd
async def test_a_folder_that_is_none_is_refused() -> None:
    with short_folder() as path:
        (path / "file").write_text("")
        with pytest.raises(ComponentError, match="is not usable"):
            await DockerEngine().start(path / "file")


async def test_without_dockerd_it_says_what_to_install(
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
