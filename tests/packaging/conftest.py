"""The wheels, built once, and environments that they are installed into."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging.installing import ROOT, Installed, run

EXAMPLE_API = ROOT / "examples" / "shapes_api"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(ROOT, tmp_path_factory)


@pytest.fixture(scope="session")
def wheel_of_example_api(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(EXAMPLE_API, tmp_path_factory)


@pytest.fixture(scope="session")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel without extras, as for another service or a laptop."""
    return _install(wheel, "", tmp_path_factory)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel with the `server` extra, and without any kind's extra."""
    return _install(wheel, "[server]", tmp_path_factory)


@pytest.fixture(scope="session")
def installed_with_example_api(
    wheel: Path, wheel_of_example_api: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    installation = _install(wheel, "[server]", tmp_path_factory)
    # Both together, because the installer finds the first one only by its file.
    installation.install(
        f"event-sourced-reconciler[server] @ {wheel.as_uri()}", wheel_of_example_api
    )
    return installation


def _build(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    run("uv", "build", "--quiet", "--wheel", "--out-dir", target, folder)
    [wheel_file] = target.glob("*.whl")
    return wheel_file


def _install(wheel: Path, extra: str, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run("uv", "venv", "--quiet", "--python", sys.executable, folder)
    installation = Installed(folder, wheel)
    installation.install(f"event-sourced-reconciler{extra} @ {wheel.as_uri()}")
    return installation
