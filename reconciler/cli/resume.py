"""`reconciler resume`: take care of paused resources again."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from reconciler.cli.connection import HERE, Connection
from reconciler.cli.options import AllNamespaces, Duration, Namespace, Output, Reason
from reconciler.cli.pause import Meant, set_paused
from reconciler.cli.selectors import Labels


def resume(
    *words: Annotated[str, Parameter(name="RESOURCE")],
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    labels: Labels = "",
    reason: Reason = "",
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Resume paused resources, and correct drift.

    The command declares the resources again without `paused: true` in their policy.

    For example:

        reconciler resume Shape foo --reason "INC-42 is closed"
        reconciler resume -A -l team=payments

    Parameters
    ----------
    words
        NAME, KIND/NAME or NAMESPACE/KIND/NAME; or a kind, followed by names.
    timeout
        Maximum time to wait for the decider's replies: 500ms, 30s, 2m, 1h.
    """
    meant = Meant(words, namespace, all_namespaces, labels)
    return set_paused(connection, meant, False, reason, timeout, output)
