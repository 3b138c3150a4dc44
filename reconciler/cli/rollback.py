"""`reconciler rollback`: declare again what an older generation declared."""

from __future__ import annotations

from events.manifest import Manifest
from reconciler.cli.client import ask_one, client_of
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.declared import Generations, manifest_of
from reconciler.cli.errors import CommandError
from reconciler.cli.exits import Exit
from reconciler.cli.naming import Meant, meant
from reconciler.cli.options import Duration, Namespace, Output, Reason
from reconciler.cli.output import print_structured
from reconciler.cli.results import (
    Result,
    checked_reason,
    confirm,
    exit_status,
    print_results,
    wait_for_results,
)
from reconciler.cli.search import find_resource
from reconciler.sdk.history import History

GOOD = ("Converged",)


def rollback(
    resource: str,
    name: str | None = None,
    /,
    *,
    to: int | None = None,
    namespace: Namespace = None,
    dry_run: bool = False,
    reason: Reason = "",
    wait: bool = False,
    timeout: Duration = 60.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Declare an older generation again: spec, labels, annotations and policy.

    Without --to, it declares the last generation that was ready and differs
    from the current one. The decider checks the declaration like any other. It
    records a new generation, or refuses the declaration if a newer one has
    arrived. You can also roll back a withdrawn resource.

    Exit status: 0 accepted (with --wait: Converged), 1 refused or failed,
    3 not settled before the timeout.

    For example:

        reconciler rollback Deployment/web --wait          undo a bad image
        reconciler rollback foo --to 3
        reconciler rollback Shape/foo --to 3 --dry-run     print the manifest
        reconciler rollback payments/Shape/foo --to 3 --reason "wrong color"

    Parameters
    ----------
    resource
        NAME, KIND/NAME or NAMESPACE/KIND/NAME; or a kind, followed by the name.
    name
        The name, after a kind.
    to
        Generation, as `reconciler history` shows it. Default: the newest one that was ready and
        differs from the current declaration.
    dry_run
        Print the manifest (YAML, or JSON with -o json), and declare nothing.
    wait
        Wait for a settled outcome: Converged, Failed, Held, ...
    timeout
        Maximum time to wait: 500ms, 30s, 2m, 1h. Reconciler continues after a timeout.
    """
    checked_reason(reason)
    wanted = meant(resource if name is None else f"{resource}/{name}", namespace)
    manifest, older, newest = run_async(find_older(connection, wanted, to))
    if dry_run:
        print_structured(manifest, "json" if output == "json" else "yaml")
        return Exit.OK
    result = run_async(_declare(connection, manifest, newest, reason, wait, timeout))
    confirm([result], f"generation {older} declared again")
    print_results([result], output, good=GOOD)
    return exit_status([result], GOOD if wait else None)


async def find_older(
    connection: Connection, wanted: Meant, generation: int | None
) -> tuple[Manifest, int, int]:
    """Return the manifest of an older generation, its number, and the current generation.

    Without a number it is the newest one that was ready and differs from the current declaration.
    """
    async with bus(connection) as nc:
        key = await find_resource(nc, wanted)
        past = await History(nc).get(key)
    if past.damage is not None:
        raise CommandError(f"the log is damaged: {past.damage}; see `reconciler replay --verify`")
    generations = Generations(key, past.events)
    older = generations.newest_ready() if generation is None else generation
    return manifest_of(key, generations.declared(older)), older, generations.newest


async def _declare(
    connection: Connection,
    manifest: Manifest,
    newest: int,
    reason: str,
    wait: bool,
    timeout_seconds: float,
) -> Result:
    result = await ask_one(
        connection,
        manifest.key,
        lambda client: client.declare(
            manifest, expected_generation=newest, reason=reason, timeout_seconds=timeout_seconds
        ),
    )
    if wait:
        async with client_of(connection) as client:
            await wait_for_results(client, [result], timeout_seconds)
    return result
