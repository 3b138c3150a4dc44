"""The benchmark of queries about the past runs to completion; its times are not judged here."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory.long_log import HOT, fill
from infra.bus.event_log import open_log
from infra.bus.streams import ensure_topology
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import close, connect
from reconciler.sdk.log_replay import LogReplay

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_every_query_is_measured_on_a_short_log() -> None:
    command = [sys.executable, "-m", "benchmarks.memory", "--events", "600"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "600 events of " in process.stdout
    assert "the slowest query that reads less than half of the log" in process.stdout


async def test_the_product_accepts_the_long_log_as_its_own(tmp_path: Path) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path)
    nc = await connect(server.url, name="test")
    await ensure_topology(nc)
    filled = await fill(nc, 1_200)
    replay = LogReplay(await open_log(nc))
    await replay.advance()
    await replay.close()
    await close(nc)
    await server.stop()
    assert replay.integrity.damage == []  # versions and digests are correct
    assert (replay.events, len(replay.models.status)) == (1_200, filled.resources)
    assert replay.models.status[str(HOT)].drifts > 0
