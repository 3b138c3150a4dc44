"""The systems of the site: `up` with Docker, PostgreSQL and Caddy, and a separate PowerDNS."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from tests.cli.runner import REPOSITORY, Cli, Up, up
from tests.engines import EngineAdmin
from tests.folders import short_folder
from tests.host_access import allow_more
from tests.rest.servers import API_KEY, PowerDns
from tests.shop.image import make_image

EXAMPLE = REPOSITORY / "examples" / "site"
HOST = "www.example.org"
CONTAINERS = ("site-1", "site-2", "site-3")
TABLE = "site"
TIMEOUT_SECONDS = 60.0


class Site:
    """The site, with its out-of-band changes and its visitors."""

    def __init__(self, folder: Path) -> None:
        self.cli = Cli(folder)
        self.dns = PowerDns(folder / "pdns")
        self._up = ExitStack()
        self.running: Up
        self.docker: EngineAdmin

    # --- systems

    def start(self) -> None:
        """Run `up` with its components."""
        systems = ("--no-api", "--with", "docker,postgres,caddy", "--resync", "2")
        self.running = self._up.enter_context(up(self.cli, *systems))
        self.docker = EngineAdmin(self.running.ready["components"]["docker"])

    def kill(self) -> None:
        """Kill `up`, and with it the roles, the bus, the Engine, the database and the proxy."""
        self.running.process.kill()
        self.running.process.wait()
        self._up.close()

    def stop(self) -> None:
        status, output = self.running.stop()
        assert status == 0, output
        self._up.close()

    def close(self) -> None:
        """Remove everything, even after a failure."""
        self._up.close()
        self.dns.stop()
        subprocess.run(["nft", "delete", "table", "ip", TABLE], capture_output=True, check=False)

    def make_image(self) -> None:
        make_image(
            self.docker,
            "site:1",
            programs=("sh", "sleep", "cat", "httpd", "mkdir", "cp", "mv", "printf"),
            scripts=(EXAMPLE / "site", EXAMPLE / "visits"),
        )

    # --- declarations

    def configure(self) -> None:
        self.cli.ok("apply", "-f", str(EXAMPLE.parent / "kinds" / "address.yaml"))
        self.cli.ok("apply", "-f", "-", text=self._systems())
        allow_more(self.cli, "caddy", certificates=f"{self.cli.folder}/tls/**")

    def declare(self) -> None:
        self.cli.ok("apply", "-f", str(EXAMPLE / "manifests.yaml"), "--wait", "--timeout", "90s")

    def start_command(self, *command: str) -> None:
        """Start a command without waiting for it."""
        process = self.cli.start(*command, "-f", str(EXAMPLE / "manifests.yaml"))
        self._up.callback(process.communicate)
        self._up.callback(process.kill)

    def _systems(self) -> str:
        """Return the page's manifests with the addresses of this run."""
        text = (EXAMPLE / "systems.yaml").read_text()
        tls, key = self.cli.folder / "tls", self.cli.folder / "api-key"
        tls.mkdir(exist_ok=True)
        (tls / ".reconciler-root").touch()
        key.write_text(API_KEY)
        key.chmod(0o600)
        replacements = {
            "file:///srv/tls": f"file://{tls}",
            "http://127.0.0.1:8081/api/v1/servers/localhost/zones/example.org.": self.dns.zone_url,
            "/etc/powerdns/api-key": str(key),
        }
        for placeholder, after in replacements.items():
            assert placeholder in text, placeholder
            text = text.replace(placeholder, after)
        return text

    def withdraw(self) -> None:
        """Withdraw all resources, and approve the data loss."""
        self.cli.ok("delete", "-f", str(EXAMPLE / "manifests.yaml"))
        for name in ("Database/site", "Volume/site-pages", "Issuer/site-ca"):
            approve = ("approve", *name.split("/"), "--hold", "DataLoss")
            self.wait_until(
                lambda approve=approve: not self.cli.run(*approve).status, f"{name} is held"
            )

    # --- visits

    def visit(self) -> str:
        """Request the page as a browser does: resolve the name, and use TLS with the CA."""
        address = self.dns.resolve(HOST)
        port = urlsplit(self.route_url()).port or 443
        context = ssl.create_default_context(cafile=str(self.cli.folder / "tls/site/ca.crt"))
        with socket.create_connection((address, port), timeout=5) as tcp_socket:
            connection = HTTPSConnection(HOST, port, context=context)
            connection.sock = context.wrap_socket(tcp_socket, server_hostname=HOST)
            connection.request("GET", "/cgi-bin/visits")
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, (response.status, text)
            return text

    def route_url(self) -> str:
        [row] = self._get("Route", "site")
        [url] = row["status"]["outputs"]["urls"]
        return url

    def wait_for_visits(self, times: int = 1) -> set[str]:
        """Visit until this many visits succeed, and return the containers that responded.

        Raises ``AssertionError`` when no visit succeeds for ``TIMEOUT_SECONDS``.
        """
        containers_seen: list[str] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        last_error: object = None
        while len(containers_seen) < times:
            try:
                visitor, _, _ = self.visit().partition(" ")
                containers_seen.append(visitor)
                deadline = time.monotonic() + TIMEOUT_SECONDS
            except (AssertionError, OSError, HTTPException, IndexError, KeyError) as error:
                last_error = error
            assert time.monotonic() < deadline, repr(last_error)
            time.sleep(0.05)
        return set(containers_seen)

    def wait_until(self, holds: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"{what}\n{self.cli.run('get').out}"
            time.sleep(0.2)

    # --- state

    def events_of(self, name: str) -> list[str]:
        raw = self.cli.ok("history", name, "--raw").json
        return [each["data"]["event"] for each in raw]

    def is_repaired(self, name: str, drifts_before: int) -> bool:
        """Whether a new drift was recorded and corrected."""
        events = self.events_of(name)
        return events.count("DriftDetected") > drifts_before and self.outcome(name) == "Converged"

    def outcome(self, name: str) -> str:
        [row] = self._get(*name.split("/"))
        return row["status"]["outcome"]

    def resources(self) -> list[tuple[str, str, str]]:
        """Return the kind, outcome and message of the site's resources."""
        return [
            (each["kind"], each["status"]["outcome"], each["status"].get("message", ""))
            for each in self._get("-l", "team=site")
        ]

    def _get(self, *arguments: str) -> list[dict[str, Any]]:
        rows = self.cli.ok("get", *arguments, "-o", "json").json
        if isinstance(rows, list):
            return cast("list[dict[str, Any]]", rows)
        return rows.get("items", [rows])

    def drifts(self, name: str) -> int:
        return self.events_of(name).count("DriftDetected")

    def docker_names(self) -> list[str]:
        """Return the names of all containers, including stopped ones."""
        containers = self.docker.http.get("/containers/json", params={"all": "1"}).json()
        return sorted(each["Names"][0].removeprefix("/") for each in containers)

    def rules(self) -> str:
        process = subprocess.run(
            ["nft", "list", "table", "ip", TABLE], capture_output=True, text=True, check=False
        )
        return process.stdout

    def psql(self, statement: str) -> str:
        folder = self.cli.folder / "reconciler-data/postgres"
        port = (folder / "port").read_text().strip()
        command = ["psql", "-h", str(folder / "socket"), "-p", port, "-U", "postgres"]
        process = subprocess.run(
            [*command, "-AtXc", statement, "postgres"], capture_output=True, text=True, check=True
        )
        return process.stdout

    def flush_rules(self) -> None:
        subprocess.run(["nft", "flush", "table", "ip", TABLE], check=True)

    def delete_route(self) -> None:
        self._caddy("DELETE", "/id/site")

    def caddy_routes(self) -> str:
        return self._caddy("GET", "/config/")

    def _caddy(self, method: str, path: str) -> str:
        admin = self.running.ready["components"]["caddy"].removeprefix("unix://")
        with httpx.Client(transport=httpx.HTTPTransport(uds=admin)) as client:
            return client.request(method, f"http://localhost{path}").raise_for_status().text

    def find_leftovers(self) -> list[str]:
        """Return what is left of the site in any system."""
        http = self.docker.http
        containers = json.dumps(http.get("/containers/json", params={"all": "1"}).json())
        volumes = json.dumps(http.get("/volumes").json())
        databases = self.psql("SELECT datname FROM pg_database")
        roles = self.psql("SELECT rolname FROM pg_roles")
        leftovers = {
            "containers": re.findall(r"/site-\d", containers),
            "volumes": re.findall(r"site-pages", volumes),
            "databases": re.findall(r"^site\S*", databases, re.MULTILINE),
            "roles": re.findall(r"^site\S*", roles, re.MULTILINE),
            "rules": re.findall(r"service-site\b", self.rules()),
            "routes": re.findall(HOST, self.caddy_routes()),
            "records": [each["name"] for each in self.dns.records(HOST)],
            "files": [str(each) for each in (self.cli.folder / "tls/site").glob("*")],
        }
        return [f"{name}: {found}" for name, found in leftovers.items() if found]


@contextmanager
def site_folder() -> Generator[Path]:
    """Create a folder with a short path for sockets, which PostgreSQL's user can enter."""
    with short_folder() as folder:
        folder.chmod(0o755)
        yield folder
