"""Fault 15: the disk is full.

A server whose write failed no longer responds for that stream until it is restarted with free
space. No acknowledged message is lost. `up` restarts its own server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from events.manifest import Manifest, Metadata
from infra.embedded import EmbeddedServer
from infra.jetstream.errors import BusError, StreamFullError
from reconciler.cli.checks.space import check_disk
from reconciler.errors import WaitTimeoutError
from reconciler.sdk import Client, connect
from reconciler.wiring import initialize, open_connection
from tests.cli.runner import Cli, up
from tests.faulty_api import FaultyApi
from tests.judge.from_bus import check
from tests.needs import skip_unless_in_ci
from tests.scenarios.harness import Human, World, api_config, manifest

LARGE_SIZE = "16g"  # no memory is used until it is written
FREE_BYTES_WHEN_FULL = 1_000_000
_CAP_SYS_ADMIN = 21  # from linux/capability.h
COUNT = 300
TIMEOUT_SECONDS = 60.0
LONG = {f"example.org/a{number}": "x" * 200 for number in range(40)}


def skip_without_mount(problem: str) -> NoReturn:
    """Skip if mounting is not permitted; other problems fail in CI."""
    problem = f"cannot mount a file system here: {problem}"
    if os.geteuid() != 0 or not may_mount():
        pytest.skip(problem)
    skip_unless_in_ci(problem)


def may_mount() -> bool:
    """Return whether the kernel lets this process mount, as it usually does not in containers."""
    [capabilities] = [
        int(line.split()[1], 16)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    ]
    return bool(capabilities >> _CAP_SYS_ADMIN & 1)


class Disk:
    """A file system whose size can be changed."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-o", f"size={size}", "tmpfs")

    def resize(self, size: str) -> None:
        self._mount("-o", f"remount,size={size}")

    def fill(self) -> None:
        """Leave almost no free space."""
        self.resize(str(shutil.disk_usage(self.folder).used + FREE_BYTES_WHEN_FULL))

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _mount(self, *options: str) -> None:
        command = ["mount", "-t", "tmpfs", *options, str(self.folder)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            skip_without_mount(process.stderr.strip())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk", LARGE_SIZE)
    yield disk
    disk.unmount()


@pytest.fixture
async def world(tmp_path: Path, disk: Disk) -> AsyncIterator[World]:
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "api"))
    async with World(disk.folder / "nats", human).open() as world:
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        await world.declare("first")
        await world.until_outcome("first", "Converged")
        yield world
    await human.close()
    await process.stop()


async def test_fault_15_acknowledged_messages_survive_a_full_disk(world: World, disk: Disk) -> None:
    assert check_disk(disk.folder).verdict == "ok"
    disk.fill()
    manifests = [manifest(f"s{number}") for number in range(COUNT)]
    with pytest.raises((WaitTimeoutError, BusError)):
        await declare_until_it_stops(world)
    assert check_disk(disk.folder).verdict == "fail"
    log = (disk.folder / "nats" / "nats.log").read_text()
    assert "no space left on device" in log

    disk.resize(LARGE_SIZE)
    await world.kill_nats()
    await world.start_nats()
    await world.client.publish(manifests, timeout_seconds=60)
    await world.client.wait_for_many(
        {f"default/Shape/s{number}": 1 for number in range(COUNT)}, timeout_seconds=60
    )
    await world.until_settled()
    assert await check(world.nc, world.human.url) == []


async def declare_until_it_stops(world: World) -> None:
    for number in range(COUNT):
        await world.client.publish([manifest(f"s{number}")], timeout_seconds=5)


async def test_fault_15_streams_that_do_not_fit_on_the_disk_are_refused_in_one_line(
    disk: Disk,
) -> None:
    disk.resize("64m")
    server = EmbeddedServer()
    async with open_connection(await server.start(disk.folder / "nats")) as nc:
        with pytest.raises(
            StreamFullError, match=r"^stream INTAKE cannot be created: .*larger disk"
        ):
            await initialize(nc)
    await server.stop()


async def test_fault_15_up_restarts_its_server_when_there_is_space(disk: Disk) -> None:
    """Without the example API, which has its journal on the same disk."""
    cli = Cli(disk.folder)
    acknowledged: list[str] = []
    with up(cli, "--no-api", "--log-level", "warning") as running:
        url = running.ready["natsUrl"]
        async with connect(url, source="test") as client:
            disk.fill()
            with pytest.raises((WaitTimeoutError, BusError)):
                await publish_until_it_stops(client, acknowledged)
            assert acknowledged, "some declarations must be acknowledged first"
            result = await asyncio.to_thread(cli.run, "doctor", "-o", "json")
            checks = {check["check"]: check for check in result.json}
            assert checks["disk"]["status"] == "fail"
            assert checks["server health"]["status"] == "fail"
            # One stream is stuck, or the server has disabled JetStream by now.
            assert checks["server health"]["details"].startswith(
                ("disk full: ", "JetStream is disabled, ")
            )

            disk.resize(LARGE_SIZE)
            await client.publish([manifest("afterwards")], timeout_seconds=TIMEOUT_SECONDS)
            acknowledged.append("afterwards")
            for name in acknowledged:
                await until_decided(client, name)
        recovered = await asyncio.to_thread(cli.run, "doctor", "-o", "json")
        (health,) = [each for each in recovered.json if each["check"] == "server health"]
        assert health["status"] == "ok"
        status, output = running.stop()
    assert status == 0, output
    events = [json.loads(line)["event"] for line in output.splitlines()]
    full_position = events.index("the disk is full; the server stores nothing until there is space")
    assert full_position < events.index("the disk has space again; restarting nats-server")


async def publish_until_it_stops(client: Client, acknowledged: list[str]) -> None:
    """Declare resources one by one; record the names that the bus acknowledged."""
    for number in range(COUNT):
        metadata = Metadata(f"s{number}", annotations=LONG)
        declared = Manifest("shapes/v1", "Shape", metadata, {"type": "Square", "color": "Red"})
        await client.publish([declared], timeout_seconds=5)
        acknowledged.append(f"s{number}")


async def until_decided(client: Client, name: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            with contextlib.suppress(BusError):
                if await client.history(f"default/Shape/{name}"):
                    return
            await asyncio.sleep(0.05)
