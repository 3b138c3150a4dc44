"""The worlds of the scenarios, with the records API for a second kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.scenarios.conftest import api_url, bare_world, exclusive_world, world

__all__ = ["api_url", "bare_world", "exclusive_world", "world"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.fixtures.docker")
    config.pluginmanager.import_plugin("tests.fixtures.postgres")
    config.pluginmanager.import_plugin("tests.fixtures.caddy")
    config.pluginmanager.import_plugin("tests.fixtures.disks")


@pytest.fixture(scope="module")
def records_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [sys.executable, "-m", "shapes_api", "--exit-with-stdin", "--port", "0"]
    command += ["--data", str(tmp_path_factory.mktemp("records"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().removeprefix("listening on ").strip()
    process.kill()
    process.communicate()
