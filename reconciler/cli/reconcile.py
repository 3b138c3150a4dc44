"""`reconciler reconcile`: look at resources now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from events.names import ResourceKey
from reconciler.cli.client import ask_many
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.options import AllNamespaces, Duration, Namespace, Output, Reason
from reconciler.cli.results import Result, checked_reason, confirm, exit_status, print_results
from reconciler.cli.selection import chosen_keys
from reconciler.cli.selectors import Labels
from reconciler.cli.wait import until_looked_at

GOOD = ("Converged",)


def reconcile(
    *words: Annotated[str, Parameter(name="RESOURCE")],
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    labels: Labels = "",
    reason: Reason = "",
    wait: bool = False,
    timeout: Duration = 60.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Reconcile resources immediately, without waiting for a back-off.

    The observer reads each object from its API. For a ProviderConfig, it
    lists the whole API. The history records your request.

    Exit status: 0 all accepted (with --wait: all Converged), 1 some refused
    or failed, 3 some not settled before the timeout.

    For example:

        reconciler reconcile Shape foo --wait
        reconciler reconcile -l team=payments --reason "the API is back"
        reconciler reconcile ProviderConfig default

    Parameters
    ----------
    words
        NAME, KIND [NAME ...], KIND/NAME or NAMESPACE/KIND/NAME.
    wait
        Wait until each object is read and has a settled outcome: Converged, Failed, Held, ...
    timeout
        Maximum time to wait: 500ms, 30s, 2m, 1h. Reconciler continues after a timeout.
    """
    checked_reason(reason)
    keys = chosen_keys(
        connection,
        words,
        what="reconcile",
        namespace=namespace,
        everywhere=all_namespaces,
        labels=labels,
        whole_kinds=True,
    )
    results = run_async(_reconcile(connection, keys, reason, timeout, wait=wait))
    print_results(results, output, good=GOOD)
    return exit_status(results, GOOD if wait else None)


async def _reconcile(
    connection: Connection,
    keys: Sequence[ResourceKey],
    reason: str,
    timeout_seconds: float,
    *,
    wait: bool,
) -> list[Result]:
    results = await ask_many(
        connection,
        keys,
        lambda client: client.reconcile_many(keys, reason=reason, timeout_seconds=timeout_seconds),
    )
    confirm(results, "reconciliation requested")
    if wait:
        accepted = {each.resource: each for each in results if each.accepted}
        await until_looked_at(connection, accepted, timeout_seconds)
    return results
