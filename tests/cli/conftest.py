from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Cli, InProcessCli, Up, idle_bus, up


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands in an empty folder, where nothing is running."""
    return Cli(tmp_path)


@pytest.fixture(scope="session")
def running_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Up]]:
    """Run one `up` for all tests that only use it; each test uses its own names."""
    cli = Cli(tmp_path_factory.mktemp("up"))
    with up(cli, "--resync", "0.5", "--with", "composition") as running:
        yield cli, running


@pytest.fixture
def live(running_up: tuple[Cli, Up]) -> Cli:
    """Commands in the folder of a running `up`."""
    return InProcessCli(running_up[0].folder)


@pytest.fixture
def local_cli(tmp_path: Path) -> InProcessCli:
    """Commands in an empty folder, run in this process."""
    return InProcessCli(tmp_path)


@pytest.fixture(scope="session")
def idle_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a bus without roles, where messages are never processed; yield its URL."""
    with idle_bus(tmp_path_factory.mktemp("idle")) as url:
        yield url


@pytest.fixture
def idle(idle_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessCli:
    """Commands on the bus without running roles."""
    # `doctor` repeats a check because a role may be busy, but no role is running here.
    monkeypatch.setattr("reconciler.cli.doctor._PAUSE_SECONDS", 0.01)
    return InProcessCli(tmp_path, idle_url)
