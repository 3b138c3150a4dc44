"""The command: `./run python -m benchmarks.kinds`."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import uvloop
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from benchmarks.kinds import containers, databases
from benchmarks.kinds.containers import Creation, Listing, Repair
from benchmarks.kinds.databases import GrantTimes
from benchmarks.kinds.systems import running

MAX_ADDED_SECONDS = 1.0
"""Maximum time that the repair of a container may add to Docker's own time."""

app = App(name="benchmarks.kinds", help_format="plaintext", result_action="return_value")


class Sizes(msgspec.Struct, frozen=True):
    """The numbers of objects and rounds to measure."""

    containers: int
    listed: int
    roles: int
    disruptions: int
    rounds: int


class Report(msgspec.Struct, frozen=True):
    """All measurements; times are in seconds."""

    sizes: Sizes
    creations: Sequence[Creation]
    repairs: Sequence[Repair]
    calls: Mapping[str, Mapping[str, int]]
    listing: Sequence[Listing]
    grants: Sequence[GrantTimes]
    grant_repaired_seconds: float
    statements: Mapping[str, Mapping[str, int]]
    load_before: float
    load_after: float


@app.default
def kinds(
    *,
    containers: int = 20,
    listed: int = 1_000,
    roles: int = 200,
    disruptions: int = 5,
    rounds: int = 3,
    quick: bool = False,
    json: Annotated[
        str | None, Parameter(help='Write JSON to this file, or to stdout if it is "-".')
    ] = None,
) -> int:
    """Measure containers, roles and grants, and compare with direct use of Docker, compose and SQL.

    It needs dockerd (as root) and PostgreSQL's programs. The exit status is 0 unless an error
    occurs; times do not affect it.

    Parameters
    ----------
    containers
        Number of containers to create concurrently.
    listed
        Number of created containers to list.
    roles
        Number of roles, each with a grant.
    disruptions
        Number of times to cause each out-of-band change.
    rounds
        Number of alternating rounds; medians are shown.
    quick
        Use small numbers, to check that everything works.
    """
    sizes = (
        Sizes(4, 20, 5, 1, 1) if quick else Sizes(containers, listed, roles, disruptions, rounds)
    )
    console = Console(stderr=json == "-", width=None if sys.stdout.isatty() else 150)
    report = uvloop.run(_run(sizes, console))
    _show(report, console)
    if json is not None:
        text = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
        if json == "-":
            sys.stdout.buffer.write(text)
        else:
            Path(json).write_bytes(text)
    return 0


async def _run(sizes: Sizes, console: Console) -> Report:
    load = os.getloadavg()[0]
    async with running() as systems:
        with console.status("containers: creation and removal"):
            creations = await containers.measure_creation(systems, sizes.containers, sizes.rounds)
        with console.status("containers: repairs"):
            repairs = await containers.measure_repairs(systems, sizes.disruptions)
        with console.status("containers: calls per change"):
            calls = await containers.count_calls(systems)
        with console.status("roles and grants: creation and removal"):
            grants = await databases.measure_grants(systems, sizes.roles, sizes.rounds)
        with console.status("grants: repairs"):
            grant_repaired = await databases.measure_repair(systems, sizes.disruptions)
        with console.status("roles and grants: statements per change"):
            statements = await databases.count_statements(systems)
        with console.status("containers: listing"):
            listing = await containers.measure_listing(systems, sizes.listed, sizes.rounds)
    return Report(
        sizes, creations, repairs, calls, listing, grants, grant_repaired, statements, load,
        os.getloadavg()[0],
    )  # fmt: skip


def _show(report: Report, console: Console) -> None:
    sizes = report.sizes
    table = _table(
        f"{sizes.containers} containers", "", "declared → ready, s", "deleted, s", "CPU s"
    )
    for each in report.creations:
        created_seconds, removed = f"{each.created_seconds:.2f}", f"{each.removed_seconds:.2f}"
        table.add_row(each.method, created_seconds, removed, _cpu(each.cpu_seconds))
    console.print(table)

    table = _table("out-of-band changes", "", "repaired, s", "by Docker, s", "added, s", "")
    for repair in report.repairs:
        added_seconds = repair.repaired_seconds - repair.docker_seconds
        verdict = (
            f"{'under' if added_seconds < MAX_ADDED_SECONDS else 'over'} {MAX_ADDED_SECONDS:g} s"
        )
        times = (repair.repaired_seconds, repair.docker_seconds, added_seconds)
        table.add_row(repair.disruption, *(f"{seconds:.2f}" for seconds in times), verdict)
    table.add_row("REVOKE, listings 1 s apart", f"{report.grant_repaired_seconds:.2f}", "", "", "")
    console.print(table)

    console.print(
        _counts("calls per change, including listings that an event triggered", report.calls)
    )

    table = _table(
        f"{sizes.roles} roles with one grant each",
        "",
        "roles, s",
        "grants, s",
        "deleted, s",
        "CPU s",
    )
    for each in report.grants:
        times = (each.roles_seconds, each.grants_seconds, each.removed_seconds)
        table.add_row(each.method, *(f"{seconds:.2f}" for seconds in times), _cpu(each.cpu_seconds))
    console.print(table)

    console.print(_counts("statements per change", report.statements))

    table = _table(
        f"{sizes.listed:,} containers, created but not started", "", "listed, s", "CPU s"
    )
    for each in report.listing:
        table.add_row(each.method, f"{each.seconds:.2f}", _cpu(each.cpu_seconds))
    console.print(table)
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores; load average"
        f" {report.load_before:.2f} before, {report.load_after:.2f} after"
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column != "CPU s" else "left")
    return table


def _cpu(used: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in used.items() if seconds >= 0.01)


def _counts(title: str, changes: Mapping[str, Mapping[str, int]]) -> Table:
    table = _table(title, "", "total", "breakdown")
    for change, counts in changes.items():
        text = ", ".join(f"{count} {what}" for what, count in Counter(counts).most_common())
        table.add_row(change, str(sum(counts.values())), text)
    table.columns[2].justify = "left"
    return table


if __name__ == "__main__":
    sys.exit(app())
