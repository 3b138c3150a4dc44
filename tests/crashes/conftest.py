"""The matrix runs in the background, several cases at a time; each test waits for its own case."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.crashes.cases import Case
from tests.crashes.lane import PREFIX, Lane
from tests.crashes.matrix import Matrix

if TYPE_CHECKING:
    from infra.components.postgres import Postgres
    from tests.engines import TestEngine


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.fixtures.docker")
    config.pluginmanager.import_plugin("tests.fixtures.postgres")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Matrix]:
    """Run all selected cases."""
    matrix = Matrix(tmp_path_factory.mktemp("matrix"), _selected(request.session, "matrix"))
    yield matrix
    await matrix.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kinds_matrix(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    engine: TestEngine,
    postgres_server: Postgres,
) -> AsyncIterator[Matrix]:
    """Run all selected cases on real systems."""
    from tests.crashes.real_kinds import KindLane, create_kind_story  # noqa: PLC0415 - three systems

    def lane(folder: Path) -> Lane:
        return KindLane(folder, engine, postgres_server, f"k{uuid.uuid4().hex[:8]}")

    folder = tmp_path_factory.mktemp("kinds")
    cases = _selected(request.session, "kinds_matrix")
    matrix = Matrix(folder, cases, make_lane=lane, make_story=create_kind_story)
    yield matrix
    await matrix.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lane]:
    """Start a bus and an API for all tests of a module; each test needs unique object names."""
    async with Lane(tmp_path_factory.mktemp("lane")).open() as lane:
        await lane.settle()
        yield lane


@pytest.fixture
def name() -> str:
    """Return a unique object name."""
    return f"{PREFIX}{uuid.uuid4().hex[:8]}"


def _selected(session: pytest.Session, fixture: str) -> list[Case]:
    return [
        item.callspec.params["case"]  # pyright: ignore
        for item in session.items
        if isinstance(item, pytest.Function) and fixture in item.fixturenames
    ]
