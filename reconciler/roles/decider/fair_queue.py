"""The queue of the decider: namespaces take turns, and each may have only so much waiting.

The intake hands messages out in their order, so a namespace that declares a lot at once would be
decided before everything that another namespace declares after it. The decider therefore takes in
all that is available, and decides a little of each namespace at a time. The order within a
namespace stays, and with it the order of each resource's messages (ADR 0062).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from events.subjects import BY_CLIENTS, intake_kind_of, namespace_of
from reconciler.ports import IntakeDelivery

MAX_MESSAGES_A_TURN: Final = 500
MAX_BYTES_A_TURN: Final = 4 * 1024 * 1024
"""About as much as goes into the log in one atomic batch."""


MAX_NAMESPACE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a namespace that may wait in a partition."""

_FEW_MESSAGES: Final = 100


class Quota(NamedTuple):
    """How much of a partition's messages may wait: of one namespace, and of all together.

    What is beyond it is refused if a client sent it. Messages of the reconciler's own roles are
    never refused.
    """

    messages: int
    bytes: int
    all_messages: int
    all_bytes: int

    @classmethod
    def of_slots(cls, slots: int) -> Quota:
        """Return a quarter for a namespace and half for all, of a partition's slots."""
        messages = max(_FEW_MESSAGES, slots // 4)
        return cls(messages, MAX_NAMESPACE_BYTES, 2 * messages, 4 * MAX_NAMESPACE_BYTES)


class Place(NamedTuple):
    """Whose actions at which API: a namespace, and the name of a ProviderConfig."""

    namespace: str
    provider_config: str


@dataclass(slots=True)
class _Waiting:
    """How much waits."""

    messages: int = 0
    bytes: int = 0

    def add(self, delivery: IntakeDelivery, sign: int = 1) -> None:
        self.messages += sign
        self.bytes += sign * len(delivery.payload)


@dataclass(slots=True)
class _Partition:
    """How much waits of one partition, in all and by namespace."""

    all: _Waiting = field(default_factory=_Waiting)
    by_namespace: dict[str, _Waiting] = field(default_factory=dict[str, _Waiting])


class FairQueue:
    """Messages that were handed out and are not decided yet."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._lanes: dict[str, deque[IntakeDelivery]] = {}  # in the order of their next turns
        self._partitions: dict[str, _Partition] = {}
        self._parked: dict[Place, dict[int, IntakeDelivery]] = {}
        self._excess: list[IntakeDelivery] = []

    def __bool__(self) -> bool:
        """Return whether something can be taken."""
        return bool(self._lanes)

    def __iter__(self) -> Iterator[IntakeDelivery]:
        """Iterate over all that waits, parked messages included."""
        yield from (each for lane in self._lanes.values() for each in lane)
        yield from (each for parked in self._parked.values() for each in parked.values())

    def add(self, deliveries: Iterable[IntakeDelivery]) -> None:
        """Have messages wait behind those of their namespace; set aside what exceeds the quota."""
        for each in deliveries:
            namespace = namespace_of(each.subject)
            if self._exceeds(each, namespace):
                self._excess.append(each)
                continue
            self._enter(namespace, each)
            self._lanes.setdefault(namespace, deque()).append(each)

    def park(self, place: Place, deliveries: Iterable[IntakeDelivery]) -> None:
        """Have messages wait until `resume`; one that was delivered again takes its own place."""
        parked = self._parked.setdefault(place, {})
        for each in deliveries:
            if each.position not in parked:
                self._enter(place.namespace, each)
            parked[each.position] = each

    @property
    def parked(self) -> Sequence[Place]:
        """Where messages are parked."""
        return list(self._parked)

    def resume(self, place: Place, most: int) -> Sequence[IntakeDelivery]:
        """Put the oldest parked messages of a place behind those of its namespace; return them."""
        parked = self._parked[place]
        resumed = [parked.pop(position) for position in list(islice(parked, most))]
        self._lanes.setdefault(place.namespace, deque()).extend(resumed)
        if not parked:
            del self._parked[place]
        return resumed

    def _exceeds(self, delivery: IntakeDelivery, namespace: str) -> bool:
        partition = self._partitions.get(partition_of(delivery))
        mine = None if partition is None else partition.by_namespace.get(namespace)
        if partition is None or mine is None:
            return False
        # What comes again was within the quota before.
        if delivery.delivered > 1 or intake_kind_of(delivery.subject) not in BY_CLIENTS:
            return False
        quota, everything = self._quota, partition.all
        if mine.messages >= quota.messages or mine.bytes >= quota.bytes:
            return True
        if everything.messages < quota.all_messages and everything.bytes < quota.all_bytes:
            return False
        # Several namespaces fill the partition: those with less than their share of it still may.
        share = len(partition.by_namespace)
        return mine.messages * share >= quota.all_messages or mine.bytes * share >= quota.all_bytes

    def take_excess(self) -> Sequence[IntakeDelivery]:
        """Return what exceeded the quota, to be refused."""
        excess, self._excess = self._excess, []
        return excess

    def take(self) -> Sequence[IntakeDelivery]:
        """Return the next messages to decide: as many of each namespace, as far as it has some.

        A lane whose share of the bytes is used up ends its turn: its next message may be long.
        """
        if len(self._lanes) == 1:
            return self._take_all_of_one()
        taken: list[IntakeDelivery] = []
        left = MAX_BYTES_A_TURN
        while self._lanes and len(taken) < MAX_MESSAGES_A_TURN and left > 0:
            messages = max(1, (MAX_MESSAGES_A_TURN - len(taken)) // len(self._lanes))
            size = left // len(self._lanes)
            for namespace in list(self._lanes):
                some = self._take_of(namespace, messages, size)
                left -= sum(len(each.payload) for each in some)
                taken += some
                if len(taken) >= MAX_MESSAGES_A_TURN or left <= 0:
                    break
        return taken

    def _take_all_of_one(self) -> Sequence[IntakeDelivery]:
        (namespace,) = self._lanes
        return self._take_of(namespace, MAX_MESSAGES_A_TURN, MAX_BYTES_A_TURN)

    def _take_of(self, namespace: str, messages: int, size: int) -> list[IntakeDelivery]:
        """Take from the front of a lane, at least one message; the lane goes behind the others."""
        lane, taken = self._lanes.pop(namespace), list[IntakeDelivery]()
        while lane and len(taken) < messages and size > 0:
            taken.append(lane.popleft())
            size -= len(taken[-1].payload)
        if lane:
            self._lanes[namespace] = lane
        for each in taken:
            self._leave(namespace, each)
        return taken

    def _enter(self, namespace: str, delivery: IntakeDelivery) -> None:
        partition = self._partitions.setdefault(partition_of(delivery), _Partition())
        partition.by_namespace.setdefault(namespace, _Waiting()).add(delivery)
        partition.all.add(delivery)

    def _leave(self, namespace: str, delivery: IntakeDelivery) -> None:
        partition = self._partitions[partition_of(delivery)]
        mine = partition.by_namespace[namespace]
        mine.add(delivery, -1)
        partition.all.add(delivery, -1)
        if not mine.messages:
            del partition.by_namespace[namespace]
            if not partition.by_namespace:
                del self._partitions[partition_of(delivery)]


def partition_of(delivery: IntakeDelivery) -> str:
    """Return the partition's number; messages that are still ``rec.…`` have one together."""
    first, second, *_ = delivery.subject.split(".", 2)
    return second if first == "in" else first
