"""A world on a separate server for tests that destroy it; an empty bus for the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.streams import ensure_topology
from infra.jetstream.connection import connect
from tests.integrity.operator import Operator
from tests.scenarios.conftest import api_url
from tests.scenarios.conftest import bare_world_on_own_server as bare_world

__all__ = ["api_url", "bare_world"]


@pytest.fixture
async def bus(fresh_bus_url: str) -> AsyncIterator[Client]:
    client = await connect(fresh_bus_url, name="test")
    await ensure_topology(client)
    yield client
    await client.close()


@pytest.fixture
async def log(bus: Client) -> JetStreamLog:
    return await open_log(bus)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)
