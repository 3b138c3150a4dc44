"""The command: `./run python -m benchmarks.tenants`: one tenant during another tenant's flood."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

import uvloop
from cyclopts import App
from nats.aio.client import Client as Connection
from rich.console import Console
from rich.table import Table

from benchmarks.converge import settings
from benchmarks.converge.client import Bus
from benchmarks.converge.stack import ALL_IN_ONE, running_stack
from benchmarks.latencies import latencies, percentile
from events.envelope import encode_intake
from events.intake import Declared
from events.manifest import Fields, Manifest, Metadata
from events.subjects import intake
from infra.bus.dead_letters import read_discarded
from infra.bus.streams import INTAKE
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish_in_batches
from infra.jetstream.reads import stream_state
from reconciler.sdk import client_on
from reconciler.wiring import open_connection

TARGET = 2.0
"""Maximum ratio of a tenant's p99 during one tenant's flood to that with many tenants."""

_RESOURCES = 20_000
_BATCH_SIZE = 500
_COLORS = ("Red", "Blue", "Green")
_WARM_UP = 10
_SETTLE_SECONDS = 3.0

app = App(name="benchmarks.tenants", help_format="plaintext", result_action="return_value")


class Load(NamedTuple):
    """The load that a separate process publishes."""

    namespaces: int
    a_second: int
    manifest_bytes: int


class Phase(NamedTuple):
    """Latencies of the quiet tenant, and numbers of published and refused declarations."""

    name: str
    milliseconds: Sequence[float]
    published: int = 0
    refused: int = 0


@app.default
def tenants(*, samples: int = 100, a_second: int = 10_000, manifest_bytes: int = 0) -> int:
    """Measure one tenant's time to Converged, alone and during the load of other tenants.

    A separate process publishes declarations, first in the namespaces of 100 tenants in turn, then
    all in one namespace, until the phase has all samples. The exit status is always 0.

    Parameters
    ----------
    samples
        Number of resources that the quiet tenant declares in each phase, one after another.
    a_second
        Number of declarations per second in the load.
    manifest_bytes
        Length of an annotation in each manifest of the load.
    """
    load = os.getloadavg()[0]
    phases = uvloop.run(_run(samples, a_second, manifest_bytes))
    _show(phases, load)
    return 0


async def _run(samples: int, a_second: int, manifest_bytes: int) -> list[Phase]:
    with tempfile.TemporaryDirectory(prefix="tenants-") as folder:
        async with (
            running_stack(Path(folder), latency_ms=0, layout=ALL_IN_ONE) as stack,
            open_connection(stack.servers[0].url) as nc,
            client_on(nc, source="benchmark") as client,
        ):
            bus = Bus(client, nc)
            async with bus.follow_outcomes():
                config = settings.config(stack.api.url, settings.LONG_RESYNC_SECONDS)
                await bus.configure(config)
                await latencies(bus, "warm-up", _WARM_UP)
                phases = [Phase("alone", await latencies(bus, "alone", samples))]
                for name, namespaces in (("100 namespaces", 100), ("1 namespace", 1)):
                    load = Load(namespaces, a_second, manifest_bytes)
                    phases.append(
                        await _measure_with_load(bus, nc, stack.servers[0].url, name, load, samples)
                    )
                return phases


async def _measure_with_load(
    bus: Bus, nc: Connection, url: str, name: str, load: Load, samples: int
) -> Phase:
    sequence_before, refused_before = (
        (await stream_state(nc, INTAKE)).last_seq,
        await _count_refused(nc),
    )
    spawn = multiprocessing.get_context("spawn")
    stopped = spawn.Event()
    process = spawn.Process(target=_run_flood, args=(url, load, stopped), daemon=True)
    process.start()
    try:
        await asyncio.sleep(_SETTLE_SECONDS)
        milliseconds = await latencies(bus, f"beside-{load.namespaces}", samples)
    finally:
        stopped.set()
        await asyncio.to_thread(process.join)
    published = (await stream_state(nc, INTAKE)).last_seq - sequence_before
    await _wait_until_processed(bus)
    return Phase(name, milliseconds, published, await _count_refused(nc) - refused_before)


async def _wait_until_processed(bus: Bus) -> None:
    """Wait until the load is processed, which may take longer than one timeout."""
    while True:
        with suppress(TimeoutError):
            await bus.wait_until_idle()
            return


def _run_flood(url: str, load: Load, stopped: Event) -> None:
    uvloop.run(_publish_until(url, load, stopped))


async def _publish_until(url: str, load: Load, stopped: Event) -> None:
    """Publish declarations, each of which changes its resource."""
    number, began = 0, time.monotonic()
    async with open_connection(url) as nc:
        while not stopped.is_set():
            await asyncio.sleep(began + number / load.a_second - time.monotonic())
            messages = [_declaration(each, load) for each in range(number, number + _BATCH_SIZE)]
            await publish_in_batches(nc, messages)
            number += _BATCH_SIZE


def _declaration(number: int, load: Load) -> OutgoingMessage:
    namespace, name = f"load-{number % load.namespaces}", f"r{number % _RESOURCES}"
    fields: Fields = {"type": "Square", "color": _COLORS[number // _RESOURCES % len(_COLORS)]}
    notes = {"note": "x" * load.manifest_bytes} if load.manifest_bytes else {}
    manifest = Manifest("shapes/v1", "Shape", Metadata(name, namespace, annotations=notes), fields)
    payload = encode_intake(
        f"{os.getpid()}-{number}", "load", Declared(manifest), time=datetime.now(UTC)
    )
    return OutgoingMessage(intake("desired", manifest.key), payload)


async def _count_refused(nc: Connection) -> int:
    return sum(each.count for each in await read_discarded(nc) if each.stage == "quota")


def _show(phases: Sequence[Phase], load: float) -> None:
    table = Table("load from", title="one tenant during the load of others")
    for heading in ("p50, ms", "p99, ms", "max, ms", "published", "refused"):
        table.add_column(heading, justify="right")
    for phase in phases:
        times = [f"{percentile(phase.milliseconds, each):.1f}" for each in (0.50, 0.99, 1.0)]
        table.add_row(phase.name, *times, f"{phase.published:,}", f"{phase.refused:,}")
    _, spread, beside = phases
    p99 = [percentile(phase.milliseconds, 0.99) for phase in (beside, spread)]
    ratio = p99[0] / p99[1]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    verdict = "met" if ratio <= TARGET else "missed"
    console.print(
        f"p99 with load from one namespace / from many: {ratio:.2f}; target {TARGET:g}: {verdict}"
    )
    console.print(f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    sys.exit(app())
