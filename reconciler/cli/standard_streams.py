"""Handle closed standard streams, and output that cannot be written."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


class _LossyFile(io.FileIO):
    """A file that drops data that it cannot write."""

    def write(self, data: Any, /) -> int:
        """Write the data, or drop it."""
        try:
            written: int | None = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def tolerate_stderr_failures() -> None:
    """Drop messages and log lines that cannot be written, instead of raising ``OSError``.

    The disk may be full, or the pipe's reader may have exited. The error would otherwise stop a
    role during its work, and a command before it sends anything.
    """
    stream = sys.stderr
    if stream is None:  # it is closed, and the null device replaces it
        return
    raw = _LossyFile(stream.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True
    )


def open_closed_streams() -> None:
    """Open the null device in place of each closed standard stream (``>&-``).

    Otherwise, the next opened socket gets the stream's number, and event loops and output fail.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def discard_output() -> None:
    """Drop the remaining output, so that it cannot fail again when the process exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def tolerating_closed_output() -> Generator[None]:
    """Continue if the output's reader has exited, so that the work determines the exit status."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
