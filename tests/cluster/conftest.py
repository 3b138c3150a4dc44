"""A cluster with three replicas of the product's streams, and an external API beside it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from reconciler.wiring import initialize, open_connection
from tests.cluster.routes import Routes
from tests.cluster.servers import NODES, EmbeddedCluster
from tests.faulty_api import FaultyApi


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    cluster = EmbeddedCluster()
    await cluster.start(tmp_path / "nats")
    try:
        async with open_connection(cluster.url) as nc:
            await initialize(nc, replicas=NODES)
        yield cluster
    finally:
        await cluster.kill()


@pytest.fixture
async def routes(tmp_path: Path) -> AsyncIterator[Routes]:
    """Run a cluster whose servers can be cut off from each other."""
    routes = Routes()
    async with AsyncExitStack() as stack:
        await routes.start(tmp_path / "nats", stack)
        async with open_connection(routes.cluster.url) as nc:
            await initialize(nc, replicas=NODES)
        yield routes


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "roles"
    folder.mkdir()
    return folder


@pytest.fixture
async def api_url(tmp_path: Path) -> AsyncIterator[str]:
    process = FaultyApi()
    yield await process.start(tmp_path / "api")
    await process.stop()
