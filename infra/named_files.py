"""Files named by users, which may be devices such as /dev/zero, or be on a full disk."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from typing import Final

MAX_KEY_BYTES: Final = 1 << 20
"""Maximum size in bytes of a key, secret or settings file."""


def read_at_most(path: Path, limit: int) -> bytes:
    """Return a file's content; raises ``OSError``, including if it exceeds ``limit`` bytes."""
    with path.open("rb") as file:
        return check_size(file.read(limit + 1), limit, str(path))


def check_size(content: bytes, limit: int, source: str) -> bytes:
    """Return the content; raises ``OSError`` if it is longer than ``limit`` bytes."""
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", source)
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, and give it its name only when it is complete; raises ``OSError``.

    A device or a pipe, such as /dev/stdout, is written to directly.
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
