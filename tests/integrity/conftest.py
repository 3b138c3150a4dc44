"""A world of its own for each story, since each one destroys what it stands on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.streams import ensure_topology
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect
from tests.integrity.operator import Operator
from tests.scenarios.conftest import api_url, bare_world

__all__ = ["api_url", "bare_world"]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    await server.start(tmp_path / "bus")
    yield server
    await server.kill()


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await connect(server.url, name="test")
    await ensure_topology(client)
    yield client
    await client.close()


@pytest.fixture
async def log(bus: Client) -> JetStreamLog:
    return await open_log(bus)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)
