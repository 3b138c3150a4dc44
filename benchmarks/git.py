"""The command: `./run python -m benchmarks.git`: a large commit, and direct declarations."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop
from cyclopts import App
from rich.console import Console
from rich.table import Table

from benchmarks.converge import settings
from benchmarks.converge.client import TIMEOUT_SECONDS, Bus
from benchmarks.converge.stack import ALL_IN_ONE, Stack, running_stack
from benchmarks.converge.usage import Meter
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from reconciler.sdk import Client, client_on
from reconciler.wiring import open_connection

COMPOSITION = "composition"
CHANGED = 3
_SOURCE = ResourceKey("default", "GitSource", "fleet")

app = App(name="benchmarks.git", help_format="plaintext", result_action="return_value")


class Phase(NamedTuple):
    """The cost of a step, until the last resource has converged."""

    name: str
    resources: int
    seconds: float
    cpu_seconds: float
    events: int


class Pusher:
    """A user with a working copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        """The URL of the repository."""
        return f"file://{self._folder}"

    def push(self, names: Sequence[str], color: str) -> None:
        """Commit a file for each name."""
        for name in names:
            (self._folder / f"{name}.yaml").write_text(
                f"apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: {name}}}\n"
                f"spec: {{type: Square, color: {color}}}\n"
            )
        self._git("add", "--all")
        self._git("commit", "--quiet", "-m", color)

    def _git(self, *words: str) -> None:
        identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        subprocess.run(["git", *identity, *words], cwd=self._folder, check=True)


@app.default
def git(*, manifests: int = 1_000) -> int:
    """Measure a commit from the push until all resources converge, and direct declarations.

    The exit status is 0 unless an error occurs; times do not affect it.

    Parameters
    ----------
    manifests
        Number of resources, one file each.
    """
    load = os.getloadavg()[0]
    phases = uvloop.run(_run(manifests))
    _show(phases, load)
    return 0


async def _run(manifests: int) -> list[Phase]:
    with tempfile.TemporaryDirectory(prefix="git-") as folder:
        async with (
            running_stack(Path(folder), latency_ms=0, layout=ALL_IN_ONE) as stack,
            open_connection(stack.servers[0].url) as nc,
            client_on(nc, source="benchmark") as client,
        ):
            bus = Bus(client, nc)
            async with bus.follow_outcomes():
                interval = settings.LONG_RESYNC_SECONDS
                await bus.configure(settings.config(stack.api.url, interval))
                own = ProviderConfigSpec(COMPOSITION, stack.servers[0].url, resync_seconds=interval)
                await bus.configure(own, COMPOSITION)
                return await _phases(bus, client, stack, Pusher(Path(folder) / "work"), manifests)


async def _phases(
    bus: Bus, client: Client, stack: Stack, pusher: Pusher, manifests: int
) -> list[Phase]:
    async def measure(
        name: str, names: Sequence[str], step: Callable[[], Awaitable[None]]
    ) -> Phase:
        await bus.wait_until_idle()
        bus.expect(names, "Converged")
        position_before, meter = await bus.log_position(), Meter(stack.pids)
        began = time.perf_counter()
        await step()
        await bus.wait_for_expected()
        seconds = time.perf_counter() - began
        cpu = sum(each.cpu_seconds for each in meter.read())
        return Phase(name, len(names), seconds, cpu, await bus.log_position() - position_before)

    direct = [f"direct-{number}" for number in range(manifests)]
    pushed = [f"pushed-{number}" for number in range(manifests)]

    async def push_all() -> None:
        pusher.push(pushed, "Red")
        await client.declare(_source(pusher.url))

    async def push_changes() -> None:
        pusher.push(pushed[:CHANGED], "Blue")
        await client.reconcile_many([_SOURCE], reason="pushed")

    return [
        await measure("declared directly", direct, lambda: _declare(client, direct, "Red")),
        await measure("pushed, and declared from Git", pushed, push_all),
        await measure(
            "changed directly", direct[:CHANGED], lambda: _declare(client, direct[:CHANGED], "Blue")
        ),
        await measure("changed by a commit", pushed[:CHANGED], push_changes),
    ]


async def _declare(client: Client, names: Sequence[str], color: str) -> None:
    await client.publish(
        [
            Manifest("shapes/v1", "Shape", Metadata(name), {"type": "Square", "color": color})
            for name in names
        ],
        timeout_seconds=TIMEOUT_SECONDS,
    )


def _source(url: str) -> Manifest:
    spec = {"providerConfigRef": {"name": COMPOSITION}, "url": url}
    return Manifest("git/v1", _SOURCE.kind, Metadata(_SOURCE.name), spec)


def _show(phases: Sequence[Phase], load: float) -> None:
    table = Table("", title="from the push, or the declaration, until the last is Converged")
    for heading in ("resources", "s", "CPU s", "events", "ratio to direct"):
        table.add_column(heading, justify="right")
    for number, phase in enumerate(phases):
        baseline = phases[number - number % 2]
        ratio = f"{phase.seconds / baseline.seconds:.2f}" if baseline is not phase else ""
        times = (f"{phase.resources:,}", f"{phase.seconds:.2f}", f"{phase.cpu_seconds:.2f}")
        table.add_row(phase.name, *times, f"{phase.events:,}", ratio)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    sys.exit(app())
