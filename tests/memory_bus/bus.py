"""The whole bus, and its ports for one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from reconciler.provider.secrets import SecretStores
from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from reconciler.roles.process import Ports
from reconciler.roles.projector.lost_events import find_log_losses
from reconciler.roles.runtime.runtime import Runtime
from tests.memory_bus.actions import ActionQueue, MemoryActionReader
from tests.memory_bus.clock import Clock
from tests.memory_bus.decisions import Decisions, MemoryDecisionSink
from tests.memory_bus.intake import (
    BATCH_SIZES,
    IntakeStream,
    MemoryIntakeReader,
    MemoryIntakeWriter,
)
from tests.memory_bus.listings import Listings, MemoryListingReader
from tests.memory_bus.log import LogStream, MemoryLog
from tests.memory_bus.loop import VirtualLoop
from tests.memory_bus.names import MemoryNameOwners, NameOwnersService
from tests.memory_bus.network import MAX_DELAY_SECONDS, Network
from tests.memory_bus.rates import MemoryRates, Rates
from tests.memory_bus.rows import MemoryRows, Rows

MAX_UNACKNOWLEDGED = 2_000
MAX_ACTIONS_LEASED = 4_096
ROWS_PER_SAVE = 900
_SLOW_DECISIONS = 0.02


class MemoryBus:
    """Streams, buckets and the network to them; ``seed`` decides latencies and batch sizes.

    ``max_unacknowledged`` and ``max_actions_leased`` limit how many messages a consumer delivers at
    the same time, as ``max_ack_pending`` does. ``may_be_damaged`` stores bytes and digests.
    ``slow_decisions``: the fraction of decisions that use up a batch's time.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        seed: str,
        *,
        max_unacknowledged: int = MAX_UNACKNOWLEDGED,
        max_actions_leased: int = MAX_ACTIONS_LEASED,
        max_actions: int = MAX_ACTIONS,
        rows_per_save: int = ROWS_PER_SAVE,
        batch_sizes: Sequence[int] = BATCH_SIZES,
        max_delay_seconds: float = MAX_DELAY_SECONDS,
        may_be_damaged: bool = False,
        slow_decisions: float = _SLOW_DECISIONS,
    ) -> None:
        time = loop.time
        self.loop = loop
        self.seed = seed
        self.network = Network(loop, f"{seed}/network", max_delay_seconds=max_delay_seconds)
        self.log = LogStream(time, may_be_damaged=may_be_damaged)
        self.intake = IntakeStream(
            self.network, time, f"{seed}/intake", max_ack_pending=max_unacknowledged
        )
        self.actions = ActionQueue(self.log, self.network, time, max_ack_pending=max_actions_leased)
        self.decisions = Decisions(self.intake, self.network, time, f"{seed}/timers")
        self.listings = Listings(time)
        self.rows = Rows()
        self.rates = Rates(time)
        self.names = NameOwnersService()
        self._rows_per_save = rows_per_save
        self._batch_sizes = batch_sizes
        self._max_actions = max_actions
        self._slow_decisions = slow_decisions

    def ports(
        self,
        name: str,
        *,
        new_id: Callable[[], str],
        clock_seconds: float = 0.0,
        secrets: SecretStores | None = None,
    ) -> Ports:
        """Return the ports of a process whose clock is off by ``clock_seconds``."""
        network, seed = self.network, f"{self.seed}/{name}"
        clock = Clock(self.loop.time, clock_seconds)
        log = MemoryLog(self.log, network)
        rows = MemoryRows(self.rows, network, rows_per_save=self._rows_per_save)
        return Ports(
            name=name,
            log=log,
            rows=rows,
            rates=MemoryRates(self.rates, network),
            names=MemoryNameOwners(self.names, self.loop),
            secrets=SecretStores() if secrets is None else secrets,
            intake=MemoryIntakeWriter(self.intake, network, f"reconciler@{name}", clock),
            sink=MemoryDecisionSink(self.decisions, network, clock),
            intake_reader=lambda: MemoryIntakeReader(
                self.intake, network, name, f"{seed}/intake", batch_sizes=self._batch_sizes
            ),
            action_reader=lambda: MemoryActionReader(
                self.actions, network, name, f"{seed}/actions"
            ),
            listing_reader=lambda: MemoryListingReader(self.listings, network),
            lost_events=lambda models: find_log_losses(log, rows, models),
            runtime=Runtime(
                now=clock.now,
                clock=self.loop.time,
                cpu_time=_cpu_time(random.Random(f"{seed}/cpu_time"), self._slow_decisions),
                jitter=random.Random(f"{seed}/jitter").random,
                new_id=new_id,
            ),
            max_actions=self._max_actions,
        )

    def forget_requests(self, name: str) -> None:
        """Drop the open requests of a process that was killed."""
        self.intake.forget_requests(name)
        self.actions.forget_requests(name)

    @property
    def is_idle(self) -> bool:
        """Whether every message has been decided, and every action executed."""
        return self.intake.is_idle and self.actions.is_idle


def _cpu_time(random_source: random.Random, slow_decisions: float) -> Callable[[], float]:
    """Return a clock on which a few decisions use up a batch's time."""
    seconds = 0.0

    def read() -> float:
        nonlocal seconds
        seconds += 0.03 if random_source.random() < slow_decisions else 0.0
        return seconds

    return read
