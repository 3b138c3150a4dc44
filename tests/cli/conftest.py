from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Cli, Inside, Up, idle_bus, up


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands in an empty folder, where nothing runs."""
    return Cli(tmp_path)


@pytest.fixture(scope="session")
def running_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Up]]:
    """One running `up` for all tests that only use it; take names of your own."""
    cli = Cli(tmp_path_factory.mktemp("up"))
    with up(cli, "--resync", "0.5", "--with", "composition") as running:
        yield cli, running


@pytest.fixture
def live(running_up: tuple[Cli, Up]) -> Cli:
    """Commands in the folder of a running `up`."""
    return Inside(running_up[0].folder)


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    """Commands in an empty folder, run in this process."""
    return Inside(tmp_path)


@pytest.fixture(scope="session")
def idle_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one bus without running roles; what is sent there is never processed."""
    with idle_bus(tmp_path_factory.mktemp("idle")) as url:
        yield url


@pytest.fixture
def idle(idle_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Commands on the bus without running roles."""
    # The doctor repeats a check in case a role is busy for a moment: here none ever answers.
    monkeypatch.setattr("reconciler.cli.doctor._PAUSE_SECONDS", 0.01)
    return Inside(tmp_path, idle_url)
