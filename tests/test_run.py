"""The script `run`: its environment belongs to one checkout, and is recreated after a move."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

UV = """#!/bin/sh
echo "$1" >> "$UV_CALLS"
[ "$1" != venv ] || { [ ! -e .venv ] && mkdir -p .venv/bin && : > .venv/bin/python &&
  chmod +x .venv/bin/python; }
"""


class Checkout:
    """A checkout whose uv only records its arguments."""

    def __init__(self, folder: Path, calls: Path) -> None:
        self.folder = folder
        self._calls = calls

    def runs(self) -> list[str]:
        """Run a command that does nothing, and return the calls of uv."""
        self._calls.write_text("")
        path = f"{self._calls.parent / 'bin'}:{os.environ['PATH']}"
        subprocess.run(
            [str(self.folder / "run"), "true"],
            env={**os.environ, "PATH": path, "UV_CALLS": str(self._calls)},
            check=True,
        )
        return self._calls.read_text().split()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder, uv = tmp_path / "a checkout", tmp_path / "bin" / "uv"
    folder.mkdir()
    shutil.copy(REPOSITORY / "run", folder)
    for name in ("requirements.lock", "pyproject.toml", "examples/shapes_api/pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    uv.parent.mkdir()
    uv.write_text(UV)
    uv.chmod(0o755)
    return Checkout(folder, tmp_path / "calls")


def test_an_environment_is_created_once(checkout: Checkout) -> None:
    assert checkout.runs() == ["venv", "pip", "pip"]
    assert checkout.runs() == []


def test_a_new_lock_is_installed_into_the_existing_environment(checkout: Checkout) -> None:
    checkout.runs()
    (checkout.folder / "requirements.lock").write_text("msgspec==0.20.0\n")
    assert checkout.runs() == ["pip", "pip"]


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_moved_or_copied_checkout_recreates_its_environment(
    checkout: Checkout, tmp_path: Path, how: str
) -> None:
    checkout.runs()
    script = checkout.folder / ".venv" / "bin" / "reconciler"
    script.write_text(f"#!{checkout.folder}/.venv/bin/python\n")
    other_checkout = Checkout(tmp_path / "other", tmp_path / "calls")
    if how == "copied":
        shutil.copytree(checkout.folder, other_checkout.folder)
    else:
        checkout.folder.rename(other_checkout.folder)

    assert other_checkout.runs() == ["venv", "pip", "pip"]

    assert not (other_checkout.folder / ".venv" / "bin" / "reconciler").exists()
    assert other_checkout.runs() == []


def test_a_checkout_reached_through_a_link_is_the_same_checkout(
    checkout: Checkout, tmp_path: Path
) -> None:
    checkout.runs()
    (tmp_path / "link").symlink_to(checkout.folder)
    assert Checkout(tmp_path / "link", tmp_path / "calls").runs() == []
