"""Components and their parts, using only the pure functions: states, hooks, and bad input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.composition import CHILDREN, Child, children_of, manifests_of
from events.composition_definition import PartState
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError, Manifest, Metadata
from reconciler.composites.components import Component, Part, compose_components, ready, summary

READY = Child("Converged", ready=True)
OTHERS = "another declaration, of generation 2"


def block(name: str, color: str = "Red", **spec: Any) -> Manifest:
    return Manifest("tests/v1", "Block", Metadata(name), {"color": color, **spec})


def component(name: str, *parts: Part, enabled: bool = True) -> Component:
    return Component(name, lambda _values: parts, enabled)


class Object:
    """The resources of one object: as composed, and as other clients changed them later."""

    def __init__(self) -> None:
        self.there: ExternalObject | None = None

    def compose_from(self, *components: Component, **standing: Child) -> Fields:
        """Compose the object of these components, with these statuses of its resources."""
        content = compose_components(components, self.there)
        self.show(content, {f"default/Block/{name}": each for name, each in standing.items()})
        return content

    def show(self, fields: Fields, standing: Mapping[str, Child] = {}) -> None:
        children = {name: standing.get(name, READY) for name in fields[CHILDREN]}
        outputs = {CHILDREN: msgspec.to_builtins(children), **summary(fields, children)}
        self.there = ExternalObject("x", fields, outputs=outputs)

    def edited(self, name: str) -> None:
        assert self.there is not None
        children = {**self.there.fields[CHILDREN], f"default/Block/{name}": OTHERS}
        self.show({**self.there.fields, CHILDREN: children})

    def withdrawn(self, name: str) -> None:
        assert self.there is not None
        children = dict(self.there.fields[CHILDREN])
        del children[f"default/Block/{name}"]
        self.show({**self.there.fields, CHILDREN: children})


def specs(content: Fields) -> dict[str, Fields]:
    return {each.metadata.name: each.spec for each in manifests_of(content)}


def colors(content: Fields) -> dict[str, str]:
    return {name: spec["color"] for name, spec in specs(content).items()}


# --- states


def test_a_present_part_follows_its_manifest_and_an_absent_one_is_deleted():
    its = Object()
    states: tuple[tuple[PartState, str], ...] = (("Present", "a"), ("Absent", "b"))
    parts = [Part(block(name), state) for state, name in states]
    assert colors(its.compose_from(component("one", *parts))) == {"a": "Red"}
    assert colors(its.compose_from(component("one", Part(block("a", "Blue"))))) == {"a": "Blue"}
    its.edited("a")
    assert colors(its.compose_from(component("one", Part(block("a", "Blue"))))) == {"a": "Blue"}, (
        "the change is reverted"
    )


def test_a_created_part_is_never_updated_or_restored():
    its = Object()
    first = its.compose_from(component("one", Part(block("a"), "Created")))
    assert specs(first) == {"a": {"color": "Red", "policy": {"mode": "CreateOnly"}}}
    for _ in range(3):
        assert its.compose_from(component("one", Part(block("a", "Blue"), "Created"))) == first

    its.edited("a")
    content = its.compose_from(component("one", Part(block("a", "Green"), "Created")))
    assert content[CHILDREN] == {"default/Block/a": OTHERS}, "the other client's change stays"
    assert specs(content) == {}

    its.withdrawn("a")
    again = its.compose_from(component("one", Part(block("a", "Green"), "Created")))
    assert colors(again) == {"a": "Green"}, "a missing part is created"


def test_a_refused_part_does_not_count_as_created():
    its = Object()
    part = Part(block("a"), "Created", before_create=stamped)
    its.compose_from(component("one", part), a=Child("Refused", message="a prefix rule"))
    content = its.compose_from(
        component("one", Part(block("a", "Blue"), "Created", before_create=stamped))
    )
    assert specs(content)["a"]["color"] == "Blue"
    its.show(content, {"default/Block/a": Child("Refused")})
    waiting = its.compose_from(Component("one", lambda _values: [], waiting_for="for two"))
    assert waiting[CHILDREN] == content[CHILDREN]


def test_a_present_part_that_becomes_create_only_stays_unchanged():
    its = Object()
    first = its.compose_from(component("one", Part(block("a"))))
    assert its.compose_from(component("one", Part(block("a", "Blue"), "Created"))) == first


def test_a_parts_own_policy_overrides_the_policy_of_its_state():
    policy = {"mode": "ObserveOnly", "deletion": "Orphan"}
    content = Object().compose_from(component("one", Part(block("a", policy=policy), "Created")))
    assert specs(content)["a"]["policy"] == policy
    definition = Manifest("reconciler/v1", "ShapeRef", Metadata("r"), {"target": {}})
    content = Object().compose_from(component("one", Part(definition, "Created")))
    assert specs(content) == {"r": {"target": {}}}, "without an object there is no policy"


def test_a_disabled_component_is_deleted_with_all_and_only_its_parts():
    its = Object()
    one = component("one", Part(block("a")), Part(block("b"), "Created"))
    two = component("two", Part(block("c")))
    content_before = its.compose_from(one, two)
    off = its.compose_from(component("one", Part(block("a")), enabled=False), two)
    assert colors(off) == {"c": "Red"}
    assert off[CHILDREN]["default/Block/c"] == content_before[CHILDREN]["default/Block/c"]
    assert its.compose_from(one, two) == content_before


# --- hooks


def stamped(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, spec={**manifest.spec, "made": "here"})


def with_size(manifest: Manifest, declared: Manifest) -> Manifest:
    spec = {name: declared.spec[name] for name in ("size", "made") if name in declared.spec}
    return msgspec.structs.replace(manifest, spec={**manifest.spec, **spec})


def hooked(color: str, size: int) -> Component:
    return component(
        "one",
        Part(block("a", color, size=size), before_create=stamped, before_update=with_size),
    )


def test_a_hook_is_evaluated_once_for_each_change():
    its = Object()
    first = its.compose_from(hooked("Red", 1))
    assert specs(first)["a"] == {"color": "Red", "size": 1, "made": "here"}
    assert its.compose_from(hooked("Red", 1)) == first, "the create is not an update"
    changed = its.compose_from(hooked("Blue", 2))
    assert specs(changed)["a"] == {"color": "Blue", "size": 1, "made": "here"}
    assert its.compose_from(hooked("Blue", 2)) == changed
    its.edited("a")
    assert its.compose_from(hooked("Blue", 2)) == changed, (
        "the part is restored to the result of the hook"
    )
    its.edited("a")
    assert specs(its.compose_from(hooked("Green", 3)))["a"]["size"] == 1, (
        "the part is as we declared it"
    )


def test_the_next_reconciliation_does_not_undo_a_before_create_hook():
    its, part = Object(), Part(block("a"), before_create=stamped)
    first = its.compose_from(component("one", part))
    assert its.compose_from(component("one", part)) == first
    its.withdrawn("a")
    assert its.compose_from(component("one", part)) == first


def test_the_hook_of_a_create_only_part_is_called_on_its_creation():
    its, part = Object(), Part(block("a"), "Created", before_create=stamped)
    first = its.compose_from(component("one", part))
    assert specs(first)["a"]["made"] == "here"
    assert its.compose_from(component("one", part)) == first


@given(st.lists(st.tuples(st.sampled_from(["Red", "Blue"]), st.integers(1, 3)), max_size=6))
def test_composing_twice_changes_nothing(changes: list[tuple[str, int]]):
    its = Object()
    for color, size in changes:
        kept_component = component("two", Part(block("b", color), "Created"))
        assert its.compose_from(hooked(color, size), kept_component) == its.compose_from(
            hooked(color, size), kept_component
        )


# --- bad input


def _renamed(manifest: Manifest) -> Manifest:
    return block(f"{manifest.metadata.name}-2")


def _failing(_values: object) -> Any:
    raise KeyError("size")


BAD: list[tuple[list[Component], str]] = [
    (
        [component("one", Part(block("a"))), component("two", Part(block("a")))],
        "components 'one' and 'two' both contain part default/Block/a; rename it in one of them",
    ),
    (
        [component("one", Part(block("a")), Part(block("a", "Blue")))],
        "component 'one': duplicate part default/Block/a; remove one, or rename it",
    ),
    (
        [component("one"), component("one")],
        "component 'one': duplicate name; give each component its own name",
    ),
    (
        [Component("one", _failing)],
        "component 'one': cannot compute its parts: KeyError: 'size'",
    ),
    (
        [component("one", Part(block("a b")))],
        "component 'one': name 'a b' is not allowed; use 1 to 63 of the characters",
    ),
    (
        [component("one", Part(block("a"), before_create=_renamed))],
        "component 'one': before_create of default/Block/a returned default/Block/a-2; a hook",
    ),
    (
        [component("one", Part(block("a"), before_create=_failing))],
        "component 'one': before_create of default/Block/a failed: KeyError: 'size'",
    ),
    (
        [component("one", Part(Manifest("reconciler/v1", "ComposedSet", Metadata("s"))))],
        "component 'one': must not declare a ComposedSet; only providers write it",
    ),
]


@pytest.mark.parametrize(("components", "message"), BAD)
def test_the_error_for_bad_input_names_the_component(components: list[Component], message: str):
    with pytest.raises(InvalidManifestError) as caught:
        compose_components(components, None)
    assert str(caught.value).startswith(message)


def test_only_one_of_two_parts_with_the_same_resource_may_be_present():
    off = component("two", Part(block("a", "Blue")), enabled=False)
    absent = component("three", Part(block("a", "Green"), "Absent"))
    assert colors(compose_components([component("one", Part(block("a"))), off, absent], None)) == {
        "a": "Red"
    }


# --- readiness

Stands = Callable[..., Any]
ONE = component("one", Part(block("a")), Part(block("b")))
TWO = component("two", Part(block("c")))


def standing(**children: Child) -> tuple[Any, Fields]:
    its = Object()
    content = its.compose_from(ONE, TWO, **children)
    assert its.there is not None
    return ready(content, its.there), its.there.outputs["components"]


def test_a_component_is_ready_when_all_parts_are_ready():
    readiness, components = standing()
    assert readiness.is_ready
    assert components == {"one": {"parts": 2, "ready": 2}, "two": {"parts": 1, "ready": 1}}


def test_readiness_names_the_blocking_component_and_stuck_ones_first():
    readiness, components = standing(a=Child(), b=Child("Failed", message="no image"))
    assert components["one"] == {
        "parts": 2,
        "ready": 0,
        "blockedBy": "default/Block/b is Failed: no image",
    }
    assert (readiness.reason, readiness.message) == (
        "Stalled",
        "1 of 3 parts are ready; one: default/Block/b is Failed: no image",
    )
    readiness, _ = standing(a=Child(), c=Child("Held", message="approve it"))
    assert readiness.message == "1 of 3 parts are ready; two: default/Block/c is Held: approve it"
    readiness, _ = standing(c=Child("Converged", reason="Starting", message="2 s"))
    assert readiness.reason == "Progressing"
    assert readiness.message == "2 of 3 parts are ready; two: default/Block/c is Converged: 2 s"


def test_a_users_change_to_a_create_only_part_does_not_block_readiness():
    readiness, components = standing(
        a=Child("Drifted", reason="CreateOnly", message="would change")
    )
    assert readiness.is_ready
    assert components["one"]["ready"] == 2
    assert not standing(a=Child("Drifted", reason="ObserveOnly"))[0].is_ready


def test_an_object_is_not_ready_while_a_part_is_missing_or_being_deleted():
    its = Object()
    content = its.compose_from(ONE, TWO)
    its.withdrawn("a")
    assert its.there is not None
    readiness = ready(content, its.there)
    assert (
        readiness.message
        == "2 of 3 parts are ready; one: default/Block/a has not been declared yet"
    )
    its.show(content)
    leaving = {**its.there.outputs, "leaving": ["default/Block/x"]}
    readiness = ready(content, msgspec.structs.replace(its.there, outputs=leaving))
    assert (readiness.is_ready, readiness.message) == (
        False,
        "3 of 3 parts are ready; default/Block/x is still being deleted",
    )


def test_a_waiting_component_keeps_its_parts_and_names_what_it_waits_for():
    its = Object()
    content_before = its.compose_from(ONE, TWO)
    waits = Component("one", lambda _values: [], waiting_for="waiting for two")
    content = its.compose_from(waits, TWO)
    assert content == {**content_before, "waiting": {"one": "waiting for two"}}
    assert its.there is not None
    readiness = ready(content, its.there)
    assert (readiness.is_ready, readiness.message) == (
        False,
        "3 of 3 parts are ready; one: waiting for two",
    )
    new = Object().compose_from(waits, TWO)
    assert colors(new) == {"c": "Red"}
    assert children_of(its.there).keys() == content_before[CHILDREN].keys()
