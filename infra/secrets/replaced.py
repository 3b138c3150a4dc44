"""Replaced secrets, kept for a week so that restarted processes still redact them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import Final

from infra.secrets.private_files import check_directory, read_private, write_private
from reconciler.errors import ConfigurationError
from reconciler.secrecy import GRACE_SECONDS, MIN_CHARACTERS

REPLACED_SECONDS: Final = GRACE_SECONDS
"""Age at which a replaced value is deleted, which is how long a process redacts it."""

_DIRECTORY: Final = ".replaced"


class ReplacedSecrets:
    """Former values in a secrets directory, each in a file that does not name the secret."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / _DIRECTORY

    def add(self, value: str, key: bytes) -> None:
        """Store a value before it is replaced. Its file name is a digest keyed with ``key``."""
        if len(value.strip()) < MIN_CHARACTERS:
            return
        content = value.encode()
        check_directory(self._directory)
        name = hashlib.blake2b(content, digest_size=16, key=key).hexdigest()
        write_private(self._directory / name, content)

    def read_all(self) -> list[str]:
        """Return the readable values, and delete expired ones."""
        oldest = time.time() - REPLACED_SECONDS
        values: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            for file in self._directory.iterdir():
                with contextlib.suppress(ConfigurationError, FileNotFoundError):
                    if file.stat().st_mtime < oldest:
                        file.unlink()
                    else:
                        values.append(read_private(file) or "")
        return values
