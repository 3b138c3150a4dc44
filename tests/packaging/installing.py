"""What the wheel's tests have at hand: an environment made from it, commands that must succeed."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Installed:
    """An environment with nothing in it but the wheel and the locked versions it asks for."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.wheel = wheel
        self.bin = folder / "bin"

    @property
    def site_packages(self) -> Path:
        [found] = self.folder.glob("lib/python*/site-packages")
        return found


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
