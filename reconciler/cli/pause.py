"""`reconciler pause`: leave resources as they are, whatever happens to them, until `resume`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from msgspec.structs import replace

from events.manifest import Manifest
from events.names import ResourceKey
from reconciler.cli.client import client_of
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.declared import declarations
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import current_models
from reconciler.cli.options import AllNamespaces, Duration, Namespace, Output, Reason
from reconciler.cli.output import Format
from reconciler.cli.results import (
    Result,
    checked_reason,
    confirm,
    exit_status,
    print_results,
    result_of,
)
from reconciler.cli.selection import chosen_keys
from reconciler.cli.selectors import Labels


def pause(
    *words: Annotated[str, Parameter(name="RESOURCE")],
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    labels: Labels = "",
    reason: Reason = "",
    timeout: Duration = 30.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Stop all actions on resources until `reconciler resume`.

    The command declares the resources again with `paused: true` in their
    policy. Reconciler still records observations. An action in flight
    finishes.

    For example:

        reconciler pause Shape foo --reason "INC-42"
        reconciler pause -A -l team=payments
        reconciler get -A --outcome Paused

    Parameters
    ----------
    words
        NAME, KIND/NAME or NAMESPACE/KIND/NAME; or a kind, followed by names.
    timeout
        Maximum time to wait for the decider's replies: 500ms, 30s, 2m, 1h.
    """
    meant = Meant(words, namespace, all_namespaces, labels)
    return set_paused(connection, meant, True, reason, timeout, output)


class Meant(NamedTuple):
    """Which resources a command line selects."""

    words: tuple[str, ...]
    namespace: str | None
    everywhere: bool
    labels: str


def set_paused(
    connection: Connection,
    meant: Meant,
    paused: bool,
    reason: str,
    timeout_seconds: float,
    output: Format,
) -> Exit:
    """Declare resources again, paused or not; print what came of each."""
    checked_reason(reason)
    what = "pause" if paused else "resume"
    keys = chosen_keys(
        connection,
        meant.words,
        what=what,
        namespace=meant.namespace,
        everywhere=meant.everywhere,
        labels=meant.labels,
    )
    reason = reason or f"{what}d"
    results = run_async(_set_paused(connection, keys, paused, reason, timeout_seconds))
    print_results(results, output, good=())
    return exit_status(results, None)


async def _set_paused(
    connection: Connection,
    keys: Sequence[ResourceKey],
    paused: bool,
    reason: str,
    timeout_seconds: float,
) -> list[Result]:
    async with bus(connection) as nc:
        rows = (await current_models(nc)).status
        declared = {
            key: row.generation
            for key in keys
            if (row := rows.get(str(key))) is not None and row.declared
        }
        found = await declarations(nc, declared, as_of_version=False)
    manifests = [_with_paused(found[key], paused) for key in declared]
    results = {
        key: Result(str(key), False, "NotFound", message="the resource is not declared")
        for key in keys
    }
    async with client_of(connection) as client:
        answers = await client.declare_many(
            manifests,
            expected_generations=declared.values(),
            reason=reason,
            timeout_seconds=timeout_seconds,
        )
    answered = zip(declared, answers, strict=True)
    results |= {key: result_of(key, answer) for key, answer in answered}
    confirm(results.values(), "paused until you resume it" if paused else "resumed")
    return list(results.values())


def _with_paused(manifest: Manifest, paused: bool) -> Manifest:
    policy: dict[str, Any] = dict(manifest.spec.get("policy", {}))
    policy.pop("paused", None)
    if paused:
        policy["paused"] = True
    spec = {name: value for name, value in manifest.spec.items() if name != "policy"}
    return replace(manifest, spec={**spec, "policy": policy} if policy else spec)
