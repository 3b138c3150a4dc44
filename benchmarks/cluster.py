"""The command: `./run python -m benchmarks.cluster`: one server or three, and several deciders."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import uvloop
from cyclopts import App
from rich.console import Console
from rich.table import Table

from benchmarks.converge import phases, settings
from benchmarks.converge.api import Api
from benchmarks.converge.client import Bus
from benchmarks.converge.results import Converge
from benchmarks.converge.stack import ALL_IN_ONE, ReconcilerProcess, Stack
from infra.bus.streams import LOG
from infra.embedded import EmbeddedServer
from reconciler.sdk import client_on
from reconciler.wiring import open_connection
from tests.cluster.servers import EmbeddedCluster, leader
from tests.faulty_api import FaultyApi

Kill = Callable[[], Awaitable[object]]

REPLICAS: Final = 3
FAILOVER_SECONDS: Final = 10.0
"""Maximum time without progress after the failure of one server."""

_APART: Final = ("decider,observer,projector", "worker")
_SAMPLE_SECONDS: Final = 20.0
_KILL_AFTER_SECONDS: Final = 3.0

app = App(name="benchmarks.cluster", help_format="plaintext", result_action="return_value")


class Layout(NamedTuple):
    """The number of servers, and the roles of each process."""

    servers: int
    processes: Sequence[str]

    def count(self, role: str) -> int:
        """Return the number of processes with a role."""
        return sum(role in each.split(",") for each in self.processes)


LAYOUTS: Final = (
    Layout(1, ALL_IN_ONE),
    Layout(REPLICAS, ALL_IN_ONE),
    Layout(1, _APART),
    Layout(REPLICAS, _APART),
    Layout(REPLICAS, (*_APART, "decider", "worker")),
    Layout(REPLICAS, (*_APART, *["decider"] * 3, "worker")),
)


class Result(NamedTuple):
    """The convergence of a case, and the longest times without an outcome after failures."""

    layout: Layout
    converge: Converge
    server_failover: float | None
    decider_failover: float | None


@app.default
def cluster(*, shapes: int = 2_000) -> int:
    """Compare one server with three replicated ones, and one decider with several.

    The processes share this machine's cores, so compare CPU time rather than throughput. The exit
    status is always 0; times are only printed with their target.

    Parameters
    ----------
    shapes
        Number of resources to declare in each case.
    """
    load = os.getloadavg()[0]
    _show([uvloop.run(_run(layout, shapes)) for layout in LAYOUTS], shapes, load)
    return 0


async def _run(layout: Layout, shapes: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="cluster-") as name:
        folder = Path(name)
        async with (
            _running_servers(folder, layout.servers) as (servers, url),
            _running_roles(folder, layout, servers, url) as stack,
            open_connection(url) as nc,
            client_on(nc, source="benchmark") as client,
            aiohttp.ClientSession(stack.api.url) as session,
        ):
            bus = Bus(client, nc)
            async with bus.follow_outcomes():
                await bus.configure(settings.config(stack.api.url, settings.LONG_RESYNC_SECONDS))
                names = [f"resource-{number}" for number in range(shapes)]
                converged = await phases.converge(stack, bus, Api(session), names)
                server_failover = decider_failover = None
                if layout.servers > 1:
                    leading = await leader(nc, LOG)
                    assert leading is not None
                    victim = servers[leading]
                    server_failover = await _measure_failover(bus, "server", victim.kill)
                deciders = [each for each in stack.reconcilers if each.roles == "decider"]
                if deciders:
                    decider_failover = await _measure_failover(bus, "decider", deciders[0].kill)
                return Result(layout, converged, server_failover, decider_failover)


@asynccontextmanager
async def _running_servers(
    folder: Path, count: int
) -> AsyncGenerator[tuple[Sequence[EmbeddedServer], str]]:
    """Start one server or a cluster, with a disk sync for each acknowledgement."""
    if count == 1:
        server = EmbeddedServer()
        try:
            yield [server], await server.start(folder / "nats")
        finally:
            await server.stop()
        return
    servers = EmbeddedCluster()
    try:
        yield servers.nodes, await servers.start(folder / "nats")
    finally:
        await servers.stop()


@asynccontextmanager
async def _running_roles(
    folder: Path, layout: Layout, servers: Sequence[EmbeddedServer], url: str
) -> AsyncGenerator[Stack]:
    """Start the example API and the role processes. The first one creates the streams."""
    async with AsyncExitStack() as exits:
        api = FaultyApi()
        exits.push_async_callback(api.stop)
        await api.start(folder / "example-api", latency_ms=0)
        processes = [
            ReconcilerProcess(
                roles, url, folder / f"up-{number}", options=["--replicas", str(layout.servers)]
            )
            for number, roles in enumerate(layout.processes)
        ]
        for each in processes:
            exits.push_async_callback(each.stop)
        stack = Stack(servers, api, processes)
        await stack.start_reconcilers()
        yield stack


async def _measure_failover(bus: Bus, what: str, kill: Kill) -> float:
    """Declare resources one after another, and kill a process in between.

    Return the longest time from a declaration to its outcome, in seconds.
    """
    longest, began, is_killed, number = 0.0, time.perf_counter(), False, 0
    while time.perf_counter() < began + _SAMPLE_SECONDS:
        if not is_killed and time.perf_counter() > began + _KILL_AFTER_SECONDS:
            await kill()
            is_killed = True
        number += 1
        declared_at, name = time.perf_counter(), f"{what}-failover-{number}"
        bus.expect([name], "Converged")
        await bus.declare([name])
        await bus.wait_for_expected()
        longest = max(longest, time.perf_counter() - declared_at)
    return longest


def _show(results: Sequence[Result], shapes: int, load: float) -> None:
    table = Table(title=f"{shapes:,} resources, 0 ms per call; CPU in ms per resource")
    for heading in (
        *("servers", "processes", "deciders", "workers", "seconds", "CPU, servers", "CPU, roles"),
        *("CPU, ratio", "a server killed, s", "a decider killed, s"),
    ):
        table.add_column(heading, justify="right")
    first_total = 0.0
    for each in results:
        servers, roles = (
            1_000 * sum(u.cpu_seconds for u in each.converge.usage if u.process.startswith(prefix))
            for prefix in ("nats-server", "reconciler")
        )
        first_total = first_total or servers + roles
        failovers = [
            "-" if seconds is None else f"{seconds:.1f}"
            for seconds in (each.server_failover, each.decider_failover)
        ]
        table.add_row(
            str(each.layout.servers),
            str(len(each.layout.processes)),
            str(each.layout.count("decider")),
            str(each.layout.count("worker")),
            f"{each.converge.seconds:.2f}",
            f"{servers / shapes:.2f}",
            f"{roles / shapes:.2f}",
            f"{(servers + roles) / first_total:.2f}",
            *failovers,
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    times = [
        seconds
        for each in results
        for seconds in (each.server_failover, each.decider_failover)
        if seconds is not None
    ]
    verdict = "met" if max(times) <= FAILOVER_SECONDS else "missed"
    print(
        f"longest time without progress: {max(times):.1f} s; target {FAILOVER_SECONDS:g}: {verdict}"
    )
    print(f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    sys.exit(app())
