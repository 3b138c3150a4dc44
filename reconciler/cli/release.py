"""`reconciler release`: take off by force what keeps withdrawn resources."""

from __future__ import annotations

from reconciler.cli.client import ask_many
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.errors import UsageError
from reconciler.cli.options import Duration, Namespace, Output, Reason
from reconciler.cli.results import Result, checked_reason, confirm, exit_status, print_results
from reconciler.cli.selection import chosen_keys


def release(
    kind: str,
    /,
    *names: str,
    reason: Reason,
    orphan: bool = False,
    namespace: Namespace = None,
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Remove all finalizers and references from withdrawn resources by force.

    Use it when the service that added them can no longer remove them.
    `reconciler describe` shows the finalizers and references. Reconciler
    then deletes the object, or releases it, as its policy requires. With
    --orphan, it keeps the object in the API. The log keeps the release with
    your name and reason.

    For example:

        reconciler release Shape foo --reason "billing is shut down"
        reconciler release Shape foo --orphan --reason "the API was shut down"

    Parameters
    ----------
    kind
        Kind of the names that follow; or a resource: NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    names
        NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    orphan
        Keep the object in the API, stop managing it, and abandon a deletion in flight.
    timeout
        Maximum time to wait for the decider's replies: 500ms, 30s, 2m, 1h.
    """
    if not reason.strip():
        raise UsageError("--reason: must not be empty; the log records it")
    checked_reason(reason)
    keys = chosen_keys(connection, (kind, *names), what="release", namespace=namespace)
    results = run_async(
        ask_many(
            connection,
            keys,
            lambda client: client.force_release_many(
                keys, reason=reason, orphan=orphan, timeout_seconds=timeout
            ),
        )
    )
    results = [_told(result) for result in results]
    stays = "stays in the API" if orphan else "is deleted or released, as its policy requires"
    confirm(results, f"finalizers and references removed; the object {stays}")
    print_results(results, output, good=())
    return exit_status(results, None)


def _told(result: Result) -> Result:
    """Say it where nothing was released: a wrong name must not look like success."""
    if result.reason == "Unchanged" and not result.generation:
        return Result(result.resource, False, "NotFound", message="the resource was never declared")
    if result.reason == "Unchanged":
        result.message = "nothing blocks the resource, and it owns no object; nothing to release"
    return result
