"""``Trio``: a kind that a definition composes of shapes, without code."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from events.external import ExternalObject
from events.intake import Declared
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import Kind, KindRegistry

KIND = "Trio"
CONFIG = "trios"
DEFINITION = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, KIND)
KEY = ResourceKey("default", KIND, "t")


def shape(color: str, **more: Any) -> Fields:
    spec = {"type": "Square", "color": color}
    return {"apiVersion": "shapes/v1", "kind": "Shape", "spec": spec, **more}


SPEC: Fields = {
    "apiVersion": "trios/v1",
    "provider": CONFIG,
    "fields": {
        "color": {"default": "Red", "normalize": ["Title"], "values": ["Red", "Blue", "Green"]},
        "side": {"type": "Boolean", "default": True},
        "dots": {"type": "Strings", "default": []},
        "divisor": {"type": "Integer", "default": 1},
    },
    "composition": {
        "parts": [
            {"name": "middle", "manifest": shape("= spec.color")},
            {"name": "side", "when": "spec.side", "manifest": shape("White")},
            {
                "name": "dots",
                "forEach": "spec.dots",
                "manifest": shape(
                    "Black",
                    metadata={"name": "= name + '-dot-' + item", "labels": {"dot": "= item"}},
                ),
            },
            {"name": "base", "state": "Created", "manifest": shape("= spec.color")},
        ],
    },
}


def spec(**changes: Any) -> Fields:
    """Return the definition with changed members of ``composition``."""
    return {**deepcopy(SPEC), "composition": {**deepcopy(SPEC["composition"]), **changes}}


def with_part(**part: Any) -> Fields:
    return spec(parts=[*deepcopy(SPEC["composition"]["parts"]), part])


def kind_from(definition: Fields = SPEC, generation: int = 1) -> Kind:
    return build_defined_kind(KindRegistry([]), KIND, definition, generation)


def content(definition: Fields = SPEC, seen: ExternalObject | None = None, **fields: Any) -> Fields:
    """Return the content of an object for a declaration and the existing children."""
    kind = kind_from(definition)
    assert kind.composition is not None
    return kind.composition.compose(KEY, kind.object_fields(kind.check_declared(fields)), seen)


def definition(fields: Fields = SPEC) -> Declared:
    metadata = Metadata(DEFINITION.name, DEFINITION.namespace)
    return Declared(Manifest(RECONCILER_API_VERSION, KIND_DEFINITION_KIND, metadata, fields))


def trio(name: str = KEY.name, **fields: Any) -> Manifest:
    """Return the manifest of a trio."""
    its = {**fields, "providerConfigRef": {"name": CONFIG}}
    return Manifest("trios/v1", KIND, Metadata(name), its)
