"""The open connections to external APIs: one provider for each configuration and kind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from events.manifest import CredentialsRef, ProviderConfigSpec
from reconciler.errors import ConfigurationError
from reconciler.kinds import KindRegistry
from reconciler.provider import Provider
from reconciler.services.configurations import Configurations


class ProviderPool:
    """Builds providers when they are first needed, and again when their configuration changes."""

    def __init__(self, kinds: KindRegistry, configurations: Configurations) -> None:
        self._kinds = kinds
        self._configurations = configurations
        self._open: dict[tuple[str, str], tuple[ProviderConfigSpec, Provider]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, config_name: str, kind_name: str) -> Provider:
        """Give the client of one kind at one API.

        Raises ``ConfigurationError``: it is not declared, or cannot work as it is.
        """
        config = self._configurations.by_name.get(config_name)
        if config is None:
            raise ConfigurationError(f"ProviderConfig {config_name!r} is not declared")
        opened = self._open.get((config_name, kind_name))
        if opened is not None and opened[0] == config:
            return opened[1]
        provider = self._build(config_name, config, kind_name)
        if opened is not None:
            self._close_later(opened[1])
        self._open[config_name, kind_name] = (config, provider)
        return provider

    def _build(self, name: str, config: ProviderConfigSpec, kind_name: str) -> Provider:
        kind = self._kinds[kind_name]
        if kind.connect is None or kind.provider != config.provider:
            raise ConfigurationError(
                f"ProviderConfig {name!r} is of provider {config.provider!r}, "
                f"but {kind_name} needs {kind.provider!r}"
            )
        return kind.connect(config, secret=resolve_secret(config.credentials_ref))

    def _close_later(self, provider: Provider) -> None:
        """Close a replaced client; calls that are under way on it end as unknown results."""
        task = asyncio.create_task(provider.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        for _config, provider in self._open.values():
            await provider.close()
        self._open.clear()


def resolve_secret(reference: CredentialsRef | None) -> str | None:
    """Read a secret where it is; it goes nowhere but into the client (invariant 12).

    Raises ``ConfigurationError``, which names the place and never the content.
    """
    if reference is None:
        return None
    if reference.env is not None:
        value = os.environ.get(reference.env)
        if value is None:
            raise ConfigurationError(
                f"credentials: environment variable {reference.env} is not set"
            )
        return value
    if reference.file is not None:
        try:
            return Path(reference.file).read_text().strip()
        except OSError as error:
            raise ConfigurationError(
                f"credentials: {reference.file} cannot be read: {error.strerror}"
            ) from None
    raise ConfigurationError("credentialsRef names neither env nor file")
