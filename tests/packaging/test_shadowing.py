"""Foreign packages with our names are reported at startup, in one line with both paths."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.shadowing import PACKAGES, check_packages
from tests.packaging.installing import Installed


def _start(installed: Installed, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed.bin / "reconciler", "--version"],
        cwd=cwd,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )


def _read_error(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 1
    assert process.stdout == ""
    [line] = process.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture
def events_package(installed: Installed, tmp_path: Path) -> Iterator[Path]:
    """The installed ``events`` package, which the test may damage."""
    package = installed.site_packages / "events"
    shutil.copytree(package, tmp_path / "kept")
    yield package
    shutil.rmtree(package)
    shutil.copytree(tmp_path / "kept", package)


def test_a_checkout_is_accepted() -> None:
    check_packages()


def test_a_clean_installation_is_accepted(installed: Installed, tmp_path: Path) -> None:
    process = _start(installed, tmp_path)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("name", sorted(set(PACKAGES) - {"reconciler"}))
@pytest.mark.parametrize("form", ["{}/__init__.py", "{}.py"])
def test_a_package_earlier_on_the_path_is_an_error(
    installed: Installed, tmp_path: Path, name: str, form: str
) -> None:
    foreign = tmp_path / form.format(name)
    foreign.parent.mkdir(exist_ok=True)
    foreign.touch()
    line = _read_error(_start(installed, tmp_path, PYTHONPATH=str(tmp_path)))
    assert str(foreign) in line
    assert str(installed.site_packages / name / "__init__.py") in line


def test_a_distribution_that_overwrote_our_package_is_named(
    installed: Installed, events_package: Path, tmp_path: Path
) -> None:
    (events_package / "__init__.py").write_text("class Events: ...\n")
    record = installed.site_packages / "Events-0.5.dist-info"
    record.mkdir()
    try:
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: Events\nVersion: 0.5\n")
        (record / "RECORD").write_text("events/__init__.py,,\nEvents-0.5.dist-info/METADATA,,\n")
        line = _read_error(_start(installed, tmp_path))
    finally:
        shutil.rmtree(record)
    assert str(events_package / "__init__.py") in line
    assert "Events 0.5" in line


def test_a_removed_package_is_an_error(
    installed: Installed, events_package: Path, tmp_path: Path
) -> None:
    (events_package / "__init__.py").unlink()
    line = _read_error(_start(installed, tmp_path))
    assert str(events_package / "__init__.py") in line
    assert "missing" in line
