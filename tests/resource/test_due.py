"""Time in the desired state: an object that is as declared may have to be written again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import TimerFired
from events.log import RenewalScheduled
from events.manifest import Fields
from tests.resource.building import BLOCK, START, Story, names, only, repaint

LIFETIME = timedelta(hours=24)


def _renewal_time(_fields: Fields, observed_object: ExternalObject) -> datetime | None:
    expires_at = observed_object.outputs.get("expiresAt")
    return None if expires_at is None else datetime.fromisoformat(expires_at) - LIFETIME / 3


PASS = replace(BLOCK, renewal_time=_renewal_time)


class PassStory:
    """A pass, and a bus with its own clock."""

    def __init__(self, **declaration: object) -> None:
        self.story = Story(kind=PASS)
        self.bus_time = START
        self.story.stored_at = START
        self.story.declare(**declaration)  # type: ignore[arg-type]
        self.issue()

    def issue(self, expires_at: datetime | None = None) -> list[object]:
        expires_at = expires_at or self.bus_time + LIFETIME
        observed_object = self.story.object_after(self.story.action)
        outputs = {"expiresAt": expires_at.isoformat()}
        return list(
            self.story.report(existing=msgspec.structs.replace(observed_object, outputs=outputs))
        )

    def fire_timer(self, at: timedelta) -> list[object]:
        """Fire the bus's timer, according to the bus's clock."""
        self.bus_time = self.story.stored_at = START + at
        return list(self.story.turn(TimerFired("Renewal")))


def test_a_renewal_is_scheduled_a_little_after_it_is_due():
    pass_story = PassStory()
    scheduled = only(RenewalScheduled, [each.data for each in pass_story.story.log])
    assert scheduled.renewal_time == START + LIFETIME * 2 / 3
    assert timedelta(0) < scheduled.at - scheduled.renewal_time < timedelta(minutes=10)
    assert pass_story.story.outcome == "Converged"
    assert pass_story.story.idle


def test_a_due_object_is_written_again_and_rescheduled():
    pass_story = PassStory()
    assert pass_story.fire_timer(timedelta(hours=15)) == [], "too early"
    assert pass_story.fire_timer(timedelta(hours=17))
    action = pass_story.story.action
    assert (action.operation, action.purpose) == ("Update", "Renew")
    assert "RenewalScheduled" in names(pass_story.issue())  # type: ignore[arg-type]
    assert (pass_story.story.outcome, pass_story.story.idle) == ("Converged", True)
    assert pass_story.fire_timer(timedelta(hours=17)) == []


def test_rejected_content_is_not_written_again_when_it_is_due():
    """Another client can give the object this content; the same write would be rejected again."""
    pass_story = PassStory()
    story = pass_story.story
    outputs = story.existing.outputs
    story.declare({"color": "Invisible"})
    story.fail("Refused", message="color Invisible is unknown")
    assert story.outcome == "Failed"
    created_object = repaint(story.existing, color="Invisible")
    story.observe(
        msgspec.structs.replace(created_object, fields={"color": "Invisible"}, outputs=outputs)
    )
    assert (story.outcome, story.idle) == ("Converged", True)
    pass_story.fire_timer(timedelta(hours=17))
    assert (story.outcome, story.outcome_message) == ("Failed", "color Invisible is unknown")
    assert (story.idle, pass_story.fire_timer(timedelta(hours=18))) == (True, [])
    story.declare({"color": "Blue"})
    assert story.action.fields["color"] == "Blue"


def test_an_inaccurate_local_clock_does_not_cause_an_early_or_repeated_write():
    pass_story = PassStory()
    pass_story.story.now += timedelta(days=3650)
    assert pass_story.story.turn(TimerFired("Renewal")) == []
    pass_story.fire_timer(timedelta(hours=17))
    pass_story.issue()
    assert pass_story.story.turn(TimerFired("Renewal")) == []


def test_without_a_bus_time_the_local_clock_is_used():
    pass_story = PassStory()
    pass_story.story.stored_at = None
    pass_story.story.now += timedelta(hours=17)
    pass_story.story.turn(TimerFired("Sweep"))
    assert pass_story.story.action.purpose == "Renew"


def test_an_object_still_due_after_its_write_does_not_cause_a_hot_loop():
    pass_story = PassStory()
    expires_at = START + LIFETIME
    pass_story.fire_timer(timedelta(hours=17))
    pass_story.issue(expires_at)
    assert (pass_story.story.outcome, pass_story.story.reason) == ("Degraded", "RenewalOverdue")
    assert pass_story.fire_timer(timedelta(hours=17, seconds=1)) == []
    pass_story.story.declare({"type": "Square", "color": "Blue"})
    pass_story.issue()
    assert pass_story.story.outcome == "Converged"


@pytest.mark.parametrize("error_class", ["NotDone", "Throttled", "Unknown"])
def test_a_renewal_is_retried_with_the_same_key(error_class: str):
    pass_story = PassStory()
    pass_story.fire_timer(timedelta(hours=17))
    key = pass_story.story.action.idempotency_key
    pass_story.story.fail(error_class)  # type: ignore[arg-type]
    pass_story.story.wake(3600)
    assert pass_story.story.action.idempotency_key == key


def test_a_renewal_that_found_a_changed_object_is_decided_again():
    pass_story = PassStory()
    pass_story.fire_timer(timedelta(hours=17))
    pass_story.story.fail("Conflict", existing=repaint(pass_story.story.existing))
    assert (pass_story.story.action.operation, pass_story.story.action.purpose) == (
        "Update",
        "Renew",
    )


def test_a_withdrawn_or_paused_resource_is_not_written_again():
    pass_story = PassStory()
    pass_story.story.declare(policy={"paused": True})
    assert pass_story.fire_timer(timedelta(hours=17)) == []
    pass_story.story.declare()
    assert pass_story.story.action.purpose == "Renew", "it is due once it is resumed"
