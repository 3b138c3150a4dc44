"""The command: `./run python -m benchmarks.converge`."""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec
import uvloop
from cyclopts import App, Parameter, validators
from rich.console import Console

from benchmarks.converge.case import run_case
from benchmarks.converge.history import changes, costs_by_case, recorded
from benchmarks.converge.history import record as write_costs
from benchmarks.converge.results import Case, Report
from benchmarks.converge.stack import ALL_IN_ONE, WORKER_APART
from benchmarks.converge.tables import show, show_changes
from benchmarks.converge.targets import targets
from infra.embedded.binary import WHEEL
from reconciler.cli.main import OBJECTS_BETWEEN_COLLECTIONS

_IDLE_SAMPLES = 100
_QUICK_RESOURCES = 200
_QUICK_IDLE_SAMPLES = 20

app = App(name="benchmarks.converge", help_format="plaintext", result_action="return_value")


@app.default
def converge(
    *,
    shapes: str = "500,2000,10000",
    latency_ms: str = "0,20",
    json: Annotated[
        str | None, Parameter(help='Write JSON to this file, or to stdout if it is "-".')
    ] = None,
    quick: bool = False,
    worker_apart: bool = False,
    python: Path | None = None,
    rounds: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 1,
    record: bool = False,
) -> int:
    """Measure how fast declared resources are created, and what an unchanged fleet costs.

    The exit status is 1 if a target that must hold on any machine is missed; times never matter.

    Parameters
    ----------
    shapes
        Numbers of resources, separated by commas.
    latency_ms
        Minimum duration of every API request in milliseconds; several values separated by commas.
    quick
        Run one small case, to check that everything works.
    worker_apart
        Run the worker in a separate process.
    python
        Measure the reconciler of another checkout, with the Python of its environment.
    rounds
        Number of alternating runs of each case; their medians are compared with the record.
    record
        Write the medians to benchmarks/history.json.
    """
    sizes = [_QUICK_RESOURCES] if quick else [int(each) for each in shapes.split(",")] * rounds
    latencies = [0.0] if quick else [float(each) for each in latency_ms.split(",")]
    samples = _QUICK_IDLE_SAMPLES if quick else _IDLE_SAMPLES
    console = Console(stderr=json == "-", width=None if sys.stdout.isatty() else 160)
    layout = WORKER_APART if worker_apart else ALL_IN_ONE
    interpreter = sys.executable if python is None else str(python.absolute())
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)  # as every command does
    report = uvloop.run(_run(sizes, latencies, samples, console, layout, interpreter))
    show(report, console)
    costs = costs_by_case(report.cases, report.layout)
    show_changes([(each.case, changes(each, recorded())) for each in costs], console)
    if record:
        write_costs(costs)
    _write(report, json)
    return int(any(target.is_fact and not target.met for target in report.targets))


async def _run(
    sizes: list[int],
    latencies: list[float],
    idle_samples: int,
    console: Console,
    layout: Sequence[str],
    python: str,
) -> Report:
    started, load = datetime.now(UTC), os.getloadavg()[0]
    cases: list[Case] = []
    for size in sizes:
        for latency in latencies:
            with console.status(f"{size:,} resources, API latency {latency:g} ms"):
                cases.append(
                    await run_case(
                        size, latency, idle_samples=idle_samples, layout=layout, python=python
                    )
                )
    return Report(
        started=started.isoformat(timespec="seconds"),
        python=platform.python_version(),
        server=version(WHEEL),
        cores=os.cpu_count() or 0,
        load_average_before=load,
        load_average_after=os.getloadavg()[0],
        layout=" | ".join(layout),
        cases=tuple(cases),
        targets=targets(cases),
    )


def _write(report: Report, destination: str | None) -> None:
    if destination is None:
        return
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if destination == "-":
        sys.stdout.buffer.write(text + b"\n")
    else:
        Path(destination).write_bytes(text + b"\n")


if __name__ == "__main__":
    sys.exit(app())
