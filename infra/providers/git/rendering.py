"""Renderers: programs that make manifests from a folder, as the operator configured them.

A source names one of them. It cannot choose which program runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from infra.providers.git.problems import GitError
from reconciler.errors import ConfigurationError

RENDERERS_VARIABLE: Final = "RECONCILER_RENDERERS"
"""Names the YAML file of the renderers: ``kustomize: [kubectl, kustomize, .]``."""

MAX_SECONDS: Final = 30
MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
_MAX_MEMORY_KIB: Final = 2 * 1024 * 1024
_BLOCK_BYTES: Final = 512
_LIMITED: Final = (
    f"ulimit -t {MAX_SECONDS}; ulimit -v {_MAX_MEMORY_KIB};"
    f' ulimit -f {2 * MAX_OUTPUT_BYTES // _BLOCK_BYTES}; exec "$@"'
)
_MAX_ERROR_CHARACTERS: Final = 300

Renderers = Mapping[str, Sequence[str]]


def renderers_of_process() -> Renderers:
    """Read the file of the renderers. Raises ``ConfigurationError`` for an unusable one."""
    file = os.environ.get(RENDERERS_VARIABLE, "")
    if not file:
        return {}
    try:
        commands = msgspec.yaml.decode(Path(file).read_bytes(), type=dict[str, list[str]])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"{RENDERERS_VARIABLE}: {file}: {error}") from None
    for name, command in commands.items():
        if not command or shutil.which(command[0]) is None:
            problem = f"program {command[0]!r} not found" if command else "has no command; add it"
            raise ConfigurationError(f"{RENDERERS_VARIABLE}: {file}: {name}: {problem}")
    return commands


def run_renderer(
    renderers: Renderers, name: str, files: Mapping[str, bytes], path: str
) -> dict[str, bytes]:
    """Run a renderer in a folder of a commit. Raises ``GitError`` if it fails or takes too long."""
    command = renderers.get(name)
    if command is None:
        names = ", ".join(sorted(renderers)) or "none"
        raise GitError(
            "BadCommit",
            f"spec.render: unknown renderer {name!r}; the roles have: {names} (configured by "
            f"{RENDERERS_VARIABLE})",
        )
    with tempfile.TemporaryDirectory(
        prefix="reconciler-render-", ignore_cleanup_errors=True
    ) as folder:
        root = Path(folder) / "files"
        for file, content in files.items():
            target = root / file
            if not target.resolve().is_relative_to(root.resolve()):
                raise GitError("BadCommit", f"{file!r} is not a valid file name")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        place = root / path
        # A path of the source was checked at its declaration. A path of its set was not.
        if not place.resolve().is_relative_to(root.resolve()) or not place.is_dir():
            raise GitError("BadCommit", f"the commit has no directory {path!r}")
        return {name: _run(name, command, place, Path(folder))}


def _run(name: str, command: Sequence[str], place: Path, home: Path) -> bytes:
    """Run it with its output in a file, so that a remaining process cannot delay the read."""
    output, errors = home / "output", home / "errors"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - as who runs the roles has configured it
            ["/bin/sh", "-c", _LIMITED, "sh", *command],
            cwd=place,
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(home), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        status = process.wait(MAX_SECONDS)
    except subprocess.TimeoutExpired:
        raise GitError("BadCommit", f"{name}: took longer than {MAX_SECONDS} s") from None
    finally:
        _end(process)
    if output.stat().st_size > MAX_OUTPUT_BYTES:
        raise GitError("BadCommit", f"{name}: its output has more than {MAX_OUTPUT_BYTES} bytes")
    if status:
        words = errors.read_text(errors="replace").split()
        raise GitError(
            "BadCommit", f"{name}: exit status {status}: {' '.join(words)[:_MAX_ERROR_CHARACTERS]}"
        )
    return output.read_bytes()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with all processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
