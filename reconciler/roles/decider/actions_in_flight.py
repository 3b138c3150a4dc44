"""Count the actions in flight at each API, by namespace.

The workers of a ProviderConfig execute actions in log order. If one namespace started many
actions, all others that use this ProviderConfig would wait. Therefore, the decider starts at most
`MAX_ACTIONS` at an API, divides them among the namespaces with actions there, and starts more as
actions end (ADR 0062). A namespace below its share may always start one. The counts are kept in
memory, and start at zero after a restart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    LookupDecided,
    ResourceEvent,
)
from events.names import ResourceKey
from reconciler.roles.decider.fair_queue import Destination

MAX_ACTIONS: Final = 1_000
_OLD_SECONDS: Final = 60.0
"""Age of an action at which the log is read again: another decider may have ended it."""

START_EVENTS = (ActionDecided, ActionRetried, LookupDecided)
_END_EVENTS = (ActionSucceeded, ActionNotDone, ActionFailed, ActionAbandoned, ActionHeld)
_COUNTED_EVENTS: Final = frozenset[type[ResourceEvent]]((*START_EVENTS, *_END_EVENTS))


class ActionsInFlight:
    """Counts the actions that this process has started, until it processes their end."""

    def __init__(self, clock: Callable[[], float], limit: int = MAX_ACTIONS) -> None:
        self._clock = clock
        self._limit = limit
        self._started: dict[str, tuple[Destination, ResourceKey, float]] = {}  # oldest first
        # by ProviderConfig and namespace
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def apply(self, key: ResourceKey, event: ResourceEvent) -> None:
        """Count the action that an event starts or ends."""
        if type(event) not in _COUNTED_EVENTS:
            return
        if isinstance(event, START_EVENTS):
            self.end(event.action.action_id)
            destination = Destination(key.namespace, event.action.provider_config)
            self._started[event.action.action_id] = (destination, key, self._clock())
            self._counts[destination.provider_config][destination.namespace] += 1
        elif isinstance(event, _END_EVENTS):
            self.end(event.action_id)

    def remaining(self, destination: Destination) -> int:
        """Return the number of actions that a namespace may still start at an API."""
        counts = self._counts.get(destination.provider_config)
        if counts is None:
            return self._limit
        own_count = counts[destination.namespace]
        share = max(1, self._limit // (len(counts) + (not own_count)))
        return max(0, self._limit - counts.total(), share - own_count)

    def end(self, action_id: str) -> None:
        """Stop counting an action."""
        destination, *_ = self._started.pop(action_id, (None,))
        if destination is None:
            return
        counts = self._counts[destination.provider_config]
        counts[destination.namespace] -= 1
        if not counts[destination.namespace]:
            del counts[destination.namespace]
            if not counts:
                del self._counts[destination.provider_config]

    def find_old(self) -> dict[str, ResourceKey]:
        """Return the actions that started long ago, with their resources."""
        oldest = self._clock() - _OLD_SECONDS
        started = self._started.items()
        return {
            each: key for each, (_, key, _) in takewhile(lambda at: at[1][2] <= oldest, started)
        }

    def renew(self, action_id: str) -> None:
        """Count an old action again from now on."""
        destination, key, _ = self._started.pop(action_id)
        self._started[action_id] = (destination, key, self._clock())


class Capacity(dict[Destination, int]):
    """The number of actions that may still start during one batch, by destination."""

    def __init__(self, actions: ActionsInFlight) -> None:
        super().__init__()
        self._actions = actions

    def __missing__(self, destination: Destination) -> int:
        self[destination] = remaining = self._actions.remaining(destination)
        return remaining
