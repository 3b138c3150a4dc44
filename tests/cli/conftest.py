from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Cli, Inside, Up, up


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands in an empty folder, where nothing runs."""
    return Cli(tmp_path)


@pytest.fixture(scope="session")
def running_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Up]]:
    """One running `up` for all tests that only use it; take names of your own."""
    cli = Cli(tmp_path_factory.mktemp("up"))
    with up(cli, "--resync", "0.5") as running:
        yield cli, running


@pytest.fixture
def live(running_up: tuple[Cli, Up]) -> Cli:
    """Commands in the folder of a running `up`."""
    return Inside(running_up[0].folder)


@pytest.fixture
def inside(tmp_path: Path) -> Cli:
    """Commands in an empty folder, run in this process."""
    return Inside(tmp_path)
