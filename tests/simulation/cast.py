"""The processes: each runs some roles, wired as ``reconciler.wiring`` does it, over the bus."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import cast

from infra.jetstream.errors import BusError
from projections.read_models import ReadModels
from reconciler.kinds import KindRegistry
from reconciler.services.api_gates import ApiGates
from reconciler.services.configurations import Configurations
from reconciler.services.decider import Decider
from reconciler.services.log_feed import LogFeed
from reconciler.services.observer import Observer
from reconciler.services.projector import Projector, load_models
from reconciler.services.providers import ProviderPool
from reconciler.services.sweeper import Sweeper
from reconciler.services.worker import Worker
from tests.simulation.api import Api
from tests.simulation.bus.actions import ActionQueue, SimulatedActionReader
from tests.simulation.bus.decisions import Decisions, SimulatedSink
from tests.simulation.bus.intake import (
    IntakeStream,
    SimulatedIntakeReader,
    SimulatedIntakeWriter,
)
from tests.simulation.bus.log import LogStream, SimulatedLog
from tests.simulation.bus.rates import Rates, SimulatedRates
from tests.simulation.bus.rows import Rows, SimulatedRows
from tests.simulation.clock import Clock
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.plan import ProcessPlan

_RESTART_SECONDS = 1.0


@dataclass
class Stage:
    """What all processes share: the bus, the API and the ways to them."""

    loop: SimulatedLoop
    network: Network
    log: LogStream
    intake: IntakeStream
    actions: ActionQueue
    decisions: Decisions
    rows: Rows
    rates: Rates
    api: Api
    kinds: KindRegistry
    seed: str


class Actor:
    """One process of the plan: started, killed, paused and started again."""

    def __init__(self, plan: ProcessPlan, stage: Stage) -> None:
        self.plan = plan
        self._stage = stage
        self._starts = 0
        self._ids = 0
        self.process: Process | None = None
        self.models: ReadModels | None = None
        self.observer: Observer | None = None
        self.main: asyncio.Task[None] | None = None
        self.failure: str | None = None

    # --- life and death

    @property
    def is_up(self) -> bool:
        """Whether there is a process, though it may stand still."""
        return self.process is not None and not self.process.dead

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.is_up:
            return
        self._starts += 1
        self.process = Process(f"{self.plan.name}.{self._starts}")
        self.main = self._stage.loop.start(self.process, self._run())
        self.main.add_done_callback(self._ended)

    def kill(self) -> None:
        """Kill the process; its connection to the bus is closed."""
        if self.process is None or self.process.dead:
            return
        self._stage.loop.kill(self.process)
        self._stage.intake.forget_requests(self.process.name)
        self._stage.actions.forget_requests(self.process.name)
        self.models = None
        self.observer = None

    def _ended(self, main: asyncio.Task[None]) -> None:
        """A process that ends by itself ends by an error; only the bus may be the reason."""
        if self.process is None or self.process.dead:
            return
        error = None if main.cancelled() else main.exception()
        if not _is_of_the_bus(error):
            self.failure = f"process {self.process.name} ended: {error!r}"
        self.kill()
        self._stage.network.outside(_RESTART_SECONDS, self.start)

    # --- the roles

    async def _run(self) -> None:
        assert self.process is not None
        stage, roles, name = self._stage, self.plan.roles, self.process.name
        draw = random.Random(f"{stage.seed}/{name}/jitter").random
        clock = Clock(stage.loop.time, self.plan.clock_seconds)
        log = SimulatedLog(stage.log, stage.network)
        rows = SimulatedRows(stage.rows, stage.network)
        needs_models = "projector" in roles or "observer" in roles
        models = ReadModels()
        if needs_models:
            models = await load_models(rows, clears="projector" in roles)
        after = models.position if needs_models else await log.last_position()
        configurations = Configurations()
        intake = SimulatedIntakeWriter(stage.intake, stage.network, f"reconciler@{name}", clock)
        gates = ApiGates(
            name=name,
            configurations=configurations,
            intake=intake,
            rates=SimulatedRates(stage.rates, stage.network),
            now=clock.now,
            clock=stage.loop.time,
            jitter=draw,
            new_id=self._new_id,
        )
        await configurations.load(log)
        await gates.load(log)
        feed = LogFeed(log, after=after)
        feed.subscribe(lambda _position, event: configurations.apply(event))
        feed.subscribe(lambda _position, event: gates.apply(event))
        providers = ProviderPool(stage.kinds, configurations)
        projector = Projector(models, rows)
        if "projector" in roles:
            feed.subscribe(projector.apply)
        elif needs_models:
            feed.subscribe(models.apply)
        self.models = models if needs_models else None
        runs: list[Coroutine[None, None, None]] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(feed.run())
            await feed.caught_up.wait()
            runs.append(gates.run())
            if "projector" in roles:
                runs.append(projector.run())
            if "observer" in roles:
                self.observer = Observer(
                    intake=intake,
                    configurations=configurations,
                    providers=providers,
                    kinds=stage.kinds,
                    models=models,
                    log_id=log.log_id,
                    gates=gates,
                    sink=SimulatedSink(stage.decisions, stage.network, clock),
                    now=clock.now,
                    jitter=draw,
                    new_id=self._new_id,
                )
                sweeper = Sweeper(
                    intake=intake,
                    configurations=configurations,
                    models=models,
                    now=clock.now,
                    new_id=self._new_id,
                )
                feed.subscribe(sweeper.notice)
                runs += [self.observer.run(), sweeper.run()]
            if "decider" in roles:
                decider = Decider(
                    reader=SimulatedIntakeReader(
                        stage.intake, stage.network, name, f"{stage.seed}/{name}/intake"
                    ),
                    log=log,
                    sink=SimulatedSink(stage.decisions, stage.network, clock),
                    kinds=stage.kinds,
                    configurations=configurations,
                    now=clock.now,
                    jitter=draw,
                )
                runs.append(decider.run())
            if "worker" in roles:
                worker = Worker(
                    name=name,
                    reader=SimulatedActionReader(
                        stage.actions, stage.network, name, f"{stage.seed}/{name}/actions"
                    ),
                    intake=intake,
                    log=log,
                    configurations=configurations,
                    providers=providers,
                    gates=gates,
                    now=clock.now,
                )
                runs.append(worker.run())
            for run in runs:
                group.create_task(run)

    def _new_id(self) -> str:
        assert self.process is not None
        self._ids += 1
        return f"{self.process.name}-{self._ids}"


def _is_of_the_bus(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        several = cast("BaseExceptionGroup[BaseException]", error)
        return all(_is_of_the_bus(each) for each in several.exceptions)
    return isinstance(error, BusError)
