"""What every test may use: a real server for the session, a connection and names of its own."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect
from tests.docker.engine import engine_problem


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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked ``docker`` where there is no Docker Engine; in CI that is a failure."""
    if item.get_closest_marker("docker") is None:
        return
    problem = engine_problem()
    if problem is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)
