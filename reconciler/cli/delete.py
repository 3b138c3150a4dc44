"""`reconciler delete`: take declarations back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from events.intake import Answer
from events.names import ResourceKey
from reconciler.cli.client import client_of
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.exits import Exit
from reconciler.cli.manifests import read_all
from reconciler.cli.options import AllNamespaces, Duration, Files, Namespace, Output, Reason
from reconciler.cli.output import Format
from reconciler.cli.results import (
    Result,
    checked_reason,
    confirm,
    exit_status,
    print_results,
    result_of,
    wait_for_results,
)
from reconciler.cli.selection import chosen_keys
from reconciler.cli.selectors import Labels
from reconciler.errors import DeclarationRefusedError

GOOD = ("Deleted", "Released")


def delete(
    kind: str | None = None,
    /,
    *names: str,
    file: Files = (),
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    labels: Labels = "",
    dry_run: bool = False,
    reason: Reason = "",
    wait: bool = False,
    timeout: Duration = 60.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Withdraw declarations.

    The policy of a resource determines what happens to its object. With
    `deletion: Delete`, the default, Reconciler deletes the object. With
    `deletion: Orphan`, it leaves the object in the API and stops managing
    it. The log keeps the history.

    Exit status: 0 all accepted (with --wait: deleted or released), 1 some
    refused or failed, 3 some not settled before the timeout. With --dry-run:
    that of `reconciler plan`.

    For example:

        reconciler delete Shape foo bar --wait --reason "moved to billing"
        reconciler delete default/Shape/foo
        reconciler delete -l team=payments --dry-run
        reconciler delete -f shapes/ --wait --timeout 2m
        reconciler delete -f shapes/ --dry-run
        reconciler get -A --outcome Failed -o name | xargs reconciler delete

    Parameters
    ----------
    kind
        Kind of the names that follow; or a resource: NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    names
        NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    dry_run
        Show the plan, as `reconciler plan` does, and change nothing.
    wait
        Wait until each resource is deleted or released.
    timeout
        Maximum time to wait: 500ms, 30s, 2m, 1h. Reconciler continues after a timeout.
    """
    checked_reason(reason)
    words = names if kind is None else (kind, *names)
    keys: list[ResourceKey] = []
    problems: list[str] = []
    if words or labels or not file:
        keys = chosen_keys(
            connection,
            words,
            what="delete",
            namespace=namespace,
            everywhere=all_namespaces,
            labels=labels,
        )
    if file:
        documents = read_all(file, namespace or "default")
        keys += [read.key for read in documents.good]
        problems = documents.problems()
    if dry_run:
        return _plan(connection, keys, problems, output)
    results = run_async(_withdraw(connection, keys, reason, wait, timeout))
    print_results(results, output, good=GOOD, problems=problems)
    return Exit.FAILED if problems else exit_status(results, GOOD if wait else None)


def _plan(
    connection: Connection, keys: Sequence[ResourceKey], problems: Sequence[str], output: Format
) -> Exit:
    from reconciler.cli.plan import show_withdrawals  # noqa: PLC0415 - who plans pays

    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    status = show_withdrawals(connection, keys, output)
    return Exit.FAILED if problems else status


async def _withdraw(
    connection: Connection,
    keys: Sequence[ResourceKey],
    reason: str,
    wait: bool,
    timeout_seconds: float,
) -> list[Result]:
    if not keys:
        return []
    async with client_of(connection) as client:
        answers = await client.withdraw_many(keys, reason=reason, timeout_seconds=timeout_seconds)
        results = [_result(key, answer) for key, answer in zip(keys, answers, strict=True)]
        confirm(results, "declaration withdrawn")
        if wait:
            await wait_for_results(client, results, timeout_seconds)
    return results


def _result(key: ResourceKey, told: Answer | DeclarationRefusedError) -> Result:
    result = result_of(key, told)
    if result.accepted and result.generation == 0:
        return Result(str(key), False, "NotFound", message="the resource was never declared")
    if result.accepted and result.reason == "Unchanged":
        result.message = "the declaration was already withdrawn"
    return result
