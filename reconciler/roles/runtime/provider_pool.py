"""The open connections to external APIs: one provider per configuration and kind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from events.log import Action
from events.provider_config import CredentialsRef, ProviderConfigSpec
from reconciler.errors import ConfigurationError, HostError
from reconciler.provider import Capabilities, Provider, ProviderFactory
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.data_check import DataCheck
from reconciler.provider.kind import Kind, KindRegistry, ObjectUse, no_uses
from reconciler.provider.secrets import SecretStores
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.search_turns import SearchTurns
from reconciler.roles.runtime.secret_guard import GuardedProvider, guard_provider, mask_secrets

_MAX_CALL_SECONDS = 120.0
_CLOSE_SECONDS = 2.0

_Stamp = tuple[int, int, int]
_Basis = tuple[ProviderConfigSpec, tuple[_Stamp | None, ...]]
_Opened = tuple[_Basis, GuardedProvider]


class ProviderPool:
    """Creates providers on first use, and recreates them if their configuration or files change.

    Errors from its providers contain no secrets.
    """

    def __init__(
        self,
        kinds: KindRegistry,
        configurations: Configurations,
        stores: SecretStores | None = None,
    ) -> None:
        self._kinds = kinds
        self._stores = stores or SecretStores()
        self.searches = SearchTurns(self._stores.secrecy)
        self._configurations = configurations
        self._open: dict[tuple[str, str, ProviderFactory | None], _Opened] = {}
        self._closing: dict[asyncio.Task[None], GuardedProvider] = {}
        self._is_closed = False

    def get(self, config_name: str, kind_name: str, definition: str = "") -> Provider:
        """Return the client of one kind at one API.

        ``definition``: digest of the definition for the call, by default the newest.

        Raises:
            ConfigurationError: the configuration is undeclared or invalid, or the pool is closed.
        """
        if self._is_closed:  # a new client would never be closed
            raise ConfigurationError("this process is stopping")
        config = self._configurations.by_name.get(config_name)
        if config is None:
            raise ConfigurationError(f"ProviderConfig {config_name!r} is not declared; declare it")
        kind = self._kinds.with_definition(kind_name, definition)
        basis, key = (config, _stamps(config)), (config_name, kind_name, kind.connect)
        opened = self._open.get(key)
        if opened is not None and opened[0] == basis:
            return opened[1]
        provider = self._build(config_name, config, kind)
        if opened is not None:
            self._close_later(opened[1])
        self._open[key] = (basis, provider)
        return provider

    def capabilities(self, kind_name: str) -> Capabilities | None:
        """Return the capabilities of a kind's API, or None if this process lacks the kind."""
        kind = self._kinds.find(kind_name)
        return None if kind is None else kind.capabilities

    def find_uses(self, action: Action, kind_name: str) -> Sequence[ObjectUse]:
        """Return the objects that a written object uses."""
        kind = self._kinds.find(kind_name)
        if kind is None or kind.find_uses is no_uses or action.operation == "Delete":
            return ()
        return kind.find_uses(action.external_name, action.fields)

    def data_check(self, action: Action, kind_name: str) -> DataCheck | None:
        """Return the check of the data that an action would lose; None if there is none to lose."""
        kind = self._kinds.find(kind_name)
        if kind is None or not kind.describes_data or action.operation == "Create":
            return None
        fields = None if action.operation == "Delete" else action.fields
        return DataCheck(partial(kind.describe_data_loss, fields), action.data_loss)

    def _build(self, name: str, config: ProviderConfigSpec, kind: Kind) -> GuardedProvider:
        if kind.connect is None or kind.provider != config.provider:
            raise ConfigurationError(
                f"ProviderConfig {name!r} has provider {config.provider!r}, but {kind.name} "
                f"requires {kind.provider!r}"
            )
        rotation = _Rotation(config.credentials_ref, self._stores)
        secrets = self._stores.for_api(resolve_secret(config.credentials_ref))
        with mask_secrets(secrets.secrecy):
            provider = kind.connect(config, secrets, CallPermit())
        return guard_provider(provider, secrets, rotation.learn)

    def _close_later(self, provider: GuardedProvider) -> None:
        """Close a replaced client after its calls, whose results would otherwise be unknown."""
        task = asyncio.create_task(_close_when_idle(provider))
        self._closing[task] = provider
        task.add_done_callback(self._closing.pop)

    async def close(self) -> None:
        """Close all connections, including those of replaced clients that still have calls."""
        self._is_closed = True
        closing = dict(self._closing)
        for provider in (*closing.values(), *(each for _, each in self._open.values())):
            await provider.close()
        self._open.clear()
        if closing:  # each ends once its calls have failed
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)


class _Rotation:
    """Adds the new values of an API's credential and of stored secrets to those that are hidden."""

    def __init__(self, credentials: CredentialsRef | None, stores: SecretStores) -> None:
        self._credentials = credentials
        self._stores = stores
        self._stamp = self._current_stamp()

    def learn(self) -> None:
        """Read what was replaced since the last call."""
        stamp = self._current_stamp()
        if stamp != self._stamp:
            with contextlib.suppress(ConfigurationError):  # the next call of the API reports it
                self._stores.secrecy.add(resolve_secret(self._credentials) or "")
                self._stamp = stamp
        self._stores.learn_replaced()

    def _current_stamp(self) -> _Stamp | None:
        file = None if self._credentials is None else self._credentials.file
        return None if file is None else _stamp(file)


async def _close_when_idle(provider: GuardedProvider) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MAX_CALL_SECONDS):
            await provider.wait_until_idle()
    await provider.close()


def _stamps(config: ProviderConfigSpec) -> tuple[_Stamp | None, ...]:
    """Return the identities of a configuration's files, which change when a key is rotated."""
    credentials, tls = config.credentials_ref, config.tls
    if credentials is None and tls is None:
        return ()
    files = [] if credentials is None else [credentials.file]
    if tls is not None:
        files += [tls.ca_file, tls.certificate_file, tls.key_file]
    return tuple(_stamp(file) for file in files if file is not None)


def _stamp(file: str) -> _Stamp | None:
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def resolve_secret(reference: CredentialsRef | None) -> str | None:
    """Read a secret. Only the client receives it (invariant 12).

    Raises:
        ConfigurationError: it cannot be read. The error names its location, never its content.
    """
    if reference is None:
        return None
    if reference.env is not None:
        value = os.environ.get(reference.env)
        if value is None:
            raise HostError(
                f"spec.credentialsRef.env: the environment variable {reference.env} is not set",
                "; set it",
            )
        return value
    if reference.file is not None:
        try:
            return Path(reference.file).read_text().strip()
        except OSError as error:
            raise HostError(
                f"spec.credentialsRef.file: cannot read {reference.file}", f": {error.strerror}"
            ) from None
    raise ConfigurationError("spec.credentialsRef: set env or file")
