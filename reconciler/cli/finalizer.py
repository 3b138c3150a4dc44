"""`reconciler finalizer`: hold a resource, or let it go."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Literal

from cyclopts import Parameter

from events.intake import Answer
from events.names import ResourceKey, check_finalizer
from reconciler.cli.client import ask_one
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.errors import UsageError
from reconciler.cli.naming import registered
from reconciler.cli.options import Duration, Namespace, Output, Reason
from reconciler.cli.results import Result, checked_reason, confirm, exit_status, print_results
from reconciler.cli.selection import chosen_keys
from reconciler.provider.kind import installed_kinds
from reconciler.sdk.client import Client


def finalizer(
    verb: Literal["add", "remove"],
    /,
    *words: Annotated[str, Parameter(name="RESOURCE")],
    force: bool = False,
    reason: Reason = "",
    namespace: Namespace = None,
    timeout: Duration = 10.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Add a finalizer to a resource, or remove it.

    While a withdrawn resource has a finalizer, Reconciler neither deletes nor
    releases its object. Only the service that added a finalizer can remove it
    without --force. `reconciler describe` shows the finalizers.

    For example:

        reconciler finalizer add Shape foo billing/last-invoice
        reconciler finalizer add foo billing/last-invoice
        reconciler finalizer remove default/Shape/foo billing/last-invoice
        reconciler finalizer remove Shape foo billing/last-invoice --force

    Parameters
    ----------
    verb
        What to do.
    words
        The resource (NAME, KIND NAME, KIND/NAME or NAMESPACE/KIND/NAME), and the name of the
        finalizer, such as billing/last-invoice.
    force
        With remove: also remove a finalizer of another service.
    timeout
        Maximum time to wait for the response: 500ms, 30s, 2m, 1h.
    """
    if verb == "add" and (force or reason):
        raise UsageError("--force and --reason: allowed only with remove")
    checked_reason(reason)
    key, called = _meant(connection, words, namespace)

    def ask(client: Client) -> Awaitable[Answer]:
        if verb == "add":
            return client.request_finalizer(key, called, timeout_seconds=timeout)
        return client.release_finalizer(
            key, called, force=force, reason=reason, timeout_seconds=timeout
        )

    result = _told(run_async(ask_one(connection, key, ask)), verb)
    confirm([result], f"finalizer {called} {'added' if verb == 'add' else 'removed'}")
    print_results([result], output, good=())
    return exit_status([result], None)


def _meant(
    connection: Connection, words: Sequence[str], namespace: str | None
) -> tuple[ResourceKey, str]:
    """Read which resource is meant, and the finalizer behind it."""
    *resource, called = words or ("",)
    usage = UsageError(
        "finalizer: give NAME FINALIZER, KIND NAME FINALIZER, or NAMESPACE/KIND/NAME FINALIZER"
    )
    first = resource[0] if resource else ""
    least = 2 if registered(first) in installed_kinds() else 1
    most = 1 if "/" in first else 2  # the first may be a kind that is defined at run time
    if not least <= len(resource) <= most:
        raise usage
    check_finalizer(called)
    keys = chosen_keys(connection, resource, what="finalizer", namespace=namespace)
    if len(keys) != 1:  # two names, and no kind before them
        raise usage
    return keys[0], called


def _told(result: Result, verb: str) -> Result:
    """Say it where nothing was taken off: a wrong name must not look like success."""
    if verb == "remove" and result.reason == "Unchanged":
        if not result.generation:
            return Result(
                result.resource, False, "NotFound", message="the resource was never declared"
            )
        result.message = "the resource has no such finalizer; `reconciler describe` lists its own"
    return result
