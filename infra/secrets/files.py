"""Secrets in files with mode 0600: ``NAMESPACE/NAME`` in a directory with mode 0700."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from pathlib import Path
from typing import Final

from events.names import check_token
from events.secret import SECRET_NAME
from infra.secrets.grants import Grants
from infra.secrets.private_files import (
    MAX_BYTES,
    check_directory,
    create_private,
    read_private,
    write_private,
)
from infra.secrets.replaced import ReplacedSecrets
from reconciler.errors import ConfigurationError
from reconciler.provider.secrets import SecretKey

_KEY_FILE: Final = ".digest-key"
_KEY_BYTES: Final = 32
_CHECK_SECONDS: Final = 0.02


class FileSecrets:
    """Implements ``reconciler.provider.secrets.SecretStore`` with a directory per namespace.

    A namespace can read the secrets in its own directory, and those that are granted to it.

    Raises:
        ConfigurationError: the directory cannot be created, or other users can access it.
    """

    def __init__(self, directory: Path) -> None:
        check_directory(directory)
        self._directory = directory.resolve()
        self.grants = Grants(self._directory)
        self._replaced = ReplacedSecrets(self._directory)
        self._stamps: dict[str, int] = {}  # by namespace
        self._checked_at = -math.inf

    async def read(self, key: SecretKey, reader: str) -> str | None:
        """Return a file's content without the final newline.

        Raises:
            ConfigurationError: other users can read the file.
        """
        if reader != key.namespace and reader not in self.grants.readers(key):
            return None  # before the file is opened, so that nothing reveals whether it exists
        return self._read(key)

    def list_keys(self) -> list[SecretKey]:
        """Return the keys of all secrets, sorted; raises ``ConfigurationError``."""
        try:
            return sorted(
                SecretKey(namespace.name, file.name)
                for namespace in self._directory.iterdir()
                if not namespace.name.startswith(".") and namespace.is_dir()
                for file in namespace.iterdir()
                if SECRET_NAME.fullmatch(file.name) and file.is_file()
            )
        except OSError as error:
            raise ConfigurationError(f"secrets: {self._directory}: {error.strerror}") from None

    def read_all(self) -> list[str]:
        """Return all readable secrets, including recently replaced ones."""
        values = self._replaced.read_all()
        for key in self.list_keys():
            with contextlib.suppress(ConfigurationError, ValueError):
                values.append(self._read(key) or "")
        return values

    def read_replaced(self) -> list[str]:
        """Return the secrets of the namespaces in which a file was replaced since the last call.

        It is called after each response of an API. A new value can only leak if an API receives it
        in one call, and returns it in another, within `_CHECK_SECONDS` of its replacement.
        """
        now = time.monotonic()
        if now < self._checked_at + _CHECK_SECONDS:
            return []
        self._checked_at = now
        values: list[str] = []
        for namespace in self._changed_namespaces():
            with contextlib.suppress(OSError), os.scandir(namespace) as files:
                keys = [SecretKey(namespace.name, each.name) for each in files]
                for key in keys:
                    with contextlib.suppress(ConfigurationError, ValueError):
                        values.append(self._read(key) or "")
        return values

    def _changed_namespaces(self) -> list[os.DirEntry[str]]:
        """Return the directories that changed: a replacement renames a file within one."""
        changed: list[os.DirEntry[str]] = []
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for each in entries:
                if each.name.startswith("."):
                    continue
                stamp = each.stat().st_mtime_ns
                if self._stamps.get(each.name) != stamp:
                    self._stamps[each.name] = stamp
                    changed.append(each)
        return changed

    async def write(self, key: SecretKey, value: str) -> None:
        """Write a file atomically: a reader finds either the old or the new value."""
        self.put(key, value)

    def put(self, key: SecretKey, value: str) -> bool:
        """Write a file. Return whether it is new."""
        content = value.encode()
        if len(content) > MAX_BYTES:
            raise ConfigurationError(f"secret {str(key)!r} is larger than {MAX_BYTES} bytes")
        path = self._path(key)
        check_directory(path.parent)
        is_new = not path.exists()
        self._keep_replaced(key, value)
        write_private(path, content)
        return is_new

    async def remove(self, key: SecretKey) -> None:
        """Delete a file and its grants."""
        self.discard(key)

    def discard(self, key: SecretKey) -> bool:
        """Delete a file and its grants. Return whether the file existed."""
        path = self._path(key)
        self.grants.discard(key)  # first, so that a recreated secret is not granted
        self._keep_replaced(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigurationError(f"secrets: {path}: {error.strerror}") from None
        return True

    def digest_key(self) -> bytes:
        """Return the digest key, created once. Copy it to other hosts along with the directory."""
        path = self._directory / _KEY_FILE
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        temporary = self._directory / f"{_KEY_FILE}.{secrets.token_hex(4)}"
        create_private(temporary, secrets.token_bytes(_KEY_BYTES))
        try:
            # Only one of two processes that start at the same time can create it.
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return path.read_bytes()

    def _keep_replaced(self, key: SecretKey, new: str | None = None) -> None:
        """Keep the current value for a while, because an API may still return it."""
        value = None
        with contextlib.suppress(ConfigurationError):  # an unreadable value was never used
            value = self._read(key)
        if value is not None and value != new:
            self._replaced.add(value, self.digest_key())

    def _read(self, key: SecretKey) -> str | None:
        content = read_private(self._path(key))
        return None if content is None else content.removesuffix("\n")

    def _path(self, key: SecretKey) -> Path:
        """Return the file of a secret.

        A symbolic link must stay in its namespace's directory. Otherwise it would act as a grant.

        Raises:
            ConfigurationError: the file is outside the directory.
        """
        check_token(key.namespace, what="namespace")
        if SECRET_NAME.fullmatch(key.name) is None:
            raise ConfigurationError(f"secrets: {key.name!r} is not a valid secret name")
        directory = self._directory / key.namespace
        path = directory / key.name
        try:
            is_inside = path.resolve().is_relative_to(directory)
        except (OSError, RuntimeError):  # a loop of symbolic links
            is_inside = False
        if not is_inside:
            raise ConfigurationError(
                f"secrets: {path} is a symbolic link out of {directory}; replace it with a file"
            )
        return path
