"""The CPU time for deciding a batch, which the batch's namespaces share (ADR 0062)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from events.names import ResourceKey

_MIN_RECENT_SECONDS: Final = 0.03
"""Recently used time above which a namespace's resources come after those of others."""


class DecisionTime:
    """Measures decisions, and ends the turn of a namespace that has used its share.

    Only the number and order of messages in a turn depend on it; decisions do not (invariant 10).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._seconds = self._share = math.inf
        self._namespaces = 0
        self._used_by_all = 0.0
        self._used: defaultdict[str, float] = defaultdict(float)
        self._used_recently: dict[str, float] = {}
        self.undecided: set[ResourceKey] = set()

    def begin(self, seconds: float, namespaces: Collection[str]) -> None:
        """Begin a batch with messages of these namespaces."""
        names = self._used_recently.keys() | self._used.keys()
        recent = {
            name: self._used_recently.get(name, 0.0) / 2 + self._used.get(name, 0.0)
            for name in names
        }
        self._used_recently = {
            name: used for name, used in recent.items() if used >= _MIN_RECENT_SECONDS
        }
        self._seconds = seconds
        self._namespaces = len(namespaces)
        self._share = seconds / max(1, len(namespaces))
        self._used_by_all = 0.0
        self._used.clear()
        self.undecided = set()

    def order(self, keys: Iterable[ResourceKey]) -> Sequence[ResourceKey]:
        """Sort resources: those of the namespaces that recently used the least time come first.

        A single decision may take longer than a turn, so it must not precede those of other
        namespaces.
        """
        recent = self._used_recently
        if not recent or self._namespaces <= 1:
            return [*keys]
        return sorted(keys, key=lambda key: recent.get(key.namespace, 0.0))

    def is_used_up(self, namespace: str) -> bool:
        """Return whether the resources of a namespace must wait for its next turn."""
        if self._used_by_all >= self._seconds:
            return True
        return self._used[namespace] >= self._share

    def add(self, namespace: str, started_at: float) -> None:
        """Add the time of a decision that ends now and started at this time on ``clock``."""
        used = self.clock() - started_at
        self._used[namespace] += used
        self._used_by_all += used
