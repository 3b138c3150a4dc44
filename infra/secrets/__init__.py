"""Places where secrets are: the environment, and files that nobody else may read."""

from __future__ import annotations

from pathlib import Path

from infra.secrets.environment import EnvironmentSecrets
from infra.secrets.files import FileSecrets
from reconciler.process_secrets import OF_THIS_PROCESS
from reconciler.provider.secrets import SecretStores

__all__ = ["EnvironmentSecrets", "FileSecrets", "open_stores"]


def open_stores(folder: Path | None) -> SecretStores:
    """Return the stores of a process: ``env``, and ``files`` if it has a folder for secrets.

    Raises ``ConfigurationError`` if the folder cannot be used.
    """
    environment = EnvironmentSecrets()
    if folder is None:
        return SecretStores({"env": environment}, secrecy=OF_THIS_PROCESS)
    files = FileSecrets(folder)
    for secret in files.read_all():  # an API may repeat one before anything here needs it
        OF_THIS_PROCESS.add(secret)
    stores = {"env": environment, "files": files}
    return SecretStores(stores, files.digest_key(), OF_THIS_PROCESS)
