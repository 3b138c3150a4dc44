"""The only place of this package that knows what implements the ports: processes are wired here."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

from nats.aio.client import Client

from events.integrity import LogDamage
from infra.bus.actions import JetStreamActionReader
from infra.bus.decision_sink import JetStreamDecisionSink
from infra.bus.foreign_snapshots import JetStreamSnapshotReader
from infra.bus.intake import JetStreamIntakeReader, JetStreamIntakeWriter
from infra.bus.intake_trim import trim_for_ever
from infra.bus.patience import patiently
from infra.bus.rates import JetStreamRates
from infra.bus.removed import check_intake_positions
from infra.bus.rows import JetStreamRows
from infra.bus.shape_log import JetStreamShapeLog, open_log
from infra.bus.streams import Topology, ensure_topology
from infra.jetstream.access import ANYBODY, Access
from infra.jetstream.connection import close, connect, require_jetstream
from projections.read_models import (
    CHECKPOINT,
    DAMAGE,
    ReadModels,
    decode_checkpoint,
    decode_damage,
)
from reconciler.failpoints import arm_from_environment
from reconciler.kinds import KindRegistry, installed_kinds
from reconciler.services.api_gates import ApiGates
from reconciler.services.configurations import Configurations
from reconciler.services.decider import Decider
from reconciler.services.foreign_snapshots import ForeignSnapshots
from reconciler.services.log_feed import LogFeed
from reconciler.services.lost_events import mark_lost
from reconciler.services.observer import Observer
from reconciler.services.projector import Projector, load_models
from reconciler.services.providers import ProviderPool
from reconciler.services.scrubber import Scrubber
from reconciler.services.sweeper import Sweeper
from reconciler.services.worker import Worker

Role = Literal["decider", "worker", "observer", "projector"]
ROLES: tuple[Role, ...] = get_args(Role)
START_PATIENCE_SECONDS = 60.0
"""How long a process waits for the streams: a node that recovers, or an election, is no reason to
end, and to be started again by whoever watches over it."""


def process_name() -> str:
    """Name this process in events and on the server: host and process id."""
    return f"reconciler@{socket.gethostname()}:{os.getpid()}"


@asynccontextmanager
async def connected(
    url: str, *, access: Access = ANYBODY, patience_seconds: float = 30
) -> AsyncGenerator[Client]:
    """Connect to a JetStream that is new enough, and close in order at the end.

    ``patience_seconds``: how long a server may take that is still starting. Raises
    ``BusAccessError``, ``BusUnavailableError`` or ``IncompatibleServerError``.
    """
    nc = await connect(url, name=process_name(), access=access, patience_seconds=patience_seconds)
    try:
        await patiently(nc, lambda: require_jetstream(nc), seconds=patience_seconds)
        yield nc
    finally:
        await close(nc)


async def initialise(nc: Client, *, replicas: int = 1) -> Topology:
    """Make or upgrade every stream, consumer and bucket; doing it again changes nothing."""
    arm_from_environment()
    return await ensure_topology(nc, replicas=replicas)


@dataclass(slots=True)
class Running:
    """The parts of a process that runs some of the roles."""

    nc: Client
    kinds: KindRegistry
    log: JetStreamShapeLog
    store: JetStreamRows
    models: ReadModels
    configurations: Configurations
    gates: ApiGates
    feed: LogFeed
    providers: ProviderPool
    intake: JetStreamIntakeWriter
    lost: Sequence[LogDamage] = ()
    projector: Projector | None = None
    scrubber: Scrubber | None = None
    observer: Observer | None = None
    foreign_snapshots: ForeignSnapshots | None = None
    closers: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def close(self) -> None:
        """Give back what was taken from the bus, then close the connections to the APIs."""
        await self.closers.aclose()
        await self.providers.close()


@asynccontextmanager
async def running(
    nc: Client, roles: Sequence[Role], *, kinds: KindRegistry | None = None
) -> AsyncGenerator[Running]:
    """Run roles until the context ends; the streams must exist (``initialise``).

    When entered, the process knows all that the log has. A role that fails ends the context, and
    its error comes out in an exception group. Raises ``ConfigurationError`` for a failpoint in the
    environment that cannot be read (``reconciler.failpoints``).
    """
    arm_from_environment()
    known = kinds if kinds is not None else installed_kinds()
    parts = await patiently(nc, lambda: _load(nc, roles, known), seconds=START_PATIENCE_SECONDS)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(parts.feed.run(), name="log feed")]
            await _caught_up(parts.feed, tasks[0])
            for role in roles:
                tasks += [group.create_task(run) for run in _MAKERS[role](parts)]
            tasks.append(group.create_task(parts.gates.run(), name="API gates"))
            try:
                yield parts
            finally:
                for task in tasks:
                    task.cancel()
    finally:
        await parts.close()


async def _load(nc: Client, roles: Sequence[Role], kinds: KindRegistry) -> Running:
    log = await open_log(nc)
    store = JetStreamRows(nc)
    await check_intake_positions(nc)
    needs_models = "projector" in roles or "observer" in roles
    models = ReadModels()
    if needs_models:
        models = await load_models(store, clears="projector" in roles)
    lost = await _lost_events(log, store, models)
    after = models.position if needs_models else await log.last_position()
    configurations = Configurations()
    intake = JetStreamIntakeWriter(nc, process_name())
    gates = ApiGates(
        name=process_name(), configurations=configurations, intake=intake, rates=JetStreamRates(nc)
    )
    await configurations.load(log)  # not before: what came in between would be seen by nobody
    await gates.load(log)
    feed = LogFeed(log, after=after)
    feed.subscribe(lambda _position, event: configurations.apply(event))
    feed.subscribe(lambda _position, event: gates.apply(event))
    parts = Running(
        nc=nc,
        kinds=kinds,
        log=log,
        store=store,
        models=models,
        configurations=configurations,
        gates=gates,
        feed=feed,
        providers=ProviderPool(kinds, configurations),
        intake=intake,
        lost=lost,
    )
    if "projector" not in roles and needs_models:
        feed.subscribe(models.apply)
        feed.subscribe_to_damage(models.mark_damage)
    elif needs_models:
        _prepare_projector(parts)
    return parts


async def _lost_events(
    log: JetStreamShapeLog, store: JetStreamRows, models: ReadModels
) -> list[LogDamage]:
    """Find the shapes whose newest events the log has lost, by what the stored rows remember."""
    checkpoint = (await store.get([CHECKPOINT])).get(CHECKPOINT)
    last = await log.last_position()
    is_short = checkpoint is not None and decode_checkpoint(checkpoint).position > last
    if is_short or await log.missing_events():
        known = models if models.position else await load_models(store)
        await mark_lost(log, known)
        found = known.damage.values()
    else:
        found = [decode_damage(row) for row in (await store.matching(f"{DAMAGE}.>")).values()]
    return [each for each in found if each.problem == "Lost" and each.shape]


async def _caught_up(feed: LogFeed, task: asyncio.Task[None]) -> None:
    """Wait until the log is read, or its reading has failed."""
    waiting = asyncio.create_task(feed.caught_up.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _prepare_projector(parts: Running) -> None:
    parts.projector = Projector(parts.models, parts.store)
    parts.feed.subscribe(parts.projector.apply)
    parts.feed.subscribe_to_damage(parts.projector.mark_damage)


def _decider(parts: Running) -> list[Coroutine[None, None, None]]:
    reader = JetStreamIntakeReader(parts.nc)
    parts.closers.push_async_callback(reader.close)
    decider = Decider(
        reader=reader,
        log=parts.log,
        sink=JetStreamDecisionSink(parts.nc),
        kinds=parts.kinds,
        configurations=parts.configurations,
        lost=parts.lost,
    )
    return [decider.run(), trim_for_ever(parts.nc)]


def _worker(parts: Running) -> list[Coroutine[None, None, None]]:
    reader = JetStreamActionReader(parts.nc)
    parts.closers.push_async_callback(reader.close)
    worker = Worker(
        name=process_name(),
        reader=reader,
        intake=parts.intake,
        log=parts.log,
        configurations=parts.configurations,
        providers=parts.providers,
        gates=parts.gates,
    )
    return [worker.run()]


def _observer(parts: Running) -> list[Coroutine[None, None, None]]:
    parts.observer = Observer(
        intake=parts.intake,
        configurations=parts.configurations,
        providers=parts.providers,
        kinds=parts.kinds,
        models=parts.models,
        log_id=parts.log.log_id,
        gates=parts.gates,
        sink=JetStreamDecisionSink(parts.nc),
        catch_up=parts.feed.catch_up,
    )
    sweeper = Sweeper(intake=parts.intake, configurations=parts.configurations, models=parts.models)
    parts.feed.subscribe(sweeper.notice)
    reader = JetStreamSnapshotReader(parts.nc)
    parts.closers.push_async_callback(reader.close)
    parts.foreign_snapshots = ForeignSnapshots(
        reader=reader,
        sink=JetStreamDecisionSink(parts.nc),
        observer=parts.observer,
        configurations=parts.configurations,
        providers=parts.providers,
    )
    return [parts.observer.run(), sweeper.run(), parts.foreign_snapshots.run()]


def _projector(parts: Running) -> list[Coroutine[None, None, None]]:
    assert parts.projector is not None
    parts.scrubber = Scrubber(parts.log, parts.projector.mark_damage)
    return [parts.projector.run(), parts.scrubber.run()]


_MAKERS: dict[Role, Callable[[Running], list[Coroutine[None, None, None]]]] = {
    "decider": _decider,
    "worker": _worker,
    "observer": _observer,
    "projector": _projector,
}
