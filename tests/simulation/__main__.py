"""The simulation from the command line: one seed with its trace, many seeds, or a stored plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.simulation.generator import plan_of
from tests.simulation.many import Tally, run_many
from tests.simulation.plan import Plan, decode_plan, encode_plan, lines
from tests.simulation.run import run
from tests.simulation.shrink import shrink

_MAX_FAILURES_SHOWN = 20
_MAX_COUNTS_SHOWN = 60
_console = Console(stderr=True)
app = App(name="python -m tests.simulation", help_format="markdown", result_action="return_value")


@app.default
def simulate(
    *,
    seed: Annotated[int | None, Parameter(name="--seed")] = None,
    plan: Path | None = None,
    seeds: int = 1_000,
    first: Annotated[int, Parameter(name="--from")] = 0,
    processes: int = 2,
    trace: bool = False,
    smallest: bool = True,
    save: Path | None = None,
) -> int:
    """Run the whole reconciler over a simulated bus, API and clock; exit status 1 on a failure.

    Examples:

        ./run python -m tests.simulation --seeds 100000 --processes 2
        ./run python -m tests.simulation --seed 54
        ./run python -m tests.simulation --seed 54 --trace
        ./run python -m tests.simulation --plan smallest.json --trace

    Parameters
    ----------
    seed
        Run only this seed; if it fails, shrink its plan and show it.
    plan
        Run a plan that was saved, instead of a seed.
    seeds
        The number of seeds to run.
    first
        The first seed.
    processes
        The number of processes.
    trace
        Show every step of the run.
    smallest
        Shrink the plan of a failure.
    save
        Save the shown plan as JSON.
    """
    if plan is not None:
        return _run_plan(decode_plan(plan.read_bytes()), trace=trace, smallest=False, save=save)
    if seed is not None:
        return _run_plan(plan_of(seed), trace=trace, smallest=smallest, save=save)
    return _run_seeds(first, seeds, processes, smallest=smallest, save=save)


def _run_plan(plan: Plan, *, trace: bool, smallest: bool, save: Path | None) -> int:
    result = run(plan)
    if result.violations and smallest:
        plan = _shrink_plan(plan)
    if trace or result.violations:
        result = run(plan, trace=print if trace else None)
        print("\n".join(lines(plan)))
    if save is not None:
        save.write_bytes(encode_plan(plan))
    for violation in result.violations:
        print(f"FAILED {violation}")
    if not result.violations:
        print(f"seed {plan.seed}: {result.events} events, {result.effects} effects, no violations")
    return 1 if result.violations else 0


def _shrink_plan(plan: Plan) -> Plan:
    def first_violation(each: Plan) -> str | None:
        violations = run(each).violations
        return violations[0] if violations else None

    with _console.status("shrinking the plan") as status:
        return shrink(
            plan,
            first_violation,
            progress=lambda steps: status.update(f"shrinking the plan: {steps} steps"),
        )


def _run_seeds(first: int, count: int, processes: int, *, smallest: bool, save: Path | None) -> int:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console) as progress:
        task = progress.add_task("seeds", total=count)
        total = run_many(
            first, count, processes=processes, progress=lambda more: progress.advance(task, more)
        )
    Console().print(_table(total))
    for seed, violation in list(total.failed.items())[:_MAX_FAILURES_SHOWN]:
        print(f"FAILED ./run python -m tests.simulation --seed {seed}\n    {violation}")
    if not total.failed:
        return 0
    return _run_plan(plan_of(min(total.failed)), trace=False, smallest=smallest, save=save)


def _table(total: Tally) -> Table:
    table = Table(title="simulation")
    table.add_column("name")
    table.add_column("count", justify="right")
    rows = [
        ("seeds", total.seeds),
        ("failed", len(total.failed)),
        ("steps of the event loop", total.steps),
        ("events in the log", total.events),
        ("effects in the API", total.effects),
    ]
    for name, count in rows:
        table.add_row(name, f"{count:,}")
    table.add_row("CPU milliseconds per seed", f"{1000 * total.seconds / max(1, total.seeds):.0f}")
    table.add_section()
    for name, count in total.counts.most_common(_MAX_COUNTS_SHOWN):
        table.add_row(name, f"{count:,}")
    return table


if __name__ == "__main__":
    sys.exit(app())
