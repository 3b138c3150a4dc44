"""A PostgreSQL server for tests: start, exit with the parent process, and error messages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from infra.components import Component, ComponentError, postgres
from infra.components.postgres import MAX_FOLDER_BYTES, Postgres
from tests.folders import short_folder
from tests.postgres import connect_superuser

pytestmark = [pytest.mark.postgres]

TIMEOUT_SECONDS = 30.0

PARENT = """
import asyncio, sys
from pathlib import Path
from infra.components.postgres import Postgres

async def main():
    server = Postgres("fsync=off")
    await server.start(Path(sys.argv[1]))
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    """Whether a process is running; an exited one may still be a zombie."""
    try:
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def start_and_kill_parent(folder: Path) -> int:
    """Start a server from a parent process, kill the parent, and return the server's pid."""
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    return pid


def kill_initdb(data: Path) -> None:
    """Kill initdb as soon as it has started."""
    while not (data / "PG_VERSION").exists():
        time.sleep(0.01)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if b"initdb" in command and bytes(data) in command:
                os.kill(int(path.parent.name), signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A folder whose cluster is created once."""
    with short_folder() as path:
        path.chmod(0o755)
        yield path / "postgres"


@pytest.fixture
async def server() -> AsyncIterator[Postgres]:
    server = Postgres("fsync=off")
    yield server
    await server.stop()


async def is_responding(server: Postgres) -> bool:
    async with await connect_superuser(server) as connection:
        cursor = await connection.execute("SELECT 1")
        return await cursor.fetchone() == (1,)


async def test_postgres_restarts_in_its_folder_and_on_its_port(
    cluster: Path, server: Postgres
) -> None:
    component: Component = server
    await component.start(cluster)
    assert component.is_running
    assert await is_responding(server)
    port = server.port
    async with await connect_superuser(server) as connection:
        await connection.execute("CREATE DATABASE kept")
        began = time.monotonic()
        await component.stop()  # an open session must not delay it
        assert time.monotonic() - began < TIMEOUT_SECONDS / 2
    assert not component.is_running
    await component.start(cluster)
    assert server.port == port
    await (await connect_superuser(server, "kept")).close()
    with pytest.raises(ComponentError, match="already running"):
        await component.start(cluster)


async def test_postgres_can_restart_immediately_after_a_kill(
    cluster: Path, server: Postgres
) -> None:
    await server.start(cluster)
    for _ in range(3):
        connection = await connect_superuser(server)
        await server.kill()
        assert not server.is_running
        await server.start(cluster)
        assert await is_responding(server)
        await connection.close()


async def test_postgres_exits_when_its_parent_is_killed(cluster: Path, server: Postgres) -> None:
    pid = await asyncio.to_thread(start_and_kill_parent, cluster)
    await server.start(cluster)  # waits for the previous server to exit
    assert not is_running(pid)
    assert await is_responding(server)


async def test_a_pid_file_with_the_pid_of_another_process_is_ignored(
    cluster: Path, server: Postgres
) -> None:
    await server.start(cluster)
    await server.kill()
    pid_file = cluster / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    await server.start(cluster)
    assert await is_responding(server)


async def test_a_folder_in_use_and_a_port_in_use_are_distinguished(
    cluster: Path, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.start(cluster)
    monkeypatch.setattr(postgres, "STOP_SECONDS", 0.2)
    with pytest.raises(ComponentError, match="in use by another server"):
        await Postgres().start(cluster)
    monkeypatch.undo()
    await server.stop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", server.port))
        listener.listen()
        port_before = server.port
        await server.start(cluster)
        assert server.port != port_before
    assert await is_responding(server)


async def test_only_the_owner_of_the_folder_connects_without_a_password(
    cluster: Path, server: Postgres
) -> None:
    await server.start(cluster)
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert stat.S_IMODE((cluster / "data").stat().st_mode) == 0o700
    with pytest.raises(psycopg.OperationalError, match=r"reject|no pg_hba"):
        log_in("127.0.0.1", server, "postgres", "")
    async with await connect_superuser(server) as connection:
        await connection.execute("DROP ROLE IF EXISTS guest")
        await connection.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    for host in ("127.0.0.1", str(server.socket)):
        with pytest.raises(psycopg.OperationalError, match="password"):
            log_in(host, server, "guest", "wrong")
        log_in(host, server, "guest", "guest")


def log_in(host: str, server: Postgres, user: str, password: str) -> None:
    psycopg.connect(
        host=host, port=server.port, dbname="postgres", user=user, password=password
    ).close()


async def test_startup_errors_are_reported(cluster: Path, server: Postgres) -> None:
    await server.start(cluster)
    await server.stop()
    misconfigured = Postgres("shared_buffers=none")
    with pytest.raises(ComponentError, match="shared_buffers"):
        await misconfigured.start(cluster)
    assert not misconfigured.is_running


async def test_the_error_names_an_unusable_folder(tmp_path: Path, cluster: Path) -> None:
    with pytest.raises(ComponentError, match=f"at most {MAX_FOLDER_BYTES} bytes"):
        await Postgres().start(tmp_path / ("x" * MAX_FOLDER_BYTES))
    if os.geteuid() == 0:
        private_folder = cluster.parent / "closed"
        private_folder.mkdir(mode=0o700)
        with pytest.raises(ComponentError, match=f"cannot enter {private_folder}"):
            await Postgres().start(private_folder / "postgres")


def test_a_missing_installation_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    assert postgres.problem() == (
        "PostgreSQL's initdb is not installed; install Debian's postgresql, or put initdb and "
        "postgres on the PATH"
    )
    programs = tmp_path / "15" / "bin"
    programs.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (programs / name).touch(mode=0o755)
    assert postgres.problem() is None


async def test_initdb_is_repeated_after_it_was_killed(server: Postgres) -> None:
    with short_folder() as folder:
        folder.chmod(0o755)
        start = asyncio.create_task(server.start(folder / "postgres"))
        await asyncio.to_thread(kill_initdb, folder / "postgres" / "new" / "data")
        with pytest.raises(ComponentError, match="initdb"):
            await start
        await server.start(folder / "postgres")
        assert await is_responding(server)
        await server.stop()
