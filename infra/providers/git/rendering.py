"""Renderers: programs, configured by the operator, that generate manifests from a folder.

A source names a renderer. It cannot choose which program runs.
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
"""Environment variable for a YAML file of renderers: ``kustomize: [kubectl, kustomize, .]``."""

MAX_SECONDS: Final = 30
MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
_MAX_MEMORY_KIB: Final = 2 * 1024 * 1024
_BLOCK_BYTES: Final = 512
_LIMITED_COMMAND: Final = (
    f"ulimit -t {MAX_SECONDS}; ulimit -v {_MAX_MEMORY_KIB};"
    f' ulimit -f {2 * MAX_OUTPUT_BYTES // _BLOCK_BYTES}; exec "$@"'
)
_MAX_ERROR_CHARACTERS: Final = 300

Renderers = Mapping[str, Sequence[str]]


def read_renderers() -> Renderers:
    """Read the renderers' file. Raises ``ConfigurationError`` if it is invalid."""
    file = os.environ.get(RENDERERS_VARIABLE, "")
    if not file:
        return {}
    try:
        commands = msgspec.yaml.decode(Path(file).read_bytes(), type=dict[str, list[str]])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"{RENDERERS_VARIABLE}: {file}: {error}") from None
    for name, command in commands.items():
        if not command or shutil.which(command[0]) is None:
            problem = f"program {command[0]!r} not found" if command else "has no command; add one"
            raise ConfigurationError(f"{RENDERERS_VARIABLE}: {file}: {name}: {problem}")
    return commands


def run_renderer(
    renderers: Renderers, name: str, files: Mapping[str, bytes], path: str
) -> dict[str, bytes]:
    """Run a renderer in a commit's folder. Raises ``GitError`` if it fails or takes too long."""
    command = renderers.get(name)
    if command is None:
        names = ", ".join(sorted(renderers)) or "none"
        raise GitError(
            "BadCommit",
            f"spec.render: unknown renderer {name!r}; use one of: {names} (configured by "
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
        directory = root / path
        # A source's path was checked when it was declared. The path in its set was not.
        if not directory.resolve().is_relative_to(root.resolve()) or not directory.is_dir():
            raise GitError("BadCommit", f"the commit has no directory {path!r}")
        return {name: _run(name, command, directory, Path(folder))}


def _run(name: str, command: Sequence[str], directory: Path, working_folder: Path) -> bytes:
    """Run a renderer. A leftover process cannot delay the read, because the output is in a file."""
    output, errors = working_folder / "output", working_folder / "errors"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - the operator configured the command
            ["/bin/sh", "-c", _LIMITED_COMMAND, "sh", *command],
            cwd=directory,
            env={
                "PATH": os.environ.get("PATH", ""),
                "HOME": str(working_folder),
                "LC_ALL": "C.UTF-8",
            },
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
        raise GitError("BadCommit", f"{name}: its output is larger than {MAX_OUTPUT_BYTES} bytes")
    if status:
        words = errors.read_text(errors="replace").split()
        raise GitError(
            "BadCommit", f"{name}: exit status {status}: {' '.join(words)[:_MAX_ERROR_CHARACTERS]}"
        )
    return output.read_bytes()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
