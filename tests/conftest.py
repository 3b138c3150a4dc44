"""What every test may use: a real server for the session, a connection and names of its own."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with JetStream, started once; use streams with names of your own."""
    server = EmbeddedServer()
    asyncio.run(server.start(tmp_path_factory.mktemp("nats")))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def nc(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await connect(nats_server.url, name="test")
    yield client
    await client.close()


@pytest.fixture
def unique() -> str:
    """A token that no other test uses: for names of streams and first tokens of subjects."""
    return f"T{uuid.uuid4().hex[:12]}"
