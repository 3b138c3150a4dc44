"""An environment with the wheel installed, and commands that must succeed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Installed:
    """An environment with only the wheel and the locked versions of its dependencies."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.wheel = wheel
        self.bin = folder / "bin"

    @property
    def site_packages(self) -> Path:
        [path] = self.folder.glob("lib/python*/site-packages")
        return path

    @property
    def distributions(self) -> set[str]:
        listed = run("uv", "pip", "list", "--quiet", "--python", self.bin / "python")
        return {line.split()[0] for line in listed.splitlines()[2:]}

    def install(self, *what: str | Path, options: tuple[str, ...] = ()) -> None:
        """Install with the locked versions."""
        lock = ("--constraint", ROOT / "requirements.lock")
        run(
            "uv",
            "pip",
            "install",
            "--quiet",
            "--link-mode=copy",  # a test that overwrites a file must not change other environments
            "--python",
            self.bin / "python",
            *options,
            *lock,
            *what,
        )


def environment() -> dict[str, str]:
    """Return our environment without the variables that refer to this checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("RECONCILER_")
    }


def run(*command: str | Path, cwd: Path | None = None) -> str:
    process = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{command}: {process.stdout}{process.stderr}"
    return process.stdout
