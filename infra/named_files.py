"""Files that users name, which may be devices such as /dev/zero, or on a full disk."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from typing import Final

MAX_KEY_BYTES: Final = 1 << 20
"""Limit of bytes of a file with a key, a secret or settings."""


def read_at_most(path: Path, limit: int) -> bytes:
    """Return a file's content; raises ``OSError``, also for more than ``limit`` bytes."""
    with path.open("rb") as opened:
        return within(opened.read(limit + 1), limit, str(path))


def within(content: bytes, limit: int, source: str) -> bytes:
    """Return the content; raises ``OSError`` if it is longer than ``limit`` bytes."""
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB", source)
    return content


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that gets its name only when it is complete; raises ``OSError``.

    A device or a pipe, such as /dev/stdout, is written directly.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        path.write_bytes(content)
        return
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
