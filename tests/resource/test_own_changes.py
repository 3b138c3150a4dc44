"""Changes that an object makes by itself, and what a new object takes over from its predecessor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import Approved
from events.log import DriftDetected
from events.manifest import Fields
from reconciler.provider.kind import Inheritance, Kind
from tests.resource.building import BLOCK, Story, every, repaint

SQUARE = {"type": "Square", "color": "Red"}
CIRCLE = {"type": "Circle", "color": "Red"}


def _settled(desired: Fields, applied: Fields, observed_object: ExternalObject) -> Collection[str]:
    """Colors fade to gray, unless the last write wanted gray."""
    fades = desired.get("color") != "Gray" != applied.get("color")
    return ("color",) if fades and observed_object.fields.get("color") == "Gray" else ()


FADING = replace(BLOCK, settled_paths=_settled)


def created_story(kind: Kind, fields: Fields = SQUARE) -> Story:
    story = Story(kind=kind)
    story.declare(fields)
    story.succeed()
    return story


def test_a_change_that_the_object_makes_by_itself_is_neither_drift_nor_corrected():
    story = created_story(FADING)
    story.observe(repaint(story.existing, color="Gray"))
    assert (story.outcome, story.idle) == ("Converged", True)
    assert not every(DriftDetected, [event.data for event in story.log])


def test_a_correction_of_another_field_does_not_write_the_settled_one():
    story = created_story(FADING)
    story.observe(repaint(story.existing, color="Gray", type="Circle"))
    (drift,) = every(DriftDetected, [event.data for event in story.log])
    assert [each.path for each in drift.differences] == ["type"]
    assert story.action.fields == {"type": "Square"}
    story.succeed()
    story.observe(repaint(story.existing, color="Gray", type="Square"))
    assert (story.outcome, story.idle) == ("Converged", True)


def test_a_declaration_of_the_settled_value_and_back_is_written():
    story = created_story(FADING)
    story.declare({**SQUARE, "color": "Gray"})
    story.succeed()
    assert story.existing.fields["color"] == "Gray"
    story.declare(SQUARE)
    assert (story.action.operation, story.action.fields) == ("Update", SQUARE)


def _inherit(desired: Fields, replaced: ExternalObject) -> Inheritance:
    is_hidden = desired.get("color") == "Black"
    size = replaced.fields.get("size")
    return Inheritance({"size": size} if size and not is_hidden else {}, "its size" * is_hidden)


def _loss(fields: Fields | None, _existing: ExternalObject) -> str:
    return "its size" if fields is None else ""


HEIR = replace(BLOCK, immutable=frozenset({"type"}), inherit=_inherit, describe_data_loss=_loss)
SIZED = {"w": 3}


def lose_by_replacement(story: Story) -> None:
    story.declare(CIRCLE)
    assert (story.action.operation, story.action.purpose) == ("Delete", "Replace")
    story.succeed()


def lose_by_another_client(story: Story) -> None:
    story.observe(None)


def lose_to_an_object_of_another_client(story: Story) -> None:
    story.observe(msgspec.structs.replace(story.existing, uid="theirs", labels={}))
    assert story.outcome == "Conflict"
    story.observe(None)


LOSSES = [lose_by_replacement, lose_by_another_client, lose_to_an_object_of_another_client]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_new_object_takes_over_from_its_predecessor(lose: Callable[[Story], None]):
    story = created_story(HEIR)
    sized = repaint(story.existing, size=SIZED)
    story.observe(sized)
    lose(story)
    assert story.action.operation == "Create"
    assert story.action.fields["size"] == SIZED
    story.succeed()
    assert story.outcome == "Converged"
    assert story.state.predecessor is None
    assert story.state.owned is not None
    assert story.state.owned.applied is not None
    assert "size" not in story.state.owned.applied.fields, "nothing declares what it took over"


def test_a_replacement_that_cannot_take_over_waits_for_approval():
    story = created_story(HEIR)
    story.declare({"type": "Circle", "color": "Black"})
    assert (story.outcome, story.reason) == ("Held", "DataLoss")
    story.turn(Approved("DataLoss"))
    assert (story.action.operation, story.action.purpose) == ("Delete", "Replace")


def test_a_new_declaration_after_a_deletion_takes_over_nothing():
    story = created_story(HEIR)
    story.observe(repaint(story.existing, size=SIZED))
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "DataLoss")
    story.turn(Approved("DataLoss"))
    story.succeed()
    assert story.outcome == "Deleted"
    story.declare(SQUARE)
    assert story.action.fields == SQUARE


def test_a_kind_may_delete_without_approval_if_the_declaration_permits_it():
    def guards_data(fields: Fields) -> bool:
        return fields["color"] != "Green"

    story = created_story(replace(HEIR, guards_data=guards_data))
    story.declare({**SQUARE, "color": "Green"})
    story.succeed()
    story.withdraw()
    assert story.action.operation == "Delete"
