"""Decided actions: handed to one worker each, again when its lease ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from events.log import log_class
from reconciler.ports import ActionDelivery, ShapeAppend, StoredEvent
from tests.simulation.bus.deliveries import Consumer
from tests.simulation.bus.log import LogStream
from tests.simulation.bus.reading import Answer, pull
from tests.simulation.network import Network

LEASE_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 5.0


class ActionQueue:
    """The workers' consumer of the log."""

    def __init__(self, log: LogStream, network: Network, time: Callable[[], float]) -> None:
        self._log = log
        self._network = network
        self._time = time
        self._consumer = Consumer(LEASE_SECONDS)
        self._requests: list[tuple[str, int, float, Answer[ActionDelivery]]] = []
        self._wake_at = 0.0
        log.after_store.append(self._stored)

    def _stored(self, _append: ShapeAppend, stored: Sequence[StoredEvent]) -> None:
        for each in stored:
            if log_class(each.event.data) == "action":
                self._consumer.add(each.position)
        self._network.outside(0, self.serve)

    @property
    def is_idle(self) -> bool:
        """Whether every action was executed and acknowledged."""
        return self._consumer.is_idle

    def request(self, reader: str, most: int, answer: Answer[ActionDelivery]) -> None:
        """Have actions handed to a worker when there are some."""
        self._requests.append((reader, most, self._time() + _ASK_AGAIN_SECONDS, answer))
        self.serve()

    def forget_requests(self, reader: str) -> None:
        """Drop the requests of a worker whose connection is closed."""
        self._requests = [each for each in self._requests if each[0] != reader]

    def serve(self) -> None:
        """Hand out what can be handed out now."""
        if self._network.is_away:
            return
        now = self._time()
        self._requests = [each for each in self._requests if each[2] > now]
        while self._requests:
            given = self._consumer.hand_out(self._requests[0][1], now)
            if not given:
                break
            _, _, _, answer = self._requests.pop(0)
            answer([self._delivery(*each) for each in given])
        due = self._consumer.next_due()
        if due is not None and self._requests and self._wake_at <= now:
            self._wake_at = max(due, now + 0.05)
            self._network.outside(self._wake_at - now, self.serve)

    def _delivery(self, position: int, delivered: int) -> ActionDelivery:
        return ActionDelivery(position, self._log.events[position - 1].event, delivered, None)

    def ack(self, positions: Sequence[int]) -> None:
        """Hand these out no more."""
        self._consumer.ack(positions)

    def extend(self, positions: Sequence[int]) -> None:
        """Begin the leases of these anew."""
        self._consumer.extend(positions, self._time())

    def give_back(self, positions: Sequence[int]) -> None:
        """Hand these to others at once."""
        self._consumer.again(positions, self._time())
        self.serve()

    def deliver_again(self, count: int) -> None:
        """Hand out the newest again."""
        self._consumer.forget_acks(count, self._time())
        self.serve()


class SimulatedActionReader:
    """Implements ``reconciler.ports.ActionReader`` for one process."""

    def __init__(self, queue: ActionQueue, network: Network, name: str, seed: str) -> None:
        self._queue = queue
        self._network = network
        self._name = name
        self._random = random.Random(seed)
        self._leased: set[int] = set()

    async def next_batch(self) -> Sequence[ActionDelivery]:
        while True:
            batch = await pull(self._network, "actions", self._request, _ASK_AGAIN_SECONDS)
            if batch:
                self._leased |= {each.position for each in batch}
                return batch

    def _request(self, answer: Answer[ActionDelivery]) -> None:
        self._queue.request(self._name, self._random.choice((1, 2, 8)), answer)

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        positions = [each.position for each in deliveries]
        self._leased -= set(positions)
        self._network.send("action ack", lambda: self._queue.ack(positions))

    async def still_working(self, deliveries: Sequence[ActionDelivery]) -> None:
        positions = [each.position for each in deliveries]
        self._network.send("sign of life", lambda: self._queue.extend(positions))

    async def close(self) -> None:
        self._queue.give_back(list(self._leased))
