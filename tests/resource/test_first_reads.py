"""Absence is proven even in modes that create nothing: ``Absent`` and ``ObserveOnly``."""

from __future__ import annotations

from typing import Any

import pytest

from events.intake import ReconcileRequested
from events.log import ExternalObserved
from tests.resource.building import (
    EXCLUSIVE,
    SHARED,
    Story,
    api_object,
    converged_story,
    every,
    names,
)

MODES = ["Absent", "ObserveOnly"]
KNOWN = {"Absent": ("Converged", "Absent"), "ObserveOnly": ("Drifted", "ObserveOnly")}
AWAITING_LISTING = ("Waiting", "AwaitingListing")


def outcome_of(story: Story) -> tuple[str, str]:
    return (story.outcome, story.reason)


def declared_story(mode: str, **rest: Any) -> Story:
    story = Story()
    story.declare(policy={"mode": mode}, **rest)
    return story


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_reported_about_the_object_before_the_first_read(mode: str):
    story = declared_story(mode)
    assert story.idle
    assert outcome_of(story) == AWAITING_LISTING
    assert names(story.observe(None)) == ["ExternalObserved", "OutcomeRecorded"]
    assert outcome_of(story) == KNOWN[mode]


@pytest.mark.parametrize("mode", MODES)
def test_one_read_is_recorded_and_an_idle_resource_causes_no_events(mode: str):
    story = declared_story(mode)
    story.observe(None)
    assert story.observe(None) == []
    assert story.wake(3600) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_read_that_began_before_the_declaration_proves_nothing(mode: str):
    story = Story()
    story.turn(ReconcileRequested())
    story.declare(policy={"mode": mode})
    assert story.observe(None, as_of=story.position - 1) == []
    assert outcome_of(story) == AWAITING_LISTING


@pytest.mark.parametrize("mode", MODES)
def test_each_declaration_has_its_own_first_read(mode: str):
    story = declared_story(mode)
    story.observe(None)
    story.declare(policy={"mode": mode}, labels={"team": "a"})
    assert outcome_of(story) == AWAITING_LISTING
    assert len(every(ExternalObserved, story.observe(None))) == 1
    assert outcome_of(story) == KNOWN[mode]


@pytest.mark.parametrize("mode", MODES)
def test_a_listing_of_another_api_proves_nothing(mode: str):
    story = declared_story(mode)
    story.observe(None)
    story.configs["other"] = SHARED
    story.declare(policy={"mode": mode}, config="other")
    assert outcome_of(story) == AWAITING_LISTING
    story.observe(None)
    assert outcome_of(story) == AWAITING_LISTING
    story.observe(None, config="other")
    assert outcome_of(story) == KNOWN[mode]


def test_an_object_that_we_deleted_after_the_declaration_is_absent():
    story = converged_story()
    story.declare(policy={"mode": "Absent"})
    story.succeed()
    assert outcome_of(story) == KNOWN["Absent"]


def test_a_deletion_that_finds_nothing_is_followed_by_a_read():
    story = converged_story()
    story.declare(policy={"mode": "Absent"})
    story.fail("NotFound")
    assert outcome_of(story) == AWAITING_LISTING, "another object may have its name"
    story.observe(None)
    assert outcome_of(story) == KNOWN["Absent"]


def test_an_object_that_we_deleted_before_the_declaration_is_read_again():
    story = converged_story()
    story.withdraw()
    story.succeed()
    story.declare(policy={"mode": "ObserveOnly"})
    assert outcome_of(story) == AWAITING_LISTING


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["released", "gone"])
def test_a_listing_proves_absence_again_once_the_object_is_not_owned(end: str, mode: str):
    story = converged_story(policy={"deletion": "Orphan"} if end == "released" else {})
    known_object = story.existing
    story.observe(None)
    story.fail("Conflict", existing=known_object)
    assert story.outcome == "Converged"
    assert story.observe(None) == [], "a listing was wrong about this object"
    story.withdraw()
    if end == "released":
        story.succeed()
        story.observe(None, evidence="Read")
    else:
        story.fail("NotFound")
    assert story.outcome == "Deleted"
    story.declare(policy={"mode": mode})
    assert outcome_of(story) == AWAITING_LISTING
    story.observe(None)
    assert outcome_of(story) == KNOWN[mode]


@pytest.mark.parametrize("mode", MODES)
def test_the_first_read_may_show_an_object(mode: str):
    story = declared_story(mode)
    story.observe(api_object({"type": "Square", "color": "Blue"}))
    assert outcome_of(story)[0] == {"Absent": "Conflict", "ObserveOnly": "Drifted"}[mode]
    story.observe(None)
    assert outcome_of(story) == KNOWN[mode]


@pytest.mark.parametrize("mode", MODES)
def test_a_paused_resource_is_not_looked_up(mode: str):
    story = Story()
    story.declare(policy={"mode": mode, "paused": True})
    assert outcome_of(story) == ("Paused", "PausedByPolicy")
    story.declare(policy={"mode": mode})
    assert outcome_of(story) == AWAITING_LISTING


def test_a_withdrawn_resource_is_not_looked_up():
    story = declared_story("Absent")
    story.withdraw()
    assert story.outcome == "Deleted"


def test_the_loss_guard_does_not_apply_to_an_object_that_was_never_ours():
    story = Story(configs={"default": EXCLUSIVE})
    story.declare(policy={"mode": "Absent"})
    story.observe(None)
    assert outcome_of(story) == KNOWN["Absent"]
