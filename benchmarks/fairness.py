"""The command: `./run python -m benchmarks.fairness`: a fast API alone, and next to a slow one."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from cyclopts import App
from rich.console import Console
from rich.table import Table

from benchmarks.converge import settings
from benchmarks.converge.client import TIMEOUT_SECONDS, Bus
from benchmarks.converge.stack import ALL_IN_ONE, running_stack
from benchmarks.latencies import latencies, percentile
from infra.bus.streams import worker_consumer, worker_consumers
from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from reconciler.sdk import client_on
from reconciler.wiring import open_connection
from tests.faulty_api import FaultyApi

TARGET = 2.0
"""Maximum ratio of the fast API's p99 next to a slow one to its p99 alone (fault 29)."""

_SLOW = "slow"
_WARM_UP = 10
_POLL_SECONDS = 0.1

app = App(name="benchmarks.fairness", help_format="plaintext", result_action="return_value")


class Phase(NamedTuple):
    """Latencies of the fast API, and the length of the slow one's queue."""

    name: str
    milliseconds: Sequence[float]
    waiting: int = 0
    delivered: int = 0


@app.default
def fairness(*, slow: int = 6_000, call_seconds: float = 2.0, samples: int = 300) -> int:
    """Measure the time to Converged on a fast API, alone and next to a slow one, in the same run.

    The exit status is always 0; times are only printed with their target.

    Parameters
    ----------
    slow
        Number of resources to declare on the slow API.
    call_seconds
        Duration of each call to the slow API.
    samples
        Number of resources to declare on the fast API in each phase, one after another.
    """
    load = os.getloadavg()[0]
    phases = uvloop.run(_run(slow, call_seconds, samples))
    _show(phases, load, f"{slow:,} actions at {call_seconds:g} s per call")
    return 0


async def _run(slow: int, call_seconds: float, samples: int) -> list[Phase]:
    with tempfile.TemporaryDirectory(prefix="fairness-") as folder:
        async with (
            running_stack(Path(folder), latency_ms=0, layout=ALL_IN_ONE) as stack,
            _slow_api(Path(folder), call_seconds) as slow_url,
            open_connection(stack.servers[0].url) as nc,
            client_on(nc, source="benchmark") as client,
        ):
            bus = Bus(client, nc)
            async with bus.follow_outcomes():
                await bus.configure(settings.config(stack.api.url, settings.LONG_RESYNC_SECONDS))
                slow_config = settings.config(slow_url, settings.LONG_RESYNC_SECONDS)
                await bus.configure(slow_config, _SLOW)
                await latencies(bus, "warm-up", _WARM_UP)
                alone = Phase("alone", await latencies(bus, "alone", samples))
                await bus.declare([f"slow-{number}" for number in range(slow)], _SLOW)
                await _wait_until_queue_is_long(bus, slow)
                beside = await latencies(bus, "beside", samples)
                queue = await _read_queue(bus)
                leased = int(queue["num_ack_pending"])
                waiting = int(queue["num_pending"]) + leased
                return [alone, Phase("with the slow API", beside, waiting, leased)]


@asynccontextmanager
async def _slow_api(folder: Path, call_seconds: float) -> AsyncGenerator[str]:
    api = FaultyApi()
    try:
        yield await api.start(folder / "slow-api", latency_ms=1_000 * call_seconds)
    finally:
        await api.stop()


async def _wait_until_queue_is_long(bus: Bus, slow: int) -> None:
    """Wait until the slow API's queue has nearly the maximum number of actions."""
    expected = 0.9 * min(slow, MAX_ACTIONS)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            queue = await _read_queue(bus)
            if queue["num_pending"] + queue["num_ack_pending"] >= expected:
                return
            await asyncio.sleep(_POLL_SECONDS)


async def _read_queue(bus: Bus) -> dict[str, Any]:
    name = worker_consumer(_SLOW)
    return next(each for each in await worker_consumers(bus.nc) if each["name"] == name)


def _show(phases: Sequence[Phase], load: float, title: str) -> None:
    table = Table("the fast API", title=title)
    for heading in ("p50, ms", "p99, ms", "max, ms", "slow actions left", "delivered"):
        table.add_column(heading, justify="right")
    for phase in phases:
        times = [f"{percentile(phase.milliseconds, each):.1f}" for each in (0.50, 0.99, 1.0)]
        table.add_row(phase.name, *times, f"{phase.waiting:,}", f"{phase.delivered:,}")
    alone, beside = phases
    p99 = [percentile(phase.milliseconds, 0.99) for phase in (beside, alone)]
    ratio = p99[0] / p99[1]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    verdict = "met" if ratio <= TARGET else "missed"
    console.print(f"p99 with / alone: {ratio:.2f}; target at most {TARGET:g}: {verdict}")
    console.print(f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    sys.exit(app())
