"""Decided actions: each is delivered to one worker, and redelivered when its lease ends."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from events.log import ActionDecided, ActionRetried, LogEvent, LookupDecided
from reconciler.ports import ActionDelivery, ResourceAppend, StoredEvent
from tests.memory_bus.deliveries import Consumer
from tests.memory_bus.log import LogStream
from tests.memory_bus.network import Network
from tests.memory_bus.reading import Deliver, pull

LEASE_SECONDS = 10.0
_REQUEST_SECONDS = 5.0


FreeSlots = Callable[[], Mapping[str, int]]
"""Returns how many actions of each configuration a reader can accept now."""


class ActionQueue:
    """The workers' consumers of the log, one for each configuration."""

    def __init__(
        self,
        log: LogStream,
        network: Network,
        time: Callable[[], float],
        *,
        max_ack_pending: int = 4_096,
    ) -> None:
        self._log = log
        self._network = network
        self._time = time
        self.consumers: dict[str, Consumer] = defaultdict(
            lambda: Consumer(LEASE_SECONDS, max_ack_pending=max_ack_pending)
        )
        self._requests: list[tuple[str, FreeSlots, float, Deliver[ActionDelivery]]] = []
        self._wake_at = 0.0
        log.after_store.append(self._stored)

    def _stored(self, _append: ResourceAppend, stored: Sequence[StoredEvent]) -> None:
        for each in stored:
            config = _configuration(each.event)
            if config is not None:
                self.consumers[config].add(each.position)
        self._network.call_later(0, self.serve)

    @property
    def is_idle(self) -> bool:
        """Whether every action was executed and acknowledged."""
        return all(consumer.is_idle for consumer in self.consumers.values())

    def request(self, reader: str, free_slots: FreeSlots, deliver: Deliver[ActionDelivery]) -> None:
        """Register a worker's request for actions; they are delivered as soon as there are some."""
        self._requests.append((reader, free_slots, self._time() + _REQUEST_SECONDS, deliver))
        self.serve()

    def forget_requests(self, reader: str) -> None:
        """Drop the requests of a worker whose connection is closed."""
        self._requests = [each for each in self._requests if each[0] != reader]

    def serve(self) -> None:
        """Deliver the actions that can be delivered now."""
        if self._network.is_away:
            return
        now = self._time()
        self._requests = [each for each in self._requests if each[2] > now]
        for request in list(self._requests):
            _, free_slots, _, deliver = request
            handed_out: list[tuple[int, int]] = []
            for config, free in free_slots().items():
                handed_out += self.consumers[config].deliver(free, now)
            if handed_out:
                self._requests.remove(request)
                deliver([self._delivery(*each) for each in sorted(handed_out)])
        dues = [consumer.next_redelivery() for consumer in self.consumers.values()]
        due = min((due for due in dues if due is not None), default=None)
        if due is not None and self._requests and self._wake_at <= now:
            self._wake_at = max(due, now + 0.05)
            self._network.call_later(self._wake_at - now, self.serve)

    def _delivery(self, position: int, delivered: int) -> ActionDelivery:
        return ActionDelivery(position, self._log.events[position - 1].event, delivered, None)

    def ack(self, positions: Sequence[int]) -> None:
        """Stop delivering these actions."""
        for consumer in self.consumers.values():
            consumer.ack(positions)
        self.serve()  # a slot may have become free

    def extend(self, positions: Sequence[int]) -> None:
        """Restart the leases of these actions."""
        for consumer in self.consumers.values():
            consumer.extend(positions, self._time())

    def release(self, positions: Iterable[int]) -> None:
        """Redeliver these actions to other workers immediately."""
        for consumer in self.consumers.values():
            consumer.redeliver_at(positions, self._time())
        self.serve()

    def deliver_again(self, count: int) -> None:
        """Redeliver the newest actions."""
        for consumer in self.consumers.values():
            consumer.redeliver_acknowledged(count, self._time())
        self.serve()


class MemoryActionReader:
    """Implements ``reconciler.ports.ActionReader`` for one process."""

    def __init__(self, queue: ActionQueue, network: Network, name: str, seed: str) -> None:
        self._queue = queue
        self._network = network
        self._name = name
        self._random = random.Random(seed)
        self._limits: dict[str, int] = {}
        self._leased: dict[int, str] = {}
        self._without_slot: set[int] = set()

    async def add_queue(self, provider_config: str, limit: int) -> None:
        self._limits[provider_config] = limit
        self._network.send("actions", self._queue.serve)

    async def next_batch(self) -> Sequence[ActionDelivery]:
        while True:
            batch = await pull(self._network, "actions", self._request, _REQUEST_SECONDS)
            if batch:
                for each in batch:
                    self._leased[each.position] = _configuration(each.event) or ""
                return batch

    def _request(self, deliver: Deliver[ActionDelivery]) -> None:
        max_count = self._random.choice((1, 2, 8))
        self._queue.request(self._name, lambda: self._free_slots(max_count), deliver)

    def _free_slots(self, max_count: int) -> Mapping[str, int]:
        leased = [name for at, name in self._leased.items() if at not in self._without_slot]
        free_slots = {name: size - leased.count(name) for name, size in self._limits.items()}
        return {name: min(max_count, free) for name, free in free_slots.items() if free > 0}

    def free_slot(self, delivery: ActionDelivery) -> None:
        self._without_slot.add(delivery.position)
        self._network.send("actions", self._queue.serve)

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        positions = [each.position for each in deliveries]
        for position in positions:
            self._leased.pop(position, None)
            self._without_slot.discard(position)
        self._network.send("action ack", lambda: self._queue.ack(positions))

    async def extend_leases(self, deliveries: Sequence[ActionDelivery]) -> None:
        positions = [each.position for each in deliveries]
        self._network.send("sign of life", lambda: self._queue.extend(positions))

    async def close(self) -> None:
        self._queue.release(list(self._leased))


def _configuration(event: LogEvent) -> str | None:
    """Return the configuration of an action; None for any other event."""
    if isinstance(event.data, (ActionDecided, ActionRetried, LookupDecided)):
        return event.data.action.provider_config
    return None
