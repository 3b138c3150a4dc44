"""A durable pull consumer that delivers in order and redelivers unacknowledged messages."""

from __future__ import annotations

from collections.abc import Iterable


class Consumer:
    """Positions of a stream, each delivered until it is acknowledged.

    A delivered and unacknowledged message takes one of ``max_ack_pending`` slots, even while its
    redelivery is delayed; without a free slot no new message is delivered. A message is silently
    dropped after ``max_deliver`` deliveries; -1 means never.
    """

    def __init__(
        self, ack_wait_seconds: float, *, max_ack_pending: int, max_deliver: int = -1
    ) -> None:
        self._ack_wait = ack_wait_seconds
        self._max_ack_pending = max_ack_pending
        self._max_deliver = max_deliver
        self._new: list[int] = []
        self._outstanding: dict[int, float] = {}
        self._delivered: dict[int, int] = {}
        self._first_new = 0

    def add(self, position: int) -> None:
        """Add a new message."""
        self._new.append(position)

    @property
    def is_idle(self) -> bool:
        """Whether every message was delivered and acknowledged."""
        return not self._outstanding and self._first_new == len(self._new)

    def next_redelivery(self) -> float | None:
        """Return the time of the next redelivery."""
        return min(self._outstanding.values(), default=None)

    def deliver(self, max_count: int, now: float) -> list[tuple[int, int]]:
        """Return positions and their delivery counts, redeliveries first."""
        self._drop_exhausted(now)
        due = [position for position, when in self._outstanding.items() if when <= now][:max_count]
        free = max(0, self._max_ack_pending - len(self._outstanding))
        new_count = min(max_count - len(due), free)
        new = self._new[self._first_new : self._first_new + new_count]
        self._first_new += len(new)
        handed_out: list[tuple[int, int]] = []
        for position in (*due, *new):
            self._outstanding.pop(position, None)
            self._outstanding[position] = now + self._ack_wait
            self._delivered[position] = self._delivered.get(position, 0) + 1
            handed_out.append((position, self._delivered[position]))
        return handed_out

    def _drop_exhausted(self, now: float) -> None:
        """Drop due messages that have reached the maximum number of deliveries."""
        if self._max_deliver > 0:
            for position, when in list(self._outstanding.items()):
                if when <= now and self._delivered[position] >= self._max_deliver:
                    del self._outstanding[position]

    def can_deliver(self, now: float) -> bool:
        """Return whether a message can be delivered."""
        is_free = len(self._outstanding) < self._max_ack_pending
        return (is_free and self._first_new < len(self._new)) or any(
            when <= now for when in self._outstanding.values()
        )

    def ack(self, positions: Iterable[int]) -> None:
        """Stop delivering these messages."""
        for position in positions:
            self._outstanding.pop(position, None)

    def extend(self, positions: Iterable[int], now: float) -> None:
        """Restart the acknowledgment timeout of these messages."""
        for position in positions:
            if position in self._outstanding:
                self._outstanding[position] = now + self._ack_wait

    def redeliver_at(self, positions: Iterable[int], when: float) -> None:
        """Redeliver these messages at the given time, unless they have been acknowledged."""
        for position in positions:
            if position in self._outstanding:
                self._outstanding[position] = when

    def redeliver_acknowledged(self, count: int, now: float) -> None:
        """Redeliver the newest messages, as if their acknowledgments had been lost."""
        for position in self._new[: self._first_new][-count:]:
            self._outstanding.setdefault(position, now)
