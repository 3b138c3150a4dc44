"""The server configuration of the production guide, on three real servers with its accounts."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.bus.permissions import PRINCIPALS
from infra.embedded.binary import find_server_binary
from infra.jetstream.access import Access
from infra.jetstream.connection import connect
from infra.jetstream.errors import BusError
from tests.cli.runner import InProcessCli
from tests.docs.test_links import DOCS
from tests.docs.test_operating import blocks
from tests.ports import free_ports
from tests.security.keys import Pair

PAGE = DOCS / "how-to/run-in-production.md"
NODES = ("a", "b", "c")
READY_SECONDS = 60
USERS = [each for each in PRINCIPALS if each not in ("restore", "service")]


def configurations(folder: Path) -> dict[str, tuple[str, str]]:
    """Return each server's configuration and URL: the page's, with this machine's addresses."""
    (text,) = blocks(PAGE, "conf")
    ports = iter(free_ports(3 * len(NODES)))
    routes = {node: f"nats://127.0.0.1:{next(ports)}" for node in NODES}
    found: dict[str, tuple[str, str]] = {}
    for node in NODES:
        url = f"127.0.0.1:{next(ports)}"
        here = {
            "server_name: a": f"server_name: {node}",
            '"0.0.0.0:4222"': f'"{url}"',
            '"127.0.0.1:8222"': f'"127.0.0.1:{next(ports)}"',
            '"/var/lib/nats"': f'"{folder / node}"',
            '"0.0.0.0:6222"': f'"{routes[node].removeprefix("nats://")}"',
            **{f"nats://{each}:6222": route for each, route in routes.items()},
        }
        for old in here:
            assert text.count(old) == 1, old
        config = text
        for old, new in here.items():
            config = config.replace(old, new)
        found[node] = (config, f"nats://{url}")
    return found


@pytest.fixture
def servers() -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for each in running:
        each.kill()
        each.wait()


def write_accounts(cli: InProcessCli, pairs: dict[str, Pair], *namespaces: str) -> None:
    keys = [f"--key={name}={pairs[name].public}" for name in (*USERS, *namespaces)]
    expected = [f"--namespace={each}" for each in namespaces]
    cli.write("accounts.conf", cli.ok("permissions", *expected, *keys).out)


def until_ok(cli: InProcessCli, *arguments: str) -> Any:
    end = time.monotonic() + READY_SECONDS
    while (result := cli.run(*arguments)).status != 0 and time.monotonic() < end:
        pass  # the servers have no leader yet
    assert result.status == 0, result
    return result.json


def check_replicas(cli: InProcessCli) -> Any:
    checks = cli.run("doctor", "--nkey", "operator.nk", "--output", "json").json
    return next(each for each in checks if each["check"] == "replicas")


async def is_admitted(url: str, key: Path) -> bool:
    try:
        nc = await connect(url, name="guide", access=Access(nkey=key))
    except BusError:
        return False
    await nc.close()
    return True


def test_the_servers_form_a_cluster_and_a_service_is_added(
    tmp_path: Path, servers: list[subprocess.Popen[bytes]]
) -> None:
    files = configurations(tmp_path)
    url = ",".join(address for _, address in files.values())
    cli = InProcessCli(tmp_path, url)
    pairs = {name: Pair.of_user() for name in (*USERS, "billing", "shop")}
    for name, pair in pairs.items():
        pair.write(tmp_path / f"{name}.nk")
    write_accounts(cli, pairs, "billing")
    for node, (text, _) in files.items():
        cli.write(f"{node}.conf", text)
        command = [str(find_server_binary()), "-c", f"{node}.conf"]
        check = subprocess.run([*command, "-t"], cwd=tmp_path, capture_output=True, check=False)
        assert check.returncode == 0, check.stderr
        servers.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL))

    report = until_ok(cli, "init", "--replicas", "3", "--nkey", "installer.nk", "--output", "json")
    assert report["changes"]["LOG_1"] == "created"
    again = until_ok(cli, "init", "--nkey", "installer.nk", "--output", "json")
    assert set(again["changes"].values()) == {"unchanged"}, "it keeps the replicas"

    assert asyncio.run(is_admitted(url, tmp_path / "billing.nk"))
    assert not asyncio.run(is_admitted(url, tmp_path / "shop.nk"))
    write_accounts(cli, pairs, "billing", "shop")
    for each in servers:
        each.send_signal(signal.SIGHUP)  # as `nats-server --signal reload` sends it
    end = time.monotonic() + READY_SECONDS
    while not asyncio.run(is_admitted(url, tmp_path / "shop.nk")):
        assert time.monotonic() < end
    assert asyncio.run(is_admitted(url, tmp_path / "billing.nk"))

    *_, replaced = servers  # by a machine with the same server name and an empty disk
    replaced.kill()
    replaced.wait()
    shutil.rmtree(tmp_path / NODES[-1])
    command = [str(find_server_binary()), "-c", f"{NODES[-1]}.conf"]
    servers.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL))
    own = files[NODES[-1]][1]  # it responds once it has fetched the streams
    until_ok(InProcessCli(tmp_path, own), "get", "-A", "--nkey", "operator.nk", "--output", "json")
    end = time.monotonic() + READY_SECONDS
    while check_replicas(cli)["status"] != "ok":
        assert time.monotonic() < end
    assert (tmp_path / NODES[-1] / "jetstream" / "RECONCILER" / "streams" / "LOG_1").is_dir()
    assert re.search(r"--namespace billing --namespace shop .*--key shop=U", PAGE.read_text())
