"""The command: `./run python -m benchmarks.fleet`: what one event costs as the fleet grows."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple

import uvloop
from cyclopts import App
from rich.console import Console
from rich.table import Table

from benchmarks.converge.usage import resident_mb
from events.external import ExternalObject
from events.intake import ListingBegan
from events.log import (
    Action,
    ActionDecided,
    ActionSucceeded,
    LogEvent,
    OutcomeRecorded,
    ResourceEvent,
    SpecDeclared,
    event_type,
)
from events.manifest import Policy
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from projections.read_models import ReadModels
from reconciler.ports import IntakeMessageOut
from reconciler.provider.kind import KindRegistry
from reconciler.roles.observer.listing import ListingAssembler, compare_listing
from reconciler.roles.projector.projector import Projector
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.sweeper.sweeper import Sweeper

EVENT_MS: Final = 1.0
SWEEP_MS: Final = 5.0
BLOCK_MS: Final = 50.0

_KIND, _CONFIG = "Shape", "default"
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SPEC = ProviderConfigSpec("shapes", "http://api.test")
_SAMPLES = 200

app = App(name="benchmarks.fleet", help_format="plaintext", result_action="return_value")


class Costs(NamedTuple):
    """Measurements for one fleet size; CPU milliseconds, because other processes may run."""

    shapes: int
    event: float
    sweep: float
    compared: float
    blocked: float
    kilobytes: float


@app.default
def fleet(*, shapes: str = "1000,100000") -> int:
    """Measure an event, a sweep with nothing to do, and an unchanged listing, without any server.

    The smallest fleet is the baseline; only the listing may grow. The exit status is always 0.

    Parameters
    ----------
    shapes
        Numbers of converged resources, separated by commas.
    """
    _show([uvloop.run(_measure(int(each))) for each in shapes.split(",")])
    return 0


async def _measure(shapes: int) -> Costs:
    gc.collect()
    memory_before = resident_mb()
    models, position = ReadModels(), 0
    for name in _names(shapes):
        for version, data in enumerate(_lifecycle(name), 1):
            position += 1
            models.apply(position, _event(name, version, data))
    models.take_all()
    gc.collect()
    gc.freeze()  # as roles do: the collector never scans the initial objects again
    kilobytes = (resident_mb() - memory_before) * 1_024 / shapes
    event = await _event_costs(models, position)
    sweep = await _cpu_milliseconds(_create_sweeper(models).sweep)
    objects = {name: _object(name) for name in _names(shapes)}
    async with _measure_longest_block() as blocked:
        compared = await _cpu_milliseconds(lambda: _compare(models, objects))
    return Costs(shapes, event, sweep, compared, blocked(), kilobytes)


def _names(shapes: int) -> Sequence[str]:
    return [f"resource-{number}" for number in range(shapes)]


def _object(name: str) -> ExternalObject:
    return ExternalObject(name, {"type": "Square", "color": "Red"}, uid=f"uid-{name}", version="1")


def _lifecycle(name: str) -> Sequence[ResourceEvent]:
    """Return all events of a resource from its declaration to Converged."""
    fields = {"type": "Square", "color": "Red"}
    action = Action(f"{name}@1", f"{name}@1", "Create", 1, _CONFIG, name, ("declared",), fields)
    return (
        SpecDeclared(1, "shapes/v1", _CONFIG, name, fields, policy=Policy()),
        ActionDecided(action),
        ActionSucceeded(action.action_id, "Create", 1, _object(name)),
        OutcomeRecorded("Converged", 1, "", ""),
    )


def _event(name: str, version: int, data: ResourceEvent) -> LogEvent:
    key = str(ResourceKey("default", _KIND, name))
    kind = event_type(data)
    return LogEvent(f"{key}@{version}", "reconciler", kind, key, _NOW, version, data)


class _Store:
    """Implements ``reconciler.ports.RowStore`` in memory, to measure only the projector."""

    rows_per_save = 900

    def __init__(self) -> None:
        self._checkpoint = b""
        self._revision = 0

    async def load(self) -> Mapping[str, bytes]:
        return {}

    async def checkpoint(self) -> tuple[bytes, int]:
        return self._checkpoint, self._revision

    async def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        assert revision == self._revision
        self._checkpoint = changes["checkpoint"] or b""
        self._revision = revision + 1
        return self._revision

    async def clear(self, before: int) -> None: ...


class _Intake:
    """Implements ``reconciler.ports.IntakeWriter``, and expects no messages."""

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        assert not messages, "an unchanged fleet does not need messages"

    async def last_position(self) -> int:
        return 0


async def _event_costs(models: ReadModels, position: int) -> float:
    """Fold and write individual events; return the 99th percentile, in milliseconds."""
    projector, durations = Projector(models, _Store()), list[float]()
    for number in range(1, _SAMPLES + 1):
        event = _event("resource-0", 4 + number, OutcomeRecorded("Converged", 1, "", str(number)))
        began = time.thread_time()
        projector.apply(position + number, event)
        await projector.flush()
        durations.append((time.thread_time() - began) * 1_000)
    return sorted(durations)[int(0.99 * _SAMPLES)]


def _create_sweeper(models: ReadModels) -> Sweeper:
    return Sweeper(
        intake=_Intake(),
        configurations=Configurations(),
        kinds=KindRegistry([]),
        models=models,
        bus_time=_bus_time,
    )


async def _bus_time() -> float:
    return _NOW.timestamp()


async def _compare(models: ReadModels, objects: Mapping[str, ExternalObject]) -> None:
    listing = ListingAssembler(ListingBegan(_CONFIG, _KIND, 0), _NOW)
    findings = await compare_listing(listing, objects, models.status, _SPEC, "log")
    assert not findings.observed, "nothing has changed"


async def _cpu_milliseconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    coroutine = work()
    assert asyncio.iscoroutine(coroutine)
    await coroutine
    return (time.thread_time() - began) * 1_000


@asynccontextmanager
async def _measure_longest_block() -> AsyncGenerator[Callable[[], float]]:
    """Yield a function that returns the longest block of the event loop, in milliseconds."""
    longest, last_time = 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest, last_time
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last_time = max(longest, now - last_time), now

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    yield lambda: longest * 1_000
    task.cancel()


def _show(costs: Sequence[Costs]) -> None:
    table = Table("ms of CPU", title="Cost of a fleet")
    for each in costs:
        table.add_column(f"{each.shapes:,} resources", justify="right")
    table.add_column("target", justify="right")
    table.add_row(
        "one event folded and written, p99", *(f"{e.event:.3f}" for e in costs), f"{EVENT_MS}"
    )
    table.add_row("a sweep with nothing to do", *(f"{e.sweep:.3f}" for e in costs), f"{SWEEP_MS}")
    table.add_row("an unchanged listing compared", *(f"{e.compared:,.0f}" for e in costs), "-")
    table.add_row(
        "  longest block of the event loop", *(f"{e.blocked:.1f}" for e in costs), f"{BLOCK_MS}"
    )
    table.add_row(
        "memory of the rows, KB per resource", *(f"{e.kilobytes:.2f}" for e in costs), "-"
    )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    largest = costs[-1]
    met = largest.event < EVENT_MS and largest.sweep < SWEEP_MS and largest.blocked < BLOCK_MS
    print(f"targets at {largest.shapes:,} resources: {'met' if met else 'missed'}")


if __name__ == "__main__":
    sys.exit(app())
