"""Resources of a kind that is defined at run time: their events name its definition."""

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
from reconciler.provider.definition import build_kind
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


def toy_kind(generation: int = 1, over: Kind = BLOCK, **changes: Any) -> Kind:
    spec = msgspec.convert({**SPEC, **changes}, KindDefinitionSpec)
    # The tests' configuration is for the provider of the underlying kind.
    return replace(build_kind("Toy", spec, generation, over), provider=BLOCK.provider)


def declared_story(over: Kind = BLOCK, shade: str = " red ") -> Story:
    story = Story(kind=toy_kind(over=over), key=TOY)
    story.declare({"shade": shade}, api_version="toys/v1")
    return story


def redefine(story: Story, affected: int = 1, total: int = 1, **changes: Any) -> list[Any]:
    previous_kind = story.kind
    assert previous_kind is not None
    assert previous_kind.definition is not None
    story.kind = replace(
        toy_kind(previous_kind.definition.generation + 1, **changes),
        immutable=previous_kind.immutable,
    )
    assert story.kind.definition is not None
    ref = story.kind.definition
    return list(story.turn(DefinitionReported(ref.generation, ref.digest, affected, total)))


def observe_again(story: Story, **changes: Any) -> list[Any]:
    """Process a listing that shows the object, unchanged or changed by another client."""
    known_object = story.state.observed.object
    assert known_object is not None
    version = f"{known_object.version}+" if changes else known_object.version
    observed_object = replace_struct(
        known_object, fields={**known_object.fields, **changes}, version=version
    )
    return list(story.observe(observed_object, name=known_object.name))


def test_a_declaration_becomes_an_object_of_the_underlying_kind():
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
    assert observe_again(story) == [], "a different spelling does not count as a difference"


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
def test_a_declaration_that_the_definition_does_not_allow_is_refused(
    fields: dict[str, Any], message: str
):
    story = Story(kind=toy_kind(), key=TOY)
    story.declare(fields, api_version="toys/v1")
    [reply] = story.replies
    assert reply is not None
    assert (reply.reason, reply.message) == ("Invalid", message)


def test_a_changed_mapping_leads_to_an_input_with_the_digest_of_its_definition():
    story = declared_story()
    story.succeed()
    events = redefine(story, constants={"type": "Circle"})
    assert names(events) == ["DefinitionObserved", "SpecResolved", "ActionDecided"]
    action = only(ActionDecided, events).action
    assert story.kind is not None
    assert story.kind.definition is not None
    assert (action.operation, action.fields["type"]) == ("Update", "Circle")
    assert action.definition == story.kind.definition.digest
    story.succeed()
    assert story.outcome == "Converged"


def test_a_decider_with_an_older_definition_reverts_nothing():
    story = declared_story()
    story.succeed()
    older = story.kind
    redefine(story, constants={"type": "Circle"})
    story.succeed()
    story.kind = older
    assert observe_again(story) == []
    assert every(ActionDecided, observe_again(story, color="Blue")) != []
    assert story.action.fields["type"] == "Circle"
    story.succeed()
    assert story.turn(DefinitionReported(1, "older", 1, 1)) == []


def test_a_value_that_is_no_longer_allowed_fails_and_changes_nothing():
    story = declared_story()
    story.succeed()
    events = redefine(
        story, fields={"shade": {"to": "color", "normalize": ["Title"], "values": ["Blue"]}}
    )
    assert every(ActionDecided, events) == []
    assert (story.outcome, story.reason) == ("Failed", "InvalidInput")


def test_a_definition_that_replaces_too_many_objects_is_held():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    story.succeed()
    events = redefine(story, affected=11, total=100, constants={"type": "Circle"})
    assert every(ActionDecided, events) == []
    assert (story.outcome, story.reason) == ("Held", "DefinitionGuard")
    events = story.turn(Approved("DefinitionGuard", reason="intended"))
    assert only(ActionDecided, events).action.operation == "Delete"
    story.succeed()
    story.succeed()
    assert story.outcome == "Converged"
    assert story.state.desired.definition is not None
    assert story.state.desired.definition.affected == 0, "a later replacement has other causes"


def test_a_few_replacements_need_no_approval():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    story.succeed()
    events = redefine(story, affected=10, total=100, constants={"type": "Circle"})
    assert only(ActionDecided, events).action.operation == "Delete"


def test_objects_of_the_previous_definition_are_not_replaced_without_approval():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    redefine(story, affected=11, total=100, constants={"type": "Circle"})
    assert every(ActionDecided, story.succeed()) == [], "its creation was in flight"
    assert (story.outcome, story.reason) == ("Held", "DefinitionGuard")


@pytest.mark.parametrize(
    "changes",
    [{"constants": {"type": "Circle"}}, {}],
    ids=["written", "the same"],
)
def test_drift_is_not_held_for_a_definition_that_is_already_applied(changes: dict[str, Any]):
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"color"})))
    story.succeed()
    widened = {**SPEC["fields"]["shade"], "values": ["Red", "Blue", "Green"]}
    redefine(story, affected=11, total=100, **changes, fields={"shade": widened})
    if story.state.actions.in_flight is not None:
        story.succeed()
    assert story.outcome == "Converged"
    assert only(ActionDecided, observe_again(story, color="Blue")).action.operation == "Delete"


def test_a_held_replacement_stays_held_under_an_equivalent_definition():
    story = declared_story(over=replace(BLOCK, immutable=frozenset({"type"})))
    story.succeed()
    circle = {"type": "Circle"}
    redefine(story, affected=11, total=100, constants=circle)
    widened = {**SPEC["fields"]["shade"], "values": ["Red", "Blue", "Green"]}
    events = redefine(story, affected=11, total=100, constants=circle, fields={"shade": widened})
    assert every(ActionDecided, events) == []
    assert (story.outcome, story.reason) == ("Held", "DefinitionGuard")


def test_an_approval_covers_only_one_definition():
    held = replace_struct(NEW, holds=Holds(approved="DefinitionGuard"))
    data = DefinitionObserved(DefinitionRef(2, "newer"))
    event = LogEvent("e", "reconciler", event_type(data), str(TOY), START, 1, data)
    assert evolve(held, event).holds.approved == ""


def test_a_withdrawn_definition_allows_only_deletions():
    story = declared_story()
    story.succeed()
    assert isinstance(story.kind, DefinedKind)
    story.kind = replace(story.kind, is_withdrawn=True)
    story.declare({"shade": "Blue"}, api_version="toys/v1")
    [reply] = story.replies
    assert reply is not None
    assert reply.reason == "UnknownKind"
    assert reply.message == "kind 'Toy': its KindDefinition was withdrawn; declare it again"
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
def test_an_invalid_definition_is_refused_with_the_reason(changes: dict[str, Any], message: str):
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


def test_an_installed_kind_cannot_be_redefined():
    with pytest.raises(InvalidManifestError, match="'Block' is an installed kind"):
        build_defined_kind(KindRegistry([BLOCK]), "Block", SPEC, 1)


@pytest.mark.parametrize("field", ["over", "provider", "namePrefix"])
def test_a_field_that_connects_resources_to_their_objects_is_immutable(field: str):
    story = Story(
        kind=KIND_DEFINITION,
        configs={},
        key=ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Toy"),
    )
    story.declare(SPEC, api_version="reconciler/v1")
    assert story.outcome == "Converged"
    story.withdraw()
    story.declare({**SPEC, field: "other"}, api_version="reconciler/v1")
    [reply] = story.replies
    assert reply is not None
    assert reply.reason == "Immutable"
    assert reply.message.startswith(f"spec.{field}: cannot be changed from ")


def test_the_default_of_an_object_contains_the_defaults_of_its_fields():
    part = {"type": "Object", "default": {}, "fields": {"on": {"type": "Boolean", "default": True}}}
    spec = msgspec.convert({**SPEC, "over": None, "fields": {"part": part}}, KindDefinitionSpec)
    kind = build_kind("Toy", spec, 1, BLOCK)
    assert kind.check_fields({}) == {"part": {"on": True}}
    assert kind.check_fields({"part": {"on": False}}) == {"part": {"on": False}}
