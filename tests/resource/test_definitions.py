"""Resources of a kind that is defined at run time: their history rests on one definition each."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

from events.intake import Approved, DefinitionReported
from events.kind_definition import DefinitionRef, KindDefinitionSpec
from events.log import (
    ActionDecided,
    DefinitionObserved,
    LogEvent,
    SpecDeclared,
    SpecResolved,
    event_type,
)
from events.manifest import InvalidManifestError
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.definition import kind_of
from reconciler.provider.kind import KIND_DEFINITION, DefinedKind, Kind, KindRegistry
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW, Holds
from shapes_api.kinds.records import RECORD
from shapes_api.kinds.shapes import SHAPE
from tests.resource.building import BLOCK, START, Story, every, names, only

TOY = ResourceKey("default", "Toy", "Foo")
SPEC: dict[str, Any] = {
    "apiVersion": "toys/v1",
    "provider": "toys",
    "over": "Block",
    "namePrefix": "toy-",
    "fields": {"shade": {"to": "color", "normalize": ["Trim", "Title"], "values": ["Red", "Blue"]}},
    "constants": {"type": "Square"},
}


def toy(generation: int = 1, over: Kind = BLOCK, **changes: Any) -> Kind:
    spec = msgspec.convert({**SPEC, **changes}, KindDefinitionSpec)
    # The tests' configuration is of the provider of the kind beneath.
    return replace(kind_of("Toy", spec, generation, over), provider=BLOCK.provider)


def declared_story(over: Kind = BLOCK, shade: str = " red ") -> Story:
    story = Story(kind=toy(over=over), key=TOY)
    story.declare({"shade": shade}, api_version="toys/v1")
    return story


def redefined(told: Story, affected: int = 1, total: int = 1, **changes: Any) -> list[Any]:
    previous_kind = told.kind
    assert previous_kind is not None
    assert previous_kind.definition is not None
    told.kind = replace(
        toy(previous_kind.definition.generation + 1, **changes), immutable=previous_kind.immutable
    )
    assert told.kind.definition is not None
    ref = told.kind.definition
    return list(told.turn(DefinitionReported(ref.generation, ref.digest, affected, total)))


def observe_again(told: Story, **changes: Any) -> list[Any]:
    """A listing shows the object, unchanged or as another client has changed it."""
    known_object = told.state.observed.object
    assert known_object is not None
    version = f"{known_object.version}+" if changes else known_object.version
    observed_object = replace_struct(
        known_object, fields={**known_object.fields, **changes}, version=version
    )
    return list(told.see(observed_object, name=known_object.name))


def test_what_is_declared_becomes_an_object_of_the_kind_beneath():
    story = declared_story()
    assert story.kind is not None
    assert story.kind.definition is not None
    digest = story.kind.definition.digest
    events = [each.data for each in story.log]
    assert only(SpecDeclared, events).definition == story.kind.definition
    assert only(SpecResolved, events).definition == digest
    action = only(ActionDecided, events).action
    assert action.fields == {"type": "Square", "color": "Red"}
    assert (action.external_name, action.definition) == ("toy-Foo", digest)
    story.succeed()
    assert story.outcome == "Converged"
    assert observe_again(story) == [], "two spellings are no difference"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shade": "Green"}, "spec.shade: 'Green' is not allowed; use one of Red, Blue"),
        ({"shade": 7}, "spec.shade: must be a string, not an integer; put it in quotes"),
        ({}, "spec.shade: required"),
        (
            {"shade": "Red", "type": "Circle"},
            "spec.type: unknown field; use one of shade",
        ),
    ],
)
def test_what_a_definition_does_not_allow_is_refused(fields: dict[str, Any], message: str):
    story = Story(kind=toy(), key=TOY)
    story.declare(fields, api_version="toys/v1")
    [answer] = story.answers
    assert answer is not None
    assert (answer.reason, answer.message) == ("Invalid", message)


def test_another_mapping_is_another_input_and_says_which_definition_it_is_of():
    story = declared_story()
    story.succeed()
    events = redefined(story, constants={"type": "Circle"})
    assert names(events) == ["DefinitionObserved", "SpecResolved", "ActionDecided"]
    action = only(ActionDecided, events).action
    assert story.kind is not None
    assert story.kind.definition is not None
    assert (action.operation, action.fields["type"]) == ("Update", "Circle")
    assert action.definition == story.kind.definition.digest
    story.succeed()
    assert story.outcome == "Converged"


def test_a_decider_that_knows_an_older_definition_takes_nothing_back():
    story = declared_story()
    story.succeed()
    older = story.kind
    redefined(story, constants={"type": "Circle"})
    story.succeed()
    story.kind = older
    assert observe_again(story) == []
    assert every(ActionDecided, observe_again(story, color="Blue")) != []
    assert story.action.fields["type"] == "Circle"
    story.succeed()
    assert story.turn(DefinitionReported(1, "older", 1, 1)) == []


def test_a_value_that_is_not_allowed_any_more_fails_and_changes_nothing():
    story = declared_story()
    story.succeed()
    events = redefined(
        story, fields={"shade": {"to": "color", "normalize": ["Title"], "values": ["Blue"]}}
    )
    assert every(ActionDecided, events) == []
    assert (story.outcome, story.reason) == ("Failed", "InvalidInput")


def test_a_definition_that_replaces_too_many_waits_for_a_person():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    story.succeed()
    events = redefined(story, affected=11, total=100, constants={"type": "Circle"})
    assert every(ActionDecided, events) == []
    assert (story.outcome, story.reason) == ("Held", "DefinitionGuard")
    events = story.turn(Approved("DefinitionGuard", reason="it is meant"))
    assert only(ActionDecided, events).action.operation == "Delete"
    story.succeed()
    story.succeed()
    assert story.outcome == "Converged"
    assert story.state.desired.definition is not None
    assert story.state.desired.definition.affected == 0, "a later replacement has other causes"


def test_a_few_replacements_need_no_approval():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    story.succeed()
    events = redefined(story, affected=10, total=100, constants={"type": "Circle"})
    assert only(ActionDecided, events).action.operation == "Delete"


def test_objects_of_the_former_definition_are_not_replaced_without_approval():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    redefined(story, affected=11, total=100, constants={"type": "Circle"})
    assert every(ActionDecided, story.succeed()) == [], "its creation was under way"
    assert (story.outcome, story.reason) == ("Held", "DefinitionGuard")


@pytest.mark.parametrize(
    "changes",
    [{"constants": {"type": "Circle"}}, {}],
    ids=["written", "the same"],
)
def test_a_drift_is_not_held_for_a_definition_that_is_done_with(changes: dict[str, Any]):
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"color"})))
    story.succeed()
    widened = {**SPEC["fields"]["shade"], "values": ["Red", "Blue", "Green"]}
    redefined(story, affected=11, total=100, **changes, fields={"shade": widened})
    if story.state.actions.in_flight is not None:
        story.succeed()
    assert story.outcome == "Converged"
    assert only(ActionDecided, observe_again(story, color="Blue")).action.operation == "Delete"


def test_a_held_replacement_stays_held_if_the_next_definition_asks_for_the_same():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    story.succeed()
    circle = {"type": "Circle"}
    redefined(story, affected=11, total=100, constants=circle)
    widened = {**SPEC["fields"]["shade"], "values": ["Red", "Blue", "Green"]}
    events = redefined(story, affected=11, total=100, constants=circle, fields={"shade": widened})
    assert every(ActionDecided, events) == []
    assert (story.outcome, story.reason) == ("Held", "DefinitionGuard")


def test_an_approval_is_of_one_definition():
    held = replace_struct(NEW, holds=Holds(approved="DefinitionGuard"))
    data = DefinitionObserved(DefinitionRef(2, "newer"))
    event = LogEvent("e", "reconciler", event_type(data), str(TOY), START, 1, data)
    assert evolve(held, event).holds.approved == ""


def test_after_its_withdrawal_nothing_new_is_declared_and_what_is_there_can_go():
    story = declared_story()
    story.succeed()
    assert isinstance(story.kind, DefinedKind)
    story.kind = replace(story.kind, is_withdrawn=True)
    story.declare({"shade": "Blue"}, api_version="toys/v1")
    [answer] = story.answers
    assert answer is not None
    assert answer.reason == "UnknownKind"
    assert answer.message == "kind 'Toy': its KindDefinition was withdrawn; declare it again"
    observe_again(story)
    events = story.withdraw()
    assert only(ActionDecided, events).action.operation == "Delete"
    story.succeed()
    assert story.outcome == "Deleted"


# --- definitions themselves


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"over": "Nothing"},
            "spec.over: 'Nothing' is not an installed kind; use one of Block, Shape",
        ),
        (
            {"over": "ProviderConfig"},
            "spec.over: 'ProviderConfig' is not an installed kind; use one of Block, Shape",
        ),
        (
            {"provider": "tests"},
            "spec.provider: 'tests' is already the provider of Block; use another name",
        ),
        (
            {"constants": {"weight": 1}},
            "spec.constants: Block has no field 'weight'; use one of type, color, size",
        ),
        (
            {"over": "Shape", "constants": {}},
            "spec.fields: Shape requires 'type'; map a field to it, or set it in spec.constants",
        ),
        (
            {"fields": {"color": {}, "shade": {"to": "color"}}},
            "spec.fields.shade: spec.fields.color already writes 'color'; remove one of them",
        ),
        (
            {"fields": {"policy": {"to": "color"}}},
            "spec.fields.policy: the name is reserved; use another name",
        ),
        (
            {"fields": {"shade": {"to": "color", "default": 7}}},
            "spec.fields.shade.default: must be a string, not an integer; put it in quotes",
        ),
        (
            {"fields": {"shade": {"to": "color", "default": "Pink", "values": ["Red"]}}},
            "spec.fields.shade.default: 'Pink' is not in values; use one of them",
        ),
        (
            {"constants": {"type": 7}},
            "spec.constants.type: must be a string or null, not an integer; put it in quotes",
        ),
        (
            {"fields": {"shade": {"to": "color", "normalize": ["Title"], "values": ["red"]}}},
            (
                "spec.fields.shade.values: 'red' can never occur, because values are normalized; "
                "use 'Red'"
            ),
        ),
        (
            {"fields": {"shade": {"to": "color", "values": ["Red", 1]}}},
            "spec.fields.shade.values: must be a string, not an integer; put it in quotes",
        ),
        (
            {"constants": {"size": {"wide": {"$secret": "a"}}}},
            "spec.constants.size: must not contain a reference or a secret",
        ),
        (
            {"apiVersion": "toys"},
            "spec.apiVersion: 'toys' must have the form GROUP/VERSION, such as badges/v1",
        ),
    ],
)
def test_a_definition_that_cannot_work_gives_the_reason(changes: dict[str, Any], message: str):
    with pytest.raises(InvalidManifestError) as caught:
        build_defined_kind(KindRegistry([BLOCK, SHAPE]), "Toy", {**SPEC, **changes}, 1)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["__init__", "__dict__", "__slots__", "class", "field0"])
@pytest.mark.parametrize("default", [{}, {"default": "Red"}])
def test_a_field_may_have_any_name_that_its_pattern_allows(name: str, default: dict[str, str]):
    fields = {"type": {"default": "Circle"}, name: {"to": "color", **default}}
    kind = build_defined_kind(
        KindRegistry([BLOCK]), "Toy", {**SPEC, "fields": fields, "constants": {}}, 1
    )
    checked = kind.check_declared({} if default else {name: "Red"})
    assert kind.object_fields(checked) == {"type": "Circle", "color": "Red"}


def test_a_list_has_allowed_values_and_a_default():
    values = {"type": "Strings", "normalize": ["Lower"], "values": ["a", "b"], "default": ["A"]}
    fields = {"type": {}, "values": values}
    spec = {**SPEC, "over": "Record", "fields": fields, "constants": {}}
    kind = build_defined_kind(KindRegistry([RECORD]), "Toy", spec, 1)
    for declared, resolved in (({}, ["a"]), ({"values": ["B", "A"]}, ["a", "b"])):
        checked = kind.check_declared({"type": "A", **declared})
        assert kind.object_fields(checked)["values"] == resolved
    with pytest.raises(
        InvalidManifestError, match=re.escape("['c'] is not allowed; use one of a, b")
    ):
        kind.check_declared({"type": "A", "values": ["c"]})


def test_an_installed_kind_is_not_defined_anew():
    with pytest.raises(InvalidManifestError, match="'Block' is an installed kind"):
        build_defined_kind(KindRegistry([BLOCK]), "Block", SPEC, 1)


@pytest.mark.parametrize("field", ["over", "provider", "namePrefix"])
def test_what_would_part_resources_from_their_objects_stays(field: str):
    story = Story(
        kind=KIND_DEFINITION,
        configs={},
        key=ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Toy"),
    )
    story.declare(SPEC, api_version="reconciler/v1")
    assert story.outcome == "Converged"
    story.withdraw()
    story.declare({**SPEC, field: "other"}, api_version="reconciler/v1")
    [answer] = story.answers
    assert answer is not None
    assert answer.reason == "Immutable"
    assert answer.message.startswith(f"spec.{field}: cannot be changed from ")


def test_a_default_of_an_object_has_what_its_fields_have_if_nobody_declares_them():
    part = {"type": "Object", "default": {}, "fields": {"on": {"type": "Boolean", "default": True}}}
    spec = msgspec.convert({**SPEC, "over": None, "fields": {"part": part}}, KindDefinitionSpec)
    kind = kind_of("Toy", spec, 1, BLOCK)
    assert kind.checked_fields({}) == {"part": {"on": True}}
    assert kind.checked_fields({"part": {"on": False}}) == {"part": {"on": False}}
