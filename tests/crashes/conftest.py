"""The matrix is run in the background, a few cases at once; each test waits for its own case."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.crashes.cases import Case
from tests.crashes.matrix import Matrix


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Matrix]:
    """Every case that was selected."""
    matrix = Matrix(tmp_path_factory.mktemp("matrix"), _selected(request.session))
    yield matrix
    await matrix.close()


def _selected(session: pytest.Session) -> list[Case]:
    return [
        item.callspec.params["case"]  # pyright: ignore
        for item in session.items
        if isinstance(item, pytest.Function) and "matrix" in item.fixturenames
    ]
