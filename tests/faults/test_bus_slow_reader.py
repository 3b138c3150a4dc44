"""Fault 17: a reader that is 100,000 outcomes behind costs nobody memory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.envelope import encode_log
from events.names import ShapeKey
from events.subjects import outcome
from infra.bus.streams import OUTCOMES
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish_many
from reconciler.sdk import connect
from reconciler.wiring import connected, initialise
from tests.bus.histories import event

COUNT = 100_000
MOST_MEGABYTES = 64
PATIENCE_SECONDS = 90.0
KEY = ShapeKey("default", "Shape", "foo")


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    async with connected(await server.start(tmp_path / "nats")) as nc:
        await initialise(nc)
    yield server
    await server.stop()


async def publish_outcomes(server: EmbeddedServer, count: int) -> None:
    payload = encode_log(event(KEY, 1))
    async with connected(server.url) as nc:
        messages = [OutgoingMessage(outcome(KEY), payload) for _ in range(count)]
        results = await publish_many(nc, messages, timeout=PATIENCE_SECONDS)
        assert not [each for each in results if isinstance(each, Exception)]


def resident_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_fault_17_a_reader_that_takes_nothing_holds_no_more_than_a_window(
    bus: EmbeddedServer,
) -> None:
    async with connect(bus.url, source="slow") as client, client.outcomes(after=0) as stream:
        await publish_outcomes(bus, 1)
        first = await anext(aiter(stream))
        before, server_before = resident_megabytes(os.getpid()), resident_megabytes(bus.pid)
        await publish_outcomes(bus, COUNT)
        grown = resident_megabytes(os.getpid()) - before
        print(f"\nbehind by {COUNT}: {grown:.0f} MB more here")
        print(f"{resident_megabytes(bus.pid) - server_before:.0f} MB more in the server")
        assert grown < 3 * MOST_MEGABYTES, "the messages that were published are some of it"
        async with connected(bus.url) as nc:
            listed = await api_request(nc, f"CONSUMER.LIST.{OUTCOMES}", {})
        [lag] = [each["num_pending"] for each in listed["consumers"]]
        assert lag > COUNT // 2, "how far it is behind can be seen"
        seen = first.position
        async for each in stream:
            assert each.position == seen + 1
            seen = each.position
            if seen == COUNT + 1:
                break
