"""One service for most tests, emptied before each; tests that kill a service start their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.example_api.requests import create_client
from tests.faulty_api import FaultyApi


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    process = FaultyApi()
    yield await process.start(tmp_path_factory.mktemp("shapes"))
    await process.stop()


@pytest.fixture
async def client(service_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client for a service without shapes, faults or counts."""
    async with create_client(service_url) as client:
        await client.delete("/_faults")
        for item in (await client.get("/shapes")).json()["items"]:
            await client.delete(f"/shapes/{item['name']}")
        await client.delete("/_stats")
        yield client
        await client.delete("/_faults")


@pytest.fixture
async def own_process(tmp_path: Path) -> AsyncIterator[FaultyApi]:
    """Yield a process that was not started; its folder may be `tmp_path / "data"`."""
    process = FaultyApi()
    yield process
    await process.stop()
