"""`reconciler get`: list resources with their status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.manifest import Manifest
from events.names import ResourceKey
from events.stored_content import COMPOSED_KINDS
from events.wording import plural
from projections.read_models import ReadModels
from projections.readiness import show_readiness
from projections.status import StatusRow
from reconciler.cli.api_state import find_listing_failure
from reconciler.cli.completion import complete_outcomes
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.errors import UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import PastModels, current_models, models_as_of
from reconciler.cli.local_clock import record_local_clock_use
from reconciler.cli.naming import parse_outcome
from reconciler.cli.options import UNFILTERED, Filter, ResourceWord
from reconciler.cli.output import TABLES, as_yaml, print_json_line, print_structured
from reconciler.cli.resource_table import PENDING, ResourceTable
from reconciler.cli.row_changes import row_changes
from reconciler.cli.search import check_namespace
from reconciler.cli.selection import ResolvedSelection, Selection, parse_selection
from reconciler.cli.signals import run_until_stopped
from reconciler.cli.when import At
from reconciler.sdk.moments import Moment, When

ListFormat = Literal["table", "wide", "json", "yaml", "name"]


_METADATA_FIELDS: Final = ("namespace", "kind", "name", "labels")


class GetRequest(msgspec.Struct, frozen=True):
    """The selected resources, and the output format."""

    selection: Selection
    outcome: str | None
    everything: bool
    output: ListFormat

    @property
    def is_structured(self) -> bool:
        """Whether the output format is for programs: JSON or YAML."""
        return self.output in ("json", "yaml")

    def includes(self, selected: ResolvedSelection, row: StatusRow) -> bool:
        """Return whether to show a resource. `--all` or a name includes undeclared resources."""
        if not selected.matches(row):
            return False
        is_requested = self.everything or bool(selected.named)
        if row.kind in COMPOSED_KINDS and selected.kind is None and not is_requested:
            return False
        if self.outcome is not None:
            return self.outcome == (row.outcome or PENDING)
        is_unmanaged = row.is_foreign and row.outcome in ("", "Unowned")
        return is_requested or not is_unmanaged


def get(
    kind: ResourceWord | None = None,
    /,
    *names: ResourceWord,
    where: Filter = UNFILTERED,
    outcome: Annotated[str | None, Parameter(completer=complete_outcomes)] = None,
    everything: Annotated[bool, Parameter(name="--all")] = False,
    at: At = None,
    watch: Annotated[bool, Parameter(name=("--watch", "-w"))] = False,
    output: Annotated[ListFormat, Parameter(name=("--output", "-o"))] = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List resources with their current status, or with a past one.

    JSON and YAML output consists of manifests that `apply` accepts, with the
    status added. With only a kind, the command lists namespace `default`.
    With only a name, it searches all namespaces. It works even if no role
    is running.

    For example:

        reconciler get                           everything in namespace default
        reconciler get Shape foo bar -o yaml
        reconciler get Shape/foo payments/File/motd
        reconciler get -A -l team=payments --watch
        reconciler get -A --outcome Failed -o name
        reconciler get ProviderConfig
        reconciler get -A --at 2h                the status two hours ago

    Parameters
    ----------
    kind
        A kind (Shape, shape and shapes are equivalent), or a resource: NAME, KIND/NAME or
        NAMESPACE/KIND/NAME.
    names
        More resources, or names after a kind. The exit status is 1 if any does not
        exist.
    outcome
        Only this outcome: Converged, Degraded, Failed, ... (Pending means no outcome yet).
    everything
        Also list objects in the APIs that no manifest declares, and internal resources.
    at
        Show a past status: at a log position (1234), a time (2026-01-31T12:00:05Z; UTC if no
        zone is given) or a duration before now (30m, 2h, 7d).
    watch
        After the list, show each resource again whenever it changes, until Ctrl-C.
    output
        Output format: a table, a table with more columns, JSON, YAML, or only namespace/kind/name.
    """
    words = names if kind is None else (kind, *names)
    selected = parse_selection(words, where)
    outcome = None if outcome is None else parse_outcome(outcome, PENDING)
    request = GetRequest(selected, outcome, everything, output)
    if output in TABLES and at is None:  # tables show ages
        record_local_clock_use()
    if not watch:
        return run_async(_get(connection, request, at))
    if at is not None:
        raise UsageError(
            "--watch: not allowed with --at, because the past does not change; remove one of them"
        )
    return run_async(run_until_stopped(_watch(connection, request)))


async def _get(connection: Connection, request: GetRequest, at: When | None) -> Exit:
    past: PastModels | None = None
    async with bus(connection) as nc:
        if at is None:
            models = await current_models(nc)
        else:
            past = await models_as_of(nc, at, request.selection.tokens)
            models = past.models
        selected, rows = _select_rows(request, models, past and past.moment)
        if not rows:
            await check_namespace(nc, selected.namespace)
        manifests: list[dict[str, Any]] = []
        if request.is_structured:
            manifests = await _manifests(nc, rows, models, as_of_version=past is not None)
    if past is not None:
        _print_heading(past, request.output)
    if request.is_structured:
        is_one = len(selected.named) == len(rows) == 1
        output = manifests[0] if is_one else manifests
        print_structured(output, "yaml" if request.output == "yaml" else "json")
    elif request.output == "name":
        sys.stdout.write("".join(f"{row.key}\n" for row in rows))
    else:
        now = datetime.now(UTC) if past is None else past.moment.asked or past.moment.time
        _build_table(selected, request, models).show(rows, now)
        _print_hidden_count(request, selected, models)
    return Exit.OK


def _select_rows(
    request: GetRequest, models: ReadModels, when: Moment | None = None
) -> tuple[ResolvedSelection, list[StatusRow]]:
    """Return the resolved selection and the rows to show."""
    known = models.status.values()
    selected = request.selection.resolve(known)
    selected.check_named(known, when)
    rows = [row for row in known if request.includes(selected, row)]
    return selected, sorted(rows, key=lambda row: row.key)


def _build_table(
    selected: ResolvedSelection, request: GetRequest, models: ReadModels
) -> ResourceTable:
    is_wide, with_namespace = request.output == "wide", selected.namespace is None
    return ResourceTable(models.status, with_namespace=with_namespace, wide=is_wide)


async def _manifests(
    nc: Client, rows: Sequence[StatusRow], models: ReadModels, *, as_of_version: bool = False
) -> list[dict[str, Any]]:
    """Return each row's manifest in the form that `apply` accepts, with the status added."""
    from reconciler.cli.past.generations import read_declarations  # noqa: PLC0415 - not needed for a table

    versions = {row.key: row.version for row in rows}
    declared = await read_declarations(nc, versions, as_of_version=as_of_version)
    return [_with_status(row, declared[row.key], models) for row in rows]


def _with_status(row: StatusRow, declared: Manifest, models: ReadModels) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(declared, str_keys=True)
    metadata = {"name": row.name, "namespace": row.namespace, "generation": row.generation}
    plain["metadata"] = {**metadata, **plain["metadata"]}
    shown = show_readiness(row, models.status)
    status: dict[str, Any] = msgspec.to_builtins(shown, str_keys=True)
    failure = find_listing_failure(row, models.status)
    if failure is not None:
        status["listingFailure"] = msgspec.to_builtins(failure)
    return {
        **plain,
        "status": {name: status[name] for name in status if name not in _METADATA_FIELDS},
    }


def _print_heading(past: PastModels, output: ListFormat) -> None:
    """Print the moment: above a table, or to standard error for other formats."""
    heading = f"as of {past.moment}\n"
    (sys.stdout if output in ("table", "wide") else sys.stderr).write(heading)
    if past.damage:
        sys.stderr.write(
            f"the log is damaged in {plural(len(past.damage), 'place')} before this position; "
            "`reconciler replay --verify` lists the damage\n"
        )


def _print_hidden_count(
    request: GetRequest, selected: ResolvedSelection, models: ReadModels
) -> None:
    """Print to standard error that there are no resources, or how many are hidden."""
    rows = [row for row in models.status.values() if selected.matches(row)]
    hidden = sum(not request.includes(selected, row) for row in rows)
    if hidden == len(rows):
        scope = "" if selected.namespace is None else f" in namespace {selected.namespace}"
        hint = "; -A shows the resources in all namespaces" if scope else ""
        sys.stderr.write(f"no resources{scope}{hint}\n")
    if hidden and request.outcome is None and sys.stderr.isatty():
        what = plural(hidden, "resource")
        sys.stderr.write(f"not shown: {what} that no user declared (--all shows them)\n")


# --- watch


async def _watch(connection: Connection, request: GetRequest) -> None:
    async with bus(connection) as nc:
        models = await current_models(nc)
        selected, rows = _select_rows(request, models)
        table = _build_table(selected, request, models)
        known: dict[ResourceKey, object] = {}

        async def show(rows: Sequence[StatusRow]) -> None:
            await _show_changed(nc, rows, known, table, request, models)

        await show(rows)
        async for changed in row_changes(nc, models):
            rows = [row for row in changed if request.includes(selected, row)]
            await show(rows)


async def _show_changed(
    nc: Client,
    rows: Sequence[StatusRow],
    known: dict[ResourceKey, object],
    table: ResourceTable,
    request: GetRequest,
    models: ReadModels,
) -> None:
    """Show the rows that have changed since the last time they were shown."""
    changed_rows: list[StatusRow] = []
    for row in rows:
        shown = show_readiness(row, models.status)
        content = (
            (row.version, shown.conditions) if request.is_structured else table.stable_cells(row)
        )
        if known.get(row.key) != content:
            known[row.key] = content
            changed_rows.append(row)
    if request.output == "name":
        sys.stdout.write("".join(f"{row.key}\n" for row in changed_rows))
    elif not request.is_structured:
        table.show(changed_rows, datetime.now(UTC))
    elif changed_rows:
        for manifest in await _manifests(nc, changed_rows, models):
            if request.output == "json":
                print_json_line(manifest)
            else:
                sys.stdout.write(f"---\n{as_yaml(manifest)}")
    sys.stdout.flush()
