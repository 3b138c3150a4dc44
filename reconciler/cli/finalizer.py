"""`reconciler finalizer`: hold a shape, or let it go."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal

from events.intake import Answer
from reconciler.cli.asking import ask_one
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.durations import Duration
from reconciler.cli.naming import named
from reconciler.cli.options import Namespace, Output
from reconciler.cli.results import exit_status, print_results
from reconciler.client.client import Client


def finalizer(
    verb: Literal["add", "remove"],
    kind: str,
    name: str,
    finalizer: str,
    /,
    *,
    force: bool = False,
    reason: str = "",
    namespace: Namespace = None,
    timeout: Duration = 10.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Hold a shape until a service has finished with it, or let it go.

    A withdrawn shape with a finalizer is neither deleted nor released. Each
    finalizer belongs to who added it; `reconciler describe` shows them.

    For example:

        reconciler finalizer add Shape foo billing/last-invoice
        reconciler finalizer remove Shape foo billing/last-invoice
        reconciler finalizer remove Shape foo billing/last-invoice --force

    Parameters
    ----------
    verb
        Add it or remove it.
    kind
        Kind of the shape.
    name
        Name of the shape.
    finalizer
        The finalizer's name, such as billing/last-invoice.
    force
        Remove it though it is another service's.
    reason
        Why; it is kept in the log.
    namespace
        Namespace of the shape.
    timeout
        How long to wait for the answer.
    output
        How to print the result.
    """
    (key,) = named(kind, [name], namespace, what="finalizer")

    def ask(client: Client) -> Awaitable[Answer]:
        if verb == "add":
            return client.request_finalizer(key, finalizer, timeout_seconds=timeout)
        return client.release_finalizer(
            key, finalizer, force=force, reason=reason, timeout_seconds=timeout
        )

    result = run_async(ask_one(connection, key, ask))
    print_results([result], output, good=())
    return exit_status([result], None)
