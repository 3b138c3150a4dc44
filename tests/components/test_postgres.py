"""A PostgreSQL server of our own: it starts, ends with its parent, and says what is wrong."""

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

PATIENCE_SECONDS = 30.0

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


def lives(pid: int) -> bool:
    """Whether a process runs; an ended one may still wait for its parent to reap it."""
    try:
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def killed_parent(folder: Path) -> int:
    """Have a parent start a server, and kill the parent; the server's pid."""
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert lives(pid)
        parent.kill()
    return pid


def kill_initdb(data: Path) -> None:
    """Kill it as soon as it has begun."""
    while not (data / "PG_VERSION").exists():
        time.sleep(0.01)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if b"initdb" in command and bytes(data) in command:
                os.kill(int(path.parent.name), signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A folder whose cluster is made once."""
    with short_folder() as path:
        path.chmod(0o755)
        yield path / "postgres"


@pytest.fixture
async def server() -> AsyncIterator[Postgres]:
    one = Postgres("fsync=off")
    yield one
    await one.stop()


async def answers(server: Postgres) -> bool:
    async with await connect_superuser(server) as connection:
        cursor = await connection.execute("SELECT 1")
        return await cursor.fetchone() == (1,)


async def test_it_starts_stops_and_starts_again_on_its_folder_and_port(
    cluster: Path, server: Postgres
) -> None:
    component: Component = server
    await component.start(cluster)
    assert component.is_running
    assert await answers(server)
    port = server.port
    async with await connect_superuser(server) as connection:
        await connection.execute("CREATE DATABASE kept")
        began = time.monotonic()
        await component.stop()  # a session does not keep it
        assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert not component.is_running
    await component.start(cluster)
    assert server.port == port
    await (await connect_superuser(server, "kept")).close()
    with pytest.raises(ComponentError, match="already running"):
        await component.start(cluster)


async def test_it_can_be_killed_and_its_folder_used_at_once(
    cluster: Path, server: Postgres
) -> None:
    await server.start(cluster)
    for _ in range(3):
        connection = await connect_superuser(server)
        await server.kill()
        assert not server.is_running
        await server.start(cluster)
        assert await answers(server)
        await connection.close()


async def test_it_ends_with_its_parent_even_when_that_is_killed(
    cluster: Path, server: Postgres
) -> None:
    pid = await asyncio.to_thread(killed_parent, cluster)
    await server.start(cluster)  # it waits for the end of the one before
    assert not lives(pid)
    assert await answers(server)


async def test_a_pid_file_that_names_another_process_is_no_obstacle(
    cluster: Path, server: Postgres
) -> None:
    await server.start(cluster)
    await server.kill()
    pid_file = cluster / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    await server.start(cluster)
    assert await answers(server)


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
    assert await answers(server)


async def test_no_client_connects_without_a_password_except_through_its_own_folder(
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


async def test_its_defects_are_reported(cluster: Path, server: Postgres) -> None:
    await server.start(cluster)
    await server.stop()
    wrong = Postgres("shared_buffers=none")
    with pytest.raises(ComponentError, match="shared_buffers"):
        await wrong.start(cluster)
    assert not wrong.is_running


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, cluster: Path) -> None:
    with pytest.raises(ComponentError, match=f"at most {MAX_FOLDER_BYTES} bytes"):
        await Postgres().start(tmp_path / ("x" * MAX_FOLDER_BYTES))
    if os.geteuid() == 0:
        closed = cluster.parent / "closed"
        closed.mkdir(mode=0o700)
        with pytest.raises(ComponentError, match=f"cannot enter {closed}"):
            await Postgres().start(closed / "postgres")


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


async def test_a_killed_initdb_is_repeated(server: Postgres) -> None:
    with short_folder() as folder:
        folder.chmod(0o755)
        start = asyncio.create_task(server.start(folder / "postgres"))
        await asyncio.to_thread(kill_initdb, folder / "postgres" / "new" / "data")
        with pytest.raises(ComponentError, match="initdb"):
            await start
        await server.start(folder / "postgres")
        assert await answers(server)
        await server.stop()
