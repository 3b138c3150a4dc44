"""Count the actions in flight at each API, by namespace.

The workers of a ProviderConfig execute actions in log order. If one namespace started many
actions, all others that use this ProviderConfig would wait. Therefore, the decider starts at most
`MAX_ACTIONS` at an API, divides them among the namespaces with actions there, and starts more as
actions end (ADR 0062). A namespace below its share may always start one. The counts are kept in
memory, and start at zero after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionRetried,
    ActionSucceeded,
    LookupDecided,
    ResourceEvent,
)
from events.names import ResourceKey
from reconciler.roles.decider.fair_queue import Destination

MAX_ACTIONS: Final = 1_000
_EXPIRY_SECONDS: Final = 60.0
"""Time after which an action counts as ended: another decider may have received its result."""

START_EVENTS = (ActionDecided, ActionRetried, LookupDecided)
_END_EVENTS = (ActionSucceeded, ActionFailed, ActionAbandoned, ActionHeld)


class ActionsInFlight:
    """Counts the actions that this process has started, until it processes their end."""

    def __init__(self, clock: Callable[[], float], limit: int = MAX_ACTIONS) -> None:
        self._clock = clock
        self._limit = limit
        self._started: dict[str, tuple[Destination, float]] = {}  # in start order
        self._counts: dict[str, Counter[str]] = {}  # by ProviderConfig and namespace

    def apply(self, key: ResourceKey, event: ResourceEvent) -> None:
        """Count the action that an event starts or ends."""
        if isinstance(event, START_EVENTS):
            self._end(event.action.action_id)
            destination = Destination(key.namespace, event.action.provider_config)
            self._started[event.action.action_id] = (destination, self._clock())
            self._counts.setdefault(destination.provider_config, Counter())[
                destination.namespace
            ] += 1
        elif isinstance(event, _END_EVENTS):
            self._end(event.action_id)

    def remaining(self, destination: Destination) -> int:
        """Return the number of actions that a namespace may still start at an API."""
        self._expire()
        counts = self._counts.get(destination.provider_config)
        if counts is None:
            return self._limit
        own_count = counts[destination.namespace]
        share = max(1, self._limit // (len(counts) + (not own_count)))
        return max(0, self._limit - counts.total(), share - own_count)

    def _end(self, action_id: str) -> None:
        destination, _ = self._started.pop(action_id, (None, 0.0))
        if destination is None:
            return
        counts = self._counts[destination.provider_config]
        counts[destination.namespace] -= 1
        if not counts[destination.namespace]:
            del counts[destination.namespace]
            if not counts:
                del self._counts[destination.provider_config]

    def _expire(self) -> None:
        oldest = self._clock() - _EXPIRY_SECONDS
        while self._started:
            action_id, (_, started_at) = next(iter(self._started.items()))
            if started_at > oldest:
                return
            self._end(action_id)
