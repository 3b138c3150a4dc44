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
from projections.status import StatusRow
from reconciler.cli.api_standing import listing_failure
from reconciler.cli.completion import complete_outcomes
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.errors import UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import Stood, current_models, models_as_of
from reconciler.cli.naming import known_outcome
from reconciler.cli.options import UNFILTERED, Filter, ResourceWord
from reconciler.cli.output import TABLES, as_yaml, print_json_line, print_structured
from reconciler.cli.own_clock import note_own_clock
from reconciler.cli.resource_table import PENDING, ResourceTable
from reconciler.cli.row_changes import row_changes
from reconciler.cli.search import check_namespace
from reconciler.cli.selection import Selected, Selection, selection
from reconciler.cli.signals import until_stopped
from reconciler.cli.when import At
from reconciler.sdk.moments import Moment, When

Listing = Literal["table", "wide", "json", "yaml", "name"]


_TOLD_ABOVE: Final = ("namespace", "kind", "name", "labels")


class Wanted(msgspec.Struct, frozen=True):
    """The selected resources, and the output format."""

    selection: Selection
    outcome: str | None
    everything: bool
    output: Listing

    @property
    def is_for_programs(self) -> bool:
        """Whether to print manifests."""
        return self.output in ("json", "yaml")

    def shows(self, selected: Selected, row: StatusRow) -> bool:
        """Return whether to show a resource. Those that no user declared need `--all` or a name."""
        if not selected.takes(row):
            return False
        is_asked_for = self.everything or bool(selected.named)
        if row.kind in COMPOSED_KINDS and selected.kind is None and not is_asked_for:
            return False
        if self.outcome is not None:
            return self.outcome == (row.outcome or PENDING)
        is_left_alone = row.is_foreign and row.outcome in ("", "Unowned")
        return is_asked_for or not is_left_alone


def get(
    kind: ResourceWord | None = None,
    /,
    *names: ResourceWord,
    where: Filter = UNFILTERED,
    outcome: Annotated[str | None, Parameter(completer=complete_outcomes)] = None,
    everything: Annotated[bool, Parameter(name="--all")] = False,
    at: At = None,
    watch: Annotated[bool, Parameter(name=("--watch", "-w"))] = False,
    output: Annotated[Listing, Parameter(name=("--output", "-o"))] = "table",
    connection: Connection = HERE,
) -> int:
    """List resources with their current status, or with a past one.

    JSON and YAML output consists of manifests that `apply` accepts, with the
    status added. With only a kind, the command lists namespace `default`.
    With only a name, it searches all namespaces. It works even if no role
    is running.

    For example:

        reconciler get                           all of namespace default
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
        More resources; after a kind, names of this kind. The exit status is 1 if one does not
        exist.
    outcome
        Only this outcome: Converged, Degraded, Failed, ...; Pending: no outcome yet.
    everything
        Also list objects in the APIs that no manifest declares, and internal resources.
    at
        Show a past status: at a log position (1234), a time (2026-01-31T12:00:05Z; UTC without a
        zone) or a time span before now (30m, 2h, 7d).
    watch
        After the list, show each resource again whenever it changes, until Ctrl-C.
    output
        Output format: a table, a table with more columns, JSON, YAML, or only namespace/kind/name.
    """
    words = names if kind is None else (kind, *names)
    selected = selection(words, where)
    outcome = None if outcome is None else known_outcome(outcome, PENDING)
    request = Wanted(selected, outcome, everything, output)
    if output in TABLES and at is None:  # they show ages
        note_own_clock()
    if not watch:
        return run_async(_get(connection, request, at))
    if at is not None:
        raise UsageError(
            "--watch: not allowed with --at, because the past does not change; remove one of them"
        )
    return run_async(until_stopped(_watch(connection, request)))


async def _get(connection: Connection, request: Wanted, at: When | None) -> Exit:
    stood: Stood | None = None
    async with bus(connection) as nc:
        if at is None:
            models = await current_models(nc)
        else:
            stood = await models_as_of(nc, at, request.selection.tokens)
            models = stood.models
        selected, rows = _chosen(request, models, stood and stood.moment)
        if not rows:
            await check_namespace(nc, selected.namespace)
        manifests: list[dict[str, Any]] = []
        if request.is_for_programs:
            manifests = await _manifests(nc, rows, models, as_of_version=stood is not None)
    if stood is not None:
        _print_moment(stood, request.output)
    if request.is_for_programs:
        is_one = len(selected.named) == len(rows) == 1
        output = manifests[0] if is_one else manifests
        print_structured(output, "yaml" if request.output == "yaml" else "json")
    elif request.output == "name":
        sys.stdout.write("".join(f"{row.key}\n" for row in rows))
    else:
        now = datetime.now(UTC) if stood is None else stood.moment.asked or stood.moment.time
        _table(selected, request, models).show(rows, now)
        _print_hidden_count(request, selected, models)
    return Exit.OK


def _chosen(
    request: Wanted, models: ReadModels, when: Moment | None = None
) -> tuple[Selected, list[StatusRow]]:
    """Return the resolved selection, and the rows to show."""
    known = models.status.values()
    selected = request.selection.among(known)
    selected.check_named(known, when)
    rows = [row for row in known if request.shows(selected, row)]
    return selected, sorted(rows, key=lambda row: row.key)


def _table(selected: Selected, request: Wanted, models: ReadModels) -> ResourceTable:
    is_wide, with_namespace = request.output == "wide", selected.namespace is None
    return ResourceTable(models.status, with_namespace=with_namespace, wide=is_wide)


async def _manifests(
    nc: Client, rows: Sequence[StatusRow], models: ReadModels, *, as_of_version: bool = False
) -> list[dict[str, Any]]:
    """Return the manifest of each row as `apply` accepts it, with the status added."""
    from reconciler.cli.past.declared import declarations  # noqa: PLC0415 - not for a table

    versions = {row.key: row.version for row in rows}
    declared = await declarations(nc, versions, as_of_version=as_of_version)
    return [_with_status(row, declared[row.key], models) for row in rows]


def _with_status(row: StatusRow, declared: Manifest, models: ReadModels) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(declared, str_keys=True)
    metadata = {"name": row.name, "namespace": row.namespace, "generation": row.generation}
    plain["metadata"] = {**metadata, **plain["metadata"]}
    status: dict[str, Any] = msgspec.to_builtins(row, str_keys=True)
    failure = listing_failure(row, models.status)
    if failure is not None:
        status["listingFailure"] = msgspec.to_builtins(failure)
    return {**plain, "status": {name: status[name] for name in status if name not in _TOLD_ABOVE}}


def _print_moment(stood: Stood, output: Listing) -> None:
    """Print the moment: above a table, or on standard error for other formats."""
    heading = f"as of {stood.moment}\n"
    (sys.stdout if output in ("table", "wide") else sys.stderr).write(heading)
    if stood.damage:
        sys.stderr.write(
            f"the log is damaged in {plural(len(stood.damage), 'place')} before this position; "
            "`reconciler replay --verify` lists the damage\n"
        )


def _print_hidden_count(request: Wanted, selected: Selected, models: ReadModels) -> None:
    """Print on standard error that there are no resources, or how many are hidden."""
    rows = [row for row in models.status.values() if selected.takes(row)]
    hidden = sum(not request.shows(selected, row) for row in rows)
    if hidden == len(rows):
        place = "" if selected.namespace is None else f" in namespace {selected.namespace}"
        hint = "; -A shows those of all namespaces" if place else ""
        sys.stderr.write(f"no resources{place}{hint}\n")
    if hidden and request.outcome is None and sys.stderr.isatty():
        what = plural(hidden, "resource")
        sys.stderr.write(f"not shown: {what} that no user declared (--all shows them)\n")


# --- as it changes


async def _watch(connection: Connection, request: Wanted) -> None:
    async with bus(connection) as nc:
        models = await current_models(nc)
        selected, rows = _chosen(request, models)
        table = _table(selected, request, models)
        known: dict[ResourceKey, object] = {}

        async def show(rows: Sequence[StatusRow]) -> None:
            await _show_news(nc, rows, known, table, request, models)

        await show(rows)
        async for changed in row_changes(nc, models):
            rows = [row for row in changed if request.shows(selected, row)]
            await show(rows)


async def _show_news(
    nc: Client,
    rows: Sequence[StatusRow],
    known: dict[ResourceKey, object],
    table: ResourceTable,
    request: Wanted,
    models: ReadModels,
) -> None:
    """Show the rows that have changed since they were last shown."""
    news: list[StatusRow] = []
    for row in rows:
        looks = row.version if request.is_for_programs else table.looks(row)
        if known.get(row.key) != looks:
            known[row.key] = looks
            news.append(row)
    if request.output == "name":
        sys.stdout.write("".join(f"{row.key}\n" for row in news))
    elif not request.is_for_programs:
        table.show(news, datetime.now(UTC))
    elif news:
        for manifest in await _manifests(nc, news, models):
            if request.output == "json":
                print_json_line(manifest)
            else:
                sys.stdout.write(f"---\n{as_yaml(manifest)}")
    sys.stdout.flush()
