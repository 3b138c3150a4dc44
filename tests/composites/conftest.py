"""A world with a kind composed of shapes, and the shapes API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.names import ResourceKey
from events.provider_config import Retry
from reconciler.provider.kind import KindRegistry
from shapes_api.kinds.shapes import SHAPE
from tests.composites.palette import CONFIG, KIND, PALETTE
from tests.scenarios.conftest import api_url
from tests.scenarios.harness import Human, World, api_config

__all__ = ["api_url"]

WARM = ResourceKey("default", KIND, "warm")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.fixtures.docker")
    config.pluginmanager.import_plugin("tests.fixtures.caddy")


@pytest.fixture
async def world(tmp_path: Path, api_url: str) -> AsyncIterator[World]:
    human = Human(api_url)
    async with World(tmp_path / "nats", human).open() as world:
        world.kinds = KindRegistry([SHAPE, PALETTE])
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        await world.configure(
            api_config(
                world.server.url,
                provider="composition",
                retry=Retry(initial_seconds=0.1, max_seconds=0.3),
                consistency_grace_seconds=0.5,
            ),
            CONFIG,
        )
        yield world
    await human.close()


async def colors(world: World) -> dict[str, str]:
    return {each["name"]: each["color"] for each in await world.human.list_all()}


async def until_ready(world: World, key: ResourceKey) -> None:
    async def is_ready() -> bool:
        row = await world.client.status(key)
        return row is not None and row.outcome == "Converged" and row.not_ready is None

    try:
        await world.until(is_ready, f"{key} is ready", seconds=8)
    except AssertionError:
        for event in await world.history(key):
            print(type(event.data).__name__, str(event.data)[:700])
        print(await world.client.status(key))
        raise
