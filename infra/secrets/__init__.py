"""Places where secrets are: listed environment variables, and files that nobody else may read."""

from __future__ import annotations

import os
from pathlib import Path

from infra.secrets.environment import VARIABLE, EnvironmentSecrets, listed_variables
from infra.secrets.files import FileSecrets
from reconciler.process_secrets import OF_THIS_PROCESS
from reconciler.provider.secrets import SecretStore, SecretStores

__all__ = ["EnvironmentSecrets", "FileSecrets", "open_stores"]


def open_stores(directory: Path | None) -> SecretStores:
    """Return the stores of a process: ``files`` in a directory, ``env`` if variables are listed.

    Raises ``ConfigurationError`` if the directory or the list cannot be used.
    """
    stores: dict[str, SecretStore] = {}
    known: list[str] = []
    key = b""
    listed = listed_variables(os.environ.get(VARIABLE, ""))
    if listed:
        stores["env"] = environment = EnvironmentSecrets(listed)
        known += environment.read_all()
    if directory is not None:
        stores["files"] = files = FileSecrets(directory)
        known += files.read_all()
        key = files.digest_key()
    for secret in known:  # an API may repeat one before anything here needs it
        OF_THIS_PROCESS.add(secret)
    return SecretStores(stores, key, OF_THIS_PROCESS)
