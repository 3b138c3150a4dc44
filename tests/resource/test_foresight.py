"""A declaration with a plan has exactly the planned result or is refused; unknown values."""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec
import pytest

from events.intake import Declared, PlanRef, Reply
from events.manifest import Fields, InvalidManifestError
from events.provider_config import ProviderConfigSpec
from reconciler.resource.decide import decide
from reconciler.resource.expectation import UNKNOWN, turn_digest, with_unknown_values
from reconciler.resource.state import PLAN_OUTDATED
from tests.resource.building import BLOCK, CONFIG, Story, converged_story, manifest, names, repaint

GREEN = {"type": "Square", "color": "Green"}


def plan_declaration(story: Story, fields: Fields = GREEN) -> Declared:
    """Return a declaration with the plan for the current state."""
    declaration = Declared(manifest(fields))
    turn = decide(story.state, [story.command(declaration)], story.context)
    return Declared(
        declaration.manifest, plan=PlanRef(story.state.version, turn_digest(turn.events))
    )


def test_a_planned_declaration_is_accepted():
    story = converged_story()
    declaration = plan_declaration(story)
    assert names(story.turn(declaration)) == ["SpecDeclared", "ActionDecided"]
    assert story.reply.accepted


def test_an_outdated_plan_is_refused_and_changes_nothing():
    story = converged_story()
    declaration = plan_declaration(story)
    version = story.state.version
    story.observe(repaint(story.existing, color="Blue"))
    assert story.turn(declaration) == []
    assert story.reply == Reply(
        False,
        PLAN_OUTDATED,
        1,
        story.reply.position,
        (
            f"the plan is for version {version}, but the resource is at version "
            f"{story.state.version}; plan again"
        ),
    )


def test_a_plan_for_another_configuration_is_refused():
    story = Story()
    declaration = plan_declaration(story)
    story.configs = {CONFIG: ProviderConfigSpec("other", "http://other")}
    assert story.turn(declaration) == []
    assert story.reply.reason == PLAN_OUTDATED
    assert story.reply.message.startswith("the result would now differ from the plan (")


def test_a_redelivered_planned_declaration_is_a_duplicate():
    story = Story()
    declaration = plan_declaration(story)
    first = story.command(declaration, message_id="same")
    story.process([first])
    story.process([story.command(declaration, message_id="same")])
    assert (story.reply.accepted, story.reply.reason) == (True, "Duplicate")


def test_an_invalid_declaration_with_a_plan_is_refused_as_invalid():
    story = converged_story()
    declaration = plan_declaration(story)
    bad = manifest()
    bad = msgspec.structs.replace(bad, spec={"colour": "Green"})
    story.turn(Declared(bad, plan=declaration.plan))
    assert story.reply.reason == "Invalid"


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    port: int
    shape: Literal["Square", "Circle"] = "Square"
    names: list[str] = []


def test_an_unknown_value_may_be_any_value_that_the_kind_accepts():
    kind = with_unknown_values(dataclasses.replace(BLOCK, schema=_Fields))
    values = {"port": UNKNOWN, "shape": "Circle", "names": ["a"]}
    assert kind.check_fields(values) == values
    values = {"port": 1, "shape": UNKNOWN}
    assert kind.check_fields(values) == {**values, "names": []}
    with pytest.raises(InvalidManifestError, match="port"):
        kind.check_fields({"port": "none", "shape": "Circle"})
