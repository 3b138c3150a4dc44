"""A composition without code: the results of its expressions, and the errors for invalid ones."""

from __future__ import annotations

import random
import time
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from events.composition import CHILDREN, Child, manifests_of
from events.external import ExternalObject
from events.intake import Declared, DefinitionReported, TimerFired
from events.log import ActionDecided, SpecDeclared, SpecResolved
from events.manifest import Fields, InvalidManifestError, Manifest
from events.names import ResourceKey
from infra.providers.composition import engine
from infra.providers.deployment import DEPLOYMENT
from infra.providers.docker.container import CONTAINER
from infra.providers.rest.expressions import Expression, Inputs
from reconciler.cli.explain import explain_kind
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import KIND_DEFINITION, DefinedKind, Kind, KindRegistry
from reconciler.provider.lazy import LazyProvider
from reconciler.resource.availability import REPLACEMENT_READY_SECONDS
from reconciler.resource.decide import decide
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW
from tests.composites.palette import PALETTE
from tests.composites.trio import DEFINITION, KEY, SPEC, content, kind_from, shape, spec, with_part
from tests.resource.building import BLOCK, START, Story, every, manifest, names, only

READY = Child("Converged", ready=True)


def colors(fields: Fields) -> dict[str, str]:
    return {each.metadata.name: each.spec["color"] for each in manifests_of(fields)}


def build_provider_object(
    fields: Fields, kind: Kind | None = None, **child_states: Child
) -> ExternalObject:
    """Return the object as the provider shows it; parts that are not given are ready."""
    children = {
        name: child_states.get(name.rpartition("/")[2].replace("-", "_"), READY)
        for name in fields[CHILDREN]
    }
    connect = (kind or kind_from()).connect
    assert isinstance(connect, LazyProvider)
    summary = dict(connect.options)["summary"]
    outputs = {CHILDREN: msgspec.to_builtins(children), **summary(fields, children)}
    return ExternalObject("default.t", fields, uid="set-1", version="1", outputs=outputs)


# --- composed parts


def test_parts_are_composed_from_the_declaration():
    fields = content(dots=["a", "b"])
    assert colors(fields) == {
        "t-middle": "Red",
        "t-side": "White",
        "t-dot-a": "Black",
        "t-dot-b": "Black",
        "t-base": "Red",
    }
    labels = {each.metadata.name: each.metadata.labels for each in manifests_of(fields)}
    assert (labels["t-dot-a"], labels["t-side"]) == ({"dot": "a"}, {})
    assert {each.metadata.namespace for each in manifests_of(fields)} == {"default"}


def test_another_order_of_fields_in_the_declaration_is_not_a_change():
    assert content(dots=["a", "b"]) == content(dots=["b", "a"])


def test_a_disabled_part_is_absent_and_the_others_stay_the_same():
    enabled, disabled = content(), content(side=False)
    deleted_parts = enabled[CHILDREN].keys() - disabled[CHILDREN].keys()
    assert deleted_parts == {"default/Shape/t-side"}
    assert {name: enabled[CHILDREN][name] for name in disabled[CHILDREN]} == disabled[CHILDREN]


def test_a_created_part_keeps_its_first_manifest():
    existing = build_provider_object(content(color="Red"))
    assert colors(content(seen=existing, color="Blue")) == {
        "t-middle": "Blue",
        "t-side": "White",
        "t-base": "Red",
    }


def test_an_absent_part_is_not_evaluated():
    definition = with_part(
        name="never", when="spec.divisor > 1", manifest=shape("= string(1 / (spec.divisor - 1))")
    )
    assert "t-never" not in colors(content(definition))
    absent = with_part(name="never", state="Absent", manifest=shape("= string(1 / 0)"))
    assert "t-never" not in colors(content(absent))


def test_references_and_secrets_belong_to_the_parts():
    host = {"$ref": "= 'Database/' + name + '-db'", "field": "outputs.host"}
    secret = {"$secret": "password"}
    definition = with_part(
        name="user", manifest=shape("Red", spec={"host": host, "password": secret})
    )
    [created_manifest] = [
        each for each in manifests_of(content(definition)) if "user" in each.metadata.name
    ]
    assert created_manifest.spec == {
        "host": {"$ref": "Database/t-db", "field": "outputs.host"},
        "password": secret,
    }


def test_a_definition_itself_has_no_references_and_no_secrets():
    key = {"$ref": "= 'Volume/' + name + '-data'", "field": "name"}
    user = with_part(name="user", manifest=shape("Red", spec={"at": key, "by": {"$secret": "x"}}))
    story = Story(kind=KIND_DEFINITION, configs={}, key=DEFINITION)
    story.declare(user, api_version="reconciler/v1")
    declared = only(SpecDeclared, [each.data for each in story.log])
    assert (declared.references, declared.secrets) == ((), ())
    assert story.outcome == "Converged"


# --- dependencies between parts


WITH_DEPENDENCY = with_part(name="after", manifest=shape("= children.middle.outputs.color"))
WITH_STAGES = with_part(
    name="after",
    when="children['middle'].ready && children.dots.all(d, children.dots[d].ready)",
    manifest=shape("Green"),
)


def test_a_part_can_wait_until_another_is_ready():
    assert "t-after" not in colors(content(WITH_STAGES, dots=["a"]))
    first = content(WITH_STAGES, dots=["a"])
    waiting = build_provider_object(first, t_dot_a=Child("Pending"))
    assert "t-after" not in colors(content(WITH_STAGES, waiting, dots=["a"]))
    assert "t-after" in colors(content(WITH_STAGES, build_provider_object(first), dots=["a"]))


def test_a_part_waits_for_a_missing_value_and_existing_parts_stay():
    first = content(WITH_DEPENDENCY)
    assert "t-after" not in colors(first)
    assert first["waiting"]["after"].startswith(
        "waiting for middle: 'children.middle.outputs.color'"
    )
    readiness = kind_from(WITH_DEPENDENCY).ready(first, build_provider_object(first))
    assert (readiness.is_ready, readiness.message) == (
        False,
        f"3 of 3 parts are ready; after: {first['waiting']['after']}",
    )

    given_object = build_provider_object(
        first, t_middle=Child("Converged", ready=True, outputs={"color": "Green"})
    )
    second = content(WITH_DEPENDENCY, given_object)
    assert colors(second)["t-after"] == "Green"
    assert "waiting" not in second

    deleted_object = build_provider_object(
        second, t_middle=Child("Degraded", message="its API does not respond")
    )
    third = content(WITH_DEPENDENCY, deleted_object)
    assert colors(third)["t-after"] == "Green", "an existing part stays unchanged"
    assert third["waiting"].keys() == {"after"}


def test_a_value_missing_in_a_ready_part_is_an_error():
    with pytest.raises(InvalidManifestError) as caught:
        content(WITH_DEPENDENCY, build_provider_object(content()))
    assert str(caught.value) == (
        "spec.composition.parts[4] (after): 'children.middle.outputs.color' has no value at 'color'"
    )


def test_an_invalid_declaration_is_reported_though_another_part_is_not_ready():
    both = shape("= children.middle.outputs.color", metadata={"name": "= string(1 / spec.divisor)"})
    with pytest.raises(InvalidManifestError, match="failed: division by zero"):
        content(with_part(name="after", manifest=both), divisor=0)


def test_a_loop_over_a_map_visits_its_keys_in_sorted_order():
    value = {
        tuple(
            Expression("spec.map(k, k + spec[k]).filter(e, e != 'x')", "here", ("spec",)).value(
                {"spec": {"c": "1", "a": "2", "b": "3", "d": "4"}}
            )
        )
        for _ in range(20)
    }
    assert value == {("a2", "b3", "c1", "d4")}


# --- outputs


WITH_OUTPUTS = spec(
    ready="children.middle.ready && spec.divisor / (spec.divisor - 1) > 0",
    outputs={
        "title": {"value": "name + ' of ' + spec.color", "about": "What it is."},
        "outcome": {"value": "children.middle.outcome"},
        "dots": {"value": "size(children.dots)", "type": "Integer"},
    },
)


def test_outputs_are_evaluated_when_an_object_is_read_and_stored_in_the_log():
    kind = kind_from(WITH_OUTPUTS)
    resolved_fields = content(WITH_OUTPUTS, dots=["a"], divisor=2)
    observed_object = build_provider_object(resolved_fields, kind, t_side=Child("Pending"))
    assert {
        name: observed_object.outputs[name] for name in ("title", "outcome", "dots", "ready")
    } == {
        "title": "t of Red",
        "outcome": "Converged",
        "dots": 1,
        "ready": True,
    }
    assert kind.ready(resolved_fields, observed_object).is_ready, (
        "one part is not ready, and the message is from the definition"
    )
    fields = {each.field: each.about for each in explain_kind(kind).outputs}
    assert fields["title"] == "What it is."
    assert {"ready", "problem", "components", "children", "leaving"} < fields.keys()


def test_outputs_of_unchanged_inputs_are_evaluated_once(monkeypatch: pytest.MonkeyPatch):
    evaluated: list[str] = []
    evaluate = Expression.evaluate

    def record_and_evaluate(self: Expression, inputs: Inputs) -> Any:
        evaluated.append(self.text)
        return evaluate(self, inputs)

    kind = kind_from(WITH_OUTPUTS)
    resolved_fields = content(WITH_OUTPUTS, dots=["a"], divisor=2)
    monkeypatch.setattr(Expression, "evaluate", record_and_evaluate)
    first = build_provider_object(resolved_fields, kind, t_side=Child("Pending"))
    assert len(evaluated) == 4
    assert build_provider_object(deepcopy(resolved_fields), kind, t_side=Child("Pending")) == first
    assert len(evaluated) == 4
    changed = build_provider_object(resolved_fields, kind, t_middle=Child("Degraded"))
    assert changed.outputs["outcome"] == "Degraded"
    assert len(evaluated) == 8


def test_kept_outputs_have_a_maximum_total_size(monkeypatch: pytest.MonkeyPatch):
    random.seed(1)
    monkeypatch.setattr(engine, "_MAX_KEPT_BYTES", 20_000)
    kind = kind_from(spec(outputs={"long": {"value": "children.middle.message"}}))
    evaluated: list[str] = []
    evaluate = Expression.evaluate

    def record_and_evaluate(self: Expression, inputs: Inputs) -> Any:
        evaluated.append(self.text)
        return evaluate(self, inputs)

    monkeypatch.setattr(Expression, "evaluate", record_and_evaluate)
    resolved_fields = content(WITH_OUTPUTS, dots=["a"], divisor=2)
    for _ in range(3):
        for number in range(10):
            middle = Child("Degraded", message=f"{number} " + "x" * 3_000)
            build_provider_object(resolved_fields, kind, t_middle=middle)
    assert 10 < len(evaluated) < 30, "the values of some objects are kept, but not of all"


def test_outputs_that_are_too_long_are_reported_instead_of_recorded():
    outputs = {"long": {"value": "children.middle.message"}}
    definition = spec(outputs=outputs, ready="size(spec.dots) == 1")
    kind, fields = kind_from(definition), content(definition, dots=["a"])
    observed_object = build_provider_object(
        fields, kind, t_middle=Child("Degraded", message="x" * 20_000)
    )
    assert "long" not in observed_object.outputs
    assert observed_object.outputs["ready"] is True
    assert observed_object.outputs["problem"] == (
        "spec.composition.outputs: their values take up 20011 bytes, more than the limit of "
        "16384; shorten them"
    )


def test_an_output_that_cannot_be_evaluated_is_reported_in_the_status():
    kind = kind_from(WITH_OUTPUTS)
    fields = content(WITH_OUTPUTS, divisor=1)
    observed_object = build_provider_object(fields, kind)
    message = (
        "spec.composition.ready: evaluating "
        "'children.middle.ready && spec.divisor / (spec.divisor - 1) > 0' failed"
    )
    assert observed_object.outputs["problem"].startswith(message)
    readiness = kind.ready(fields, observed_object)
    assert (readiness.is_ready, readiness.message) == (False, observed_object.outputs["problem"])

    wrong_type = spec(outputs={"dots": {"value": "children.dots", "type": "Integer"}})
    observed_object = build_provider_object(content(wrong_type), kind_from(wrong_type))
    assert observed_object.outputs["problem"].startswith(
        "spec.composition.outputs.dots: Expected `int`"
    )
    assert kind_from(wrong_type).ready(observed_object.fields, observed_object).is_ready


# --- invalid definitions


def _renamed(path: str, value: Any) -> Fields:
    renamed_spec = deepcopy(SPEC)
    *parent, leaf = path.split(".")
    parent_node: Any = renamed_spec
    for step in parent:
        parent_node = parent_node[int(step) if step.isdigit() else step]
    parent_node[leaf] = value
    return renamed_spec


INVALID_DEFINITIONS: list[tuple[Fields, str]] = [
    (_renamed("over", "Shape"), "spec: set exactly one of over (an installed kind), rest (how"),
    (_renamed("namePrefix", "x-"), "spec.namePrefix: not allowed with spec.composition"),
    (
        _renamed("constants", {"a": 1}),
        "spec.constants: not allowed with spec.composition; put the values in the parts",
    ),
    (_renamed("fields.color.to", "x"), "spec.fields.color.to: not allowed with spec.composition"),
    (spec(parts=[]), "spec.composition.parts: the length must be at least 1"),
    (
        _renamed("composition.parts.1.name", "middle"),
        "spec.composition.parts[1].name: duplicate name 'middle'; give each part its own name",
    ),
    (
        _renamed("composition.parts.1.name", "a b"),
        "spec.composition.parts[1].name: must match the regular expression",
    ),
    (
        _renamed("composition.parts.1.when", "spek.side"),
        "spec.composition.parts[1] (side).when: unknown variable 'spek'; use children, name,",
    ),
    (
        _renamed("composition.parts.1.when", "spec.side &&"),
        "spec.composition.parts[1] (side).when: 'spec.side &&' is not a CEL expression: at 1:",
    ),
    (
        _renamed("composition.parts.1.when", "item"),
        "spec.composition.parts[1] (side).when: unknown variable 'item'; use children, name,",
    ),
    (
        _renamed("composition.parts.1.state", "Gone"),
        "spec.composition.parts[1].state: 'Gone' is not allowed; use one of",
    ),
    (
        _renamed("composition.parts.1.manifest.kind", "Trio"),
        "spec.composition.parts[1].manifest.kind: a Trio cannot contain a Trio",
    ),
    (
        _renamed("composition.parts.1.manifest.metadata", {"namespace": "system"}),
        "spec.composition.parts[1].manifest",
    ),
    (
        _renamed("composition.parts.2.manifest.metadata", {}),
        "spec.composition.parts[2] (dots).manifest.metadata.name: required with forEach",
    ),
    (
        _renamed("composition.parts.1.when", "children.sid.ready"),
        "spec.composition.parts[1] (side): 'children.sid.ready': must reference a part",
    ),
    (
        _renamed("composition.parts.1.when", "children.all(c, children[c].ready)"),
        "spec.composition.parts[1] (side): 'children.all(c, children[c].ready)': "
        "must reference a part",
    ),
    (
        _renamed("composition.parts.1.when", "!children.side.ready"),
        "spec.composition.parts: the parts depend on each other in a cycle, side → side",
    ),
    (
        spec(
            parts=[
                {"name": "a", "when": "!children.b.ready", "manifest": shape("Red")},
                {"name": "b", "when": "children['a'].ready", "manifest": shape("Red")},
            ]
        ),
        "spec.composition.parts: the parts depend on each other in a cycle,",
    ),
    (
        spec(outputs={"children": {"value": "1"}}),
        "spec.composition.outputs.children: the name is reserved; use another name",
    ),
    (
        spec(outputs={"x": {"value": "item"}}),
        "spec.composition.outputs.x.value: unknown variable 'item'",
    ),
    (spec(ready="children."), "spec.composition.ready: 'children.' is not a CEL expression"),
]


@pytest.mark.parametrize(("definition", "message"), INVALID_DEFINITIONS)
def test_the_error_for_an_invalid_definition_names_the_path_and_the_remedy(
    definition: Fields, message: str
):
    with pytest.raises(InvalidManifestError) as caught:
        kind_from(definition)
    assert str(caught.value).startswith(message), caught.value


def test_a_string_with_the_word_children_is_not_a_reference():
    definition = with_part(
        name="x", manifest=shape("= 'children ' + children.middle.outcome + \" of children.x\"")
    )
    assert kind_from(definition).composition is not None
    plain = with_part(name="x", manifest=shape("= spec.children.x"))
    assert kind_from(plain).composition is not None


def test_a_kind_cannot_be_defined_on_a_composed_kind():
    definition = {**SPEC, "over": "Palette", "composition": None}
    with pytest.raises(InvalidManifestError, match=r"spec\.over: Palette is a composed kind"):
        build_defined_kind(KindRegistry([PALETTE]), "Trio", definition, 1)


def test_a_name_must_be_short_enough_for_the_names_of_its_parts():
    long_name = with_part(name="n" * 40, manifest=shape("Red"))
    problem = kind_from(long_name).name_problem(f"default.{'t' * 23}")
    assert problem == "use at most 22 characters, because other names contain it"
    assert kind_from().name_problem(f"default.{'t' * 46}") is None
    with pytest.raises(
        InvalidManifestError, match="is too long, because the names of sets contain it"
    ):
        build_defined_kind(KindRegistry([]), "T" * 62, SPEC, 1)


# --- invalid declarations


INVALID_DECLARATIONS: list[tuple[Fields, Fields, str]] = [
    (
        with_part(name="x", when="spec.color", manifest=shape("Red")),
        {},
        "spec.composition.parts[4] (x).when: 'spec.color' returns str, but must return true or",
    ),
    (
        with_part(name="x", when="spec.missing", manifest=shape("Red")),
        {},
        "spec.composition.parts[4] (x): 'spec.missing' has no value at 'missing'",
    ),
    (
        with_part(
            name="x", forEach="spec.color", manifest=shape("Red", metadata={"name": "= item"})
        ),
        {},
        "spec.composition.parts[4] (x).forEach: 'spec.color' returns str, but must return a list",
    ),
    (
        with_part(name="x", manifest=shape("= string(1 / spec.divisor)")),
        {"divisor": 0},
        "spec.composition.parts[4] (x): evaluating 'string(1 / spec.divisor)' failed:",
    ),
    (
        with_part(
            name="x",
            manifest=shape("Red", metadata={"name": "x", "labels": {"a": "= spec.divisor"}}),
        ),
        {},
        "spec.composition.parts[4] (x).manifest.metadata.labels",
    ),
    (
        with_part(name="x", manifest=shape("Red", metadata={"name": "= name + '-middle'"})),
        {},
        (
            "components 'middle' and 'x' both contain part default/Shape/t-middle; rename it in "
            "one of them"
        ),
    ),
    (
        SPEC,
        {"dots": ["a", "a"]},
        "component 'dots': duplicate part default/Shape/t-dot-a; remove one, or rename it",
    ),
    (SPEC, {"dots": ["a b"]}, "component 'dots': name 't-dot-a b' is not allowed"),
    (
        SPEC,
        {"dots": [str(number) for number in range(501)]},
        (
            "spec.composition.parts[1] (side): 'spec.side': its input exceeds the limit of 500 "
            "members or 32 levels"
        ),
    ),
    (
        SPEC,
        {"dots": [str(number) for number in range(500)]},
        "spec.composition.parts[2] (dots): exceeds the limit of 500 resources; split",
    ),
]


@pytest.mark.parametrize(("definition", "fields", "message"), INVALID_DECLARATIONS)
def test_the_error_for_a_failed_expression_names_its_part(
    definition: Fields, fields: Fields, message: str
):
    with pytest.raises(InvalidManifestError) as caught:
        content(definition, **fields)
    assert str(caught.value).startswith(message), caught.value


def test_the_evaluation_time_of_expressions_is_limited():
    dots = [str(number) for number in range(490)]
    assert len(content(dots=dots)[CHILDREN]) == 493
    by_index = deepcopy(SPEC)
    labels = by_index["composition"]["parts"][2]["manifest"]["metadata"]["labels"]
    labels["first"] = "= spec.dots[0]"
    content(by_index, dots=dots)
    labels["first"] = "= (spec.dots + spec.dots + spec.dots + spec.dots)[0]"
    content(by_index, dots=dots[:200])
    with pytest.raises(InvalidManifestError, match=r"parts\[2\] \(dots\): its expressions would"):
        content(by_index, dots=dots)


def test_the_time_to_compose_is_proportional_to_the_number_of_parts():
    """Each expression reads the whole spec, which is passed to the library only once."""
    definition = deepcopy(SPEC)
    labels = definition["composition"]["parts"][2]["manifest"]["metadata"]["labels"]
    labels |= {f"x{number}": f"= spec.color + '{number}'" for number in range(3)}

    def seconds(count: int) -> float:
        began = time.process_time()
        content(definition, dots=[str(number) for number in range(count)])
        return time.process_time() - began

    few, many = (min(seconds(count) for _ in range(3)) for count in (60, 480))
    assert many < 16 * few


def test_long_strings_and_patterns_count_for_each_item():
    dots = [str(number) for number in range(490)]
    for label, color in (
        ("= spec.color + spec.color == '' ? 'a' : 'b'", "Red" * 80_000),
        ("= spec.color.matches('^(a|b){2,9}$') ? 'a' : 'b'", "Red" * 5_000),
        ("= 'a'.matches(spec.color) ? 'a' : 'b'", r"\w{9}\W{180}"),
    ):
        definition = deepcopy(SPEC)
        definition["fields"]["color"] = {"default": "Red"}
        definition["composition"]["parts"][2]["manifest"]["metadata"]["labels"]["x"] = label
        content(definition, dots=dots)
        with pytest.raises(InvalidManifestError, match=r"\(dots\): its expressions would take too"):
            content(definition, dots=dots, color=color)


# --- events of one resource


def build_declared_story(**fields: Any) -> Story:
    story = Story(kind=replace(kind_from(), provider=BLOCK.provider), key=KEY)
    story.declare(fields, api_version="trios/v1")
    return story


def redefine(story: Story, definition: Fields, generation: int = 2) -> list[Any]:
    story.kind = replace(kind_from(definition, generation), provider=BLOCK.provider)
    assert story.kind.definition is not None
    return list(story.turn(DefinitionReported(generation, story.kind.definition.digest, 1, 1)))


def observe_again(story: Story, **child_states: Child) -> list[Any]:
    known_object = story.state.observed.object
    assert known_object is not None
    fresh = build_provider_object(known_object.fields, story.kind, **child_states)
    observed_object = msgspec.structs.replace(
        fresh,
        name=known_object.name,
        uid=known_object.uid,
        version=f"{known_object.version}+",
        labels=known_object.labels,
    )
    return list(story.observe(observed_object, name=known_object.name))


def test_the_log_contains_the_content_and_the_digest_of_the_definition():
    story = build_declared_story(color="Blue")
    events = [each.data for each in story.log]
    assert story.kind is not None
    assert story.kind.definition is not None
    assert only(SpecDeclared, events).definition == story.kind.definition
    resolved = only(SpecResolved, events)
    assert resolved.definition == story.kind.definition.digest
    action = only(ActionDecided, events).action
    assert (action.fields, action.definition) == (resolved.fields, resolved.definition)
    assert action.external_name == "default.t"
    story.succeed()
    assert observe_again(story) != []  # its parts have new outputs
    assert story.outcome == "Converged"
    assert observe_again(story) == [], "no event is written for an idle object"


def test_an_invalid_value_is_refused_at_declaration():
    story = build_declared_story(color="Pink")
    [reply] = story.replies
    assert reply is not None
    assert reply.message == "spec.color: 'Pink' is not allowed; use one of Red, Blue, Green"


def test_a_changed_definition_changes_existing_objects():
    story = build_declared_story()
    story.succeed()
    events = redefine(story, with_part(name="fourth", manifest=shape("Green")))
    assert names(events) == ["DefinitionObserved", "SpecResolved", "ActionDecided"]
    assert "t-fourth" in colors(only(ActionDecided, events).action.fields)


def test_an_unchanged_definition_changes_nothing():
    story = build_declared_story()
    story.succeed()
    known = deepcopy(SPEC)
    known["fields"]["color"]["about"] = "Of the middle."
    assert names(redefine(story, known)) == ["DefinitionObserved", "SpecResolved"]


def test_earlier_declarations_get_the_defaults_of_a_later_definition():
    story = build_declared_story(color="blue")
    story.succeed()
    newer_definition = with_part(name="fourth", manifest=shape("= spec.edge"))
    newer_definition["fields"]["edge"] = {"default": "Green"}
    action = only(ActionDecided, redefine(story, newer_definition)).action
    assert (colors(action.fields)["t-fourth"], colors(action.fields)["t-middle"]) == (
        "Green",
        "Blue",
    )
    story.succeed()
    without_field = deepcopy(SPEC)
    del without_field["fields"]["divisor"]
    assert every(ActionDecided, redefine(story, without_field, 3)) == []
    assert story.state.outcome is not None
    assert story.state.outcome.message.startswith("spec.divisor: unknown field")


def test_an_older_definition_reverts_nothing():
    story = build_declared_story()
    story.succeed()
    redefine(story, with_part(name="fourth", manifest=shape("Green")))
    story.succeed()
    story.kind = replace(kind_from(), provider=BLOCK.provider)
    assert every(SpecResolved, observe_again(story)) == []
    assert every(ActionDecided, observe_again(story)) == []


def test_a_part_of_an_unknown_kind_holds_the_object_until_the_kind_is_installed():
    story = Story(kind=replace(kind_from(), provider=BLOCK.provider), key=KEY)
    without_kind = msgspec.structs.replace(story.context, check_part=KindRegistry([]).check)
    declared = story.command(Declared(manifest({}, key=KEY, api_version="trios/v1")))
    held = decide(story.state, [declared], without_kind)
    outcome = held.state.outcome
    assert outcome is not None
    assert (outcome.outcome, outcome.reason) == ("Held", "UnknownKind")
    assert outcome.message.startswith("default/Shape/t-middle: kind 'Shape' is unknown")
    events_after = decide(held.state, [story.command(TimerFired("Sweep"))], story.context)
    assert (
        only(ActionDecided, [each.data for each in events_after.events]).action.operation
        == "Create"
    )


def test_replicas_of_one_template_are_checked_once():
    """Otherwise a short declaration takes the decider of all tenants seconds at each turn."""
    kinds = KindRegistry([CONTAINER])
    checked_names: list[str] = []

    def check(manifest: Manifest) -> None:
        kinds.check(manifest)
        checked_names.append(manifest.metadata.name)

    key = ResourceKey("default", "Deployment", "web")
    story = Story(kind=replace(DEPLOYMENT, provider=BLOCK.provider), key=key)
    context = msgspec.structs.replace(
        story.context, check_part=check, check_part_name=kinds.check_name
    )
    fields: Fields = {"replicas": 500, "template": {"spec": {"image": "web:1"}}}
    declared = story.command(Declared(manifest(fields, key=key, api_version="composition/v1")))
    events = decide(story.state, [declared], context)
    resolved_fields = only(SpecResolved, [each.data for each in events.events]).fields
    assert len(resolved_fields[CHILDREN]) == 500
    assert len(checked_names) == 1


def test_an_expression_that_fails_later_keeps_the_last_good_state():
    story = build_declared_story(divisor=1)
    story.succeed()
    broken_definition = with_part(name="x", manifest=shape("= string(1 / (spec.divisor - 1))"))
    events = redefine(story, broken_definition)
    assert every(ActionDecided, events) == []
    assert story.state.outcome is not None
    assert (story.outcome, story.state.outcome.reason) == ("Failed", "InvalidInput")
    assert story.state.outcome.message.startswith(
        "spec.composition.parts[4] (x): evaluating 'string(1 / ("
    )
    assert every(ActionDecided, observe_again(story)) == []

    assert every(ActionDecided, redefine(story, SPEC, 3)) == [], "no state was lost"
    assert story.outcome == "Converged"


def test_a_replay_and_a_withdrawal_need_no_expression():
    story = build_declared_story()
    story.succeed()
    assert story.kind is not None

    def never(*_given: object) -> Fields:
        raise AssertionError("an expression was evaluated")

    assert isinstance(story.kind, DefinedKind)
    assert story.kind.composition is not None
    composed = replace(story.kind.composition, compose=never)
    story.kind = replace(story.kind, underlying=composed, map_fields=never, is_withdrawn=True)
    state = NEW
    for each in story.log:
        state = evolve(state, each)
    assert state == story.state
    story.withdraw()
    assert story.action.operation == "Delete"


# --- parts that may be ready for a moment only


def flapping_story(*flapping_kinds: str) -> Story:
    """Return a converged story whose part ``late`` waits for ``middle``."""
    definition = with_part(name="late", when="children.middle.ready", manifest=shape("White"))
    story = Story(kind=replace(kind_from(definition), provider=BLOCK.provider), key=KEY)
    story.flapping_kinds, story.stored_at = flapping_kinds, START
    story.declare({}, api_version="trios/v1")
    succeed_with(story, Child("Converged", reason="Starting"))
    return story


def succeed_with(story: Story, middle: Child) -> None:
    action = story.action
    shown = build_provider_object(action.fields, story.kind, t_middle=middle)
    written = story.object_after(action)
    story.report(existing=msgspec.structs.replace(written, outputs=shown.outputs))


def started(time: str) -> Child:
    return Child("Converged", ready=True, outputs={"startedAt": time})


def has_late(story: Story) -> bool:
    return "t-late" in colors(story.state.desired.fields)


def test_a_part_that_may_flap_releases_another_part_only_after_it_stayed_ready():
    story = flapping_story("Shape")
    events = observe_again(story, t_middle=started("1"))
    assert "AvailabilityNoted" in names(events)
    assert (story.idle, has_late(story)) == (True, False)
    assert story.state.outcome is not None
    assert story.state.outcome.conditions[1].status == "False"
    first = story.state.availability.at
    assert first is not None
    restarted_at = story.stored_at = first - timedelta(seconds=1)
    observe_again(story, t_middle=started("2"))  # it restarted between two listings
    story.stored_at = first
    story.turn(TimerFired("Availability"))  # the other parts are available
    assert not has_late(story)
    second = story.state.availability.at
    assert second is not None
    assert second - restarted_at > first - START, "an interruption doubles the interval"
    story.stored_at = second - timedelta(seconds=1)
    story.turn(TimerFired("Availability"))
    assert (story.idle, has_late(story)) == (True, False)
    story.stored_at = second
    events = story.turn(TimerFired("Availability"))
    assert names(events)[:2] == ["AvailabilityNoted", "SpecResolved"]
    assert has_late(story)


def test_a_part_of_an_always_ready_kind_causes_no_event():
    story = flapping_story()
    assert "AvailabilityNoted" not in names(observe_again(story, t_middle=started("1")))
    assert has_late(story)


# --- a part that depends on another one, which is not ready for a moment

UNREADY = Child("Converged", reason="Restarting")


def ready_story(*flapping_kinds: str) -> Story:
    """Return a story whose part ``late`` exists, because ``middle`` was ready."""
    story = flapping_story(*flapping_kinds)
    observe_again(story, t_middle=started("1"))
    while story.state.availability.at is not None:
        story.stored_at = story.state.availability.at
        story.turn(TimerFired("Availability"))
    succeed_with(story, started("1"))
    assert has_late(story)
    return story


def pass_seconds(story: Story, seconds: float) -> list[Any]:
    assert story.stored_at is not None
    story.stored_at += timedelta(seconds=seconds)
    return list(story.turn(TimerFired("Availability")))


def wait_for_withdrawal(story: Story) -> list[Any]:
    until = story.state.availability.withheld_until
    assert until is not None
    assert story.stored_at is not None
    return pass_seconds(story, (until - story.stored_at).total_seconds())


@pytest.mark.parametrize("flapping", [(), ("Shape",)], ids=["other kind", "kind that may flap"])
def test_a_momentary_loss_of_readiness_withdraws_no_part(flapping: tuple[str, ...]):
    story = ready_story(*flapping)
    observe_again(story, t_middle=UNREADY)
    assert (story.idle, has_late(story)) == (True, True)
    assert [at for at, _ in story.timers][-1] == story.state.availability.withheld_until
    pass_seconds(story, REPLACEMENT_READY_SECONDS)
    assert (story.idle, has_late(story)) == (True, True)
    observe_again(story, t_middle=started("2"))
    assert story.state.availability.withheld_until is None
    for _ in range(3):
        pass_seconds(story, 100)
        assert (story.idle, has_late(story)) == (True, True)


@pytest.mark.parametrize("flapping", [(), ("Shape",)], ids=["other kind", "kind that may flap"])
def test_a_part_is_withdrawn_after_the_other_one_stayed_unready(flapping: tuple[str, ...]):
    story = ready_story(*flapping)
    observe_again(story, t_middle=UNREADY)
    until = story.state.availability.withheld_until
    assert until is not None
    assert story.stored_at is not None
    # The listings of the part and of its parent may each be 5.5 seconds old.
    assert until - story.stored_at == timedelta(seconds=REPLACEMENT_READY_SECONDS + 11)
    pass_seconds(story, REPLACEMENT_READY_SECONDS + 10.9)
    assert has_late(story)
    events = wait_for_withdrawal(story)
    assert "SpecResolved" in names(events)
    assert not has_late(story)
    assert story.state.availability.withheld_until is None
    assert story.action.operation == "Update"


def test_a_response_without_the_states_of_the_parts_withdraws_no_part():
    story = ready_story()
    story.declare({"color": "Blue"}, api_version="trios/v1")
    story.succeed()
    assert (story.idle, has_late(story)) == (True, True)


def test_a_part_that_restarts_again_and_again_withdraws_no_part():
    story = ready_story("Shape")
    for number in range(2, 6):
        observe_again(story, t_middle=UNREADY)
        pass_seconds(story, 10)
        observe_again(story, t_middle=started(str(number)))
        pass_seconds(story, 3)
        assert (story.idle, has_late(story)) == (True, True)


def test_a_new_declaration_changes_the_other_parts_during_a_loss_of_readiness():
    story = ready_story("Shape")
    observe_again(story, t_middle=UNREADY)
    story.declare({"color": "Blue"}, api_version="trios/v1")
    assert has_late(story)
    assert colors(story.action.fields)["t-middle"] == "Blue"
    succeed_with(story, UNREADY)
    wait_for_withdrawal(story)
    assert not has_late(story)


def test_a_part_that_was_never_ready_releases_no_part_during_the_loss_of_another():
    definition = spec(
        parts=[
            *SPEC["composition"]["parts"],
            {"name": "late", "when": "children.middle.ready", "manifest": shape("White")},
            {"name": "later", "when": "children.side.ready", "manifest": shape("White")},
        ]
    )
    story = Story(kind=replace(kind_from(definition), provider=BLOCK.provider), key=KEY)
    story.stored_at = START
    story.declare({}, api_version="trios/v1")
    starting = Child("Converged", reason="Starting")

    def succeed(**states: Child) -> None:
        shown = build_provider_object(story.action.fields, story.kind, t_side=starting, **states)
        written = story.object_after(story.action)
        story.report(existing=msgspec.structs.replace(written, outputs=shown.outputs))

    succeed()
    succeed()
    assert (story.idle, has_late(story)) == (True, True)
    observe_again(story, t_middle=UNREADY, t_side=starting)
    assert (story.idle, has_late(story)) == (True, True)
    story.declare({"color": "Blue"}, api_version="trios/v1")
    assert (story.outcome, story.reason) == ("Waiting", "NotReady")
    assert story.outcome_message.endswith("parts on which default/Shape/t-late depends")
    wait_for_withdrawal(story)
    assert colors(story.action.fields)["t-middle"] == "Blue"
    assert not has_late(story)
    assert "t-later" not in colors(story.action.fields)


def test_a_declaration_that_disables_a_part_withdraws_it_immediately():
    story = ready_story("Shape")
    assert "t-side" in colors(story.state.desired.fields)
    story.declare({"side": False}, api_version="trios/v1")
    assert "t-side" not in colors(story.state.desired.fields)
    assert story.action.operation == "Update"
