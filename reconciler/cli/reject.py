"""`reconciler reject`: refuse what waits for approval."""

from __future__ import annotations

from reconciler.cli.approve import Meant, checked_plan, decide_plans
from reconciler.cli.connection import HERE, Connection
from reconciler.cli.errors import UsageError
from reconciler.cli.options import Duration, Namespace, Output
from reconciler.cli.results import checked_reason
from reconciler.cli.selection import chosen_keys


def reject(
    kind: str | None = None,
    /,
    *names: str,
    reason: str,
    plan: str = "",
    all: bool = False,  # noqa: A002 - the option's name
    config: str | None = None,
    namespace: Namespace = None,
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Refuse what waits for approval: it stays undone until it is approved, or changes.

    The rejection is an event of the log, with your name and reason. It can be
    thought over: `approve` with the same plan does it after all.

    For example:

        reconciler get -A --outcome Held
        reconciler reject Shape foo --reason "not on a Friday"
        reconciler reject Shape foo --plan 41162a45fb69 --reason "wrong colour"
        reconciler reject --all --config billing --reason "moratorium"

    Parameters
    ----------
    kind
        Kind of the names that follow; or a name, KIND/NAME or NAMESPACE/KIND/NAME.
    names
        Names, KIND/NAME or NAMESPACE/KIND/NAME.
    reason
        Why; it is kept in the log, and shown.
    plan
        The plan that is rejected, as `get` shows it; without, the one that waits now.
    all
        All that wait for approval, in place of names.
    config
        With --all: only those of this ProviderConfig.
    namespace
        Namespace of the names, or with --all of the resources.
    timeout
        How long to wait for the answers.
    output
        How to print the results.
    """
    if all == (kind is not None):
        raise UsageError("reject what? Give KIND NAME... or --all, one of them")
    if config is not None and not all:
        raise UsageError("--config chooses among --all: leave it out with names")
    checked_reason(reason)
    words = names if kind is None else (kind, *names)
    keys = chosen_keys(connection, words, what="reject", namespace=namespace) if words else []
    meant = Meant(keys, namespace, config, checked_plan(plan, keys))
    return decide_plans(
        connection, meant, approve=False, reason=reason, timeout=timeout, output=output
    )
