"""`reconciler apply`: declare the resources in files."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from events.documents import ParsedManifest, Problem
from events.excerpt import list_first
from events.field_hints import closest_hint
from events.manifest import InvalidManifestError
from events.names import KIND_DEFINITION_KIND, system_rank
from infra.jetstream.errors import BusDeniedError
from reconciler.cli.client import connect_client
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.manifests import Documents, read_all
from reconciler.cli.naming import check_names
from reconciler.cli.options import Duration, Files, NamedPath, Output, Reason
from reconciler.cli.results import (
    Result,
    build_result,
    exit_status,
    print_results,
    wait_for_results,
)
from reconciler.errors import UnknownKindError
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import KindRegistry, installed_kinds
from reconciler.resource.state import PLAN_OUTDATED
from reconciler.sdk.client import Client

if TYPE_CHECKING:
    from reconciler.sdk.plan import PlannedResource

SUCCESS_OUTCOMES = ("Converged",)

_CATCH_UP_TIMEOUT_SECONDS = 5.0
_RETRY_SECONDS = 0.2


def apply(
    *,
    file: Files = (),
    plan: NamedPath | None = None,
    namespace: Annotated[str, Parameter(name=("--namespace", "-n"))] = "default",
    set_name: Annotated[str, Parameter(name="--set")] = "",
    prune: bool = False,
    yes: bool = False,
    dry_run: Annotated[Literal["client", "server"] | bool, Parameter(metavar="[=WHERE]")] = False,
    validate: Literal["client", "server"] = "client",
    reason: Reason = "",
    wait: bool = False,
    timeout: Duration = 60.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Declare the resources in files: YAML with one or more documents, or JSON.

    An invalid document does not prevent `apply` from declaring the others.

    Exit status: 0 all accepted (with --wait: all Converged), 1 some refused
    or failed, 3 some not settled before the timeout. With --dry-run=server:
    the same as `reconciler plan`.

    For example:

        reconciler apply -f example/file.yaml
        reconciler apply -f shapes/ -f config.yaml --wait --timeout 2m
        reconciler get Shape foo -o json | ... | reconciler apply -f -
        reconciler apply -f shapes/ --dry-run
        reconciler apply -f shapes/ --dry-run=server
        reconciler apply --plan today.plan --reason CHG-1234
        helm template shop ./chart | reconciler apply -f - --set shop --prune

    Parameters
    ----------
    plan
        Apply a plan from `reconciler plan --out` instead of files. If the result would differ from
        the plan, `apply` declares nothing.
    namespace
        Default namespace for documents. A ProviderConfig is always in namespace system.
    set_name
        Declare all documents together, as one ManifestSet with this name.
    prune
        With --set: withdraw the resources of the set that the files no longer contain.
    yes
        With --set: allow the withdrawal of more than 10 resources, or of more than 30 percent of
        the set.
    dry_run
        Declare nothing. client (the default): check the documents against the kinds installed here.
        server: show the plan, like `reconciler plan`. With --set, both show the changes to the set.
    validate
        Where to check the documents first. client: here, before `apply` sends anything. server:
        only in the decider, which may have newer kinds.
    wait
        Wait until each resource has a settled outcome: Converged, Failed, Held, ...
    timeout
        Maximum time to wait: 500ms, 30s, 2m, 1h. Reconciler continues after a timeout.
    """
    check_names(namespace=namespace)
    if plan is not None:
        if file or dry_run:
            raise UsageError(
                "--plan: not allowed with --file or --dry-run, because the plan contains its "
                "manifests"
            )
        results = run_async(_apply_plan(connection, plan, reason, wait, timeout))
        print_results(results, output, good=SUCCESS_OUTCOMES)
        return exit_status(results, SUCCESS_OUTCOMES if wait else None)
    if not file:
        raise UsageError("missing option --file or --plan (see `reconciler apply --help`)")
    if (prune or yes) and not set_name:
        raise UsageError(
            "--prune and --yes: require --set NAME, because only a set records its resources"
        )
    if dry_run == "server" and not set_name:
        from reconciler.cli.plan import plan as show_plan  # noqa: PLC0415 - only for plans

        return show_plan(file=file, namespace=namespace, output=output, connection=connection)
    documents = read_all(file, namespace)
    if set_name:
        from reconciler.cli.apply_set import apply_set  # noqa: PLC0415 - only for sets

        _check_before_sending(documents, connection)
        return apply_set(
            connection,
            documents,
            name=set_name,
            namespace=namespace,
            prune=prune,
            confirmed=yes,
            dry_run=dry_run,
            reason=reason,
            wait_seconds=timeout if wait else None,
            output=output,
        )
    if dry_run:
        _check_all(documents, installed_kinds())
        results = [Result(str(document.key), True, "Valid") for document in documents.good]
    else:
        if validate == "client":
            _check_before_sending(documents, connection)
        results = run_async(_declare(connection, documents.good, reason, wait, timeout))
    print_results(
        results, output, good=SUCCESS_OUTCOMES, problems=documents.problems(), dry_run=bool(dry_run)
    )
    return _status(documents, results, SUCCESS_OUTCOMES if wait and not dry_run else None)


def _status(documents: Documents, results: list[Result], good: tuple[str, ...] | None) -> Exit:
    return Exit.FAILED if documents.bad else exit_status(results, good)


async def _declare(
    connection: Connection,
    good: list[ParsedManifest],
    reason: str,
    wait: bool,
    timeout_seconds: float,
) -> list[Result]:
    """Declare definitions, then configurations, then the resources that may require them."""
    if not good:
        return []
    results: list[Result] = []
    async with connect_client(connection) as client:
        for rank in sorted({system_rank(document.key.kind) for document in good}):
            group = [document for document in good if system_rank(document.key.kind) == rank]
            results += await _declare_group(client, group, reason, timeout_seconds)
        if wait:
            await wait_for_results(client, results, timeout_seconds)
    return results


async def _declare_group(
    client: Client, group: list[ParsedManifest], reason: str, timeout_seconds: float
) -> list[Result]:
    replies = await client.declare_many(
        [document.manifest for document in group], reason=reason, timeout_seconds=timeout_seconds
    )
    return [
        build_result(document.key, reply) for document, reply in zip(group, replies, strict=True)
    ]


async def _apply_plan(
    connection: Connection, path: Path, reason: str, wait: bool, timeout_seconds: float
) -> list[Result]:
    """Declare a plan's resources; raises ``CommandError`` if the plan is no longer valid."""
    from infra.bus.event_log import open_log  # noqa: PLC0415
    from reconciler.cli.plan import describe_plan_changes, make_plan, read_plan  # noqa: PLC0415 - only for plans

    planned = read_plan(path)
    declared = [each for each in planned.resources if each.manifest is not None]
    refused = [each for each in declared if each.says in ("Refused", "Unreadable")]
    if refused:
        raise CommandError(
            f"{refused[0].resource}: {refused[0].says.lower()} in the plan; fix the reported "
            "problem, then plan again"
        )
    async with bus(connection) as nc:
        if (await open_log(nc)).log_id != planned.log:
            raise CommandError("the plan is for a different log; plan again on this server")
        current = await make_plan(nc, [each.manifest for each in declared if each.manifest])
    if changes := list(describe_plan_changes(planned, current)):
        raise CommandError(
            "the plan is out of date, so nothing was declared; plan again: "
            f"{list_first(changes, '; ')}"
        )
    results: list[Result] = []
    async with connect_client(connection) as client:
        for rank in sorted({system_rank(each.key.kind) for each in declared}):
            group = [each for each in declared if system_rank(each.key.kind) == rank]
            results += await _apply_group(client, group, reason, timeout_seconds)
        if wait:
            await wait_for_results(client, results, timeout_seconds)
    return results


async def _apply_group(
    client: Client, group: list[PlannedResource], reason: str, timeout_seconds: float
) -> list[Result]:
    """Declare a group; retry until the decider has read the plan's configurations."""
    results: dict[str, Result] = {}
    waiting, deadline = group, time.monotonic() + min(timeout_seconds, _CATCH_UP_TIMEOUT_SECONDS)
    while waiting:
        replies = await client.apply_planned(
            waiting, reason=reason, timeout_seconds=timeout_seconds
        )
        for each, reply in zip(waiting, replies, strict=True):
            results[each.resource] = build_result(each.key, reply)
        outdated = {name for name, each in results.items() if each.reason == PLAN_OUTDATED}
        if not outdated or time.monotonic() > deadline:
            break
        waiting = [each for each in group if each.resource in outdated]
        await asyncio.sleep(_RETRY_SECONDS)
    return [results[each.resource] for each in group]


def _check_before_sending(documents: Documents, connection: Connection) -> None:
    """Check every document, but accept kinds that may exist only where the decider runs.

    If a kind looks misspelled, the kinds that were defined at run time are read from the log. If
    the user may not read the log, the document is sent, because the decider has those kinds.
    """
    kinds = installed_kinds()
    detect_typos = True
    if any(_is_probable_typo(document.key.kind, kinds) for document in documents.good):
        from reconciler.cli.explain import load_definitions  # noqa: PLC0415 - rarely needed

        try:
            kinds = run_async(load_definitions(connection, kinds))
        except BusDeniedError:
            detect_typos = False
    _check_all(documents, kinds, accept_unknown=True, detect_typos=detect_typos)


def _is_probable_typo(kind: str, kinds: KindRegistry) -> bool:
    return kinds.find(kind) is None and bool(closest_hint(kind, kinds))


def _check_all(
    documents: Documents,
    kinds: KindRegistry,
    *,
    accept_unknown: bool = False,
    detect_typos: bool = True,
) -> None:
    """Check every document as the decider does, and move invalid ones to ``documents.bad``.

    ``accept_unknown``: accept kinds that are not installed here, because the decider may have them,
    unless they look misspelled.
    """
    usable: list[ParsedManifest] = []
    for document in documents.good:
        try:
            kind = document.key.kind
            is_typo = detect_typos and _is_probable_typo(kind, kinds)
            if not accept_unknown or kinds.find(kind) is not None or is_typo:
                kinds.check(document.manifest)
            if document.key.kind == KIND_DEFINITION_KIND:
                kinds.define(
                    build_defined_kind(kinds, document.key.name, document.manifest.spec, 1)
                )
        except (InvalidManifestError, UnknownKindError) as error:
            is_overridable = accept_unknown and isinstance(error, UnknownKindError)
            hint = " (use --validate server to send it anyway)" if is_overridable else ""
            documents.bad.append(Problem(document.source, f"{document.key}: {error}{hint}"))
        else:
            usable.append(document)
    documents.good = usable
