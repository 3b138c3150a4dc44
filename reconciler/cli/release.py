"""`reconciler release`: take off by force what keeps withdrawn shapes."""

from __future__ import annotations

from reconciler.cli.asking import ask_many
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.durations import Duration
from reconciler.cli.errors import UsageError
from reconciler.cli.naming import named
from reconciler.cli.options import Namespace, Output
from reconciler.cli.results import exit_status, print_results


def release(
    kind: str,
    /,
    *names: str,
    reason: str,
    orphan: bool = False,
    namespace: Namespace = None,
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Take off by force what keeps withdrawn shapes: finalizers and references.

    It is an event of the log, with your name and reason. Other services may
    not have finished with the shape: `reconciler describe` says which.

    For example:

        reconciler release Shape foo --reason "billing is shut down"
        reconciler release Shape foo --orphan --reason "the API is gone"

    Parameters
    ----------
    kind
        Kind of the names that follow; or the first of several namespace/kind/name.
    names
        Names, or namespace/kind/name.
    reason
        Why; it is kept in the log.
    orphan
        Leave the external object where it is, and give up a deletion under way.
    namespace
        Namespace of the names.
    timeout
        How long to wait for the answers.
    output
        How to print the results.
    """
    if not reason.strip():
        raise UsageError("--reason is empty: say why, it is kept in the log")
    keys = named(kind, names, namespace, what="release")
    results = run_async(
        ask_many(
            connection,
            keys,
            lambda client: client.force_release_many(
                keys, reason=reason, orphan=orphan, timeout_seconds=timeout
            ),
        )
    )
    print_results(results, output, good=())
    return exit_status(results, None)
