"""The decider's queue: namespaces take turns, and the number of waiting messages is limited.

The intake delivers in order, so a namespace that declares many resources would delay all later
declarations in others. Therefore, the decider fetches all available messages, and processes a few
from each namespace at a time. This keeps the order within a namespace, and so the order of each
resource's messages (ADR 0062).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from events.subjects import CLIENT_MESSAGES, MAX_CACHED_SUBJECTS, intake_kind_of, namespace_of
from reconciler.ports import IntakeDelivery

MAX_MESSAGES_PER_TURN: Final = 500
MAX_BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""About the size of one atomic batch in the log."""

MAX_NAMESPACE_BYTES: Final = 16 * 1024 * 1024
"""Limit on a namespace's waiting bytes in a partition."""

_FEW_MESSAGES: Final = 100


class Quota(NamedTuple):
    """Limits on a partition's waiting messages, per namespace and in total.

    Client messages beyond a limit are rejected. Messages from Reconciler's own roles never are.
    ``slots``: number of messages that may be delivered and not yet acknowledged.
    """

    messages: int
    bytes: int
    all_messages: int
    all_bytes: int
    slots: int

    @classmethod
    def for_slots(cls, slots: int) -> Quota:
        """Return a quota of a quarter of the slots per namespace, and half in total."""
        messages = max(_FEW_MESSAGES, slots // 4)
        return cls(messages, MAX_NAMESPACE_BYTES, 2 * messages, 4 * MAX_NAMESPACE_BYTES, slots)

    def max_parked(self, *, from_clients: bool) -> int:
        """Return the number of messages that may be parked.

        The results that end actions, and so resume parked messages, need the remaining slots.
        """
        return self.slots // (2 if from_clients else 4)


class Destination(msgspec.Struct, frozen=True, gc=False):
    """A namespace, and the name of the ProviderConfig for its actions."""

    namespace: str
    provider_config: str


class ParkingPlace(NamedTuple):
    """A partition, and whether the messages parked there come from clients or from roles."""

    partition: str
    from_clients: bool


ParkedCounts = Counter[ParkingPlace]
"""The number of parked messages."""


@dataclass(slots=True)
class _Waiting:
    """The number and size of waiting messages."""

    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Partition:
    """The waiting messages of one partition, in total and by namespace."""

    all: _Waiting = field(default_factory=_Waiting)
    by_namespace: defaultdict[str, _Waiting] = field(default_factory=lambda: defaultdict(_Waiting))


class FairQueue:
    """Messages that were delivered but not processed yet."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._lanes: dict[str, deque[IntakeDelivery]] = {}  # in turn order
        self._limits: dict[str, int] = {}  # messages per turn of a slow namespace
        self._partitions: defaultdict[str, _Partition] = defaultdict(_Partition)
        self._parked: dict[Destination, dict[int, IntakeDelivery]] = {}
        self._parked_counts = ParkedCounts()
        self._excess: list[IntakeDelivery] = []

    def __bool__(self) -> bool:
        """Return whether a message can be taken."""
        return bool(self._lanes)

    def __iter__(self) -> Iterator[IntakeDelivery]:
        """Iterate over all waiting messages, including parked ones."""
        yield from (each for lane in self._lanes.values() for each in lane)
        yield from (each for parked in self._parked.values() for each in parked.values())

    def add(self, deliveries: Iterable[IntakeDelivery]) -> None:
        """Append messages to their namespaces' lanes, and set aside those beyond the quota."""
        for each in deliveries:
            namespace = namespace_of(each.subject)
            if self._exceeds(each, namespace):
                self._excess.append(each)
                continue
            self._count(namespace, each)
            lane = self._lanes.get(namespace)
            if lane is None:
                lane = self._lanes[namespace] = deque()
            lane.append(each)

    def can_park(self, delivery: IntakeDelivery, reserved: ParkedCounts) -> bool:
        """Return whether a message may be parked, in addition to the ``reserved`` ones.

        Otherwise all slots might be taken by messages that wait for a result.
        """
        place = parking_place(delivery)
        limit = self._quota.max_parked(from_clients=place.from_clients)
        return self._parked_counts[place] + reserved[place] < limit

    def park(self, destination: Destination, deliveries: Iterable[IntakeDelivery]) -> None:
        """Keep messages until ``resume``. A redelivery replaces the earlier delivery."""
        parked = self._parked.setdefault(destination, {})
        for each in deliveries:
            if each.position not in parked:
                self._count(destination.namespace, each)
                self._parked_counts[parking_place(each)] += 1
            parked[each.position] = each

    @property
    def parked(self) -> Sequence[Destination]:
        """The destinations with parked messages."""
        return list(self._parked)

    def resume(self, destination: Destination, limit: int) -> Sequence[IntakeDelivery]:
        """Move a destination's oldest parked messages to its namespace's lane, and return them."""
        parked = self._parked[destination]
        resumed = [parked.pop(position) for position in list(islice(parked, limit))]
        self._parked_counts.subtract(map(parking_place, resumed))
        self._lanes.setdefault(destination.namespace, deque()).extend(resumed)
        if not parked:
            del self._parked[destination]
        return resumed

    def _exceeds(self, delivery: IntakeDelivery, namespace: str) -> bool:
        partition = self._partitions.get(partition_of(delivery.subject))
        waiting = None if partition is None else partition.by_namespace.get(namespace)
        if partition is None or waiting is None:
            return False
        quota, totals = self._quota, partition.all
        is_full = waiting.messages >= quota.messages or waiting.bytes >= quota.bytes
        is_total_full = totals.messages >= quota.all_messages or totals.bytes >= quota.all_bytes
        if not is_full and not is_total_full:
            return False
        # A redelivered message was already within the quota.
        if delivery.delivered > 1 or intake_kind_of(delivery.subject) not in CLIENT_MESSAGES:
            return False
        if is_full:
            return True
        # The partition is full: namespaces below their share may still add messages.
        share = len(partition.by_namespace)
        return (
            waiting.messages * share >= quota.all_messages
            or waiting.bytes * share >= quota.all_bytes
        )

    def take_excess(self) -> Sequence[IntakeDelivery]:
        """Return the messages beyond the quota, which the caller rejects."""
        excess, self._excess = self._excess, []
        return excess

    def take(self) -> Sequence[IntakeDelivery]:
        """Return the next messages to process, the same number for each namespace if available.

        A lane's turn ends when its share of the bytes is used up, because its next message may be
        long. A namespace whose last messages took too long gets fewer.
        """
        batch: list[IntakeDelivery] = []
        remaining_bytes = MAX_BYTES_PER_TURN
        limits, lanes = dict(self._limits), list(self._lanes)
        while lanes and len(batch) < MAX_MESSAGES_PER_TURN and remaining_bytes > 0:
            messages = max(1, (MAX_MESSAGES_PER_TURN - len(batch)) // len(lanes))
            size = remaining_bytes // len(lanes)
            for namespace in lanes:
                limit = limits.get(namespace, MAX_MESSAGES_PER_TURN)
                chunk, taken_bytes = self._take_from(namespace, min(messages, limit), size)
                limits[namespace] = limit - len(chunk)
                remaining_bytes -= taken_bytes
                batch += chunk
                if len(batch) >= MAX_MESSAGES_PER_TURN or remaining_bytes <= 0:
                    break
            lanes = [each for each in self._lanes if limits.get(each, 1) > 0]
        return batch

    def put_back(
        self, undecided: Sequence[IntakeDelivery], taken: Sequence[IntakeDelivery]
    ) -> None:
        """Return undecided messages to the front of their lanes.

        In its next turn, such a namespace gets as many messages as were decided, and twice as many
        in the turn after that. A namespace without a decision goes first.
        """
        if not undecided and not self._limits:
            return
        decided = Counter([namespace_of(each.subject) for each in taken])
        decided.subtract([namespace_of(each.subject) for each in undecided])
        returned: defaultdict[str, list[IntakeDelivery]] = defaultdict(list)
        for each in undecided:
            returned[namespace_of(each.subject)].append(each)
        for namespace in decided.keys() & self._limits.keys():
            self._limits[namespace] *= 2
            if self._limits[namespace] >= MAX_MESSAGES_PER_TURN or namespace not in self._lanes:
                del self._limits[namespace]
        for namespace, deliveries in returned.items():
            lane = self._lanes.pop(namespace, deque[IntakeDelivery]())
            lane.extendleft(reversed(deliveries))
            for each in deliveries:
                self._count(namespace, each)
            self._limits[namespace] = max(1, decided[namespace])
            if decided[namespace]:
                self._lanes[namespace] = lane
            else:
                self._lanes = {namespace: lane, **self._lanes}

    def _take_from(
        self, namespace: str, messages: int, size: int
    ) -> tuple[list[IntakeDelivery], int]:
        """Take at least one message from the front of a lane, and move the lane to the end.

        Also return the number of bytes taken.
        """
        lane, chunk, taken_bytes = self._lanes.pop(namespace), list[IntakeDelivery](), 0
        for _ in range(min(messages, len(lane))):
            delivery = lane.popleft()
            chunk.append(delivery)
            taken_bytes += self._uncount(namespace, delivery)
            if taken_bytes >= size:
                break
        if lane:
            self._lanes[namespace] = lane
        return chunk, taken_bytes

    def _count(self, namespace: str, delivery: IntakeDelivery) -> None:
        partition = self._partitions[partition_of(delivery.subject)]
        size = len(delivery.payload)
        for waiting in (partition.all, partition.by_namespace[namespace]):
            waiting.messages += 1
            waiting.bytes += size

    def _uncount(self, namespace: str, delivery: IntakeDelivery) -> int:
        """Stop counting a message as waiting. Return its size in bytes."""
        partition = self._partitions[partition_of(delivery.subject)]
        size = len(delivery.payload)
        for waiting in (partition.all, partition.by_namespace[namespace]):
            waiting.messages -= 1
            waiting.bytes -= size
        if not partition.by_namespace[namespace].messages:
            del partition.by_namespace[namespace]
            if not partition.by_namespace:
                del self._partitions[partition_of(delivery.subject)]
        return size


def parking_place(delivery: IntakeDelivery) -> ParkingPlace:
    """Return where a message is parked."""
    from_clients = intake_kind_of(delivery.subject) in CLIENT_MESSAGES
    return ParkingPlace(partition_of(delivery.subject), from_clients)


@lru_cache(MAX_CACHED_SUBJECTS)
def partition_of(subject: str) -> str:
    """Return the number of a message's partition. Messages under ``rec.…`` share one."""
    first, second, *_ = subject.split(".", 2)
    return second if first == "in" else first
