"""How a reader receives messages: it pulls them, or the server pushes new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tests.memory_bus.faults import RequestType
from tests.memory_bus.loop import current_process
from tests.memory_bus.network import Network

_T = TypeVar("_T")
Deliver = Callable[[list[_T]], None]
"""Delivers messages to the reader that requested them."""

_AWAY_SECONDS = 0.5


async def pull(
    network: Network,
    what: RequestType,
    request: Callable[[Deliver[_T]], object],
    expires_seconds: float,
) -> list[_T]:
    """Request messages and wait; return none if none arrive in time.

    ``request`` is called with a callback when the request arrives at the server. A message that is
    delayed on its way back counts as delivered, and may be redelivered before it arrives.
    """
    arrived: asyncio.Future[list[_T]] = asyncio.get_running_loop().create_future()

    def set_arrived(batch: list[_T]) -> None:
        if not arrived.done():
            arrived.set_result(batch)

    fault = network.strike(what)
    await network.before(fault)
    delay = network.latency()
    if fault is not None and fault.strike in ("delay", "lose reply"):
        delay += fault.seconds

    def deliver(batch: list[_T]) -> None:
        network.call_later(delay, lambda: set_arrived(batch))

    network.call_later(network.latency(), lambda: request(deliver))
    network.after(fault)
    try:
        async with asyncio.timeout(expires_seconds + 2 * delay + 0.5):
            return await arrived
    except TimeoutError:
        return []


class Pushed(Generic[_T]):
    """Pushes the new items of a list on the server to a process, in order and without loss."""

    def __init__(
        self, source: Sequence[_T], network: Network, after: int, what: RequestType
    ) -> None:
        self._source = source
        self._network = network
        self._what: RequestType = what
        self._process = current_process()
        self._sent_position = after
        self._is_sending = False
        self._arrived: list[_T] = []
        self._new_arrival = asyncio.Event()

    def send(self) -> None:
        """Push new items, some time after they were stored."""
        if self._process.dead or self._is_sending or self._sent_position >= len(self._source):
            return
        self._is_sending = True
        fault = self._network.strike(self._what)
        delay = 0.0 if fault is None else fault.seconds
        self._network.call_later(self._network.latency() + delay, self._arrive)

    def _arrive(self) -> None:
        if self._network.is_away:
            self._network.call_later(_AWAY_SECONDS, self._arrive)
            return
        self._is_sending = False
        self._arrived += self._source[self._sent_position :]
        self._sent_position = len(self._source)
        self._new_arrival.set()

    async def next(self) -> list[_T]:
        """Wait for new items."""
        while not self._arrived:
            self._new_arrival.clear()
            await self._new_arrival.wait()
        arrived, self._arrived = self._arrived, []
        return arrived
