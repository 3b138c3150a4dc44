"""Deadlines for progress: kinds need no clock, and unchanged objects cause no events."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from events.external import ExternalObject
from events.intake import TimerFired
from events.log import OutcomeRecorded, ProgressNoted, RenewalScheduled
from events.manifest import Fields
from projections.read_models import rebuild
from projections.status import StatusRow
from reconciler.provider.kind import READY, Kind, Progress, Readiness
from reconciler.resource.state import NEW
from tests.projections.logs import interleave
from tests.resource.building import BLOCK, START, Story, names, only

DEADLINE = 600.0


def _ready(_fields: Fields, observed_object: ExternalObject) -> Readiness:
    percent = observed_object.outputs.get("percent", 0)
    return READY if percent == 100 else Readiness(False, "Progressing", f"{percent} %")


def _progress(fields: Fields, observed_object: ExternalObject) -> Progress | None:
    if fields.get("color") == "Black":
        return None
    return Progress(str(observed_object.outputs.get("percent", 0)), DEADLINE)


def _renewal_time(_fields: Fields, observed_object: ExternalObject) -> datetime | None:
    at = observed_object.outputs.get("retryAt")
    return None if at is None else datetime.fromisoformat(at)


SLOW = replace(BLOCK, ready=_ready, progress=_progress)
COMPOSED = replace(SLOW, renewal_time=_renewal_time)
"""Like a composed kind: in progress, and with a part that is declared again later."""


class Slow:
    """A resource that becomes ready gradually, and a bus with its own clock."""

    def __init__(self, color: str = "Red", *, kind: Kind = SLOW) -> None:
        self.story = Story(kind=kind)
        self.story.stored_at = START
        self.story.declare({"type": "Square", "color": color})
        self.story.succeed()

    def fire_timer(self, seconds: float) -> list[object]:
        """Fire the bus's timer, according to the bus's clock."""
        self.story.stored_at = START + timedelta(seconds=seconds)
        return list(self.story.turn(TimerFired("Renewal")))

    def observe_progress(self, percent: int, seconds: float, **outputs: str) -> list[str]:
        self.story.stored_at = START + timedelta(seconds=seconds)
        existing = msgspec.structs.replace(
            self.story.existing, outputs={"percent": percent, **outputs}
        )
        return names(self.story.observe(existing))

    @property
    def ready(self) -> tuple[str, str]:
        assert self.story.state.outcome is not None
        [ready] = [each for each in self.story.state.outcome.conditions if each.type == "Ready"]
        return ready.reason, ready.message

    @property
    def row(self) -> StatusRow:
        return rebuild(interleave(self.story)).status[str(self.story.key)]


def test_37_a_resource_without_progress_is_stalled_and_the_time_is_reported():
    slow = Slow()
    progress = only(ProgressNoted, [each.data for each in slow.story.log])
    assert (progress.mark, progress.since, progress.at) == (
        "0",
        START,
        START + timedelta(seconds=DEADLINE),
    )
    assert slow.row.progress_at == progress.at
    assert slow.fire_timer(599) == []
    assert slow.ready == ("Progressing", "0 %")
    assert [type(each) for each in slow.fire_timer(600)] == [ProgressNoted, OutcomeRecorded]
    assert slow.ready == ("Stalled", "no progress since 2026-01-01T00:00:00Z: 0 %")
    assert slow.story.outcome == "Converged"
    assert slow.row.next_deadline is None, "no further deadline is needed"
    assert slow.fire_timer(6000) == []


def test_37_progress_resets_the_deadline_and_ends_the_stall():
    slow = Slow()
    assert slow.observe_progress(30, 590) == [
        "ExternalObserved",
        "ProgressNoted",
        "OutcomeRecorded",
    ]
    assert slow.fire_timer(1100) == []
    slow.fire_timer(1190)
    assert slow.ready[0] == "Stalled"
    slow.observe_progress(60, 9000)
    assert slow.ready == ("Progressing", "60 %")
    slow.observe_progress(100, 9001)
    assert slow.ready[0] == "Ready"
    assert slow.row.next_deadline is None
    assert slow.story.state.progress is None
    assert slow.fire_timer(99_999) == []


def test_37_a_loss_of_readiness_resets_the_deadline():
    slow = Slow()
    slow.observe_progress(30, 100)
    slow.observe_progress(100, 200)
    slow.observe_progress(30, 10_000)
    assert slow.ready == ("Progressing", "30 %")
    assert slow.fire_timer(10_599) == []
    slow.fire_timer(10_600)
    assert slow.ready[0] == "Stalled"


def test_37_a_new_declaration_resets_the_deadline():
    slow = Slow()
    slow.fire_timer(700)
    slow.story.declare({"type": "Square", "color": "Blue"})
    assert slow.row.next_deadline is None
    slow.story.succeed()
    assert slow.ready == ("Progressing", "0 %")
    assert slow.fire_timer(1299) == []
    slow.fire_timer(1300)
    assert slow.ready[0] == "Stalled"
    slow.story.withdraw()
    assert slow.story.state.progress is None


def test_37_a_resource_without_a_deadline_is_never_stalled():
    slow = Slow("Black")
    assert "ProgressNoted" not in names([each.data for each in slow.story.log])
    assert slow.fire_timer(99_999) == []
    assert slow.ready[0] == "Progressing"


def test_37_an_inaccurate_local_clock_does_not_cause_a_stall():
    slow = Slow()
    slow.story.now += timedelta(days=3650)
    assert slow.story.turn(TimerFired("Sweep")) == []
    assert NEW.progress is None


def test_a_progress_deadline_replaces_neither_the_time_nor_the_timer_of_a_renewal():
    slow = Slow(kind=COMPOSED)
    due = START + timedelta(seconds=700)
    slow.observe_progress(30, 100, retryAt=due.isoformat())
    slow.observe_progress(60, 200, retryAt=due.isoformat())
    scheduled = only(RenewalScheduled, [each.data for each in slow.story.log])
    assert (slow.row.renewal_at, slow.row.progress_at) == (
        scheduled.at,
        START + timedelta(seconds=200 + DEADLINE),
    )
    assert {purpose for _, purpose in slow.story.timers} == {"Renewal", "Progress"}
    assert slow.row.next_deadline == scheduled.at
    slow.observe_progress(100, 300, retryAt=due.isoformat())
    assert slow.ready[0] == "Ready"
    assert (slow.row.renewal_at, slow.row.progress_at) == (scheduled.at, None)


def test_a_recreated_object_has_a_new_deadline():
    slow = Slow()
    slow.story.stored_at = START + timedelta(seconds=590)
    slow.story.observe(None)
    slow.story.succeed()
    assert slow.ready[0] == "Progressing"
    assert slow.fire_timer(601) == []
    slow.fire_timer(1190)
    assert slow.ready[0] == "Stalled"
