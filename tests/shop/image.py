"""The image that the shop's containers run: this machine's psql, and a shell."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.engines import BUSYBOX, EngineAdmin

NAME = "postgres:15"
"""Name of the image in the example, where it is the public one."""

_PROGRAMS = ("sh", "sleep", "cat")
_INSTALL = "psql is not installed (postgresql-client package)"


def psql_problem() -> str | None:
    """Return why the image cannot be built on this machine, or None."""
    return None if shutil.which("psql") else _INSTALL


def make_image(
    admin: EngineAdmin,
    name: str = NAME,
    *,
    programs: Sequence[str] = _PROGRAMS,
    scripts: Sequence[Path] = (),
) -> None:
    """Build the image from this machine's programs, without a registry."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        tar.add(BUSYBOX, "bin/busybox")
        for program in programs:
            link = tarfile.TarInfo(f"bin/{program}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for script in scripts:
            tar.add(script, f"bin/{script.name}")
        psql = _psql()
        tar.add(psql, "bin/psql")
        for library in _libraries_of(psql):
            tar.add(library, library.lstrip("/"))
    repository, _, tag = name.partition(":")
    query: dict[str, str | list[str]] = {"fromSrc": "-", "repo": repository, "tag": tag}
    query["changes"] = ["ENV PATH=/bin"]
    response = admin.http.post("/images/create", params=query, content=archive.getvalue())
    assert response.is_success, response.text


def _psql() -> str:
    """Return the path of the program, because Debian's `psql` is a wrapper script."""
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/psql"))
    program_path = str(newest[-1]) if newest else shutil.which("psql")
    assert program_path is not None
    return program_path


def _libraries_of(program: str) -> list[str]:
    output = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", output)
