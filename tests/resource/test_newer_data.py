"""Data that is newer than the observation by which an action was decided (invariant 16)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec.structs import replace as replace_struct

from events.external import ExternalObject
from events.intake import Approved, Observed
from events.log import ActionFailed, HoldApproved
from events.manifest import Fields
from reconciler.provider.kind import READY, Readiness
from reconciler.resource.evolve import evolve
from tests.resource.building import BLOCK, Story, api_object, converged_story, only

SQUARE = {"type": "Square", "color": "Red"}
HELD = ("Held", "DataLoss")


def _data_loss(fields: Fields | None, observed_object: ExternalObject) -> str:
    data = observed_object.outputs.get("data", "")
    is_kept = fields is not None and fields.get("color") != "Empty"
    return f"{data} of {observed_object.name}" if data and not is_kept else ""


KEEPER = replace(BLOCK, describe_data_loss=_data_loss)
IN_PLACE = replace(KEEPER, immutable=frozenset({"type"}))
BESIDE = replace(IN_PLACE, has_second_name=True)


def outcome(story: Story) -> tuple[str, str]:
    return story.outcome, story.reason


def with_data(existing: ExternalObject, data: str = "2 rows") -> ExternalObject:
    return msgspec.structs.replace(existing, outputs={"data": data})


def test_a_deletion_whose_call_finds_newer_data_is_held():
    story = converged_story(kind=KEEPER)
    known = story.existing
    story.withdraw()
    assert (story.action.operation, story.action.data_loss) == ("Delete", "")
    events = story.fail("Conflict", existing=with_data(known))
    assert only(ActionFailed, events).consequence == "Observed"
    assert (outcome(story), story.idle) == (HELD, True)
    assert "would lose 2 rows of Foo" in story.outcome_message
    assert story.wake(36_000) == []

    story.turn(Approved("DataLoss"))
    assert (story.action.operation, story.action.data_loss) == ("Delete", "2 rows of Foo")
    story.succeed()
    assert story.outcome == "Deleted"


def test_an_approval_does_not_cover_data_that_arrives_after_it():
    story = converged_story(kind=KEEPER)
    known = story.existing
    story.observe(with_data(known))
    story.withdraw()
    story.turn(Approved("DataLoss"))
    story.fail("Conflict", existing=with_data(known, "2 rows and 1 table"))
    assert (outcome(story), story.idle) == (HELD, True)
    assert "2 rows and 1 table" in story.outcome_message


def test_an_approval_does_not_cover_data_that_is_observed_before_the_call():
    story = converged_story(kind=KEEPER)
    known = with_data(story.existing)
    story.observe(known)
    story.withdraw()
    story.turn(Approved("DataLoss"))
    story.fail("NotDone")
    story.declare()
    story.withdraw()
    assert (outcome(story), story.idle) == (HELD, True), "an approval covers one withdrawal"
    story.process(
        [
            story.command(Approved("DataLoss")),
            story.command(
                Observed("default", "Foo", with_data(known, "3 rows"), "Read", story.position + 1)
            ),
        ]
    )
    assert (outcome(story), story.idle) == (HELD, True)
    assert "3 rows of Foo" in story.outcome_message
    story.turn(Approved("DataLoss"))
    assert story.action.data_loss == "3 rows of Foo"


def test_two_holds_of_one_replacement_can_both_be_approved():
    """The approval of the second one must not end that of the first one."""
    story = converged_story(kind=IN_PLACE)
    story.observe(with_data(story.existing))
    story.declare({**SQUARE, "type": "Circle"})
    message = story.outcome_message
    assert outcome(story) == HELD
    approved = replace_struct(story.state.holds, approved="DefinitionGuard")
    state = replace_struct(story.state, holds=approved)
    event = replace_struct(
        story.log[-1],
        data=HoldApproved("DataLoss"),
        resourceversion=state.version + 1,
    )
    holds = evolve(state, event).holds
    assert (holds.approved, holds.approved_loss) == ("DefinitionGuard", message)


def test_a_deletion_of_an_object_that_was_never_read_gives_up_no_data():
    story = Story(kind=KEEPER)
    story.declare()
    story.report(existing=None)
    story.withdraw()
    assert (story.action.operation, story.action.data_loss) == ("Delete", "")


def test_a_write_whose_call_finds_newer_data_is_held():
    story = converged_story(kind=KEEPER)
    known = story.existing
    story.declare({**SQUARE, "color": "Empty"})
    assert (story.action.operation, story.action.data_loss) == ("Update", "")
    story.fail("Conflict", existing=with_data(known))
    assert (outcome(story), story.idle) == (HELD, True)
    story.declare({**SQUARE, "color": "Blue"})
    assert story.action.operation == "Update", "a change without data loss continues"


def test_a_replacement_whose_call_finds_newer_data_is_held():
    story = converged_story(kind=IN_PLACE)
    known = story.existing
    story.declare({**SQUARE, "type": "Circle"})
    assert (story.action.operation, story.action.purpose) == ("Delete", "Replace")
    story.fail("Conflict", existing=with_data(known))
    assert (outcome(story), story.idle) == (HELD, True)


def test_a_replaced_object_that_receives_data_is_not_deleted_without_approval():
    story = converged_story(kind=BESIDE)
    known = story.existing
    story.declare({**SQUARE, "type": "Circle"})
    story.succeed()
    assert (story.action.purpose, story.action.data_loss) == ("Retire", "")
    story.fail("Conflict", existing=with_data(known))
    assert (outcome(story), story.idle) == (HELD, True)
    assert "would lose 2 rows of Foo" in story.outcome_message

    story.turn(Approved("DataLoss"))
    assert (story.action.purpose, story.action.data_loss) == ("Retire", "2 rows of Foo")
    story.succeed()
    assert (story.outcome, story.state.retiring) == ("Converged", None)


def test_a_replacement_that_was_approved_is_not_asked_for_twice():
    story = converged_story(kind=BESIDE)
    story.observe(with_data(story.existing))
    story.declare({**SQUARE, "type": "Circle"})
    assert outcome(story) == HELD
    story.turn(Approved("DataLoss"))
    story.succeed()
    assert (story.action.purpose, story.action.data_loss) == ("Retire", "2 rows of Foo")
    story.succeed()
    assert story.outcome == "Converged"


def _ready(_fields: Fields, observed_object: ExternalObject) -> Readiness:
    return Readiness(False, "Starting") if observed_object.outputs.get("starting") else READY


def test_a_replaced_object_that_is_owned_again_has_no_approved_loss():
    story = converged_story(kind=replace(BESIDE, ready=_ready))
    story.observe(with_data(story.existing))
    story.declare({**SQUARE, "type": "Circle"})
    story.turn(Approved("DataLoss"))
    name = story.action.external_name
    created = story.object_after(story.action)
    story.report(existing=msgspec.structs.replace(created, outputs={"starting": True}))
    story.observe(None, name=name)
    assert story.state.owned is not None
    assert (story.state.owned.data_loss, outcome(story)) == ("", HELD)


def test_a_refused_deletion_is_repeated_for_the_same_data_only():
    story = converged_story(kind=KEEPER)
    story.observe(with_data(story.existing))
    story.withdraw()
    story.turn(Approved("DataLoss"))
    story.fail("Refused")
    assert story.idle
    story.observe(with_data(api_object(uid=story.existing.uid), "2 rows and 1 table"))
    story.wake(36_000)
    assert (story.action.operation, story.action.data_loss) == ("Delete", "2 rows of Foo")
    story.fail("Conflict", existing=with_data(story.existing, "2 rows and 1 table"))
    assert (outcome(story), story.idle) == (HELD, True)


def test_a_kind_without_data_records_none():
    story = converged_story()
    story.declare({**SQUARE, "color": "Blue"})
    assert story.action.data_loss == ""
