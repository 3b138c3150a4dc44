"""Two parties overwrite each other's field: scenario 42."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from events.log import DriftDetected, PathDrift, RetryScheduled
from reconciler.resource.contention import CONTENTION_DRIFTS, CONTENTION_WINDOW, count_drift
from tests.resource.building import CONFIG, SHARED, START, Story, every, only

RED, BLUE = {"type": "Square", "color": "Red"}, {"type": "Square", "color": "Blue"}
RESYNC = 8.0


def converged_story() -> Story:
    story = Story(configs={CONFIG: replace(SHARED, resync_seconds=RESYNC)})
    story.declare(RED)
    story.succeed()
    return story


def overwrite(story: Story, **fields: str) -> None:
    observed_object = replace(
        story.existing, fields={**RED, "color": "Blue", **fields}, version="by hand"
    )
    story.see(observed_object)


def overwrite_repeatedly(story: Story, times: int = CONTENTION_DRIFTS - 1) -> None:
    for _ in range(times):
        overwrite(story)
        if story.idle:
            story.wake(RESYNC)
        story.succeed()


def wait_of(story: Story) -> float:
    return every(RetryScheduled, [event.data for event in story.log])[-1].delay_seconds


def test_one_or_two_out_of_band_changes_are_repaired_immediately():
    story = converged_story()
    overwrite_repeatedly(story)
    assert story.outcome == "Converged"


def test_42_the_third_time_the_repair_waits_and_gives_the_reason():
    story = converged_story()
    overwrite_repeatedly(story)
    overwrite(story)
    assert story.idle
    assert (story.outcome, story.reason) == ("Degraded", "RepeatedDrift")
    assert story.state.outcome is not None
    assert "has overwritten color 3 times since" in story.state.outcome.message
    assert "ignoreFields" in story.state.outcome.message
    assert story.wake() == [], "it waits"
    story.wake(wait_of(story))
    assert story.action.fields["color"] == "Red"


def test_42_it_waits_longer_each_time_and_never_longer_than_a_resync():
    story = converged_story()
    overwrite_repeatedly(story)
    waits: list[float] = []
    for _ in range(10):
        overwrite(story)
        waits.append(wait_of(story))
        story.wake(RESYNC)
        story.succeed()
    assert waits == sorted(waits)
    assert waits[0] <= SHARED.retry.initial_seconds
    assert RESYNC / 2 <= waits[-1] <= RESYNC


def test_another_value_of_the_other_client_does_not_delay_the_repair():
    story = converged_story()
    overwrite_repeatedly(story, 5)
    overwrite(story)
    until = story.state.waits.until
    overwrite(story, color="Green")
    assert story.state.waits.until == until
    story.wake(RESYNC)
    assert story.action.fields["color"] == "Red"


def test_drift_without_contention_is_repaired_immediately():
    story = converged_story()
    overwrite_repeatedly(story)
    overwrite(story)
    assert story.idle
    overwrite(story, type="Circle")
    assert story.action.fields == RED


def test_a_new_declaration_acts_immediately_and_resets_the_count():
    story = converged_story()
    overwrite_repeatedly(story)
    overwrite(story)
    story.declare({"type": "Square", "color": "Green"})
    assert story.action.fields["color"] == "Green"
    story.succeed()
    story.see(replace(story.existing, fields=BLUE, version="by hand"))
    assert not story.idle


def test_a_change_that_the_other_client_reverts_needs_no_repair():
    story = converged_story()
    overwrite_repeatedly(story)
    original = story.existing
    overwrite(story)
    story.see(replace(original, version="again"))
    assert story.outcome == "Converged"
    overwrite(story)
    assert (story.reason, story.idle) == ("RepeatedDrift", True), "the next one waits again"


def test_repeated_deletions_are_repaired_with_growing_delays():
    story = converged_story()
    for _ in range(CONTENTION_DRIFTS - 1):
        story.see(None)
        story.succeed()
    story.see(None)
    assert (story.outcome, story.reason, story.idle) == ("Degraded", "RepeatedDrift", True)
    assert story.state.outcome is not None
    assert "another client has deleted the object 3 times" in story.state.outcome.message
    story.wake(RESYNC)
    assert story.action.operation == "Create"


def test_a_withdrawal_does_not_wait():
    story = converged_story()
    overwrite_repeatedly(story)
    overwrite(story)
    story.withdraw()
    assert story.action.operation == "Delete"


@pytest.mark.parametrize(("pause", "times"), [(CONTENTION_WINDOW, 3), (2 * CONTENTION_WINDOW, 1)])
def test_drifts_of_long_ago_do_not_count(pause: timedelta, times: int):
    path_drifts = (PathDrift("color", 2, START, START), PathDrift("size", 9, START, START))
    drift = only(DriftDetected, [_drift()])
    (*_, color) = count_drift(path_drifts, drift, START + pause)
    assert (color.path, color.times) == ("color", times)


def test_a_change_that_may_be_our_own_is_no_contention():
    assert count_drift((), replace(_drift(), suspected_action="default/Block/Foo@3"), START) == ()


def _drift() -> DriftDetected:
    story = converged_story()
    observed_object = replace(story.existing, fields=BLUE, version="by hand")
    return only(DriftDetected, story.see(observed_object))
