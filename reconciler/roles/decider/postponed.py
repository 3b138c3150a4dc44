"""Postponed messages, each of which occupies a slot of its partition until its redelivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from events.subjects import namespace_of
from reconciler.ports import IntakeDelivery
from reconciler.roles.decider.fair_queue import partition_of

MAX_POSTPONED = 500
"""Limit on postponed messages per namespace and partition, each for up to 32 seconds."""

_EXPIRY_SECONDS = 60.0
"""Time after which a message not redelivered to this process must have gone to another one."""

_SHARES = 2
"""Number of shares for all namespaces together, so that floods cannot fill a partition."""


@dataclass(slots=True)
class _Partition:
    """The occupied slots: namespace and expiry by position."""

    slots: dict[int, tuple[str, float]] = field(default_factory=dict[int, tuple[str, float]])
    by_namespace: Counter[str] = field(default_factory=Counter[str])

    def free(self, position: int) -> None:
        namespace, _ = self.slots.pop(position, ("", 0.0))
        self.by_namespace[namespace] -= 1
        if self.by_namespace[namespace] <= 0:
            del self.by_namespace[namespace]


class PostponedMessages:
    """Limits the slots that each namespace's postponed messages occupy.

    After a restart, all slots count as free until the messages postponed earlier are redelivered,
    so a namespace may briefly exceed its share. Times are on the monotonic clock.
    """

    def __init__(self, share: int) -> None:
        self._share = share
        self._partitions: dict[str, _Partition] = {}

    def free_redelivered(self, deliveries: Iterable[IntakeDelivery]) -> None:
        """Free the slots of redelivered messages."""
        if not self._partitions:
            return
        for each in deliveries:
            if (
                each.delivered > 1
                and (partition := self._partitions.get(partition_of(each.subject))) is not None
            ):
                partition.free(each.position)
                if not partition.slots:
                    del self._partitions[partition_of(each.subject)]

    def expire(self, now: float) -> None:
        """Free the slots of messages that were not redelivered to this process."""
        for partition in self._partitions.values():
            for position in [
                position for position, (_, until) in partition.slots.items() if until < now
            ]:
                partition.free(position)

    def occupy(
        self, delivery: IntakeDelivery, now: float, seconds: float, *, always: bool = False
    ) -> bool:
        """Occupy a slot for ``seconds``. Return False if the namespace's or total share is full."""
        namespace = namespace_of(delivery.subject)
        partition = self._partitions.setdefault(partition_of(delivery.subject), _Partition())
        is_full = len(partition.slots) >= _SHARES * self._share
        if not always and (is_full or partition.by_namespace[namespace] >= self._share):
            return False
        until = now + seconds + _EXPIRY_SECONDS
        partition.slots[delivery.position] = (namespace, until)
        partition.by_namespace[namespace] += 1
        return True
