"""`reconciler reject`: refuse what waits for approval."""

from __future__ import annotations

from reconciler.cli.approve import Meant, checked_plan, decide_plans
from reconciler.cli.connection import HERE, Connection
from reconciler.cli.errors import UsageError
from reconciler.cli.options import Duration, Namespace, Output, Reason
from reconciler.cli.results import checked_reason
from reconciler.cli.selection import chosen_keys


def reject(
    kind: str | None = None,
    /,
    *names: str,
    reason: Reason,
    plan: str = "",
    all: bool = False,  # noqa: A002 - the option's name
    config: str | None = None,
    namespace: Namespace = None,
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Reject a plan that waits for approval.

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
    kind
        Kind of the names that follow; or a resource: NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    names
        NAME, KIND/NAME or NAMESPACE/KIND/NAME.
    plan
        The plan to reject, as `get` shows it. Default: the plan that is currently waiting.
    all
        Instead of naming resources: reject all plans that wait for approval.
    config
        With --all: only the resources of this ProviderConfig.
    timeout
        Maximum time to wait for the decider's replies: 500ms, 30s, 2m, 1h.
    """
    if all == (kind is not None):
        raise UsageError("reject: use either KIND NAME... or --all")
    if config is not None and not all:
        raise UsageError("--config: allowed only with --all; remove it, or remove the names")
    checked_reason(reason)
    words = names if kind is None else (kind, *names)
    keys = chosen_keys(connection, words, what="reject", namespace=namespace) if words else []
    meant = Meant(keys, namespace, config, checked_plan(plan, keys))
    return decide_plans(
        connection, meant, approve=False, reason=reason, timeout=timeout, output=output
    )
