"""The CPU time that the decisions of a batch may take, which its namespaces share (ADR 0062)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

from events.names import ResourceKey


class DecisionTime:
    """Measures decisions, and ends the turn of a namespace that has used its share.

    Only the number of messages in a turn depends on it, and no decision (invariant 10).
    """

    def __init__(
        self, clock: Callable[[], float], seconds: float, namespaces: Collection[str]
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._share = seconds / max(1, len(namespaces))
        self._used_by_all = 0.0
        self._used: dict[str, float] = {}
        self.undecided: set[ResourceKey] = set()

    def is_used_up(self, namespace: str) -> bool:
        """Return whether the resources of a namespace must wait for its next turn."""
        if self._used_by_all >= self._seconds:
            return True
        return self._used.get(namespace, 0.0) >= self._share

    @contextmanager
    def measure(self, namespace: str) -> Generator[None]:
        """Count the time of a decision."""
        began = self._clock()
        try:
            yield
        finally:
            used = self._clock() - began
            self._used[namespace] = self._used.get(namespace, 0.0) + used
            self._used_by_all += used
