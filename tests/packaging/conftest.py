"""The wheel, built and installed once: what people get."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging.installing import ROOT, Installed, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("uv", "build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed") / "venv"
    python = folder / "bin" / "python"
    run("uv", "venv", "--quiet", "--python", sys.executable, folder)
    lock = ROOT / "requirements.lock"
    run("uv", "pip", "install", "--quiet", "--python", python, "--constraint", lock, wheel)
    return Installed(folder, wheel)
