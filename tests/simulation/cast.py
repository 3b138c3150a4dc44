"""Simulated processes, which run roles of ``reconciler.roles`` on the simulated bus."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from infra.jetstream.errors import BusError
from projections.read_models import ReadModels
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import SecretStores
from reconciler.roles.observer.observer import Observer
from reconciler.roles.process import Ports, load, run_parts
from tests.memory_bus.bus import MemoryBus
from tests.memory_bus.loop import Process
from tests.simulation.plan import ProcessPlan
from tests.simulation.vault import KEY, SimulatedSecrets, Vault

_RESTART_SECONDS = 1.0


@dataclass
class Stage:
    """What all processes share: the bus, the kinds of the API, and the secrets."""

    bus: MemoryBus
    kinds: KindRegistry
    vault: Vault


class Actor:
    """A process of the plan, which can be started, killed and restarted."""

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

    # --- starting and killing

    @property
    def is_up(self) -> bool:
        """Whether the process exists; it may be paused."""
        return self.process is not None and not self.process.dead

    def start(self) -> None:
        """Start the process, unless it is running."""
        if self.is_up:
            return
        self._starts += 1
        self.process = Process(f"{self.plan.name}.{self._starts}")
        self.main = self._stage.bus.loop.start(self.process, self._run())
        self.main.add_done_callback(self._on_end)

    def kill(self) -> None:
        """Kill the process; its connection to the bus is closed."""
        if self.process is None or self.process.dead:
            return
        self._stage.bus.loop.kill(self.process)
        self._stage.bus.forget_requests(self.process.name)
        self.models = None
        self.observer = None

    def _on_end(self, main: asyncio.Task[None]) -> None:
        """Record the error of a process that stopped on its own, unless the bus caused it."""
        if self.process is None or self.process.dead:
            return
        error = None if main.cancelled() else main.exception()
        if not _is_bus_error(error):
            self.failure = f"process {self.process.name} ended: {error!r}"
        self.kill()
        self._stage.bus.network.call_later(_RESTART_SECONDS, self.start)

    # --- the roles

    async def _run(self) -> None:
        assert self.process is not None
        ports = self._ports(self.process.name)
        parts = await load(ports, self.plan.roles, self._stage.kinds)
        async with run_parts(parts, self.plan.roles):
            keeps_models = {"projector", "observer"} & set(self.plan.roles)
            self.models = parts.models if keeps_models else None
            self.observer = parts.observer
            await asyncio.Event().wait()

    def _ports(self, name: str) -> Ports:
        bus, vault = self._stage.bus, self._stage.vault
        return bus.ports(
            name,
            new_id=self._new_id,
            clock_seconds=self.plan.clock_seconds,
            secrets=SecretStores({"files": SimulatedSecrets(vault, bus.network)}, KEY),
        )

    def _new_id(self) -> str:
        assert self.process is not None
        self._ids += 1
        return f"{self.process.name}-{self._ids}"


def _is_bus_error(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        several = cast("BaseExceptionGroup[BaseException]", error)
        return all(_is_bus_error(each) for each in several.exceptions)
    return isinstance(error, BusError)
