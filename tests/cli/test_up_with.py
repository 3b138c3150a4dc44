"""`up --with`: how its components start and stop, and what it prints about them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from reconciler.cli.components import BUS_APIS, COMPONENTS
from tests.cli.runner import STOP_SECONDS, Cli, InProcessCli, up
from tests.engines import EngineAdmin
from tests.folders import short_folder

CONTAINER = """
apiVersion: docker/v1
kind: Container
metadata: {name: talker}
spec:
  providerConfigRef: {name: docker}
  image: IMAGE
  command: [/bin/sh, -c, "echo first; echo second; sleep 1000"]
  stopSeconds: 0
"""
VOLUME = """
apiVersion: docker/v1
kind: Volume
metadata: {name: data}
spec:
  providerConfigRef: {name: docker}
"""

DATABASE = """
apiVersion: postgres/v1
kind: Database
metadata: {name: orders}
spec:
  providerConfigRef: {name: postgres}
"""

HOST = {"Host": "shop.example.org"}
ROUTE = """
apiVersion: caddy/v1
kind: Route
metadata: {name: shop}
spec:
  providerConfigRef: {name: caddy}
  hosts: [shop.example.org]
  backends: ["127.0.0.1:9001"]
"""


CERTIFICATE = """
apiVersion: certificates/v1
kind: Issuer
metadata: {name: pebble}
spec:
  providerConfigRef: {name: certificates}
  acme:
    directory: DIRECTORY
    acceptTerms: true
    caFile: pebble-ca.pem
    http01: {listen: "LISTEN"}
---
apiVersion: certificates/v1
kind: Certificate
metadata: {name: web}
spec:
  providerConfigRef: {name: certificates}
  issuer: {$ref: Issuer/pebble, field: name}
  dnsNames: [web.test]
"""


@pytest.fixture
def short_cli() -> Iterator[Cli]:
    """Commands in a folder whose name is short enough for the Engine's sockets."""
    with short_folder() as folder:
        yield InProcessCli(folder)


@pytest.mark.own_dockerd
def test_up_starts_an_engine_with_its_configuration_and_restarts_it(short_cli: Cli) -> None:
    cli = short_cli
    directory = cli.folder / "reconciler-data" / "docker"
    with up(cli, "--no-api", "--with", "docker", "--log-level", "error") as first:
        assert first.ready["components"] == {"docker": f"unix://{directory / 'docker.sock'}"}
        cli.write("volume.yaml", VOLUME)
        cli.ok("apply", "-f", "volume.yaml", "--wait")
        engine = EngineAdmin(first.ready["components"]["docker"])
        assert engine.volume("data") is not None
        image = engine.import_image("reconciler-test:logs")
        cli.write("container.yaml", CONTAINER.replace("IMAGE", image))
        cli.ok("apply", "-f", "container.yaml", "--wait")
        assert cli.ok("logs", "talker").out == "first\nsecond\n"
        assert cli.ok("logs", "talker", "--kind", "Container", "--tail", "1").out == "second\n"
        process = cli.start("logs", "Container/talker", "-f")
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=STOP_SECONDS)[1] == ""
        assert process.returncode == 0
        readings = cli.ok("describe", "Container/talker", "--live", "-o", "json").json["readings"]
        assert (readings["restarts"], readings["lastExitCode"]) == (0, 0)
        assert readings["startedAt"].startswith("20")
        refused = cli.run("logs", "Volume/data")
        assert (refused.status, refused.err) == (
            1,
            (
                "error: default/Volume/data has no logs, because the API of kind Volume provides "
                "none\n"
            ),
        )
        cli.ok("delete", "Container", "talker", "--wait")
        assert first.stop()[0] == 0
        assert not (directory / "docker.pid").exists()

    with up(cli, "--no-api", "--with", "docker", "--log-level", "warning") as second:
        engine = EngineAdmin(second.ready["components"]["docker"])
        assert engine.volume("data") is not None
        os.kill(int((directory / "docker.pid").read_text()), signal.SIGKILL)
        cli.write("second.yaml", VOLUME.replace("name: data", "name: second"))
        cli.ok("apply", "-f", "second.yaml", "--wait")
        assert engine.volume("second") is not None
        status, err = second.stop()
    assert status == 0
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert "docker exited unexpectedly; restarting it" in events
    assert "docker is running again" in events


@pytest.mark.postgres
def test_up_starts_postgresql_with_its_configuration_and_data(short_cli: Cli) -> None:
    cli = short_cli
    cli.folder.chmod(0o755)  # started by root, the server runs as another user
    socket = quote(str(cli.folder / "reconciler-data" / "postgres" / "socket"), safe="")
    cli.write("database.yaml", DATABASE)
    for _ in range(2):
        with up(cli, "--no-api", "--with", "postgres", "--log-level", "error") as running:
            endpoint = running.ready["components"]["postgres"]
            assert endpoint.startswith(f"postgresql://postgres@{socket}:")
            assert running.ready["notes"] == []
            cli.ok("apply", "-f", "database.yaml", "--wait")
            checks = {check["check"]: check for check in cli.ok("doctor", "-o", "json").json}
            assert checks["API postgres"]["status"] == "ok", (
                "doctor must find the secrets of this `up`"
            )
            description = cli.ok("describe", "Database/orders", "-o", "json").out
            assert (
                f"{endpoint.removesuffix('/postgres').replace('postgres@', '')}/orders"
                in description
            )
            assert running.stop()[0] == 0


def caddy_process(folder: Path) -> int:
    """Return the id of the Caddy process that uses the folder."""
    (process,) = (
        int(command.parent.name)
        for command in Path("/proc").glob("[0-9]*/cmdline")
        if command.exists() and bytes(folder / "first.json") in command.read_bytes().split(b"\0")
    )
    return process


@pytest.mark.caddy
def test_up_starts_a_proxy_with_its_configuration_and_routes(short_cli: Cli) -> None:
    cli = short_cli
    cli.write("route.yaml", ROUTE)
    for _ in range(2):
        with up(cli, "--no-api", "--with", "caddy", "--log-level", "error") as running:
            socket = cli.folder / "reconciler-data" / "caddy" / "admin.sock"
            assert running.ready["components"] == {"caddy": f"unix://{socket}"}
            assert running.ready["notes"] == []
            cli.ok("apply", "-f", "route.yaml", "--wait")
            checks = {check["check"]: check for check in cli.ok("doctor", "-o", "json").json}
            assert checks["API caddy"]["status"] == "ok"
            description = cli.ok("describe", "Route/shop", "--live", "-o", "json").json
            assert description["readings"] == {
                "backends": {"127.0.0.1:9001": {"requests": 0, "fails": 0}}
            }
            url = description["status"]["outputs"]["urls"][0]
            with httpx.Client() as client:
                response = client.get(url.replace("shop.example.org", "127.0.0.1"), headers=HOST)
            assert response.status_code == httpx.codes.BAD_GATEWAY, "no backend is listening"
            os.kill(caddy_process(socket.parent), signal.SIGKILL)
            cli.ok("delete", "Route", "shop", "--wait")
            assert running.stop()[0] == 0


@pytest.mark.pebble
def test_up_starts_an_acme_ca_and_a_restart_renews_its_certificates(
    short_cli: Cli,
) -> None:
    cli = short_cli
    directory = cli.folder / "reconciler-data" / "certificates"
    serials = set[str]()
    for restart in range(2):
        with up(cli, "--no-api", "--with", "certificates", "--log-level", "error") as running:
            assert running.ready["components"] == {"certificates": (directory / "root").as_uri()}
            settings = json.loads((directory / "pebble.json").read_text())["pebble"]
            manifest = CERTIFICATE.replace(
                "DIRECTORY", f"https://{settings['listenAddress']}/dir"
            ).replace("LISTEN", f"127.0.0.1:{settings['httpPort']}")
            if restart:  # pebble has lost its state
                manifest = manifest.replace("[web.test]", "[web.test, www.test]")
            cli.write("certificate.yaml", manifest)
            cli.ok("apply", "-f", "certificate.yaml", "--wait")
            description = cli.ok("describe", "Certificate/web", "-o", "json").out
            serials |= set(re.findall(r'"serial": ?"(\w+)"', description))
            assert "BEGIN CERTIFICATE" in (directory / "root" / "web" / "tls.crt").read_text()
            assert running.stop()[0] == 0
    assert len(serials) == 2


@pytest.mark.own_dockerd
def test_up_does_not_change_a_users_configuration(short_cli: Cli) -> None:
    cli = short_cli
    config = """
apiVersion: reconciler/v1
kind: ProviderConfig
metadata: {name: docker, namespace: system}
spec: {provider: docker, endpoint: "unix:///var/run/other.sock"}
"""
    with up(cli, "--no-api") as running:
        cli.write("config.yaml", config)
        cli.ok("apply", "-f", "config.yaml", "--wait")
        running.stop()
    with up(cli, "--no-api", "--with", "docker") as running:
        assert running.ready["notes"] == [
            "ProviderConfig docker points to unix:///var/run/other.sock and was not changed"
        ]


def test_an_unknown_component_is_reported(local_cli: InProcessCli, tmp_path: Path) -> None:
    refused = local_cli.run("up", "--with", "docker,cook")
    assert refused.status == 2
    component_names = ", ".join((*COMPONENTS, *BUS_APIS))
    assert f"--with: 'cook' cannot be started; use {component_names}" in refused.err
