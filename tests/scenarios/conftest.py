"""Fixtures of the scenarios: one API process for all of them, and a new world for each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faulty_api import FaultyApi
from tests.scenarios.harness import Human, World, api_config


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.fixtures.pebble")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The shapes API in a separate process; it is empty for each scenario."""
    process = FaultyApi()
    yield await process.start(tmp_path_factory.mktemp("shapes"))
    await process.stop()


@pytest.fixture
async def bare_world(fresh_bus_url: str, api_url: str) -> AsyncIterator[World]:
    """A bus and an empty API; no reconciler runs, and no API is configured."""
    human = Human(api_url)
    async with World(fresh_bus_url, human).open() as world:
        yield world
    await human.close()


@pytest.fixture
async def bare_world_on_own_server(tmp_path: Path, api_url: str) -> AsyncIterator[World]:
    """Like ``bare_world``, but on a separate server that the test may kill, restart or fill."""
    human = Human(api_url)
    async with World(tmp_path / "nats", human).open() as world:
        yield world
    await human.close()


@pytest.fixture
async def world(bare_world: World) -> World:
    """A reconciler that manages a shared API."""
    await bare_world.start_reconciler()
    await bare_world.configure(api_config(bare_world.human.url))
    return bare_world


@pytest.fixture
async def exclusive_world(bare_world: World) -> World:
    """A reconciler that owns all objects in the API; its guard allows two deletions."""
    await bare_world.start_reconciler()
    await bare_world.configure(api_config(bare_world.human.url, exclusive=True))
    await bare_world.until_scope_is_listed()
    return bare_world
