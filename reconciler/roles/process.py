"""A process that runs some of the roles, over any implementation of the ports.

``reconciler.wiring`` runs it over JetStream, and the simulation in ``tests`` over its own bus. The
simulation thus covers the production wiring.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, get_args

from events.integrity import LogDamage
from events.log import LogEvent
from events.names import SYSTEM_NAMESPACE
from projections.read_models import ReadModels
from reconciler.ports import (
    ActionReader,
    DecisionSink,
    EventLog,
    IntakeReader,
    IntakeWriter,
    ListingReader,
    LogWatch,
    NameDirectory,
    RateStore,
    RowStore,
)
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import SecretStores
from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from reconciler.roles.decider.decider import Decider
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.objects.twins import TwinDetector
from reconciler.roles.observer.foreign_listings import ForeignListings
from reconciler.roles.observer.object_reads import ObjectReads
from reconciler.roles.observer.observer import Observer
from reconciler.roles.projector.projector import Projector, load_models
from reconciler.roles.projector.scrubber import Scrubber
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.definitions import Definitions
from reconciler.roles.runtime.log_feed import LogFeed
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.roles.runtime.runtime import Runtime
from reconciler.roles.sweeper.sweeper import Sweeper
from reconciler.roles.worker.name_checks import NameChecks, search_names
from reconciler.roles.worker.worker import Worker

Role = Literal["decider", "worker", "observer", "projector"]
ROLES: tuple[Role, ...] = get_args(Role)

_SYSTEM_PREFIX: Final = f"{SYSTEM_NAMESPACE}/"

RoleRun = Coroutine[None, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """One process's connection to the bus. Readers are created when a role requires them.

    ``watch`` detects that another log has replaced the one that this process follows. It is None
    for a bus with a fixed log.
    ``lost_events`` uses the read models to find resources whose newest events the log has lost.
    """

    name: str
    log: EventLog
    rows: RowStore
    rates: RateStore
    names: NameDirectory
    intake: IntakeWriter
    sink: DecisionSink
    intake_reader: Callable[[], IntakeReader]
    action_reader: Callable[[], ActionReader]
    listing_reader: Callable[[], ListingReader]
    lost_events: Callable[[ReadModels], Awaitable[Sequence[LogDamage]]]
    watch: LogWatch | None = None
    runtime: Runtime = field(default_factory=Runtime)
    max_actions: int = MAX_ACTIONS
    secrets: SecretStores = field(default_factory=SecretStores)


@dataclass(slots=True)
class ProcessParts:
    """The parts of a process that runs some of the roles."""

    ports: Ports
    kinds: KindRegistry
    models: ReadModels
    has_models: bool
    definitions: Definitions
    configurations: Configurations
    gates: ApiGates
    feed: LogFeed
    providers: ProviderPool
    twins: TwinDetector
    losses: Sequence[LogDamage] = ()
    projector: Projector | None = None
    scrubber: Scrubber | None = None
    observer: Observer | None = None
    closers: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def intake(self) -> IntakeWriter:
        """The process's writer for observations and results."""
        return self.ports.intake

    async def close(self) -> None:
        """Return unfinished work to the bus, then close the connections to the APIs."""
        await self.gates.close()
        await self.closers.aclose()
        await self.providers.close()


async def load(ports: Ports, roles: Sequence[Role], kinds: KindRegistry) -> ProcessParts:
    """Load the initial state of a process, before any role runs."""
    runtime = ports.runtime
    needs_models = "projector" in roles or "observer" in roles
    models = ReadModels()
    if needs_models:
        models = await load_models(ports.rows)
    losses = await ports.lost_events(models)
    after = models.position if needs_models else await ports.log.last_position()
    kinds = kinds.copy()
    definitions, configurations = Definitions(kinds), Configurations()
    gates = ApiGates(
        name=ports.name,
        configurations=configurations,
        intake=ports.intake,
        rates=ports.rates,
        log=ports.watch,
        runtime=runtime,
    )
    for damage in losses:
        definitions.mark_damage(damage)
        configurations.mark_damage(damage)
    # Loaded after the position is determined, so that the feed does not miss any event.
    await definitions.load(ports.log)
    await configurations.load(ports.log)
    await gates.load(ports.log)
    feed = LogFeed(ports.log, after=after)

    def apply(_position: int, event: LogEvent) -> None:
        if event.subject.startswith(_SYSTEM_PREFIX):  # unlike most events
            definitions.apply(event)
            configurations.apply(event)
            gates.apply(event)

    feed.subscribe(apply, definitions.event_types | configurations.event_types | gates.event_types)
    feed.subscribe_to_damage(definitions.mark_damage)
    feed.subscribe_to_damage(configurations.mark_damage)
    if ports.watch is not None:
        feed.subscribe(ports.watch.record_read)
    parts = ProcessParts(
        ports=ports,
        kinds=kinds,
        models=models,
        has_models=needs_models,
        definitions=definitions,
        configurations=configurations,
        gates=gates,
        feed=feed,
        providers=ProviderPool(kinds, configurations, ports.secrets),
        twins=TwinDetector(
            name=ports.name,
            log=ports.log,
            intake=ports.intake,
            configurations=configurations,
            runtime=runtime,
        ),
        losses=losses,
    )
    if needs_models:
        _follow_log(parts, writes="projector" in roles)
    return parts


def _follow_log(parts: ProcessParts, *, writes: bool) -> None:
    """Fold the log into the read models, through the projector if it runs."""
    subscriber = parts.models
    if writes:
        subscriber = parts.projector = Projector(parts.models, parts.ports.rows)
        parts.feed.add_backpressure(subscriber.wait_for_room)
    parts.feed.subscribe(subscriber.apply)
    parts.feed.subscribe_to_damage(subscriber.fold_damage)


@asynccontextmanager
async def run_parts(
    parts: ProcessParts, roles: Sequence[Role], *, bus_tasks: Sequence[Callable[[], RoleRun]] = ()
) -> AsyncGenerator[None]:
    """Run roles and the bus's own tasks, ``bus_tasks``, until the context ends.

    On entry, the process has read the whole log. A failed role ends the context with its error in
    an exception group. Without roles, nothing follows the log, so it may be replaced.
    """
    try:
        if not roles:
            yield
            return
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(parts.feed.run(), name="log feed")]
            if parts.ports.watch is not None:
                tasks.append(group.create_task(parts.ports.watch.run(), name="log watch"))
            # Started first, so that the rows of a long log are written while it is folded.
            if parts.projector is not None:
                tasks.append(group.create_task(parts.projector.run(), name="projector"))
            await _wait_until_caught_up(parts.feed, tasks[0])
            for role in roles:
                tasks += [group.create_task(run) for run in _ROLE_FACTORIES[role](parts)]
            tasks += [group.create_task(create()) for create in bus_tasks]
            tasks.append(group.create_task(parts.gates.run(), name="API gates"))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    finally:
        await parts.close()


async def _wait_until_caught_up(feed: LogFeed, task: asyncio.Task[None]) -> None:
    """Wait until the whole log is read, or reading it has failed."""
    waiting = asyncio.create_task(feed.caught_up.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _run_decider(parts: ProcessParts) -> list[RoleRun]:
    ports = parts.ports
    reader = ports.intake_reader()
    parts.closers.push_async_callback(reader.close)
    decider = Decider(
        reader=reader,
        log=ports.log,
        sink=ports.sink,
        kinds=parts.kinds,
        definitions=parts.definitions,
        configurations=parts.configurations,
        losses=parts.losses,
        runtime=ports.runtime,
        max_actions=ports.max_actions,
    )
    return [decider.run()]


def _run_worker(parts: ProcessParts) -> list[RoleRun]:
    ports = parts.ports
    reader = ports.action_reader()
    parts.closers.push_async_callback(reader.close)
    worker = Worker(
        name=ports.name,
        reader=reader,
        intake=ports.intake,
        log=ports.log,
        configurations=parts.configurations,
        providers=parts.providers,
        gates=parts.gates,
        twins=parts.twins,
        names=NameChecks(ports.names, parts.models if parts.has_models else None),
        runtime=ports.runtime,
    )
    return [worker.run()]


def _run_observer(parts: ProcessParts) -> list[RoleRun]:
    ports, runtime = parts.ports, parts.ports.runtime
    reads = ObjectReads(
        intake=ports.intake,
        configurations=parts.configurations,
        providers=parts.providers,
        models=parts.models,
        log_id=ports.log.log_id,
        gates=parts.gates,
        twins=parts.twins,
        runtime=runtime,
    )
    parts.feed.subscribe(reads.handle_event)
    parts.observer = Observer(
        intake=ports.intake,
        configurations=parts.configurations,
        providers=parts.providers,
        kinds=parts.kinds,
        models=parts.models,
        log_id=ports.log.log_id,
        gates=parts.gates,
        name=ports.name,
        reads=reads,
        sink=ports.sink,
        catch_up=parts.feed.catch_up,
        twins=parts.twins,
        runtime=runtime,
    )
    sweeper = Sweeper(
        intake=ports.intake,
        configurations=parts.configurations,
        kinds=parts.kinds,
        models=parts.models,
        bus_time=ports.rates.now,
        stores=ports.secrets,
        catch_up=parts.feed.catch_up,
        runtime=runtime,
    )
    parts.feed.subscribe(sweeper.handle_event, sweeper.event_types)
    parts.feed.subscribe(parts.observer.handle_event, Observer.event_types)
    parts.definitions.listen(parts.observer.handle_kind_change)
    parts.definitions.listen(sweeper.handle_kind_change)
    reader = ports.listing_reader()
    parts.closers.push_async_callback(reader.close)
    foreign = ForeignListings(
        reader=reader,
        sink=ports.sink,
        observer=parts.observer,
        configurations=parts.configurations,
        providers=parts.providers,
        runtime=runtime,
    )
    names = ports.names.answer(partial(search_names, parts.models))
    return [parts.observer.run(), reads.run(), sweeper.run(), foreign.run(), names]


def _run_projector(parts: ProcessParts) -> list[RoleRun]:
    assert parts.projector is not None
    ports = parts.ports
    parts.scrubber = Scrubber(ports.log, parts.projector.mark_damage, clock=ports.runtime.clock)
    return [parts.scrubber.run()]


_ROLE_FACTORIES: dict[Role, Callable[[ProcessParts], list[RoleRun]]] = {
    "decider": _run_decider,
    "worker": _run_worker,
    "observer": _run_observer,
    "projector": _run_projector,
}
