"""The decider's queue: namespaces take turns, and the number of waiting messages is limited.

The intake delivers in order, so a namespace that declares many resources would be decided before
all later declarations of others. Therefore the decider fetches all available messages, and decides
some of each namespace at a time. The order within a namespace is kept, and so is the order of each
resource's messages (ADR 0062).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from events.subjects import CLIENT_MESSAGES, intake_kind_of, namespace_of
from reconciler.ports import IntakeDelivery

MAX_MESSAGES_A_TURN: Final = 500
MAX_BYTES_A_TURN: Final = 4 * 1024 * 1024
"""About the size of one atomic batch in the log."""


MAX_NAMESPACE_BYTES: Final = 16 * 1024 * 1024
"""Limit of a namespace's waiting bytes in a partition."""

_FEW_MESSAGES: Final = 100


class Quota(NamedTuple):
    """Limits of a partition's waiting messages: for one namespace, and for all together.

    Messages of clients beyond a limit are rejected. Messages of Reconciler's own roles never are.
    """

    messages: int
    bytes: int
    all_messages: int
    all_bytes: int

    @classmethod
    def of_slots(cls, slots: int) -> Quota:
        """Return a quarter of a partition's slots for a namespace, and half for all."""
        messages = max(_FEW_MESSAGES, slots // 4)
        return cls(messages, MAX_NAMESPACE_BYTES, 2 * messages, 4 * MAX_NAMESPACE_BYTES)


class Place(NamedTuple):
    """A namespace, and the name of a ProviderConfig at which its actions run."""

    namespace: str
    provider_config: str


@dataclass(slots=True)
class _Waiting:
    """The number and size of waiting messages."""

    messages: int = 0
    bytes: int = 0

    def add(self, delivery: IntakeDelivery, sign: int = 1) -> None:
        self.messages += sign
        self.bytes += sign * len(delivery.payload)


@dataclass(slots=True)
class _Partition:
    """The waiting messages of one partition, in total and by namespace."""

    all: _Waiting = field(default_factory=_Waiting)
    by_namespace: dict[str, _Waiting] = field(default_factory=dict[str, _Waiting])


class FairQueue:
    """Messages that were delivered and not decided yet."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._lanes: dict[str, deque[IntakeDelivery]] = {}  # in the order of their next turns
        self._partitions: dict[str, _Partition] = {}
        self._parked: dict[Place, dict[int, IntakeDelivery]] = {}
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
            self._enter(namespace, each)
            self._lanes.setdefault(namespace, deque()).append(each)

    def park(self, place: Place, deliveries: Iterable[IntakeDelivery]) -> None:
        """Keep messages until `resume`. A redelivered one replaces its earlier delivery."""
        parked = self._parked.setdefault(place, {})
        for each in deliveries:
            if each.position not in parked:
                self._enter(place.namespace, each)
            parked[each.position] = each

    @property
    def parked(self) -> Sequence[Place]:
        """The places with parked messages."""
        return list(self._parked)

    def resume(self, place: Place, most: int) -> Sequence[IntakeDelivery]:
        """Append the oldest parked messages of a place to its namespace's lane. Return them."""
        parked = self._parked[place]
        resumed = [parked.pop(position) for position in list(islice(parked, most))]
        self._lanes.setdefault(place.namespace, deque()).extend(resumed)
        if not parked:
            del self._parked[place]
        return resumed

    def _exceeds(self, delivery: IntakeDelivery, namespace: str) -> bool:
        partition = self._partitions.get(partition_of(delivery))
        waiting = None if partition is None else partition.by_namespace.get(namespace)
        if partition is None or waiting is None:
            return False
        # A redelivered message was within the quota before.
        if delivery.delivered > 1 or intake_kind_of(delivery.subject) not in CLIENT_MESSAGES:
            return False
        quota, everything = self._quota, partition.all
        if waiting.messages >= quota.messages or waiting.bytes >= quota.bytes:
            return True
        if everything.messages < quota.all_messages and everything.bytes < quota.all_bytes:
            return False
        # Several namespaces fill the partition: those below their share may still add messages.
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
        """Return the next messages to decide: the same number of each namespace, if available.

        A lane whose share of the bytes is used up ends its turn, because its next message may be
        long.
        """
        if len(self._lanes) == 1:
            return self._take_all_of_one()
        messages_of_turn: list[IntakeDelivery] = []
        left = MAX_BYTES_A_TURN
        while self._lanes and len(messages_of_turn) < MAX_MESSAGES_A_TURN and left > 0:
            messages = max(1, (MAX_MESSAGES_A_TURN - len(messages_of_turn)) // len(self._lanes))
            size = left // len(self._lanes)
            for namespace in list(self._lanes):
                some = self._take_of(namespace, messages, size)
                left -= sum(len(each.payload) for each in some)
                messages_of_turn += some
                if len(messages_of_turn) >= MAX_MESSAGES_A_TURN or left <= 0:
                    break
        return messages_of_turn

    def _take_all_of_one(self) -> Sequence[IntakeDelivery]:
        (namespace,) = self._lanes
        return self._take_of(namespace, MAX_MESSAGES_A_TURN, MAX_BYTES_A_TURN)

    def _take_of(self, namespace: str, messages: int, size: int) -> list[IntakeDelivery]:
        """Take at least one message from the front of a lane, and move the lane to the end."""
        lane, some_taken = self._lanes.pop(namespace), list[IntakeDelivery]()
        while lane and len(some_taken) < messages and size > 0:
            some_taken.append(lane.popleft())
            size -= len(some_taken[-1].payload)
        if lane:
            self._lanes[namespace] = lane
        for each in some_taken:
            self._leave(namespace, each)
        return some_taken

    def _enter(self, namespace: str, delivery: IntakeDelivery) -> None:
        partition = self._partitions.setdefault(partition_of(delivery), _Partition())
        partition.by_namespace.setdefault(namespace, _Waiting()).add(delivery)
        partition.all.add(delivery)

    def _leave(self, namespace: str, delivery: IntakeDelivery) -> None:
        partition = self._partitions[partition_of(delivery)]
        waiting = partition.by_namespace[namespace]
        waiting.add(delivery, -1)
        partition.all.add(delivery, -1)
        if not waiting.messages:
            del partition.by_namespace[namespace]
            if not partition.by_namespace:
                del self._partitions[partition_of(delivery)]


def partition_of(delivery: IntakeDelivery) -> str:
    """Return the number of a message's partition. Messages under ``rec.…`` share one."""
    first, second, *_ = delivery.subject.split(".", 2)
    return second if first == "in" else first
