"""A bus of its own for each module here: the product's streams have fixed names."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.streams import ensure_topology
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer()
    asyncio.run(server.start(tmp_path_factory.mktemp("bus")))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await connect(server.url, name="test")
    await ensure_topology(client)
    yield client
    await client.close()


@pytest.fixture
async def log(bus: Client) -> JetStreamLog:
    return await open_log(bus)
