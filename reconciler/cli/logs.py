"""`reconciler logs`: show the logs of an external object, read from its API on this machine."""

from __future__ import annotations

import codecs
import sys
from contextlib import aclosing
from typing import Annotated

from cyclopts import Parameter
from nats.aio.client import Client

from events.names import ResourceKey
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.live_object import live_object
from reconciler.cli.naming import parse_reference
from reconciler.cli.options import Integer, Name, Namespace, Resource
from reconciler.cli.output import escape_lines
from reconciler.cli.search import find_resource
from reconciler.cli.signals import run_until_stopped
from reconciler.provider import LoggingProvider


def logs(
    resource: Resource,
    name: Name = None,
    /,
    *,
    kind: str | None = None,
    namespace: Namespace = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    tail: Integer | None = None,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show the logs of an external object, such as the output of a container.

    The command calls the API from this machine, with the credentials of its
    ProviderConfig.

    For example:

        reconciler logs orders-db
        reconciler logs Container/orders-db --tail 20 -f
        reconciler logs orders-db --kind Container -n payments

    Parameters
    ----------
    kind
        Kind of the resource, if you give only its name.
    follow
        Continue with new lines until the object stops or you press Ctrl-C.
    tail
        Show only the newest existing lines, at most this many.
    """
    if tail is not None and tail < 0:
        raise UsageError(f"--tail {tail}: must be at least 0")
    reference = parse_reference(resource if kind is None else f"{kind}/{resource}", namespace, name)

    async def work() -> None:
        async with bus(connection) as nc:
            key = await find_resource(nc, reference)
            await _show(nc, key, follow=follow, tail=tail)

    return run_async(run_until_stopped(work()))


async def _show(nc: Client, key: ResourceKey, *, follow: bool, tail: int | None) -> None:
    async with live_object(nc, key) as live:
        provider = live.provider
        if not isinstance(provider, LoggingProvider):
            raise CommandError(
                f"{key} has no logs, because the API of kind {key.kind} provides none"
            )
        async with aclosing(provider.logs(live.uid, follow=follow, tail=tail)) as pieces:
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            async for piece in pieces:
                text = decoder.decode(piece)
                sys.stdout.write(escape_lines(text) if sys.stdout.isatty() else text)
                sys.stdout.flush()
