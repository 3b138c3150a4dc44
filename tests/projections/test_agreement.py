"""Comparing a row with the aggregate's state covers all fields and detects differences."""

from __future__ import annotations

import pytest

from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW
from tests.judge.agreement import Agreement, unclassified_fields
from tests.resource.building import converged_story


def test_every_field_of_the_row_is_compared_or_known_not_to_follow_from_the_state() -> None:
    assert unclassified_fields() == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [("uid", "u9"), ("action_id", "x"), ("observed_uid", "u9"), ("message", "no")],
)
def test_a_field_that_differs_from_the_state_is_reported(name: str, value: str) -> None:
    story, state = converged_story(), NEW
    compared = Agreement(str(story.key))
    for event in story.log:
        state = evolve(state, event)
        assert not [*compared.disagreements(event, state)]
    setattr(compared.row, name, value)
    [difference] = compared.differences(story.log[-1], state)
    assert f"the row has {name} {value!r}" in difference
