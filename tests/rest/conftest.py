"""Fixtures: the servers, each started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.providers.cases import SHAPES_CASE
from tests.providers.conftest import running_api
from tests.rest.servers import caddy, powerdns


@pytest.fixture(scope="session")
def shapes_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_api(SHAPES_CASE.api_module, tmp_path_factory.mktemp("api")) as url:
        yield url


@pytest.fixture(scope="session")
def caddy_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with caddy(tmp_path_factory.mktemp("caddy")) as url:
        yield url


@pytest.fixture(scope="session")
def zone_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with powerdns(tmp_path_factory.mktemp("powerdns")) as url:
        yield url
