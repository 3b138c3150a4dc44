"""Fixtures: the shapes API, once for all tests of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.faulty_api import FaultyApi


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shapes_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    process = FaultyApi()
    yield await process.start(tmp_path_factory.mktemp("shapes"))
    await process.stop()
