"""The command: `./run python -m benchmarks.memory`: the cost of queries about the past."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import uvloop
from cyclopts import App
from nats.aio.client import Client
from rich.console import Console
from rich.table import Table

from benchmarks.converge.usage import peak_mb
from benchmarks.memory.long_log import HOT, NAMESPACES, ONE_TIME_ACTOR, LogSummary, fill
from infra.bus.event_log import open_log
from infra.bus.rows import JetStreamRows
from infra.embedded import EmbeddedServer
from projections.read_models import decode_checkpoint
from reconciler.wiring import initialize, open_connection, run_roles

SECONDS: Final = 10.0
"""Maximum time of a query about one resource or a few events, for a log of any length."""

_POLL_SECONDS: Final = 0.2
_MEMORY_POLL_SECONDS: Final = 0.01
_STATUS_DIFFERENT: Final = 2

app = App(name="benchmarks.memory", help_format="plaintext", result_action="return_value")


class QueryCost(NamedTuple):
    """The cost of one query, from the start of its process to its end."""

    query: str
    events_read: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


class Case(NamedTuple):
    """All measurements on one log."""

    filled: LogSummary
    costs: Sequence[QueryCost]


@app.default
def memory(*, events: str = "10000,100000") -> int:
    """Measure queries about the past on logs of several lengths, with up-to-date rows.

    The exit status is 1 if a command fails; times and memory do not affect it.

    Parameters
    ----------
    events
        Numbers of events, separated by commas: 10000,100000,1000000 takes about five minutes.
    """
    load = os.getloadavg()[0]
    for count in events.split(","):
        with tempfile.TemporaryDirectory(prefix="memory-") as folder:
            case = uvloop.run(_measure(Path(folder), int(count)))
        _show(case, load)
    return 0


async def _measure(folder: Path, count: int) -> Case:
    server = EmbeddedServer()
    await server.start(folder)
    try:
        async with open_connection(server.url) as nc:
            await initialize(nc)
            began = time.perf_counter()
            filled = await fill(nc, count)
            _print_progress(f"{count:,} events written in {time.perf_counter() - began:.0f} s")
            began = time.perf_counter()
            async with run_roles(nc, ("projector",)):
                await _wait_until_current(nc)
            _print_progress(f"rows are current after {time.perf_counter() - began:.0f} s")
        costs = [
            await asyncio.to_thread(_run_query, folder, *query)
            for query in _queries(server.url, filled)
        ]
    finally:
        await server.stop()
    return Case(filled, costs)


async def _wait_until_current(nc: Client) -> None:
    last = await (await open_log(nc)).last_position()
    rows = JetStreamRows(nc)
    while True:
        payload, _ = await rows.checkpoint()
        if payload and decode_checkpoint(payload).position >= last:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _queries(url: str, filled: LogSummary) -> list[tuple[str, int, Sequence[str]]]:
    """Return each query, the number of events that it reads, and its command."""
    middle = filled.events // 2
    one, hot, at = str(filled.example), str(HOT), str(middle)
    resource_events, hot_events = filled.events // filled.resources, filled.events // 100
    reconciler = [sys.executable, "-m", "reconciler"]
    plain = [sys.executable, "-m", "benchmarks.memory.plain"]
    bus = ["--nats-url", url]
    return [
        ("nats-py's ordered consumer, up to the middle", middle, [*plain, "ordered", url, at]),
        ("Reconciler's follower, up to the middle", middle, [*plain, "follower", url, at]),
        ("get -A --at, the middle", middle, [*reconciler, "get", "-A", "--at", at, *bus]),
        (
            "get -n, a tenth of the fleet, --at the middle",
            middle // NAMESPACES,
            [*reconciler, "get", "-n", "team-1", "--at", at, *bus],
        ),
        ("get -A --at, now", 0, [*reconciler, "get", "-A", "--at", "1ms", *bus]),
        ("describe --at", resource_events, [*reconciler, "describe", one, "--at", at, *bus]),
        ("history --since", resource_events, [*reconciler, "history", one, "--since", "15d", *bus]),
        ("diff", resource_events, [*reconciler, "diff", one, "--from", at, *bus]),
        (
            "describe --at, the hot resource",
            hot_events,
            [*reconciler, "describe", hot, "--at", at, *bus],
        ),
        (
            "history --since, the hot resource",
            hot_events,
            [*reconciler, "history", hot, "--since", "1d", *bus],
        ),
        ("events --limit 50", 50, [*reconciler, "events", "--limit", "50", *bus]),
        ("events --since 15d", 1_000, [*reconciler, "events", "--since", "15d", *bus]),
        (
            "events --actor, one old event",
            filled.events,
            [*reconciler, "events", "--actor", ONE_TIME_ACTOR, *bus],
        ),
    ]


def _run_query(folder: Path, query: str, events_read: int, command: Sequence[str]) -> QueryCost:
    """Run a command in a separate process, and measure its usage with the kernel's counters."""
    root = Path(__file__).parents[2]
    output_path, errors = folder / "output", folder / "errors"
    with output_path.open("wb") as out, errors.open("wb") as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=root)
        peak = 0.0  # not from wait4, whose value is at least this process's memory at the fork
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, peak_mb(process.pid))
            time.sleep(_MEMORY_POLL_SECONDS)
        seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, _STATUS_DIFFERENT) or "error" in errors.read_text():
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}: {errors.read_text()}")
    return QueryCost(query, events_read, seconds, usage.ru_utime + usage.ru_stime, peak)


def _show(case: Case, load: float) -> None:
    filled = case.filled
    size = filled.bytes // filled.events
    title = (
        f"{filled.events:,} events of {size} bytes, {filled.resources:,} resources "
        f"(load average {load:.1f} before)"
    )
    table = Table("query", title=title)
    for heading in ("reads about", "seconds", "CPU s", "peak MB"):
        table.add_column(heading, justify="right")
    for each in case.costs:
        times = (f"{each.seconds:.2f}", f"{each.cpu_seconds:.2f}", f"{each.peak_mb:.0f}")
        table.add_row(each.query, f"{each.events_read:,}", *times)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    slowest = max(each.seconds for each in case.costs if each.events_read < filled.events // 2)
    print(
        f"the slowest query that reads less than half of the log: {slowest:.2f} s "
        f"(target {SECONDS:g} s: {'met' if slowest < SECONDS else 'missed'})"
    )


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(app())
