"""`reconciler approve`: decide about resources that are held."""

from __future__ import annotations

from typing import Literal

from events.intake import ApprovalDecision
from events.names import ResourceKey
from reconciler.cli.client import ask_many
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.log_replay import current_models
from reconciler.cli.naming import check_names, named
from reconciler.cli.options import Duration, Namespace, Output
from reconciler.cli.results import Result, checked_reason, exit_status, print_results

Hold = Literal["DeletionGuard", "LossGuard", "UnknownResult", "DataLoss", "DefinitionGuard"]


def approve(
    kind: str | None = None,
    /,
    *names: str,
    hold: Hold,
    all: bool = False,  # noqa: A002 - the option's name
    config: str | None = None,
    abandon: bool = False,
    reason: str = "",
    namespace: Namespace = None,
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Decide about resources that are held: let what holds them go on.

    The approval is an event of the log, with your name and reason, and holds
    for this once. What holds a resource is the reason of its outcome Held.

    For example:

        reconciler get -A --outcome Held
        reconciler approve Shape foo --hold DeletionGuard --reason "old strays"
        reconciler approve --all --hold LossGuard --config billing
        reconciler approve Shape foo --hold UnknownResult --abandon

    Parameters
    ----------
    kind
        Kind of the names that follow; or the first of several namespace/kind/name.
    names
        Names, or namespace/kind/name.
    hold
        The reason that is approved; resources that are held by another are refused.
    all
        All resources that are held for this reason, in place of names.
    config
        With --all: only those of this ProviderConfig.
    abandon
        With --hold UnknownResult: the call was done, do not call again.
    reason
        Why; it is kept in the log.
    namespace
        Namespace of the names, or with --all of the resources.
    timeout
        How long to wait for the answers.
    output
        How to print the results.
    """
    if all == (kind is not None):
        raise UsageError("approve what? Give KIND NAME... or --all, one of them")
    if config is not None and not all:
        raise UsageError("--config chooses among --all: leave it out with names")
    if abandon and hold != "UnknownResult":
        raise UsageError(f"--abandon decides about UnknownResult only, not about {hold}")
    checked_reason(reason)
    keys = named(kind, names, namespace, what="approve")
    decision: ApprovalDecision = "Abandon" if abandon else "Proceed"

    async def work() -> list[Result]:
        chosen = keys or await _held(connection, hold, namespace, config)
        return await ask_many(
            connection,
            chosen,
            lambda client: client.approve_many(
                chosen, hold=hold, decision=decision, reason=reason, timeout_seconds=timeout
            ),
        )

    results = run_async(work())
    print_results(results, output, good=())
    return exit_status(results, None)


async def _held(
    connection: Connection, hold: Hold, namespace: str | None, config: str | None
) -> list[ResourceKey]:
    check_names(namespace=namespace)
    async with bus(connection) as nc:
        rows = (await current_models(nc)).status.values()
    keys = [
        row.key
        for row in rows
        if (row.outcome, row.reason) == ("Held", hold)
        and namespace in (None, row.namespace)
        and config in (None, row.provider_config)
    ]
    if keys:
        return sorted(keys)
    where = f" in namespace {namespace}" if namespace else ""
    whose = f" of ProviderConfig {config}" if config else ""
    raise CommandError(
        f"no resource{where}{whose} is held by {hold}: `reconciler get -A --outcome Held` shows "
        "what is held, and by what"
    )
