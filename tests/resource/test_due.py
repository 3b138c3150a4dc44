"""Time in the desired state: what is as declared may have to be written again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import TimerFired
from events.log import RenewalScheduled
from events.manifest import Fields
from tests.resource.building import BLOCK, START, Story, names, only, repainted

LIFE = timedelta(hours=24)


def _renewal_time(_fields: Fields, observed_object: ExternalObject) -> datetime | None:
    ends = observed_object.outputs.get("ends")
    return None if ends is None else datetime.fromisoformat(ends) - LIFE / 3


PASS = replace(BLOCK, renewal_time=_renewal_time)


class Passes:
    """A pass, and a bus with a clock of its own."""

    def __init__(self, **declared: object) -> None:
        self.story = Story(kind=PASS)
        self.bus_time = START
        self.story.stored_at = START
        self.story.declare(**declared)  # type: ignore[arg-type]
        self.issued()

    def issued(self, ends: datetime | None = None) -> list[object]:
        ends = ends or self.bus_time + LIFE
        observed_object = self.story.written(self.story.action)
        outputs = {"ends": ends.isoformat()}
        return list(
            self.story.report(shown=msgspec.structs.replace(observed_object, outputs=outputs))
        )

    def fires(self, at: timedelta) -> list[object]:
        """The bus's timer comes, by its clock."""
        self.bus_time = self.story.stored_at = START + at
        return list(self.story.turn(TimerFired("Renewal")))


def test_what_is_due_is_timed_a_little_later_than_that():
    passes = Passes()
    scheduled = only(RenewalScheduled, [each.data for each in passes.story.log])
    assert scheduled.renewal_time == START + LIFE * 2 / 3
    assert timedelta(0) < scheduled.at - scheduled.renewal_time < timedelta(minutes=10)
    assert passes.story.outcome == "Converged"
    assert passes.story.idle


def test_what_is_due_is_written_again_and_timed_anew():
    passes = Passes()
    assert passes.fires(timedelta(hours=15)) == [], "too early"
    assert passes.fires(timedelta(hours=17))
    action = passes.story.action
    assert (action.operation, action.purpose) == ("Update", "Renew")
    assert "RenewalScheduled" in names(passes.issued())  # type: ignore[arg-type]
    assert (passes.story.outcome, passes.story.idle) == ("Converged", True)
    assert passes.fires(timedelta(hours=17)) == []


def test_what_the_api_has_rejected_is_not_written_again_when_it_is_due():
    """Another client can make the object so, and the same write would be rejected each time."""
    passes = Passes()
    story = passes.story
    outputs = story.existing.outputs
    story.declare({"color": "Invisible"})
    story.fail("Refused", message="color Invisible is unknown")
    assert story.outcome == "Failed"
    created_object = repainted(story.existing, color="Invisible")
    story.see(
        msgspec.structs.replace(created_object, fields={"color": "Invisible"}, outputs=outputs)
    )
    assert (story.outcome, story.idle) == ("Converged", True)
    passes.fires(timedelta(hours=17))
    assert (story.outcome, story.outcome_message) == ("Failed", "color Invisible is unknown")
    assert (story.idle, passes.fires(timedelta(hours=18))) == (True, [])
    story.declare({"color": "Blue"})
    assert story.action.fields["color"] == "Blue"


def test_a_wrong_clock_here_writes_nothing_early_and_nothing_twice():
    passes = Passes()
    passes.story.now += timedelta(days=3650)
    assert passes.story.turn(TimerFired("Renewal")) == []
    passes.fires(timedelta(hours=17))
    passes.issued()
    assert passes.story.turn(TimerFired("Renewal")) == []


def test_without_a_time_of_the_bus_the_own_clock_counts():
    passes = Passes()
    passes.story.stored_at = None
    passes.story.now += timedelta(hours=17)
    passes.story.turn(TimerFired("Sweep"))
    assert passes.story.action.purpose == "Renew"


def test_what_is_still_due_after_its_write_is_no_hot_loop():
    passes = Passes()
    ends = START + LIFE
    passes.fires(timedelta(hours=17))
    passes.issued(ends)
    assert (passes.story.outcome, passes.story.reason) == ("Degraded", "RenewalOverdue")
    assert passes.fires(timedelta(hours=17, seconds=1)) == []
    passes.story.declare({"type": "Square", "color": "Blue"})
    passes.issued()
    assert passes.story.outcome == "Converged"


@pytest.mark.parametrize("error_class", ["NotDone", "Throttled", "Unknown"])
def test_a_renewal_is_tried_again_under_its_key(error_class: str):
    passes = Passes()
    passes.fires(timedelta(hours=17))
    key = passes.story.action.idempotency_key
    passes.story.fail(error_class)  # type: ignore[arg-type]
    passes.story.wake(3600)
    assert passes.story.action.idempotency_key == key


def test_a_renewal_that_met_another_object_state_is_timed_again():
    passes = Passes()
    passes.fires(timedelta(hours=17))
    passes.story.fail("Conflict", shown=repainted(passes.story.existing))
    assert (passes.story.action.operation, passes.story.action.purpose) == ("Update", "Renew")


def test_what_is_withdrawn_or_paused_is_not_written_again():
    passes = Passes()
    passes.story.declare(policy={"paused": True})
    assert passes.fires(timedelta(hours=17)) == []
    passes.story.declare()
    assert passes.story.action.purpose == "Renew", "when it goes on, it is due"
