"""A deleted object may still be listed; another API's object of that id, or a later one, counts."""

from __future__ import annotations

from datetime import UTC, datetime

from events.log import Action, ActionDecided, ActionSucceeded, LogEvent, ResourceEvent
from reconciler.roles.recent_deletions import DELETED_SECONDS, RecentDeletions

ACTION = Action("default/Note/a@2", "key", "Delete", 1, "notes", "a", (), uid="7")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def event(data: ResourceEvent) -> LogEvent:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return LogEvent("default/Note/a@2", "reconciler", "", "default/Note/a", moment, 2, data)


def noticed(clock: Clock, data: ResourceEvent) -> RecentDeletions:
    deletions = RecentDeletions(clock)
    deletions.notice(event(data))
    return deletions


def test_a_deleted_id_counts_for_its_api_and_kind_only():
    deletions = noticed(Clock(), ActionDecided(ACTION))
    assert deletions.ids("notes", "Note", 0.0) == {"7"}
    assert not deletions.ids("others", "Note", 0.0)
    assert not deletions.ids("notes", "Draft", 0.0)


def test_a_deleted_id_is_forgotten_after_the_grace_of_the_api():
    clock = Clock()
    deletions = noticed(clock, ActionDecided(ACTION))
    clock.now += DELETED_SECONDS + 1
    assert deletions.ids("notes", "Note", 5.0) == {"7"}
    assert not deletions.ids("notes", "Note", 0.0)
    deletions.notice(event(ActionSucceeded(ACTION.action_id, "Delete", 1, None)))
    assert deletions.ids("notes", "Note", 0.0) == {"7"}
