"""Recently deleted objects, which an API may still list."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

from events.log import Action, ActionAbandoned, ActionDecided, ActionSucceeded, LogEvent

MAX_DELETIONS: Final = 10_000
"""Limit on recorded deletions across all APIs."""

DELETED_SECONDS: Final = 60.0
"""Maximum age of a listing started by another process.

An API may keep listing a deleted object for this long. During that time, an object with its id and
an owner label counts as the deleted one.
"""


class _Deletion(NamedTuple):
    target: tuple[str, str]
    uid: str
    at: float


class RecentDeletions:
    """The ids of deleted objects by ``ProviderConfig`` and kind, from log events."""

    event_types: ClassVar = frozenset({ActionDecided, ActionSucceeded, ActionAbandoned})

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_action: dict[str, _Deletion] = {}

    def handle_event(self, event: LogEvent) -> None:
        """Record a decided, succeeded or abandoned deletion."""
        match event.data:
            case ActionDecided(Action(action_id, operation="Delete", uid=str(uid)) as action):
                target = (action.provider_config, event.key.kind)
                self._by_action[action_id] = _Deletion(target, uid, self._clock())
                if len(self._by_action) > MAX_DELETIONS:
                    del self._by_action[next(iter(self._by_action))]
            case ActionSucceeded(action_id, operation="Delete"):
                if (deletion := self._by_action.get(action_id)) is not None:
                    self._by_action[action_id] = deletion._replace(at=self._clock())
            case ActionAbandoned(action_id):
                self._by_action.pop(action_id, None)
            case _:
                pass

    def ids(
        self, provider_config: str, kind: str, *, started_at: float | None, grace_seconds: float
    ) -> frozenset[str]:
        """Return the ids of deleted objects that a listing of one kind at one API may contain.

        ``started_at``: when the listing started (monotonic clock), None if another process started
        it. After ``grace_seconds``, a listed object counts as new, because ids may be reused.
        """
        since = (
            self._clock() - DELETED_SECONDS if started_at is None else started_at
        ) - grace_seconds
        target = (provider_config, kind)
        return frozenset(
            each.uid
            for each in self._by_action.values()
            if each.target == target and each.at >= since
        )
