"""A durable pull consumer: delivers in order, and redelivers what is not acknowledged in time."""

from __future__ import annotations

from collections.abc import Iterable


class Consumer:
    """Positions of a stream, each handed out until it is acknowledged.

    What is handed out and not acknowledged, however late it is wanted again, takes one of
    ``max_ack_pending`` slots; without a free one nothing new is handed out. What was handed out
    ``max_deliver`` times is dropped without a word; -1 for never.
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
        """Take in a new message."""
        self._new.append(position)

    @property
    def is_idle(self) -> bool:
        """Whether everything was handed out and acknowledged."""
        return not self._outstanding and self._first_new == len(self._new)

    def next_redelivery(self) -> float | None:
        """Give the time of the next redelivery."""
        return min(self._outstanding.values(), default=None)

    def hand_out(self, most: int, now: float) -> list[tuple[int, int]]:
        """Give positions with how often each was handed out, redeliveries first."""
        self._drop_exhausted(now)
        due = [position for position, when in self._outstanding.items() if when <= now][:most]
        free = max(0, self._max_ack_pending - len(self._outstanding))
        room = min(most - len(due), free)
        new = self._new[self._first_new : self._first_new + room]
        self._first_new += len(new)
        handed_out: list[tuple[int, int]] = []
        for position in (*due, *new):
            self._outstanding.pop(position, None)
            self._outstanding[position] = now + self._ack_wait
            self._delivered[position] = self._delivered.get(position, 0) + 1
            handed_out.append((position, self._delivered[position]))
        return handed_out

    def _drop_exhausted(self, now: float) -> None:
        """Give up what is due again and was handed out too often already."""
        if self._max_deliver > 0:
            for position, when in list(self._outstanding.items()):
                if when <= now and self._delivered[position] >= self._max_deliver:
                    del self._outstanding[position]

    def has(self, now: float) -> bool:
        """Whether there is something to hand out."""
        is_free = len(self._outstanding) < self._max_ack_pending
        return (is_free and self._first_new < len(self._new)) or any(
            when <= now for when in self._outstanding.values()
        )

    def ack(self, positions: Iterable[int]) -> None:
        """Hand these out no more."""
        for position in positions:
            self._outstanding.pop(position, None)

    def extend(self, positions: Iterable[int], now: float) -> None:
        """Wait for the acknowledgement of these from now on."""
        for position in positions:
            if position in self._outstanding:
                self._outstanding[position] = now + self._ack_wait

    def again(self, positions: Iterable[int], when: float) -> None:
        """Hand these out again at a time, if they are not acknowledged."""
        for position in positions:
            if position in self._outstanding:
                self._outstanding[position] = when

    def forget_acks(self, count: int, now: float) -> None:
        """Hand out the newest again, as if their acknowledgements had been lost."""
        for position in self._new[: self._first_new][-count:]:
            self._outstanding.setdefault(position, now)
