"""Each module has its own bus, because the product's streams have fixed names."""

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.streams import ensure_topology
from infra.jetstream.connection import connect


@pytest.fixture
async def bus(module_bus_url: str) -> AsyncIterator[Client]:
    client = await connect(module_bus_url, name="test")
    await ensure_topology(client)
    yield client
    await client.close()


@pytest.fixture
async def log(bus: Client) -> JetStreamLog:
    return await open_log(bus)
