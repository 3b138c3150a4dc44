"""`reconciler approve`: decide about resources that are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

from events.intake import ApprovalDecision
from events.names import ResourceKey
from projections.status import StatusRow
from reconciler.cli.client import ask_many
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.log_replay import current_models
from reconciler.cli.naming import check_names
from reconciler.cli.options import Duration, Namespace, Output
from reconciler.cli.output import Format
from reconciler.cli.results import Result, checked_reason, exit_status, print_results
from reconciler.cli.selection import chosen_keys

Hold = Literal[
    "Approval",
    "DeletionGuard",
    "LossGuard",
    "UnknownResult",
    "DataLoss",
    "DefinitionGuard",
    "PruneGuard",
]

_LEAST_OF_A_PLAN: Final = 8


def approve(
    kind: str | None = None,
    /,
    *names: str,
    hold: Hold | None = None,
    plan: str = "",
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
    for this once. What holds a resource is the reason of its outcome Held. An
    approval of Approval is of one plan: if anything changes before, it is void.

    For example:

        reconciler get -A --outcome Held
        reconciler approve Shape foo --plan 41162a45fb69 --reason "as agreed"
        reconciler approve --all --hold Approval --config billing
        reconciler approve Shape foo --hold DeletionGuard --reason "old strays"
        reconciler approve --all --hold LossGuard --config billing
        reconciler approve Shape foo --hold UnknownResult --abandon

    Parameters
    ----------
    kind
        Kind of the names that follow; or a name, KIND/NAME or NAMESPACE/KIND/NAME.
    names
        Names, KIND/NAME or NAMESPACE/KIND/NAME.
    hold
        The reason that is approved; resources that are held by another are refused.
    plan
        The plan that is approved, as `get` shows it; without, the one that waits now.
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
    if hold is None and not plan:
        raise UsageError(f"--hold is missing. Choose from: {', '.join(get_args(Hold))}")
    if abandon and hold != "UnknownResult":
        raise UsageError(f"--abandon decides about UnknownResult only, not about {hold}")
    if plan and hold not in (None, "Approval"):
        raise UsageError(f"--plan is of --hold Approval, not of {hold}")
    checked_reason(reason)
    words = names if kind is None else (kind, *names)
    keys = chosen_keys(connection, words, what="approve", namespace=namespace) if words else []
    if hold in (None, "Approval"):
        meant = Meant(keys, namespace, config, checked_plan(plan, keys))
        return decide_plans(
            connection, meant, approve=True, reason=reason, timeout=timeout, output=output
        )
    decision: ApprovalDecision = "Abandon" if abandon else "Proceed"

    async def work() -> list[Result]:
        chosen = keys or [row.key for row in await _held(connection, hold, namespace, config)]
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


class Meant(NamedTuple):
    """Whose plans are decided about: some resources, or all that wait."""

    keys: list[ResourceKey]
    namespace: str | None
    config: str | None
    plan: str = ""


def checked_plan(plan: str, keys: Sequence[ResourceKey]) -> str:
    """Check a plan's digest, or the beginning of it; raises ``UsageError``."""
    if not plan:
        return plan
    if len(keys) != 1:
        raise UsageError("--plan is the plan of one resource: name that one")
    if len(plan) < _LEAST_OF_A_PLAN:
        raise UsageError(f"--plan {plan}: give at least {_LEAST_OF_A_PLAN} characters of it")
    return plan.lower()


def decide_plans(
    connection: Connection,
    meant: Meant,
    *,
    approve: bool,
    reason: str,
    timeout: float,
    output: Format,
) -> Exit:
    """Approve or reject the plans that wait, and print the results."""

    async def work() -> list[Result]:
        plans = await _plans(connection, meant)
        return await ask_many(
            connection,
            [key for key, _ in plans],
            lambda client: client.decide_plans(
                plans, approve=approve, reason=reason, timeout_seconds=timeout
            ),
        )

    results = run_async(work())
    print_results(results, output, good=())
    return exit_status(results, None)


async def _plans(connection: Connection, meant: Meant) -> list[tuple[ResourceKey, str]]:
    """Return the plan of each resource that is meant: one that was named stands as it is."""
    if not meant.keys:
        waiting = await _held(connection, "Approval", meant.namespace, meant.config)
        return [(row.key, row.asked_plan) for row in waiting]
    async with bus(connection) as nc:
        rows = (await current_models(nc)).status
    asked = {key: row.asked_plan if (row := rows.get(str(key))) else "" for key in meant.keys}
    return [
        (key, plan if plan.startswith(meant.plan) else meant.plan) for key, plan in asked.items()
    ]


async def _held(
    connection: Connection, hold: str, namespace: str | None, config: str | None
) -> list[StatusRow]:
    check_names(namespace=namespace)
    async with bus(connection) as nc:
        rows = (await current_models(nc)).status.values()
    found = [
        row
        for row in rows
        if (row.outcome, row.reason) == ("Held", hold)
        and namespace in (None, row.namespace)
        and config in (None, row.provider_config)
    ]
    if found:
        return sorted(found, key=lambda row: row.key)
    where = f" in namespace {namespace}" if namespace else ""
    whose = f" of ProviderConfig {config}" if config else ""
    raise CommandError(
        f"no resource{where}{whose} is held by {hold}: `reconciler get -A --outcome Held` shows "
        "what is held, and by what"
    )
