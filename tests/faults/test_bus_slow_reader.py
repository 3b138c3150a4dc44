"""Fault 17: a reader 100,000 outcomes behind uses no memory elsewhere, and misses none."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from events.envelope import encode_log
from events.names import ResourceKey
from events.subjects import log
from infra.bus.streams import LOG
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish_many
from reconciler.sdk import connect
from reconciler.wiring import initialize, open_connection
from tests.bus.histories import event
from tests.faults.outcome_reader import NAME

COUNT = 100_000
COUNT_WHILE_PAUSED = 20_000
MAX_MEGABYTES = 64
PATIENCE_SECONDS = 90.0
MAX_SERVER_MEGABYTES = 256
ROOT = Path(__file__).parents[2]
KEY = ResourceKey("default", "Shape", "foo")


@pytest.fixture
def config() -> str:
    """Return additional lines for the server's configuration."""
    return ""


@pytest.fixture
async def bus(tmp_path: Path, config: str) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    url = await server.start(tmp_path / "nats", http_port=0, extra_config=config)
    async with open_connection(url) as nc:
        await initialize(nc)
    yield server
    await server.stop()


async def publish_outcomes(server: EmbeddedServer, count: int) -> None:
    payload = encode_log(event(KEY, 1))
    async with open_connection(server.url) as nc:
        messages = [OutgoingMessage(log(KEY, "outcome.Converged"), payload) for _ in range(count)]
        results = await publish_many(nc, messages, timeout=PATIENCE_SECONDS)
        assert not [each for each in results if isinstance(each, Exception)]


def resident_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_fault_17_a_reader_that_reads_nothing_buffers_no_more_than_a_window(
    bus: EmbeddedServer,
) -> None:
    async with connect(bus.url, source="slow") as client, client.outcomes(after=0) as stream:
        await publish_outcomes(bus, 1)
        first = await anext(aiter(stream))
        memory_before, server_before = resident_megabytes(os.getpid()), resident_megabytes(bus.pid)
        await publish_outcomes(bus, COUNT)
        growth = resident_megabytes(os.getpid()) - memory_before
        print(f"\nbehind by {COUNT}: {growth:.0f} MB more here")
        print(f"{resident_megabytes(bus.pid) - server_before:.0f} MB more in the server")
        assert growth < 3 * MAX_MEGABYTES, "includes the published messages"
        async with open_connection(bus.url) as nc:
            listed = await api_request(nc, f"CONSUMER.LIST.{LOG}", {})
        [lag] = [each["num_pending"] for each in listed["consumers"]]
        assert lag > COUNT // 2, "the lag must be visible"
        position = first.position
        async for outcome in stream:
            assert outcome.position == position + 1
            position = outcome.position
            if position == COUNT + 1:
                break


async def has_reader_connection(server: EmbeddedServer) -> bool:
    async with httpx.AsyncClient() as http:
        response = await http.get(f"{server.monitoring_url}/connz")
    return any(each.get("name") == NAME for each in response.json()["connections"])


def _is_stopped(stat: Path) -> bool:
    return stat.read_text().rpartition(")")[2].split()[0] == "T"


class Reader:
    """A service in its own process, which can be paused."""

    def __init__(self, url: str, file: Path) -> None:
        self._file = file
        command = [sys.executable, "-m", "tests.faults.outcome_reader", url, str(file)]
        self._process = subprocess.Popen(command, cwd=ROOT)

    @property
    def positions(self) -> list[int]:
        """The positions that the service has written to its file."""
        return [int(line) for line in self._file.read_text().splitlines()]

    async def until_read(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._file.exists() or self._file.read_bytes().count(b"\n") < count:
                assert self._process.poll() is None, "the reader has exited"
                await asyncio.sleep(0.1)

    async def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not _is_stopped(stat):  # noqa: ASYNC110 - nothing reports the end
                await asyncio.sleep(0.01)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "config", ["", "ping_interval: 1s\nping_max: 1"], ids=["kept", "disconnected"]
)
async def test_fault_17_a_paused_reader_misses_nothing_and_does_not_affect_others(
    bus: EmbeddedServer, tmp_path: Path, config: str
) -> None:
    """With the second configuration, the server closes the silent connection in the meantime."""
    reader = Reader(bus.url, tmp_path / "positions")
    try:
        await publish_outcomes(bus, 1)
        await reader.until_read(1)
        memory_before = resident_megabytes(bus.pid)
        await reader.pause()
        await publish_outcomes(bus, COUNT_WHILE_PAUSED)
        growth = resident_megabytes(bus.pid) - memory_before
        print(f"\n{growth:.0f} MB more in the server")
        assert growth < MAX_SERVER_MEGABYTES
        async with asyncio.timeout(PATIENCE_SECONDS):
            while config and await has_reader_connection(bus):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
        assert await has_reader_connection(bus) is not bool(config)
        reader.resume()
        await reader.until_read(COUNT_WHILE_PAUSED + 1)
        assert reader.positions == list(range(1, COUNT_WHILE_PAUSED + 2)), "each once, in order"
    finally:
        reader.kill()
