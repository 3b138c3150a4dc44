"""The command: `./run python -m benchmarks.faults`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.faults.churn import run_churn, run_fleet
from benchmarks.faults.matrix import run_matrix
from benchmarks.faults.results import Report, Row


async def _run(folder: Path, options: argparse.Namespace, progress: Progress) -> Report:
    rows: list[Row] = []
    if not options.no_matrix:
        cases = progress.add_task("a fault at each step")
        rows += await run_matrix(
            folder / "matrix", advance=lambda total: progress.update(cases, total=total, advance=1)
        )
    for kills in (0, options.kills) if options.shapes else ():
        task = progress.add_task(f"{options.shapes} objects, {kills} kills", total=1)
        rows.append(await run_churn(folder / f"{kills}-kills", shapes=options.shapes, kills=kills))
        progress.advance(task)
    fleet = None
    if options.fleet:
        task = progress.add_task(f"a start with {options.fleet} resources", total=1)
        fleet = await run_fleet(folder / "fleet", shapes=options.fleet)
        progress.advance(task)
    return Report(os.getloadavg()[0], tuple(rows), fleet)


def _show(report: Report) -> None:
    table = Table(title="Faults: seconds from the kill to the last outcome")
    for name in ("fault", "cases", "kills", "effects", "duplicates", "leaks", "losses", "other"):
        table.add_column(name)
    table.add_column("p50 s")
    table.add_column("max s")
    for row in report.rows:
        table.add_row(*map(str, msgspec.structs.astuple(row)))
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    if report.fleet is not None:
        fleet = report.fleet
        console.print(
            f"killed and started with {fleet.shapes:,} converged resources: settled in "
            f"{fleet.settle_seconds} s, {fleet.resource_reads} reads of individual resources, "
            f"{fleet.listing_requests} pages of one listing, {fleet.external_writes} writes, "
            f"{fleet.new_events} new events; reading each resource individually takes "
            f"{fleet.individual_reads_seconds} s"
        )
    console.print(f"load average {report.load_average:.1f}")


def main() -> int:
    """Run the benchmark; return 1 after a duplicate, leak, loss or individual read."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.faults", description="Measure the cost of crashes."
    )
    parser.add_argument(
        "--shapes", type=int, default=500, help="objects to create and delete; 0 for none"
    )
    parser.add_argument(
        "--kills", type=int, default=20, help="SIGKILLs during creation and deletion (%(default)s)"
    )
    parser.add_argument(
        "--fleet", type=int, default=5_000, help="converged resources at the restart; 0 for none"
    )
    parser.add_argument("--no-matrix", action="store_true", help="skip the fault matrix")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    logging.getLogger("infra.jetstream").setLevel(logging.ERROR)  # the server is killed on purpose
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        Progress(console=Console(stderr=True)) as progress,
    ):
        report = uvloop.run(_run(Path(folder), options, progress))
    _show(report)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0 if report.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
