"""The external object of a resource, read from its API on this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from nats.aio.client import Client

from events.names import ResourceKey
from infra.bus.event_log import open_log
from infra.secrets import open_stores
from projections.ownership import OwnershipRow
from projections.read_models import rebuild
from reconciler.cli.connection import DATA_DIRECTORY, SECRETS_DIRECTORY, read_up_file
from reconciler.cli.errors import CommandError
from reconciler.errors import ConfigurationError
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import installed_kinds
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.definitions import Definitions
from reconciler.roles.runtime.provider_pool import resolve_secret
from reconciler.roles.runtime.secret_guard import mask_secrets
from reconciler.sdk.history import History
from reconciler.wiring import secrets_folder


class LiveObject(NamedTuple):
    """A resource's external object, and a client for its API."""

    provider: Provider
    name: str
    uid: str


def find_secrets_directory() -> Path | None:
    """Return the configured secrets directory, or the one that `up` uses in this directory."""
    configured = secrets_folder()
    if configured is not None or read_up_file(DATA_DIRECTORY) is None:
        return configured
    return DATA_DIRECTORY / SECRETS_DIRECTORY


@asynccontextmanager
async def live_object(nc: Client, key: ResourceKey) -> AsyncGenerator[LiveObject]:
    """Open a client with the ProviderConfig's credentials, read on this machine.

    No error contains a secret.

    Raises:
        CommandError: the resource has no external object.
        ConfigurationError: no client can be created.
    """
    log, kinds, configurations = await open_log(nc), installed_kinds(), Configurations()
    await Definitions(kinds).load(log)
    await configurations.load(log)
    kind = kinds.find(key.kind)
    if kind is None:
        raise CommandError(f"{key}: kind {key.kind} is not installed here; install its package")
    if kind.connect is None:
        raise CommandError(f"{key}: kind {key.kind} has no external API")
    owned = await _read_ownership(nc, key)
    config = configurations.by_name.get(owned.provider_config)
    if config is None:
        raise ConfigurationError(
            f"ProviderConfig {owned.provider_config!r} is not declared; declare it"
        )
    stores = open_stores(find_secrets_directory())
    secrets = stores.for_api(resolve_secret(config.credentials_ref))
    with mask_secrets(secrets.secrecy):
        provider = kind.connect(config, secrets, CallPermit())
        try:
            yield LiveObject(provider, owned.external_name, owned.uid or "")
        finally:
            await provider.close()


async def _read_ownership(nc: Client, key: ResourceKey) -> OwnershipRow:
    past = await History(nc).get(key)
    row = rebuild(past.events).ownership.get(str(key))
    if row is None or not row.owned or row.uid is None:
        raise CommandError(
            f"{key} has no external object; `reconciler describe {key}` shows its status"
        )
    return row
