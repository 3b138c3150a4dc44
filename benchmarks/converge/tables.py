"""The results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.converge.history import Change
from benchmarks.converge.results import Case, Report

_Row = tuple[str, Callable[[Case], str]]

_ROWS: tuple[_Row, ...] = (
    ("converge, s", lambda case: f"{case.converge.seconds:.2f}"),
    ("  last one exists, s", lambda case: f"{case.converge.exist_seconds:.2f}"),
    ("  shapes/s", lambda case: f"{case.converge.shapes_per_second:,.0f}"),
    ("  events appended", lambda case: f"{case.converge.events:,}"),
    ("  events/s", lambda case: f"{case.converge.events_per_second:,.0f}"),
    ("  share of the append ceiling", lambda case: f"{case.ceiling.converge_share:.0%}"),
    ("  API calls", lambda case: _calls(case.converge.requests)),
    ("restart: ready, s", lambda case: f"{case.restart.ready_seconds:.2f}"),
    ("  listed and at rest, s", lambda case: f"{case.restart.settled_seconds:.2f}"),
    (
        "  writes / reads / pages / events",
        lambda case: (
            f"{case.restart.external_writes} / {case.restart.resource_reads} / "
            f"{case.restart.listing_requests} / {case.restart.new_events}"
        ),
    ),
    ("10% deleted: restored, s", lambda case: f"{case.drift.seconds:.2f}"),
    (
        "  from the listing that detects it, s",
        lambda case: f"{case.drift.since_listing_seconds:.2f}",
    ),
    ("withdraw all: Deleted, s", lambda case: f"{case.withdrawal.seconds:.2f}"),
    ("  API empty, s", lambda case: f"{case.withdrawal.empty_seconds:.2f}"),
    ("  API calls", lambda case: _calls(case.withdrawal.requests)),
    (
        "idle: declared to exists p50 / p99, ms",
        lambda case: (
            f"{case.idle.exists_p50_ms:.1f} / {case.idle.exists_p99_ms:.1f}" if case.idle else "-"
        ),
    ),
    (
        "  declared to outcome p50 / p99, ms",
        lambda case: (
            f"{case.idle.outcome_p50_ms:.1f} / {case.idle.outcome_p99_ms:.1f}" if case.idle else "-"
        ),
    ),
    ("replay, events/s", lambda case: f"{case.replay.rebuild_events_per_second:,.0f}"),
    ("  follower alone", lambda case: f"{case.replay.follower_messages_per_second:,.0f}"),
    (
        "  nats-py's ordered consumer",
        lambda case: f"{case.replay.ordered_consumer_messages_per_second:,.0f}",
    ),
    ("  replay's share of it", lambda case: f"{case.replay.rebuild_share:.0%}"),
    ("append ceiling, events/s", lambda case: f"{case.ceiling.events_per_second:,.0f}"),
    ("load average before", lambda case: f"{case.load_average:.1f}"),
)


def show(report: Report, console: Console) -> None:
    """Print all results."""
    console.print(_results(report.cases))
    console.print(_usage(report.cases))
    console.print(_targets(report))
    console.print(
        f"{report.started}, Python {report.python}, nats-server {report.server}, "
        f"{report.cores} cores; load average {report.load_average_before:.2f} before, "
        f"{report.load_average_after:.2f} after; reconciler: {report.layout}"
    )


def show_changes(compared: Sequence[tuple[str, Sequence[Change]]], console: Console) -> None:
    """Print the measured and recorded costs of each case that has a record."""
    for case, changes in compared:
        if not changes:
            continue
        table = Table(
            "cost, in appended events per resource", title=f"{case}: compared with the record"
        )
        for heading in ("recorded", "now", "ratio", ""):
            table.add_column(heading, justify="right")
        for change in changes:
            verdict = "[red]worse[/]" if change.is_worse else ""
            numbers = (f"{change.recorded:.2f}", f"{change.now:.2f}", f"{change.ratio:.0%}")
            table.add_row(change.name, *numbers, verdict)
        console.print(table)


def _results(cases: Sequence[Case]) -> Table:
    table = Table("", title="Results")
    for case in cases:
        table.add_column(f"{case.shapes:,} resources\n{case.latency_ms:g} ms", justify="right")
    for name, cell in _ROWS:
        table.add_row(name, *(cell(case) for case in cases))
    return table


def _usage(cases: Sequence[Case]) -> Table:
    """Return a table with the CPU time of each phase and the peak memory of the case."""
    table = Table("CPU, s: converge / restart / drift / withdrawal", title="Usage")
    for case in cases:
        table.add_column(f"{case.shapes:,} resources\n{case.latency_ms:g} ms", justify="right")
    for peak in cases[0].peaks:
        table.add_row(peak.process, *(_cpu(case, peak.process) for case in cases))
    table.add_row("peak of the stack, MB", *(f"{case.stack_peak_mb:.0f}" for case in cases))
    return table


def _cpu(case: Case, process: str) -> str:
    phases = (case.converge.usage, case.restart.usage, case.drift.usage, case.withdrawal.usage)
    used = [
        next((f"{each.cpu_seconds:.2f}" for each in usage if each.process == process), "-")
        for usage in phases
    ]
    peak = next(each.peak_mb for each in case.peaks if each.process == process)
    return f"{' / '.join(used)}; {peak:.0f} MB"


def _targets(report: Report) -> Table:
    table = Table("target", "wanted", "measured", "", title="Targets")
    for target in report.targets:
        verdict = "[green]pass[/]" if target.met else "[red]FAIL[/]"
        table.add_row(target.name, target.wanted, target.measured, verdict)
    return table


def _calls(requests: dict[str, dict[str, int]]) -> str:
    return ", ".join(
        f"{count:,} {method} {status}"
        for method, by_status in requests.items()
        for status, count in by_status.items()
    )
