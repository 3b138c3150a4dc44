"""A recently deleted object that is still listed is ignored, but only for its API and kind."""

from __future__ import annotations

from datetime import UTC, datetime

from events.log import Action, ActionDecided, ActionSucceeded, LogEvent, ResourceEvent
from reconciler.roles.observer.recent_deletions import DELETED_SECONDS, RecentDeletions

ACTION = Action("default/Note/a@2", "key", "Delete", 1, "notes", "a", (), uid="7")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def event(data: ResourceEvent) -> LogEvent:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return LogEvent("default/Note/a@2", "reconciler", "", "default/Note/a", moment, 2, data)


def deletions_after(clock: Clock, data: ResourceEvent) -> RecentDeletions:
    deletions = RecentDeletions(clock)
    deletions.handle_event(event(data))
    return deletions


def recent_ids(
    deletions: RecentDeletions, began: float | None, *, grace: float = 0.0
) -> frozenset[str]:
    return deletions.ids("notes", "Note", started_at=began, grace_seconds=grace)


def test_a_deleted_id_is_recent_only_for_its_api_and_kind():
    deletions = deletions_after(Clock(), ActionDecided(ACTION))
    assert recent_ids(deletions, 100.0) == {"7"}
    assert not deletions.ids("others", "Note", started_at=100.0, grace_seconds=0.0)
    assert not deletions.ids("notes", "Draft", started_at=100.0, grace_seconds=0.0)


def test_a_deleted_id_is_recent_for_a_listing_within_the_grace_of_the_api():
    clock = Clock()
    deletions = deletions_after(clock, ActionDecided(ACTION))
    clock.now += DELETED_SECONDS * 2
    assert recent_ids(deletions, 99.0) == {"7"}
    assert not recent_ids(deletions, 101.0)
    assert recent_ids(deletions, 101.0, grace=5.0) == {"7"}
    assert not recent_ids(deletions, 106.0, grace=5.0)
    deletions.handle_event(event(ActionSucceeded(ACTION.action_id, "Delete", 1, None)))
    assert recent_ids(deletions, clock.now) == {"7"}


def test_a_listing_from_another_process_may_have_begun_a_minute_ago():
    clock = Clock()
    deletions = deletions_after(clock, ActionDecided(ACTION))
    clock.now += DELETED_SECONDS
    assert recent_ids(deletions, None) == {"7"}
    clock.now += 1
    assert not recent_ids(deletions, None)
