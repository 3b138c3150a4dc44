"""A cluster with the product's streams in three copies, and an external API beside it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from reconciler.wiring import connected, initialise
from tests.cluster.servers import EmbeddedCluster
from tests.faulty_api import FaultyApi


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    cluster = EmbeddedCluster()
    await cluster.start(tmp_path / "nats")
    try:
        async with connected(cluster.url) as nc:
            await initialise(nc, replicas=3)
        yield cluster
    finally:
        await cluster.kill()


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
