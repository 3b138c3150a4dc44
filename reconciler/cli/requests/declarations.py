"""`delete`, `rollback`, `pause`, `resume` and `reconcile`: requests for declared resources."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from events.manifest import Manifest
from events.names import ResourceKey
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.errors import CommandError
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import current_models
from reconciler.cli.manifests import read_all
from reconciler.cli.naming import Reference, parse_reference
from reconciler.cli.options import (
    UNFILTERED,
    Files,
    Filter,
    Integer,
    Kind,
    Name,
    Names,
    Namespace,
    Output,
    Reason,
    ReplyTimeout,
    Resource,
    WaitTimeout,
    Words,
    WordsOrKind,
)
from reconciler.cli.output import Format, print_structured
from reconciler.cli.requests.request import ReplyOrRefusal, request
from reconciler.cli.results import (
    DELETED_OUTCOMES,
    wait_for_deletions,
    wait_for_results,
)
from reconciler.cli.search import find_resource
from reconciler.cli.selection import select_keys
from reconciler.cli.wait import wait_until_read
from reconciler.errors import DeclarationRefusedError
from reconciler.sdk.client import Client

_CONVERGED_OUTCOMES: Final = ("Converged",)
_NOT_DECLARED: Final = DeclarationRefusedError("NotFound", "the resource is not declared")


def delete(
    kind: Kind | None = None,
    /,
    *names: Names,
    file: Files = (),
    where: Filter = UNFILTERED,
    dry_run: bool = False,
    reason: Reason = "",
    wait: bool = False,
    timeout: WaitTimeout = 60.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Withdraw declarations.

    The policy of a resource determines what happens to its object. With
    `deletion: Delete`, the default, Reconciler deletes the object. With
    `deletion: Orphan`, it leaves the object in the API and stops managing
    it. The log keeps the history.

    A ProviderConfig stays in effect until no resource uses it. The order in
    which you delete resources therefore does not matter.

    Exit status: 0 all accepted (with --wait: deleted or released), 1 some
    refused or failed, 3 some not settled before the timeout. With --dry-run:
    the same as `reconciler plan`.

    For example:

        reconciler delete Shape foo bar --wait --reason "moved to billing"
        reconciler delete default/Shape/foo
        reconciler delete -l team=payments --dry-run
        reconciler delete -f shapes/ --wait --timeout 2m
        reconciler delete -f shapes/ --dry-run
        reconciler get -A --outcome Failed -o name | xargs reconciler delete

    Parameters
    ----------
    dry_run
        Show the plan, like `reconciler plan`, and change nothing.
    wait
        Wait until each resource is deleted or released.
    """
    words = names if kind is None else (kind, *names)
    keys: list[ResourceKey] = []
    problems: list[str] = []
    if words or where.labels or not file:
        keys = select_keys(connection, words, "delete", where)
    if file:
        documents = read_all(file, where.namespace or "default")
        keys += [document.key for document in documents.good]
        problems = documents.problems()
    if dry_run:
        return _show_plan(connection, keys, problems, output)
    return request(
        connection,
        keys,
        lambda client: client.withdraw_many(keys, reason=reason, timeout_seconds=timeout),
        output=output,
        done="declaration withdrawn",
        unchanged="the declaration was already withdrawn",
        wait=partial(wait_for_deletions, timeout_seconds=timeout) if wait else None,
        good=DELETED_OUTCOMES,
        problems=problems,
    )


def _show_plan(
    connection: Connection, keys: Sequence[ResourceKey], problems: Sequence[str], output: Format
) -> Exit:
    from reconciler.cli.plan import show_withdrawals  # noqa: PLC0415 - only for a dry run

    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    status = show_withdrawals(connection, keys, output)
    return Exit.FAILED if problems else status


def rollback(
    resource: Resource,
    name: Name = None,
    /,
    *,
    to: Integer | None = None,
    namespace: Namespace = None,
    dry_run: bool = False,
    reason: Reason = "",
    wait: bool = False,
    timeout: WaitTimeout = 60.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Declare an older generation again: spec, labels, annotations and policy.

    Without --to, the command declares the last generation that was ready and
    differs from the current one. The decider checks the declaration like any
    other. It records a new generation, or refuses the declaration if a newer
    one has arrived. You can also roll back a withdrawn resource.

    Exit status: 0 accepted (with --wait: Converged), 1 refused or failed,
    3 not settled before the timeout.

    For example:

        reconciler rollback Deployment/web --wait          undo a bad image
        reconciler rollback foo --to 3
        reconciler rollback Shape/foo --to 3 --dry-run     print the manifest
        reconciler rollback payments/Shape/foo --to 3 --reason "wrong color"

    Parameters
    ----------
    to
        Generation, as `reconciler history` shows it. Default: the newest one that was ready and
        differs from the current declaration.
    dry_run
        Print the manifest (YAML, or JSON with -o json), and declare nothing.
    wait
        Wait for a settled outcome: Converged, Failed, Held, ...
    """
    reference = parse_reference(resource, namespace, name)
    older = run_async(find_generation(connection, reference, to))
    if dry_run:
        print_structured(older.manifest, "json" if output == "json" else "yaml")
        return Exit.OK
    return request(
        connection,
        [older.manifest.key],
        lambda client: client.declare_many(
            [older.manifest],
            expected_generations=[older.newest],
            reason=reason,
            timeout_seconds=timeout,
        ),
        output=output,
        done=f"generation {older.generation} declared again"
        + (", which ends the pause" if older.ends_pause else ""),
        wait=partial(wait_for_results, timeout_seconds=timeout) if wait else None,
        good=_CONVERGED_OUTCOMES,
    )


class OlderGeneration(NamedTuple):
    """An older declaration of a resource, and the resource's current generation."""

    manifest: Manifest
    generation: int
    newest: int
    ends_pause: bool  # the current declaration pauses the resource, but the older one does not


async def find_generation(
    connection: Connection, reference: Reference, generation: int | None
) -> OlderGeneration:
    """Return a generation of a resource.

    Without a number, return the newest generation that was ready and differs from the current
    declaration.
    """
    from reconciler.cli.past.generations import Generations, build_manifest  # noqa: PLC0415
    from reconciler.sdk.history import History  # noqa: PLC0415 - its library costs 0.1 s of CPU

    async with bus(connection) as nc:
        key = await find_resource(nc, reference)
        past = await History(nc).get(key)
    if past.damage is not None:
        raise CommandError(f"the log is damaged: {past.damage}; see `reconciler replay --verify`")
    generations = Generations(key, past.events)
    older = generations.newest_ready() if generation is None else generation
    declared = generations.declaration(older)
    ends_pause = generations.is_paused and not declared.policy.paused
    return OlderGeneration(build_manifest(key, declared), older, generations.newest, ends_pause)


def pause(
    *words: Words,
    where: Filter = UNFILTERED,
    reason: Reason = "",
    timeout: ReplyTimeout = 30.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Stop all actions on resources until `reconciler resume`.

    The command declares the resources again with `paused: true` in their
    policy. Reconciler still records observations, and completes actions in
    flight.

    For example:

        reconciler pause Shape foo --reason "INC-42"
        reconciler pause -A -l team=payments
        reconciler get -A --outcome Paused
    """
    keys = select_keys(connection, words, "pause", where)
    return _set_paused(connection, keys, reason or "paused", timeout, output, paused=True)


def resume(
    *words: Words,
    where: Filter = UNFILTERED,
    reason: Reason = "",
    timeout: ReplyTimeout = 30.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Resume paused resources, and correct drift.

    The command declares the resources again without `paused: true` in their policy.

    For example:

        reconciler resume Shape foo --reason "INC-42 is closed"
        reconciler resume -A -l team=payments
    """
    keys = select_keys(connection, words, "resume", where)
    return _set_paused(connection, keys, reason or "resumed", timeout, output, paused=False)


def _set_paused(
    connection: Connection,
    keys: Sequence[ResourceKey],
    reason: str,
    timeout_seconds: float,
    output: Format,
    *,
    paused: bool,
) -> Exit:
    """Declare resources again, paused or not."""
    declared = run_async(_read_declared(connection, keys))

    async def send_requests(client: Client) -> list[ReplyOrRefusal]:
        replies = await client.declare_many(
            [_with_paused(manifest, paused) for manifest, _ in declared.values()],
            expected_generations=[generation for _, generation in declared.values()],
            reason=reason,
            timeout_seconds=timeout_seconds,
        )
        results = dict(zip(declared, replies, strict=True))
        return [results.get(key, _NOT_DECLARED) for key in keys]

    done = "paused until you resume it or declare it again" if paused else "resumed"
    return request(connection, keys, send_requests, output=output, done=done)


async def _read_declared(
    connection: Connection, keys: Sequence[ResourceKey]
) -> Mapping[ResourceKey, tuple[Manifest, int]]:
    """Read the manifest and generation of each declared resource."""
    from reconciler.cli.past.generations import read_declarations  # noqa: PLC0415 - only for these commands

    async with bus(connection) as nc:
        rows = (await current_models(nc)).status
        generations = {
            key: row.generation
            for key in keys
            if (row := rows.get(str(key))) is not None and row.declared
        }
        manifests = await read_declarations(nc, generations, as_of_version=False)
    return {key: (manifests[key], generation) for key, generation in generations.items()}


def _with_paused(manifest: Manifest, paused: bool) -> Manifest:
    policy: dict[str, Any] = dict(manifest.spec.get("policy", {}))
    policy.pop("paused", None)
    if paused:
        policy["paused"] = True
    spec = {name: value for name, value in manifest.spec.items() if name != "policy"}
    return replace(manifest, spec={**spec, "policy": policy} if policy else spec)


def reconcile(
    *words: WordsOrKind,
    where: Filter = UNFILTERED,
    reason: Reason = "",
    wait: bool = False,
    timeout: WaitTimeout = 60.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Reconcile resources immediately, without waiting for a backoff.

    The observer reads each object from its API. For a ProviderConfig, the
    observer lists the whole API. The history records your request.

    Exit status: 0 all accepted (with --wait: all Converged), 1 some refused
    or failed, 3 some not settled before the timeout.

    For example:

        reconciler reconcile Shape foo --wait
        reconciler reconcile -l team=payments --reason "the API is back"
        reconciler reconcile ProviderConfig default

    Parameters
    ----------
    wait
        Wait until each object has been read and has a settled outcome: Converged, Failed, Held, ...
    """
    keys = select_keys(connection, words, "reconcile", where, whole_kinds=True)
    return request(
        connection,
        keys,
        lambda client: client.reconcile_many(keys, reason=reason, timeout_seconds=timeout),
        output=output,
        done="reconciliation requested",
        wait=(lambda _, results: wait_until_read(connection, results, timeout)) if wait else None,
        good=_CONVERGED_OUTCOMES,
    )
