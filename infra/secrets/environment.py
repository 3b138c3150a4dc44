"""Secrets in environment variables: read only."""

from __future__ import annotations

import os

from reconciler.errors import ConfigurationError


class EnvironmentSecrets:
    """Implements ``reconciler.provider.secrets.SecretStore``: a secret is a variable."""

    async def read(self, name: str) -> str | None:
        """Return a variable's value; raises ``ConfigurationError`` if it is no text."""
        value = os.environ.get(name)
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"secrets: variable {name} is not UTF-8 text") from None
        return value

    async def write(self, name: str, value: str) -> None:
        """Refuse: an environment lives as long as its process."""
        del value
        raise ConfigurationError(
            f"secret {name!r} cannot be stored in the environment; use store 'files'"
        )

    async def remove(self, name: str) -> None:
        """Refuse, as ``write``."""
        raise ConfigurationError(f"secret {name!r} cannot be removed from the environment")
