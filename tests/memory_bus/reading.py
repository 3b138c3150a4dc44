"""How a reader gets what the server has: it asks and waits, or is pushed what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tests.memory_bus.faults import Sort
from tests.memory_bus.loop import current_process
from tests.memory_bus.network import Network

_T = TypeVar("_T")
Answer = Callable[[list[_T]], None]
"""Hands messages to the reader that asked for them."""

_AWAY_SECONDS = 0.5


async def pull(
    network: Network, what: Sort, request: Callable[[Answer[_T]], object], expires_seconds: float
) -> list[_T]:
    """Request messages and wait; return none if none came in time.

    ``request`` is called when the request arrives at the server, with the way back. A message that
    is late on that way counts as delivered, and may be delivered again before it arrives.
    """
    arrived: asyncio.Future[list[_T]] = asyncio.get_running_loop().create_future()

    def give(batch: list[_T]) -> None:
        if not arrived.done():
            arrived.set_result(batch)

    fault = network.strike(what)
    await network.before(fault)
    way = network.latency()
    if fault is not None and fault.strike in ("delay", "lose reply"):
        way += fault.seconds

    def answer(batch: list[_T]) -> None:
        network.outside(way, lambda: give(batch))

    network.outside(network.latency(), lambda: request(answer))
    network.after(fault)
    try:
        async with asyncio.timeout(expires_seconds + 2 * way + 0.5):
            return await arrived
    except TimeoutError:
        return []


class Pushed(Generic[_T]):
    """What is new in a list of the server's, pushed to a process in order; nothing is lost."""

    def __init__(self, source: Sequence[_T], network: Network, after: int, what: Sort) -> None:
        self._source = source
        self._network = network
        self._what: Sort = what
        self._process = current_process()
        self._sent_position = after
        self._is_sending = False
        self._arrived: list[_T] = []
        self._news = asyncio.Event()

    def send(self) -> None:
        """Push what is new, some time after it was stored."""
        if self._process.dead or self._is_sending or self._sent_position >= len(self._source):
            return
        self._is_sending = True
        fault = self._network.strike(self._what)
        late = 0.0 if fault is None else fault.seconds
        self._network.outside(self._network.latency() + late, self._arrive)

    def _arrive(self) -> None:
        if self._network.is_away:
            self._network.outside(_AWAY_SECONDS, self._arrive)
            return
        self._is_sending = False
        self._arrived += self._source[self._sent_position :]
        self._sent_position = len(self._source)
        self._news.set()

    async def next(self) -> list[_T]:
        """Wait for what is new."""
        while not self._arrived:
            self._news.clear()
            await self._news.wait()
        arrived, self._arrived = self._arrived, []
        return arrived
