"""The steps of a move, from the states of both resources (scenario 48)."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from events.intake import ReconcileRequested, TimerFired
from events.log import MoveEnded, MoveExpected, ResourceEvent
from events.manifest import MOVED_FROM_ANNOTATION
from events.names import ResourceKey
from reconciler.provider.kind import Kind
from reconciler.resource.decide import continue_turn
from reconciler.resource.difference import LABELS
from reconciler.resource.move import Move, moves_of, next_move_step
from reconciler.resource.state import ResourceState
from reconciler.roles.decider.move_circles import find_move_circle
from tests.resource.building import BLOCK, FOO, LOG_ID, Story, names

BAR = ResourceKey("default", "Block", "Bar")
BAZ = ResourceKey("default", "Block", "Baz")
FIXED_LABELS = dataclasses.replace(BLOCK, immutable=(*BLOCK.immutable, LABELS))


@dataclass
class Rename:
    """Foo, which owns an object, and Bar, which is declared as its new name."""

    kind: Kind = BLOCK
    former: Story = field(init=False)
    new: Story = field(init=False)

    def __post_init__(self) -> None:
        self.former, self.new = Story(kind=self.kind), Story(key=BAR, kind=self.kind)
        self.former.declare()
        self.former.succeed()
        self.new.declare(annotations={MOVED_FROM_ANNOTATION: "Foo"})

    def step(self) -> tuple[list[str], list[str]]:
        """Take the next step, and return the types of the events of both resources."""
        return _step(self.former, self.new)


def _step(former: Story, new: Story) -> tuple[list[str], list[str]]:
    """Take the next step of a move, and return the types of the events of both resources."""
    move = Move(former.key, new.key)
    step = next_move_step(move, former.state, new.state, new.state, LOG_ID)
    return _record(former, step.former), _record(new, step.new)


def _record(story: Story, event: ResourceEvent | None) -> list[str]:
    if event is None:
        return []
    turn = continue_turn(story.state, [event], story.command(TimerFired("Retry")), story.context)
    story.state = turn.state
    story.log += turn.events
    return names([each.data for each in turn.events])


def test_the_new_resource_waits_while_the_former_one_is_declared():
    rename = Rename()
    assert rename.step() == (["MoveExpected"], [])
    assert rename.step() == ([], [])
    assert rename.new.state.outcome is not None
    assert rename.new.state.outcome.reason == "MoveExpected"


def test_the_object_is_released_and_claimed_in_one_step():
    rename = Rename()
    rename.step()
    assert "ActionDecided" not in names(rename.former.withdraw()), "the object is not deleted"
    former_owned = rename.former.state.owned
    released, claimed = rename.step()
    assert released[0] == "OwnershipReleased"
    assert claimed == ["OwnershipClaimed", "ActionDecided"], "the label is changed in place"
    owned = rename.new.state.owned
    assert former_owned is not None
    assert owned is not None
    assert (owned.uid, owned.applied) == (former_owned.uid, former_owned.applied)
    assert rename.former.state.owned is None


def test_the_former_resource_does_not_adopt_the_object_that_it_handed_over():
    """The object may still have its label, and a read does not show its new owner."""
    rename = Rename()
    rename.step()
    rename.former.withdraw()
    moved = rename.former.existing
    rename.step()
    rename.former.declare(policy={"adoption": "Adopt"})
    rename.former.fail("Conflict", existing=moved)
    assert rename.former.state.owned is None
    assert rename.former.outcome == "Conflict"
    rename.former.observe(None)
    assert rename.former.state.actions.in_flight is not None, "its own object is created"


def test_a_requested_read_ends_once_the_object_is_moved():
    rename = Rename()
    rename.step()
    rename.former.withdraw()
    rename.former.turn(ReconcileRequested())
    rename.step()
    rename.former.turn(ReconcileRequested())  # compares the row and the state after each event
    assert rename.former.state.observed.read_requested_at is None


def test_an_object_keeps_the_former_label_if_labels_cannot_change():
    rename = Rename(FIXED_LABELS)
    rename.step()
    rename.former.withdraw()
    _, claimed = rename.step()
    assert claimed == ["OwnershipClaimed", "OutcomeRecorded"]
    assert rename.new.state.outcome is not None
    assert rename.new.state.outcome.outcome == "Converged"


def test_the_former_object_is_deleted_if_the_new_resource_is_withdrawn():
    rename = Rename()
    rename.step()
    rename.new.withdraw()
    rename.former.withdraw()
    assert rename.step() == (["MoveEnded", "ActionDecided"], [])


def test_a_withdrawn_new_resource_still_names_the_move_that_it_ends():
    rename = Rename()
    rename.step()
    rename.former.withdraw()
    rename.new.withdraw()
    assert [*moves_of(BAR, rename.new.state)] == [Move(FOO, BAR)], "after a crash, too"
    assert rename.step() == (["MoveEnded", "ActionDecided"], [])
    assert rename.step() == ([], [])


def test_the_first_of_two_new_names_takes_the_object_over():
    rename = Rename()
    former = rename.former.state
    expected = replace(former, holds=replace(former.holds, moving_to="default/Block/Baz"))
    step = next_move_step(Move(FOO, BAR), expected, rename.new.state, rename.new.state, LOG_ID)
    assert isinstance(step.new, MoveEnded)
    stale = Story(key=BAR).state
    step = next_move_step(Move(FOO, BAR), expected, rename.new.state, stale, LOG_ID)
    assert step.former == MoveExpected(str(BAR))


def test_a_declaration_without_the_annotation_still_names_the_move_that_it_ends():
    rename = Rename()
    rename.step()
    rename.former.withdraw()
    rename.new.declare()
    assert [*moves_of(BAR, rename.new.state)] == [Move(FOO, BAR)], "after a crash, too"
    assert rename.step() == (["MoveEnded", "ActionDecided"], ["MoveEnded"])
    assert [*moves_of(BAR, rename.new.state)] == []
    assert rename.step() == ([], [])


def test_a_resource_that_is_renamed_again_passes_the_object_on():
    rename, last = Rename(), Story(key=BAZ)
    last.declare(annotations={MOVED_FROM_ANNOTATION: "Bar"})
    rename.step()
    assert _step(rename.new, last) == (["MoveExpected"], [])
    rename.new.withdraw()
    assert rename.new.state.outcome is not None
    assert rename.new.state.outcome.reason == "MoveExpected"
    assert _step(rename.new, last) == ([], []), "Bar has no object yet"
    assert rename.step() == ([], []), "Foo is declared"
    rename.former.withdraw()
    released, claimed = rename.step()
    assert (released[0], claimed[0]) == ("OwnershipReleased", "OwnershipClaimed")
    assert "ActionDecided" not in claimed, "the object is not deleted"
    released, claimed = _step(rename.new, last)
    assert (released[0], claimed[0]) == ("OwnershipReleased", "OwnershipClaimed")
    assert last.state.owned is not None


def test_the_object_is_deleted_if_no_resource_is_left_to_pass_it_on_to():
    rename, last = Rename(), Story(key=BAZ)
    last.declare(annotations={MOVED_FROM_ANNOTATION: "Bar"})
    rename.step()
    _step(rename.new, last)
    rename.new.withdraw()
    rename.former.withdraw()
    last.withdraw()
    assert _step(rename.new, last) == (["MoveEnded", "OutcomeRecorded"], [])
    assert rename.step() == (["MoveEnded", "ActionDecided"], [])


def test_a_resource_with_an_object_takes_over_no_other_one():
    """Otherwise, it would keep its own, and the other one would be deleted."""
    story = Story()
    story.declare()
    story.succeed()
    assert story.declare(annotations={MOVED_FROM_ANNOTATION: "Bar"}) == []
    [reply] = story.replies
    assert reply is not None
    assert (reply.accepted, reply.reason) == (False, "Immutable")
    assert "still owns object 'Foo'" in reply.message


def test_the_annotation_stays_in_the_manifest_after_the_move():
    rename = Rename()
    rename.step()
    rename.former.withdraw()
    rename.step()
    rename.new.succeed()
    annotations = {MOVED_FROM_ANNOTATION: "Foo"}
    assert rename.new.declare({"type": "Square", "color": "Blue"}, annotations=annotations)
    assert not rename.new.state.desired.moving_from


def _settle(stories: dict[ResourceKey, Story]) -> None:
    """Take the steps of all moves, as the decider and the plan do."""

    async def read(key: ResourceKey) -> ResourceState | None:
        return stories[key].state if key in stories else None

    circular = set[Move]()
    for _ in range(4):
        for key, story in stories.items():
            for move in [*moves_of(key, story.state)]:
                former, new = stories[move.former], stories[move.new]
                circular |= asyncio.run(find_move_circle(move, former.state, read))
                states = former.state, new.state, new.state
                is_circular = move in circular
                step = next_move_step(move, *states, LOG_ID, is_circular=is_circular)
                _record(former, step.former)
                _record(new, step.new)


@pytest.mark.parametrize("keys", [(FOO, BAR), (FOO, BAR, BAZ)], ids=["two", "three"])
@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_renames_in_a_circle_without_an_object_end(
    keys: tuple[ResourceKey, ...], *, is_withdrawn: bool
):
    stories = {key: Story(key=key) for key in keys}
    for number, story in enumerate(stories.values()):
        story.declare(annotations={MOVED_FROM_ANNOTATION: keys[number - 1].name})
        assert story.reason == "MoveExpected"
    if is_withdrawn:
        for former, story in zip((*keys[1:], keys[0]), stories.values(), strict=True):
            _record(story, MoveExpected(str(former)))
            story.withdraw()
    _settle(stories)
    for story in stories.values():
        assert story.outcome == "Deleted" if is_withdrawn else story.action.operation == "Create"


def test_a_chain_of_renames_that_ends_at_an_object_is_no_circle():
    rename, last = Rename(), Story(key=BAZ)
    last.declare(annotations={MOVED_FROM_ANNOTATION: "Bar"})
    _settle({FOO: rename.former, BAR: rename.new, BAZ: last})
    assert [each.reason for each in (rename.new, last)] == ["MoveExpected"] * 2
