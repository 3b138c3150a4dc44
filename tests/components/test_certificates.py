"""An ACME server for tests: start, end with the parent process, and error messages."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.components import Component, ComponentError, certificates
from infra.components.certificates import CA_FILE, Certificates
from infra.providers.certificates.pem import certificates_in
from infra.providers.file_root import ROOT_MARKER

pytestmark = [pytest.mark.pebble]

TIMEOUT_SECONDS = 10.0

PARENT = """
import asyncio, sys
from pathlib import Path
from infra.components.certificates import Certificates

async def main():
    server = Certificates(isolated=True)
    await server.start(Path(sys.argv[1]))
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    """Whether a process is running; an ended one may still be a zombie."""
    try:
        return b"pebble" in Path(f"/proc/{pid}/cmdline").read_bytes()
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


def wait_for_exit(pid: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
async def server() -> AsyncIterator[Certificates]:
    server = Certificates(isolated=True)
    yield server
    await server.stop()


async def test_the_acme_server_can_restart_in_its_folder(
    tmp_path: Path, server: Certificates
) -> None:
    component: Component = server
    assert not component.is_running
    await server.start(tmp_path / "certificates")
    assert component.is_running
    assert component.endpoint == (tmp_path / "certificates/root").as_uri()
    assert {path.name for path in server.root.iterdir()} == {ROOT_MARKER, CA_FILE}
    (first,) = certificates_in((await server.root_certificate()).encode())
    addresses = (server.directory, server.http01)
    with pytest.raises(ComponentError, match="already running"):
        await server.start(tmp_path / "certificates")

    await server.kill()
    assert not component.is_running
    await server.start(tmp_path / "certificates")
    (second,) = certificates_in((await server.root_certificate()).encode())
    assert first != second, "pebble must create a new CA"
    assert addresses == (server.directory, server.http01)
    await server.stop()
    assert not component.is_running


async def test_the_acme_server_exits_with_its_parent(tmp_path: Path) -> None:
    pid = await asyncio.to_thread(start_and_kill_parent, tmp_path / "certificates")
    await asyncio.to_thread(wait_for_exit, pid)


async def test_a_port_in_use_is_replaced_by_a_free_one(
    tmp_path: Path, server: Certificates
) -> None:
    await server.start(tmp_path / "one")
    (tmp_path / "two").mkdir()
    ports_file = (tmp_path / "one/ports.json").read_bytes()
    (tmp_path / "two/ports.json").write_bytes(ports_file)
    other_server = Certificates(isolated=True)
    try:
        await other_server.start(tmp_path / "two")
        assert other_server.directory != server.directory
        assert json.loads((tmp_path / "two/ports.json").read_bytes()) != json.loads(ports_file)
    finally:
        await other_server.stop()


async def test_startup_errors_are_reported(tmp_path: Path, server: Certificates) -> None:
    (tmp_path / "certificates").mkdir()
    (tmp_path / "certificates/root").touch()
    with pytest.raises(ComponentError, match="is not usable: File exists"):
        await server.start(tmp_path / "certificates")
    await server.start(tmp_path / "other")
    await server.stop()
    (tmp_path / "other/https.key").write_text("no key")
    with pytest.raises(ComponentError, match=r"pebble exited immediately: .*\(its log is "):
        await server.start(tmp_path / "other")
    assert not server.is_running


def test_a_missing_installation_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert certificates.problem() == (
        "pebble is not installed; install Debian's pebble, or put pebble and "
        "pebble-challtestsrv on the PATH"
    )
