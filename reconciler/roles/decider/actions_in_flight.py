"""Count the actions in flight at each API, by namespace.

The workers of a ProviderConfig execute actions in the order of the log. If a namespace had many
actions decided at the same time, all others with this ProviderConfig would wait. Therefore the
decider starts at most `MAX_ACTIONS` at an API, divides them among the namespaces with actions
there, and starts more as these end (ADR 0062). A namespace below its share may always start one.
The counts are in memory, and a restart begins with none.
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
from reconciler.roles.decider.fair_queue import Place

MAX_ACTIONS: Final = 1_000
_FORGET_SECONDS: Final = 60.0
"""Time after which an action counts as ended, because another decider may have received its end."""

_BEGINS = (ActionDecided, ActionRetried, LookupDecided)
_ENDS = (ActionSucceeded, ActionFailed, ActionAbandoned, ActionHeld)


class ActionsInFlight:
    """Counts the actions that this process has started and whose end it has not processed."""

    def __init__(self, clock: Callable[[], float], most: int = MAX_ACTIONS) -> None:
        self._clock = clock
        self._most = most
        self._started: dict[str, tuple[Place, float]] = {}  # in the order of their starts
        self._count: dict[str, Counter[str]] = {}  # by ProviderConfig and namespace

    def apply(self, key: ResourceKey, event: ResourceEvent) -> None:
        """Count the action that an event starts or ends."""
        if isinstance(event, _BEGINS):
            self._end(event.action.action_id)
            place = Place(key.namespace, event.action.provider_config)
            self._started[event.action.action_id] = (place, self._clock())
            self._count.setdefault(place.provider_config, Counter())[place.namespace] += 1
        elif isinstance(event, _ENDS):
            self._end(event.action_id)

    def room(self, place: Place) -> int:
        """Return the number of actions that a namespace may still start at an API."""
        self._forget()
        counted = self._count.get(place.provider_config)
        if counted is None:
            return self._most
        own_count = counted[place.namespace]
        share = max(1, self._most // (len(counted) + (not own_count)))
        return max(0, self._most - counted.total(), share - own_count)

    def _end(self, action_id: str) -> None:
        place, _ = self._started.pop(action_id, (None, 0.0))
        if place is None:
            return
        counted = self._count[place.provider_config]
        counted[place.namespace] -= 1
        if not counted[place.namespace]:
            del counted[place.namespace]
            if not counted:
                del self._count[place.provider_config]

    def _forget(self) -> None:
        oldest = self._clock() - _FORGET_SECONDS
        while self._started:
            action_id, (_, at) = next(iter(self._started.items()))
            if at > oldest:
                return
            self._end(action_id)
