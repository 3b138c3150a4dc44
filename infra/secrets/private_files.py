"""Files with mode 0600, written atomically."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from reconciler.errors import ConfigurationError

MAX_BYTES: Final = 1024 * 1024
_OTHER_USERS: Final = stat.S_IRWXG | stat.S_IRWXO


def check_directory(path: Path) -> None:
    """Create a directory if missing; raises ``ConfigurationError`` if it is not private."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"secrets: {path}: {error.strerror}") from None
    if mode & _OTHER_USERS:
        raise ConfigurationError(
            f"secrets: {path} is accessible to other users; run chmod 700 on it"
        )


def read_private(path: Path) -> str | None:
    """Return a file's text, or None if it is missing; raises ``ConfigurationError``."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHER_USERS:
                raise ConfigurationError(
                    f"secrets: {path} is readable by other users; run chmod 600 on it"
                )
            content = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationError(f"secrets: {path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"secrets: {path} is larger than {MAX_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"secrets: {path} is not UTF-8 text") from None


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader finds either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        create_private(temporary, content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(f"secrets: {path}: {error.strerror}") from None


def create_private(path: Path, content: bytes) -> None:
    """Create a file and sync it; raises ``FileExistsError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
