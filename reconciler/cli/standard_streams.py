"""Standard input, output and error, where somebody closed them or went away."""

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


def never_fail_at_standard_error() -> None:
    """Drop messages and log lines that cannot be written, instead of raising ``OSError``.

    The disk may be full, or the reader of the pipe may have ended. Otherwise a role would stop
    during its work, and a command before it has sent anything.
    """
    before = sys.stderr
    if before is None:  # closed: the null device takes its place
        return
    raw = _Forgiving(before.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), before.encoding, before.errors, line_buffering=True
    )


def open_what_is_closed() -> None:
    """Open the null device in the place of each standard stream that was closed (``>&-``).

    Else the next socket to be opened gets its number, and event loops and whoever prints fail.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def write_no_more() -> None:
    """Throw away what is still to be written, so that ending does not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def even_if_nobody_reads() -> Generator[None]:
    """Go on when the reader of our output is gone: what was done decides about the exit status."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        write_no_more()
