"""Rate limits: each has one time, in bus time, written by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable

from reconciler.ports import RateConflictError
from tests.memory_bus.clock import date_of
from tests.memory_bus.network import Network


class Rates:
    """The rate limits as the server stores them."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.time = time
        self.times: dict[str, tuple[float, int]] = {}

    def save(self, name: str, time: float, revision: int) -> int:
        """Replace a revision; raises ``RateConflictError``."""
        _, stored = self.times.get(name, (0.0, 0))
        if stored != revision:
            raise RateConflictError(f"wrong last sequence: {stored}")
        self.times[name] = time, revision + 1
        return revision + 1


class MemoryRates:
    """Implements ``reconciler.ports.RateStore`` for one process."""

    def __init__(self, rates: Rates, network: Network) -> None:
        self._rates = rates
        self._network = network

    async def now(self) -> float:
        return date_of(self._rates.time()).timestamp()

    async def load(self, name: str) -> tuple[float, int]:
        return await self._network.ask("rates", lambda: self._rates.times.get(name, (0.0, 0)))

    async def save(self, name: str, time: float, revision: int) -> int:
        return await self._network.ask("rates", lambda: self._rates.save(name, time, revision))
