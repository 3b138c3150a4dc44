"""Standard input, output and error when they are closed or without a reader."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


class _Forgiving(io.FileIO):
    """A file that drops what it cannot write."""

    def write(self, data: Any, /) -> int:
        """Write the data, or drop it."""
        try:
            written: int | None = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def tolerate_stderr_failures() -> None:
    """Drop messages and log lines that cannot be written, instead of raising ``OSError``.

    The disk may be full, or the reader of the pipe may have ended. Otherwise, a role would stop
    during its work, and a command would stop before it has sent anything.
    """
    stream = sys.stderr
    if stream is None:  # it is closed: the null device replaces it
        return
    raw = _Forgiving(stream.fileno(), "w", closefd=False)
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
    """Drop the remaining output, so that the exit of the process does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def tolerating_closed_output() -> Generator[None]:
    """Continue if the reader of the output has ended; the work determines the exit status."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
