"""`reconciler logs`: what an external object has written, asked of its API from here."""

from __future__ import annotations

import codecs
import sys
from contextlib import aclosing
from typing import Annotated

from cyclopts import Parameter
from nats.aio.client import Client

from events.names import ResourceKey
from infra.secrets import open_stores
from projections.ownership import OwnershipRow
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.log_replay import log_of
from reconciler.cli.naming import meant
from reconciler.cli.options import Namespace
from reconciler.cli.search import find_resource, models_of
from reconciler.cli.signals import until_stopped
from reconciler.errors import ConfigurationError
from reconciler.provider import LoggingProvider
from reconciler.provider.kind import installed_kinds
from reconciler.provider.secrets import Secrets
from reconciler.roles.configurations import Configurations
from reconciler.roles.providers import resolve_secret
from reconciler.roles.secret_guard import without_secret
from reconciler.sdk.history import History
from reconciler.wiring import secrets_folder


def logs(
    resource: str,
    name: str | None = None,
    /,
    *,
    kind: str | None = None,
    namespace: Namespace = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    tail: int | None = None,
    connection: Connection = HERE,
) -> int:
    """Show what an external object has written, such as a container's output.

    The API is asked from here, with the credentials that its ProviderConfig names.

    For example:

        reconciler logs orders-db
        reconciler logs Container/orders-db --tail 20 -f
        reconciler logs orders-db --kind Container -n payments

    Parameters
    ----------
    resource
        NAME, kind/name or namespace/kind/name; or a kind, with the name after it.
    name
        The name, after a kind.
    kind
        The kind, where only the name is given.
    follow
        Go on with what comes, until it ends or Ctrl-C.
    tail
        Only so many lines of those that are there.
    """
    if tail is not None and tail < 0:
        raise UsageError(f"--tail: {tail} is not allowed: give 0 or more lines")
    parts = [each for each in (kind, resource, name) if each is not None]
    wanted = meant("/".join(parts), namespace)

    async def work() -> None:
        async with bus(connection) as nc:
            key = await find_resource(nc, wanted)
            await _show(nc, key, follow=follow, tail=tail)

    async def all_of_it() -> Exit:
        return await until_stopped(work())

    return run_async(all_of_it())


async def _show(nc: Client, key: ResourceKey, *, follow: bool, tail: int | None) -> None:
    known = installed_kinds().find(key.kind)
    if known is None or known.connect is None:
        raise CommandError(f"{key} has no logs: kind {key.kind} has no external API here")
    owned = await _owned(nc, key)
    configurations = Configurations()
    await configurations.load(await log_of(nc))
    config = configurations.by_name.get(owned.provider_config)
    if config is None:
        raise ConfigurationError(f"ProviderConfig {owned.provider_config!r} is not declared")
    stores = open_stores(secrets_folder())
    credential = resolve_secret(config.credentials_ref)
    secrets = Secrets(credential, stores.by_name, key=stores.key)
    with without_secret(secrets.secrecy):
        provider = known.connect(config, secrets)
        try:
            if not isinstance(provider, LoggingProvider):
                raise CommandError(f"{key} has no logs: the API of kind {key.kind} shows none")
            assert owned.uid is not None
            async with aclosing(provider.logs(owned.uid, follow=follow, tail=tail)) as pieces:
                decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
                async for piece in pieces:
                    sys.stdout.write(decoder.decode(piece))
                    sys.stdout.flush()
        finally:
            await provider.close()


async def _owned(nc: Client, key: ResourceKey) -> OwnershipRow:
    """Return the object that the resource has; raises ``CommandError`` if it has none."""
    past = await History(nc).get(key)
    row = models_of(past.events).ownership.get(str(key))
    if row is None or not row.owned or row.uid is None:
        raise CommandError(f"{key} has no logs yet: it has no external object")
    return row
