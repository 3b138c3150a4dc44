from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect
from infra.jetstream.topology import delete_stream, ensure_stream


@pytest.fixture
async def stream(nc: Client, unique: str) -> AsyncIterator[str]:
    """Create the test's own stream, with all subjects under its name; return the name."""
    config = {
        "name": unique,
        "subjects": [f"{unique}.>"],
        "allow_atomic": True,
        "allow_direct": True,
        "discard": "new",
    }
    await ensure_stream(nc, config)
    yield unique
    await delete_stream(nc, unique)


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server that the test may stop, kill and restart."""
    server = EmbeddedServer()
    await server.start(tmp_path / "own")
    yield server
    await server.stop()


Connect = Callable[[EmbeddedServer], Awaitable[Client]]


@pytest.fixture
async def connect_client() -> AsyncIterator[Connect]:
    """Return a function that opens connections, which are closed after the test."""
    clients: list[Client] = []

    async def open_client(server: EmbeddedServer) -> Client:
        clients.append(await connect(server.url, name="test"))
        return clients[-1]

    yield open_client
    for client in clients:
        await client.close()
