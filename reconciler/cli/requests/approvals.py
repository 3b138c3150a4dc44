"""`approve` and `reject`: approve or reject the actions of held resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from events.hold import Hold
from events.intake import ApprovalDecision
from events.names import ResourceKey
from events.provider_config import is_config
from projections.status import StatusRow
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.folded_log import current_models
from reconciler.cli.naming import check_names
from reconciler.cli.options import (
    Filter,
    Integer,
    Kind,
    Names,
    Namespace,
    Output,
    Reason,
    ReplyTimeout,
)
from reconciler.cli.output import Format
from reconciler.cli.requests.request import request
from reconciler.cli.selection import select_keys

HoldName = Literal[
    "Approval",
    "DeletionGuard",
    "LossGuard",
    "UnknownResult",
    "DataLoss",
    "DataMissing",
    "Adoption",
    "DefinitionGuard",
    "PruneGuard",
    "Twin",
    "ExclusiveScope",
]

_MIN_PLAN_CHARACTERS: Final = 8


def approve(
    kind: Kind | None = None,
    /,
    *names: Names,
    hold: HoldName | None = None,
    plan: str = "",
    generation: Integer = 0,
    all: bool = False,  # noqa: A002 - the option's name
    config: str | None = None,
    abandon: bool = False,
    reason: Reason = "",
    namespace: Namespace = None,
    timeout: ReplyTimeout = 30.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Approve the action of a held resource, so that Reconciler continues.

    The hold is the reason that `get` shows for the outcome Held. An approval
    ends one occurrence of a hold. For the hold Approval, it covers one plan: if
    the plan changes first, the decider refuses the approval. With --generation,
    the same holds for the declaration: use it for a resource that another team
    declares. `why` and `describe` print the command that approves exactly what
    you have seen. The log keeps the approval with your name and reason.

    For example:

        reconciler get -A --outcome Held
        reconciler approve Shape foo --plan 41162a45fb69 --reason "CHG-1234"
        reconciler approve --all --hold Approval --config billing
        reconciler approve Shape foo --hold DeletionGuard
        reconciler approve Shape foo --hold Adoption --generation 3
        reconciler approve --all --hold LossGuard --config billing
        reconciler approve Shape foo --hold UnknownResult --abandon
        reconciler approve system/ProviderConfig/billing --hold Twin

    Parameters
    ----------
    hold
        The hold to approve. If the resource is held for a different reason, the decider refuses
        the approval.
    plan
        For the hold Approval: the plan to approve, as `get` shows it. Default: the plan that is
        currently waiting.
    generation
        Approve only if this is still the generation of the declaration, which `get` shows.
    all
        Instead of naming resources: approve the actions of all resources with this hold.
    config
        With --all: only the resources of this ProviderConfig.
    abandon
        With --hold UnknownResult: end the action without another call. Default: repeat the call.
    """
    words = names if kind is None else (kind, *names)
    _check_selection("approve", words, config, everything=all)
    if hold is None and not plan:
        raise UsageError(f"missing option --hold; use one of {', '.join(get_args(HoldName))}")
    if abandon and hold != Hold.UNKNOWN_RESULT:
        raise UsageError(f"--abandon: allowed only with --hold UnknownResult, not with {hold}")
    if plan and hold not in (None, Hold.APPROVAL):
        raise UsageError(f"--plan: allowed only with --hold Approval, not with {hold}")
    keys = _select_named(connection, words, "approve", namespace)
    if generation and (len(keys) != 1 or hold in (None, Hold.APPROVAL)):
        raise UsageError("--generation: requires exactly one resource, and a hold with no plan")
    if hold in (None, Hold.APPROVAL):
        plans = run_async(_read_plans(connection, keys, _check_plan(plan, keys), namespace, config))
        return _decide(connection, plans, reason, timeout, output, approve=True)
    decision: ApprovalDecision = "Abandon" if abandon else "Proceed"
    generations = [generation] * len(keys)
    if not keys:
        held = run_async(_find_held(connection, hold, namespace, config))
        keys, generations = [row.key for row in held], [row.generation for row in held]
    return request(
        connection,
        keys,
        lambda client: client.approve_many(
            keys,
            hold=hold,
            decision=decision,
            reason=reason,
            generations=generations,
            timeout_seconds=timeout,
        ),
        output=output,
        done=_confirmation(hold, abandon=abandon),
    )


def reject(
    kind: Kind | None = None,
    /,
    *names: Names,
    reason: Reason,
    plan: str = "",
    all: bool = False,  # noqa: A002 - the option's name
    config: str | None = None,
    namespace: Namespace = None,
    timeout: ReplyTimeout = 30.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Reject a plan that is waiting for approval.

    The resource stays Held with the reason NotApproved until you approve
    the plan, or the plan changes. The log keeps the rejection with your name
    and reason.

    For example:

        reconciler get -A --outcome Held
        reconciler reject Shape foo --reason "not on a Friday"
        reconciler reject Shape foo --plan 41162a45fb69 --reason "wrong color"
        reconciler reject --all --config billing --reason "change freeze"

    Parameters
    ----------
    plan
        The plan to reject, as `get` shows it. Default: the plan that is currently waiting.
    all
        Instead of naming resources: reject all plans that are waiting for approval.
    config
        With --all: only the resources of this ProviderConfig.
    """
    words = names if kind is None else (kind, *names)
    _check_selection("reject", words, config, everything=all)
    keys = _select_named(connection, words, "reject", namespace)
    plans = run_async(_read_plans(connection, keys, _check_plan(plan, keys), namespace, config))
    return _decide(connection, plans, reason, timeout, output, approve=False)


def _check_selection(
    what: str, words: Sequence[str], config: str | None, *, everything: bool
) -> None:
    if everything == bool(words):
        raise UsageError(f"{what}: use either KIND NAME... or --all")
    if config is not None and not everything:
        raise UsageError("--config: allowed only with --all; remove it, or remove the names")


def _select_named(
    connection: Connection, words: Sequence[str], what: str, namespace: str | None
) -> list[ResourceKey]:
    where = Filter(namespace=namespace)
    return select_keys(connection, words, what, where) if words else []


def _confirmation(hold: str, *, abandon: bool) -> str:
    if abandon:
        return "approved: the action is abandoned"
    if Hold(hold).needs_listing:
        return "approved: takes effect after the next one or two listings"
    return "approved"


def _check_plan(plan: str, keys: Sequence[ResourceKey]) -> str:
    """Check a plan's digest or a prefix of it; raises ``UsageError``."""
    if plan and len(keys) != 1:
        raise UsageError("--plan: requires exactly one resource; name it")
    if plan and len(plan) < _MIN_PLAN_CHARACTERS:
        raise UsageError(f"--plan {plan}: must have at least {_MIN_PLAN_CHARACTERS} characters")
    return plan.lower()


def _decide(
    connection: Connection,
    plans: Sequence[tuple[ResourceKey, str]],
    reason: str,
    timeout_seconds: float,
    output: Format,
    *,
    approve: bool,
) -> int:
    return request(
        connection,
        [key for key, _ in plans],
        lambda client: client.decide_plans(
            plans, approve=approve, reason=reason, timeout_seconds=timeout_seconds
        ),
        output=output,
        done="approved" if approve else "rejected",
    )


async def _read_plans(
    connection: Connection,
    keys: Sequence[ResourceKey],
    digest: str,
    namespace: str | None,
    config: str | None,
) -> list[tuple[ResourceKey, str]]:
    """Return each resource's plan, or all pending plans. ``digest`` may be abbreviated."""
    if not keys:
        waiting = await _find_held(connection, Hold.APPROVAL, namespace, config)
        return [(row.key, row.pending_plan) for row in waiting]
    async with bus(connection) as nc:
        rows = (await current_models(nc)).status
    plans = {key: row.pending_plan if (row := rows.get(str(key))) else "" for key in keys}
    return [(key, plan if plan.startswith(digest) else digest) for key, plan in plans.items()]


async def _find_held(
    connection: Connection, hold: str, namespace: str | None, config: str | None
) -> list[StatusRow]:
    check_names(namespace=namespace)
    async with bus(connection) as nc:
        rows = (await current_models(nc)).status.values()
    held = [
        row
        for row in rows
        if row.hold == hold
        and namespace in (None, row.namespace)
        and config in (None, row.provider_config or row.name)
        # Approving the ProviderConfig of a held API also releases its resources.
        and (hold != Hold.TWIN or is_config(row.key))
    ]
    if held:
        return sorted(held, key=lambda row: row.key)
    where = f" in namespace {namespace}" if namespace else ""
    scope = f" of ProviderConfig {config}" if config else ""
    raise CommandError(
        f"no resource{where}{scope} is held by {hold}; `reconciler get -A --outcome Held` "
        "lists the held resources with their reasons"
    )
