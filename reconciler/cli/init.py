"""`reconciler init`: create the streams on an external server."""

from __future__ import annotations

from collections.abc import Sequence

from events.names import InvalidNameError, check_token
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import colored, print_table
from reconciler.cli.errors import UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.options import Integer, check_replicas
from reconciler.cli.output import Format, print_structured
from reconciler.wiring import initialize


def init(
    *,
    replicas: Integer | None = None,
    namespace: tuple[str, ...] = (),
    output: Format = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Create or upgrade all streams, consumers and buckets on a NATS server.

    A second run changes nothing. `reconciler up` includes this step.

    For example:

        reconciler init --nats-url nats://nats.example.com:4222 --replicas 3
        reconciler init --namespace billing --namespace shop
        reconciler init --output json

    Parameters
    ----------
    replicas
        Number of replicas per stream: 1, or 3 or 5 in a cluster. Default: that of the existing
        streams, or 1.
    namespace
        Namespace of a service account. `init` creates the consumers from which the service reads
        its outcomes. May be repeated.
    output
        Output format.
    """
    check_replicas(replicas)
    _check_namespaces(namespace)
    return run_async(_init(connection, replicas, namespace, output))


def _check_namespaces(namespaces: Sequence[str]) -> None:
    for namespace in namespaces:
        try:
            check_token(namespace, what="namespace")
        except InvalidNameError as error:
            raise UsageError(f"--namespace {namespace}: {error}") from None


async def _init(
    connection: Connection, replicas: int | None, namespaces: Sequence[str], output: Format
) -> Exit:
    async with bus(connection, sends=True) as nc:
        topology = await initialize(nc, replicas=replicas, namespaces=namespaces)
    if output == "table":
        rows = [(name, colored(change)) for name, change in topology.changes.items()]
        print_table(("STREAM OR CONSUMER", "CHANGE"), rows)
    else:
        print_structured(topology, output)
    return Exit.OK
