"""`reconciler approve`: decide about resources that are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

from events.hold import Hold
from events.intake import ApprovalDecision
from events.names import ResourceKey
from events.provider_config import is_config
from projections.status import StatusRow
from reconciler.cli.client import ask_many
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import current_models
from reconciler.cli.naming import check_names
from reconciler.cli.options import Duration, Namespace, Output, Reason
from reconciler.cli.output import Format
from reconciler.cli.results import Result, checked_reason, confirm, exit_status, print_results
from reconciler.cli.selection import chosen_keys

HoldName = Literal[
    "Approval",
    "DeletionGuard",
    "LossGuard",
    "UnknownResult",
    "DataLoss",
    "DefinitionGuard",
    "PruneGuard",
    "Twin",
]

_LEAST_OF_A_PLAN: Final = 8


def approve(
    kind: str | None = None,
    /,
    *names: str,
    hold: HoldName | None = None,
    plan: str = "",
    all: bool = False,  # noqa: A002 - the option's name
    config: str | None = None,
    abandon: bool = False,
    reason: Reason = "",
    namespace: Namespace = None,
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Approve the action of a held resource, so that Reconciler continues.

    The hold is the reason that `get` shows for the outcome Held. An
    approval ends one occurrence of a hold. An approval of the hold Approval
    covers one plan. If the plan changes first, the decider refuses the
    approval. The log keeps the approval with your name and reason.

    For example:

        reconciler get -A --outcome Held
        reconciler approve Shape foo --plan 41162a45fb69 --reason "CHG-1234"
        reconciler approve --all --hold Approval --config billing
        reconciler approve Shape foo --hold DeletionGuard
        reconciler approve --all --hold LossGuard --config billing
        reconciler approve Shape foo --hold UnknownResult --abandon
        reconciler approve system/ProviderConfig/billing --hold Twin

    Parameters
    ----------
    kind
        Kind of the names that follow; or a resource: NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    names
        NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    hold
        The hold to approve. If the resource is held for a different reason, the decider refuses.
    plan
        For the hold Approval: the plan to approve, as `get` shows it. Default: the plan that is
        currently waiting.
    all
        Instead of naming resources: approve the actions of all resources with this hold.
    config
        With --all: only the resources of this ProviderConfig.
    abandon
        With --hold UnknownResult: end the action without another call. Default: repeat the call.
    timeout
        Maximum time to wait for the decider's replies: 500ms, 30s, 2m, 1h.
    """
    if all == (kind is not None):
        raise UsageError("approve: use either KIND NAME... or --all")
    if config is not None and not all:
        raise UsageError("--config: allowed only with --all; remove it, or remove the names")
    if hold is None and not plan:
        raise UsageError(f"missing option --hold; use one of {', '.join(get_args(HoldName))}")
    if abandon and hold != Hold.UNKNOWN_RESULT:
        raise UsageError(f"--abandon: allowed only with --hold UnknownResult, not with {hold}")
    if plan and hold not in (None, Hold.APPROVAL):
        raise UsageError(f"--plan: allowed only with --hold Approval, not with {hold}")
    checked_reason(reason)
    words = names if kind is None else (kind, *names)
    keys = chosen_keys(connection, words, what="approve", namespace=namespace) if words else []
    if hold in (None, Hold.APPROVAL):
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
    confirm(results, _confirmation(hold, abandon=abandon))
    print_results(results, output, good=())
    return exit_status(results, None)


def _confirmation(hold: str, *, abandon: bool) -> str:
    if abandon:
        return "approved: the action is abandoned"
    if Hold(hold).needs_listing:
        return "approved: takes effect after the next one or two listings"
    return "approved"


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
        raise UsageError("--plan: requires exactly one resource; name it")
    if len(plan) < _LEAST_OF_A_PLAN:
        raise UsageError(f"--plan {plan}: must have at least {_LEAST_OF_A_PLAN} characters")
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
    confirm(results, "approved" if approve else "rejected")
    print_results(results, output, good=())
    return exit_status(results, None)


async def _plans(connection: Connection, meant: Meant) -> list[tuple[ResourceKey, str]]:
    """Return the plan of each resource that is meant: one that was named stands as it is."""
    if not meant.keys:
        waiting = await _held(connection, Hold.APPROVAL, meant.namespace, meant.config)
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
        if row.hold == hold
        and namespace in (None, row.namespace)
        and config in (None, row.provider_config or row.name)
        # The resources of a held API continue with its ProviderConfig.
        and (hold != Hold.TWIN or is_config(row.key))
    ]
    if found:
        return sorted(found, key=lambda row: row.key)
    where = f" in namespace {namespace}" if namespace else ""
    whose = f" of ProviderConfig {config}" if config else ""
    raise CommandError(
        f"no resource{where}{whose} is held by {hold}; `reconciler get -A --outcome Held` "
        "lists the held resources with their reasons"
    )
