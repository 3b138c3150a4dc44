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


def contention_story() -> Story:
    story = Story(configs={CONFIG: replace(SHARED, resync_seconds=RESYNC)})
    story.declare(RED)
    story.succeed()
    return story


def overwrite(story: Story, **fields: str) -> None:
    observed_object = replace(
        story.existing, fields={**RED, "color": "Blue", **fields}, version="by hand"
    )
    story.observe(observed_object)


def overwrite_repeatedly(story: Story, times: int = CONTENTION_DRIFTS - 1) -> None:
    for _ in range(times):
        overwrite(story)
        if story.idle:
            story.wake(RESYNC)
        story.succeed()


def last_delay_seconds(story: Story) -> float:
    return every(RetryScheduled, [event.data for event in story.log])[-1].delay_seconds


def test_one_or_two_out_of_band_changes_are_corrected_immediately():
    story = contention_story()
    overwrite_repeatedly(story)
    assert story.outcome == "Converged"


def test_42_the_third_correction_is_delayed_and_reports_the_reason():
    story = contention_story()
    overwrite_repeatedly(story)
    overwrite(story)
    assert story.idle
    assert (story.outcome, story.reason) == ("Degraded", "RepeatedDrift")
    assert story.state.outcome is not None
    assert "has overwritten color 3 times since" in story.state.outcome.message
    assert "ignoreFields" in story.state.outcome.message
    assert story.wake() == [], "the correction is delayed"
    story.wake(last_delay_seconds(story))
    assert story.action.fields["color"] == "Red"


def test_42_the_delay_grows_up_to_the_resync_interval():
    story = contention_story()
    overwrite_repeatedly(story)
    waits: list[float] = []
    for _ in range(10):
        overwrite(story)
        waits.append(last_delay_seconds(story))
        story.wake(RESYNC)
        story.succeed()
    assert waits == sorted(waits)
    assert waits[0] <= SHARED.retry.initial_seconds
    assert RESYNC / 2 <= waits[-1] <= RESYNC


def test_another_value_from_the_other_client_does_not_extend_the_delay():
    story = contention_story()
    overwrite_repeatedly(story, 5)
    overwrite(story)
    until = story.state.waits.until
    overwrite(story, color="Green")
    assert story.state.waits.until == until
    story.wake(RESYNC)
    assert story.action.fields["color"] == "Red"


def test_drift_without_contention_is_corrected_immediately():
    story = contention_story()
    overwrite_repeatedly(story)
    overwrite(story)
    assert story.idle
    overwrite(story, type="Circle")
    assert story.action.fields == RED


def test_a_new_declaration_is_applied_immediately_and_resets_the_count():
    story = contention_story()
    overwrite_repeatedly(story)
    overwrite(story)
    story.declare({"type": "Square", "color": "Green"})
    assert story.action.fields["color"] == "Green"
    story.succeed()
    story.observe(replace(story.existing, fields=BLUE, version="by hand"))
    assert not story.idle


def test_a_change_that_the_other_client_reverts_needs_no_correction():
    story = contention_story()
    overwrite_repeatedly(story)
    original = story.existing
    overwrite(story)
    story.observe(replace(original, version="again"))
    assert story.outcome == "Converged"
    overwrite(story)
    assert (story.reason, story.idle) == ("RepeatedDrift", True), (
        "the next correction is delayed again"
    )


def test_repeated_deletions_are_corrected_with_growing_delays():
    story = contention_story()
    for _ in range(CONTENTION_DRIFTS - 1):
        story.observe(None)
        story.succeed()
    story.observe(None)
    assert (story.outcome, story.reason, story.idle) == ("Degraded", "RepeatedDrift", True)
    assert story.state.outcome is not None
    assert "another client has deleted the object 3 times" in story.state.outcome.message
    story.wake(RESYNC)
    assert story.action.operation == "Create"


def test_a_withdrawal_does_not_wait():
    story = contention_story()
    overwrite_repeatedly(story)
    overwrite(story)
    story.withdraw()
    assert story.action.operation == "Delete"


@pytest.mark.parametrize(("pause", "times"), [(CONTENTION_WINDOW, 3), (2 * CONTENTION_WINDOW, 1)])
def test_old_drift_is_not_counted(pause: timedelta, times: int):
    path_drifts = (PathDrift("color", 2, START, START), PathDrift("size", 9, START, START))
    drift = only(DriftDetected, [_drift()])
    (*_, color) = count_drift(path_drifts, drift, START + pause)
    assert (color.path, color.times) == ("color", times)


def test_a_change_that_may_be_our_own_is_not_contention():
    assert count_drift((), replace(_drift(), suspected_action="default/Block/Foo@3"), START) == ()


def _drift() -> DriftDetected:
    story = contention_story()
    observed_object = replace(story.existing, fields=BLUE, version="by hand")
    return only(DriftDetected, story.observe(observed_object))
