"""Messages to be redelivered later, each of which keeps a slot of its partition until then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from events.subjects import namespace_of
from reconciler.ports import IntakeDelivery
from reconciler.roles.decider.fair_queue import partition_of

MAX_POSTPONED = 500
"""Postponed messages per namespace and partition, each for up to 32 seconds."""

_LATE_SECONDS = 60.0
"""Time after which a message that was not redelivered must be at another decider."""

_SHARES = 2
"""Number of shares for all namespaces together, so that several floods cannot fill a partition."""


@dataclass(slots=True)
class _Partition:
    """The used slots: position to namespace and expiry."""

    slots: dict[int, tuple[str, float]] = field(default_factory=dict[int, tuple[str, float]])
    by_namespace: Counter[str] = field(default_factory=Counter[str])

    def free(self, position: int) -> None:
        namespace, _ = self.slots.pop(position, ("", 0.0))
        self.by_namespace[namespace] -= 1
        if self.by_namespace[namespace] <= 0:
            del self.by_namespace[namespace]


class Postponed:
    """Counts the slots of each namespace that this process has postponed.

    A restart begins with none, and earlier postponed messages return within their delay. Only
    during this time can a namespace exceed its share. Times are of the monotonic clock.
    """

    def __init__(self, share: int) -> None:
        self._share = share
        self._partitions: dict[str, _Partition] = {}

    def returned(self, deliveries: Iterable[IntakeDelivery]) -> None:
        """Free the slots of redelivered messages."""
        if not self._partitions:
            return
        for each in deliveries:
            if (
                each.delivered > 1
                and (mine := self._partitions.get(partition_of(each))) is not None
            ):
                mine.free(each.position)
                if not mine.slots:
                    del self._partitions[partition_of(each)]

    def expire(self, now: float) -> None:
        """Free the slots of messages that were not redelivered here."""
        for mine in self._partitions.values():
            for position in [at for at, (_, until) in mine.slots.items() if until < now]:
                mine.free(position)

    def take(
        self, delivery: IntakeDelivery, now: float, seconds: float, *, always: bool = False
    ) -> bool:
        """Take a slot for some seconds. Return False if the namespace's or total share is used."""
        namespace = namespace_of(delivery.subject)
        mine = self._partitions.setdefault(partition_of(delivery), _Partition())
        is_full = len(mine.slots) >= _SHARES * self._share
        if not always and (is_full or mine.by_namespace[namespace] >= self._share):
            return False
        until = now + seconds + _LATE_SECONDS
        mine.slots[delivery.position] = (namespace, until)
        mine.by_namespace[namespace] += 1
        return True
