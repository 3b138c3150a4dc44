"""Grants that let namespaces read each other's secrets, in one file next to the secrets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from infra.secrets.private_files import read_private, write_private
from reconciler.errors import ConfigurationError
from reconciler.provider.secrets import SecretKey

GRANTS_FILE: Final = ".grants.json"

_decoder = msgspec.json.Decoder(dict[str, list[str]])
_encoder = msgspec.json.Encoder(order="sorted")


class Grants:
    """The grants of a secrets directory: the readers of each ``NAMESPACE/NAME``.

    Raises:
        ConfigurationError: the file cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / GRANTS_FILE

    def readers(self, key: SecretKey) -> list[str]:
        """Return the namespaces to which a secret is granted, sorted."""
        return sorted(self._read().get(str(key), ()))

    def add(self, key: SecretKey, reader: str) -> None:
        """Grant a secret to a namespace."""
        with self._locked_grants() as grants:
            grants[str(key)] = sorted({*grants.get(str(key), ()), reader})

    def discard(self, key: SecretKey, reader: str | None = None) -> None:
        """Revoke the grant to ``reader``, or to all namespaces if it is None."""
        if not self.readers(key):
            return
        with self._locked_grants() as grants:
            remaining = [each for each in grants.pop(str(key), ()) if reader not in (each, None)]
            if remaining:
                grants[str(key)] = remaining

    def _read(self) -> Mapping[str, list[str]]:
        content = read_private(self._path)
        try:
            return {} if content is None else _decoder.decode(content)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"secrets: {self._path} is damaged: {error}; correct or remove it, then grant again"
            ) from None

    @contextlib.contextmanager
    def _locked_grants(self) -> Generator[dict[str, list[str]]]:
        import fcntl  # noqa: PLC0415 - not available on Windows, where grants are only read

        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # a concurrent command must not lose a grant
            grants = dict(self._read())
            yield grants
            write_private(self._path, msgspec.json.format(_encoder.encode(grants)))
        finally:
            os.close(descriptor)
