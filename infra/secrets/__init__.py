"""Secret stores: listed environment variables, and files that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from infra.secrets.environment import VARIABLE, EnvironmentSecrets, parse_variable_list
from infra.secrets.files import FileSecrets
from reconciler.process_secrets import PROCESS_SECRETS
from reconciler.provider.secrets import SecretStore, SecretStores

__all__ = ["EnvironmentSecrets", "FileSecrets", "open_stores"]


def open_stores(directory: Path | None) -> SecretStores:
    """Return a process's stores: ``files`` if given a directory, ``env`` if variables are listed.

    Raises:
        ConfigurationError: the directory or the list is unusable.
    """
    stores: dict[str, SecretStore] = {}
    known: list[str] = []
    key, read_replaced = b"", tuple
    listed = parse_variable_list(os.environ.get(VARIABLE, ""))
    if listed:
        stores["env"] = environment = EnvironmentSecrets(listed)
        known += environment.read_all()
    if directory is not None:
        stores["files"] = files = FileSecrets(directory)
        known += files.read_all()
        key, read_replaced = files.digest_key(), files.read_replaced
    for secret in known:  # an API response may contain a secret before any resource uses it
        PROCESS_SECRETS.add(secret)
    return SecretStores(stores, key, PROCESS_SECRETS, read_replaced)
