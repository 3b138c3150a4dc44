"""`reconciler finalizer`: hold a resource, or let it go."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal

from events.intake import Answer
from events.names import ResourceKey, check_finalizer
from reconciler.cli.client import ask_one
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.errors import UsageError
from reconciler.cli.naming import named
from reconciler.cli.options import Duration, Namespace, Output
from reconciler.cli.results import Result, checked_reason, exit_status, print_results
from reconciler.sdk.client import Client


def finalizer(
    verb: Literal["add", "remove"],
    kind: str,
    name: str,
    finalizer: str | None = None,
    /,
    *,
    force: bool = False,
    reason: str = "",
    namespace: Namespace = None,
    timeout: Duration = 10.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Hold a resource until a service has finished with it, or let it go.

    A withdrawn resource with a finalizer is neither deleted nor released. Each
    finalizer belongs to who added it; `reconciler describe` shows them.

    For example:

        reconciler finalizer add Shape foo billing/last-invoice
        reconciler finalizer remove default/Shape/foo billing/last-invoice
        reconciler finalizer remove Shape foo billing/last-invoice --force

    Parameters
    ----------
    verb
        Add it or remove it.
    kind
        Kind of the resource; or namespace/kind/name, and then the finalizer.
    name
        Name of the resource.
    finalizer
        The finalizer's name, such as billing/last-invoice.
    force
        Remove it though it is another service's.
    reason
        Why; it is kept in the log.
    namespace
        Namespace of the resource.
    timeout
        How long to wait for the answer.
    output
        How to print the result.
    """
    if verb == "add" and (force or reason):
        raise UsageError("--force and --reason are for remove: a finalizer is added without them")
    checked_reason(reason)
    key, called = _meant(kind, name, finalizer, namespace)

    def ask(client: Client) -> Awaitable[Answer]:
        if verb == "add":
            return client.request_finalizer(key, called, timeout_seconds=timeout)
        return client.release_finalizer(
            key, called, force=force, reason=reason, timeout_seconds=timeout
        )

    result = _told(run_async(ask_one(connection, key, ask)), verb)
    print_results([result], output, good=())
    return exit_status([result], None)


def _meant(
    kind: str, name: str, finalizer: str | None, namespace: str | None
) -> tuple[ResourceKey, str]:
    """Read KIND NAME FINALIZER, or namespace/kind/name FINALIZER."""
    if ("/" in kind) == (finalizer is not None):
        raise UsageError(
            "which finalizer of which resource? Give KIND NAME FINALIZER, "
            "or namespace/kind/name FINALIZER"
        )
    (key,) = named(kind, [] if finalizer is None else [name], namespace, what="finalizer")
    return key, check_finalizer(name if finalizer is None else finalizer)


def _told(result: Result, verb: str) -> Result:
    """Say it where nothing was taken off: a wrong name must not look like success."""
    if verb == "remove" and result.reason == "Unchanged":
        if not result.generation:
            return Result(result.resource, False, "NotFound", message="was never declared")
        result.message = "it has no such finalizer: `reconciler describe` shows those it has"
    return result
