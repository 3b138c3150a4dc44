"""Runs one case, from an empty folder to the results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from benchmarks.converge import phases, settings
from benchmarks.converge.api import Api
from benchmarks.converge.appending import BATCH, append_ceiling
from benchmarks.converge.client import Bus
from benchmarks.converge.reading import replay
from benchmarks.converge.results import Case, Ceiling
from benchmarks.converge.stack import Stack, running_stack
from benchmarks.converge.usage import Meter, highest
from reconciler.sdk import client_on
from reconciler.wiring import open_connection


async def run_case(
    shapes: int, latency_ms: float, *, idle_samples: int, layout: Sequence[str], python: str
) -> Case:
    """Run every phase on a separate stack."""
    with tempfile.TemporaryDirectory(prefix="converge-") as folder:
        async with (
            running_stack(
                Path(folder), latency_ms=latency_ms, layout=layout, python=python
            ) as stack,
            open_connection(stack.servers[0].url) as nc,
            client_on(nc, source="benchmark") as client,
            aiohttp.ClientSession(stack.api.url) as session,
        ):
            bus = Bus(client, nc)
            async with bus.follow_outcomes():
                await bus.configure(settings.config(stack.api.url, settings.LONG_RESYNC_SECONDS))
                samples = 0 if latency_ms else idle_samples
                return await _measure(stack, bus, Api(session), shapes, latency_ms, samples)


async def _measure(
    stack: Stack, bus: Bus, api: Api, shapes: int, latency_ms: float, idle_samples: int
) -> Case:
    load = os.getloadavg()[0]
    names = [f"resource-{number}" for number in range(shapes)]
    converged = await phases.converge(stack, bus, api, names)
    before_restart = Meter(stack.pids).read()
    restarted = await phases.restart(stack, bus, api, shapes)
    drifted = await phases.drift(stack, bus, api, names)
    withdrawn = await phases.withdraw(stack, bus, api, names)
    latency = await phases.idle(bus, api, idle_samples) if idle_samples else None
    # Read before the next measurements raise the peaks.
    peaks = highest(before_restart, Meter(stack.pids).read())
    reading = await replay(bus.nc, stack.servers[0].url)
    ceiling = await append_ceiling(bus.nc, reading.bytes_per_event)
    return Case(
        shapes=shapes,
        latency_ms=latency_ms,
        load_average=load,
        converge=converged,
        restart=restarted,
        drift=drifted,
        withdrawal=withdrawn,
        idle=latency,
        replay=reading,
        ceiling=Ceiling(
            batch=BATCH,
            bytes_per_event=reading.bytes_per_event,
            events_per_second=round(ceiling),
            converge_share=round(converged.events_per_second / ceiling, 3),
        ),
        peaks=peaks,
        stack_peak_mb=round(sum(each.peak_mb for each in peaks if each.process != "client"), 1),
    )
