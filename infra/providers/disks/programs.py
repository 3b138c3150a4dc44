"""Runs the programs that create, check, grow, attach and mount filesystems, without a shell.

A program has no terminal and receives no signals, so Ctrl-C does not interrupt a mkfs. Files that
it inherits stay locked until it exits, even if the worker exits first.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping
from http import HTTPStatus
from tempfile import TemporaryFile
from typing import IO, Final, NamedTuple

from reconciler.errors import (
    ConfigurationError,
    NotDoneError,
    ReconcilerError,
    UnknownResultError,
)

_SEARCH_PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES: Mapping[str, str] = {
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "resize2fs": "e2fsprogs",
    "tune2fs": "e2fsprogs",
    "losetup": "mount",
    "mount": "mount",
    "umount": "mount",
}
_MAX_OUTPUT_CHARACTERS = 300
_MAX_OUTPUT_BYTES = 4096
REFUSED: Final = HTTPStatus.UNPROCESSABLE_ENTITY
"""Status of one disk's failure. It does not open the breaker, because the folder is usable."""

_NOT_PERMITTED: Final = (
    "permission denied",
    "not permitted",
    "must be superuser",
    "only root can",
)
_NO_SPACE: Final = ("no space left", "disk quota exceeded")
_BUSY: Final = ("busy", "in use", "already mounted", "overlapping")
_NO_LOOP: Final = ("cannot find an unused loop device", "no such file or directory")


class ProgramResult(NamedTuple):
    """The exit status of a program, and its output."""

    program: str
    code: int
    output: str


def run(
    program: str, *arguments: str, timeout_seconds: float | None, files: tuple[int, ...] = ()
) -> ProgramResult:
    """Run a program until it exits. It inherits ``files`` and their locks as /proc/self/fd/NUMBER.

    Without ``timeout_seconds``, it is never killed, because a program that moves data must finish.

    Raises ``ConfigurationError`` if it is not installed, ``UnknownResultError`` if it was killed.
    """
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SEARCH_PATH}")
    if path is None:
        raise ConfigurationError(
            f"{program} is not installed where the worker runs; install the "
            f"{_PACKAGES[program]} package (Debian: apt-get install {_PACKAGES[program]})"
        )
    # Files instead of pipes: a program that writes to a pipe without a reader is killed.
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            process = subprocess.run(  # noqa: S603 - no shell
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={"PATH": _SEARCH_PATH, "LC_ALL": "C"},
                pass_fds=files,
                timeout=timeout_seconds,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise UnknownResultError(
                f"{program} was stopped, because it took longer than {timeout_seconds:g} s "
                "(limits.requestTimeoutSeconds)"
            ) from None
        return ProgramResult(
            program, process.returncode, _read_output(errors) or _read_output(output)
        )


def _read_output(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read(_MAX_OUTPUT_BYTES).decode(errors="replace")
    return " ".join(text.split())[:_MAX_OUTPUT_CHARACTERS]


def proc_path(file: int) -> str:
    """Return a path to an open file, for a program that inherits it. No link can redirect it."""
    return f"/proc/self/fd/{file}"


def build_program_error(result: ProgramResult, context: str) -> ReconcilerError:
    """Return the error for a failed program, based on its output."""
    text = result.output.lower()
    if any(each in text for each in _NOT_PERMITTED):
        return ConfigurationError(
            f"{context}: {result.output}; run the worker as root (CAP_SYS_ADMIN, and "
            "CAP_SYS_RESOURCE to grow mounted disks)"
        )
    if any(each in text for each in _NO_SPACE):
        return build_waiting_error(f"{context}: no space left: {result.output}")
    if any(each in text for each in _BUSY):
        return build_waiting_error(f"{context}: {result.output}")
    if result.program == "losetup" and any(each in text for each in _NO_LOOP):
        return ConfigurationError(
            f"{context}: {result.output}; load the loop kernel module (modprobe loop), and provide "
            "/dev/loop-control and /dev/loop* where the worker runs"
        )
    message = f"{context}: {result.program} exited with status {result.code}: {result.output}"
    return NotDoneError(message, status=REFUSED)


def build_waiting_error(message: str) -> NotDoneError:
    """Return the error for an action that must wait. It does not open the breaker."""
    return NotDoneError(message, status=HTTPStatus.CONFLICT)


def is_out_of_space(error: OSError) -> bool:
    """Return whether an error means that no space is left."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def build_permission_error(error: OSError, context: str) -> ReconcilerError | None:
    """Return an error with a remedy if the kernel denied permission; None otherwise."""
    if error.errno not in {errno.EACCES, errno.EPERM}:
        return None
    return ConfigurationError(
        f"{context}: {error.strerror}; run the worker and the observer as root (CAP_SYS_ADMIN)"
    )
