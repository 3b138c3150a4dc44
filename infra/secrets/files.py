"""Secrets in files of mode 0600, each named as its secret, in a folder of mode 0700."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from events.secret import SECRET_NAME
from reconciler.errors import ConfigurationError

_KEY_FILE: Final = ".digest-key"
_KEY_BYTES: Final = 32
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_MAX_BYTES: Final = 1024 * 1024


class FileSecrets:
    """Implements ``reconciler.provider.secrets.SecretStore`` by a folder.

    Raises ``ConfigurationError`` if the folder cannot be made, or others may look into it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = folder.stat().st_mode
        except OSError as error:
            raise ConfigurationError(f"secrets: {folder}: {error.strerror}") from None
        if mode & _OTHERS:
            raise ConfigurationError(
                f"secrets: {folder} is accessible to other users; run chmod 700 on it"
            )

    async def read(self, name: str) -> str | None:
        """Return a file's content without the line's end; raises if others may read the file."""
        return self._read(name)

    def _read(self, name: str) -> str | None:
        path = self._path(name)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & _OTHERS:
                    raise ConfigurationError(
                        f"secrets: {path} is readable by other users; run chmod 600 on it"
                    )
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"secrets: {path}: {error.strerror}") from None
        if len(content) > _MAX_BYTES:
            raise ConfigurationError(f"secrets: {path} is larger than {_MAX_BYTES} bytes")
        try:
            return content.decode().removesuffix("\n")
        except UnicodeDecodeError:
            raise ConfigurationError(f"secrets: {path} is not UTF-8 text") from None

    def read_all(self) -> list[str]:
        """Return all secrets of the folder; without those that cannot be read."""
        found: list[str] = []
        for path in self._folder.iterdir():
            with contextlib.suppress(ConfigurationError):
                found.append(self._read(path.name) or "")
        return found

    async def write(self, name: str, value: str) -> None:
        """Write a file in one step: a reader sees the old one or the new one."""
        self._store(self._path(name), value.encode())

    async def remove(self, name: str) -> None:
        """Remove a file."""
        self._path(name).unlink(missing_ok=True)

    def digest_key(self) -> bytes:
        """Return the key of digests, made once; who copies the folder to another host copies it."""
        path = self._folder / _KEY_FILE
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        made = self._folder / f"{_KEY_FILE}.{secrets.token_hex(4)}"
        self._write(made, secrets.token_bytes(_KEY_BYTES))
        try:
            os.link(made, path)  # of two processes that start together, one makes it
        except FileExistsError:
            pass
        finally:
            made.unlink()
        return path.read_bytes()

    def _path(self, name: str) -> Path:
        if SECRET_NAME.fullmatch(name) is None:
            raise ConfigurationError(f"secrets: {name!r} is not a valid name of a secret")
        return self._folder / name

    def _store(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            self._write(temporary, content)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise ConfigurationError(f"secrets: {path}: {error.strerror}") from None

    def _write(self, path: Path, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
