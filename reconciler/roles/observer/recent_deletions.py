"""Which objects were deleted a moment ago: an API may still list them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from events.log import Action, ActionAbandoned, ActionDecided, ActionSucceeded, LogEvent

MAX_DELETIONS: Final = 10_000
"""Newest deletions to remember, of all APIs."""

DELETED_SECONDS: Final = 60.0
"""The greatest age of a listing that another process has begun.

An API may also list a deleted object for this time. It counts as the deleted one if it has our
owner label.
"""


class _Deletion(NamedTuple):
    place: tuple[str, str]
    uid: str
    at: float


class RecentDeletions:
    """The ids of deleted objects by ``ProviderConfig`` and kind, fed by the events of the log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_action: dict[str, _Deletion] = {}

    def notice(self, event: LogEvent) -> None:
        """Take note of a decided, succeeded or abandoned deletion."""
        match event.data:
            case ActionDecided(Action(action_id, operation="Delete", uid=str(uid)) as action):
                place = (action.provider_config, event.key.kind)
                self._by_action[action_id] = _Deletion(place, uid, self._clock())
                if len(self._by_action) > MAX_DELETIONS:
                    del self._by_action[next(iter(self._by_action))]
            case ActionSucceeded(action_id, operation="Delete"):
                if (known := self._by_action.get(action_id)) is not None:
                    self._by_action[action_id] = known._replace(at=self._clock())
            case ActionAbandoned(action_id):
                self._by_action.pop(action_id, None)
            case _:
                pass

    def ids(
        self, provider_config: str, kind: str, *, began: float | None, grace_seconds: float
    ) -> frozenset[str]:
        """Return the ids that a listing of one kind at one API may show though they are deleted.

        ``began`` is when the listing began, by the clock of this object. What an API shows longer
        than ``grace_seconds`` after a deletion is there again: another object may get the id.
        """
        since = (self._clock() - DELETED_SECONDS if began is None else began) - grace_seconds
        place = (provider_config, kind)
        return frozenset(
            each.uid
            for each in self._by_action.values()
            if each.place == place and each.at >= since
        )
