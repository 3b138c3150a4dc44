"""`reconciler get`: resources and how they stand."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from events.names import home_of
from projections.status import StatusRow
from reconciler.cli.api_standing import throttled
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import NOT_READY, coloured, print_table
from reconciler.cli.errors import CommandError
from reconciler.cli.exits import Exit
from reconciler.cli.log_replay import Stood, current_models, models_as_of
from reconciler.cli.naming import check_names, known_outcome, registered, same_kind
from reconciler.cli.options import AllNamespaces, Namespace
from reconciler.cli.output import print_structured
from reconciler.cli.when import At
from reconciler.provider.kind import installed_kinds
from reconciler.sdk.moments import When

Listing = Literal["table", "wide", "json", "yaml", "name"]


def get(
    kind: str | None = None,
    name: str | None = None,
    /,
    *,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    outcome: str | None = None,
    at: At = None,
    output: Annotated[Listing, Parameter(name=("--output", "-o"))] = "table",
    connection: Connection = HERE,
) -> int:
    """List resources and how they stand, or stood; no role needs to run for it.

    For example:

        reconciler get                           all of namespace default
        reconciler get Shape foo -o yaml
        reconciler get -A --outcome Failed
        reconciler get -A --outcome Failed -o name
        reconciler get ProviderConfig
        reconciler get -A --at 2h                as it stood two hours ago

    Parameters
    ----------
    kind
        Only this kind: Shape, shape and shapes are the same.
    name
        Only this name; exit status 1 if it is not there.
    outcome
        Only this outcome: Converged, Degraded, Failed, ...; Pending for none yet.
    at
        As it stood: at a log position (1234), a time (2026-01-31T12:00:05Z; UTC if
        it names no zone), or a span ago (30m, 2h, 7d).
    output
        A table, the same with more columns, JSON, YAML, or only namespace/kind/name.
    """
    check_names(namespace=namespace, name=name)
    if outcome is not None:
        outcome = known_outcome(outcome, _PENDING)
    place = None if all_namespaces else (namespace or _namespace_of(kind))
    return run_async(_get(connection, kind, name, place, outcome, output, at=at))


_PENDING = "Pending"


def _namespace_of(kind: str | None) -> str:
    return "default" if kind is None else home_of(registered(kind), "default")


async def _get(
    connection: Connection,
    kind: str | None,
    name: str | None,
    namespace: str | None,
    outcome: str | None,
    output: Listing,
    *,
    at: When | None,
) -> Exit:
    stood: Stood | None = None
    async with bus(connection) as nc:
        if at is None:
            models = await current_models(nc)
        else:
            stood = await models_as_of(nc, at, _tokens(kind, name, namespace))
            models = stood.models
    rows = list(models.status.values())
    if kind is not None and not any(same_kind(kind, row.kind) for row in rows):
        _check_kind(kind)
    chosen = sorted(
        (
            row
            for row in rows
            if (kind is None or same_kind(kind, row.kind))
            and (name is None or row.name == name)
            and (namespace is None or row.namespace == namespace)
            and (outcome is None or outcome == (row.outcome or _PENDING))
        ),
        key=lambda row: row.key,
    )
    if not chosen and name is not None:
        place = "any namespace" if namespace is None else f"namespace {namespace}"
        if stood is not None:
            raise CommandError(
                f"{kind} {name!r} was not in {place} at {stood.moment}: "
                f"`reconciler get -A --at {stood.moment.position}` lists what was"
            )
        raise CommandError(f"{kind} {name!r} is not in {place}: `reconciler get -A` lists all")
    if stood is not None:
        _tell_when(stood, output)
    now = datetime.now(UTC) if stood is None else stood.moment.asked or stood.moment.time
    one = name is not None and len(chosen) == 1
    _print(chosen, namespace, output, one=one, now=now)
    return Exit.OK


def _tokens(kind: str | None, name: str | None, namespace: str | None) -> str:
    """Return the pattern of what is asked for: a kind may be written in several ways."""
    known = None if kind is None else registered(kind)
    exact = known if known in installed_kinds() else None
    return f"{namespace or '*'}.{exact or '*'}.{name or '*'}"


def _tell_when(stood: Stood, output: Listing) -> None:
    """Say when it was so: above a table, and beside what is for programs."""
    heading = f"as of {stood.moment}\n"
    (sys.stdout if output in ("table", "wide") else sys.stderr).write(heading)
    if stood.damage:
        sys.stderr.write(
            f"the log is damaged before that, in {len(stood.damage)} places: "
            "`reconciler replay --verify` says where\n"
        )


def _check_kind(text: str) -> None:
    """Raise ``UnknownKindError`` for a kind that nobody could have declared here."""
    kinds = installed_kinds()
    if not any(same_kind(text, kind) for kind in kinds):
        _ = kinds[text]


def _print(
    rows: list[StatusRow], namespace: str | None, output: Listing, *, one: bool, now: datetime
) -> None:
    if output in ("json", "yaml"):
        print_structured(rows[0] if one else rows, output)
    elif output == "name":
        sys.stdout.write("".join(f"{row.key}\n" for row in rows))
    elif rows:
        print_rows(rows, with_namespace=namespace is None, wide=output == "wide", now=now)
    else:
        place = "" if namespace is None else f" in namespace {namespace} (-A shows all)"
        sys.stderr.write(f"no resources{place}\n")


def print_rows(
    rows: list[StatusRow],
    *,
    with_namespace: bool,
    wide: bool = False,
    now: datetime | None = None,
) -> None:
    """Print status rows as a table, as of now by default."""
    as_of = now or datetime.now(UTC)
    columns = ["NAMESPACE"] if with_namespace else []
    columns += ["KIND", "NAME", "OUTCOME", "GENERATION", "OWNED", "REASON", "CHANGED"]
    columns += ["CONFIG", "EXTERNAL", "DRIFTS", "ACTION"] if wide else []
    columns.append("MESSAGE")
    print_table(columns, [_cells(row, with_namespace, wide, as_of) for row in rows])


def _cells(row: StatusRow, with_namespace: bool, wide: bool, as_of: datetime) -> list[str | Text]:
    changed = "" if row.changed_at is None else f"{row.changed_at:%Y-%m-%dT%H:%M:%SZ}"
    cells: list[str | Text] = [row.namespace] if with_namespace else []
    why = row.not_ready
    word = coloured(row.outcome or _PENDING) if why is None else Text(NOT_READY, "yellow")
    reason, message = (row.reason, row.message) if why is None else (why.reason, why.message)
    cells += [row.kind, row.name, word, _generation(row), "yes" if row.owned else "no"]
    cells += [reason, changed]
    if wide:
        action = f"{row.operation} (attempt {row.attempt})" if row.action_id else ""
        cells += [row.provider_config, row.external_name, str(row.drifts), action]
    return [*cells, " ".join((message or throttled(row, as_of)).split())]


def _generation(row: StatusRow) -> str:
    settled = row.observed_generation == row.generation
    text = str(row.generation) if settled else f"{row.observed_generation}->{row.generation}"
    return text if row.declared or not row.generation else f"{text} withdrawn"
