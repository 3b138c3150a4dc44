"""``Palette``: a kind made of shapes, one of each color."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from events.composition import CHILDREN, Child, blocker, children_of, content_of
from events.external import ExternalObject
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from infra.providers.composition.kind import composed_kind
from reconciler.provider.kind import READY, Progress, Readiness

KIND = "Palette"
CONFIG = "palettes"


class PaletteFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The colors; ``name`` is the prefix of the shapes' names.

    ``copies`` maps a color to the color whose shape it references.
    """

    colors: list[str]
    name: str = ""
    type: str = "Square"
    copies: dict[str, str] = {}
    parts_policy: dict[str, str] = {}
    deadline: float | None = None  # seconds


class PaletteOutputs(msgspec.Struct, frozen=True):
    """The number of ready shapes."""

    ready: int
    children: dict[str, object] = {}
    leaving: list[str] = []


def compose(key: ResourceKey, spec: Fields, _observed: ExternalObject | None) -> Fields:
    """Return a shape for each color."""
    prefix = spec["name"] or key.name

    def shape_of(color: str) -> Fields:
        other = spec["copies"].get(color)
        copied = {"$ref": f"Shape/{prefix}-{str(other).lower()}", "field": "uid"}
        policy = {"policy": spec["parts_policy"]} if spec["parts_policy"] else {}
        return {"type": copied if other else spec["type"], "color": color, **policy}

    return content_of(
        Manifest(
            "shapes/v1",
            "Shape",
            Metadata(f"{prefix}-{color.lower()}", key.namespace, {"palette": key.name}),
            shape_of(color),
        )
        for color in spec["colors"]
    )


def ready(fields: Fields, observed_object: ExternalObject) -> Readiness:
    """A palette is ready when all of its shapes are."""
    waits = blocker(children_of(observed_object))
    if not waits and len(children_of(observed_object)) == len(fields[CHILDREN]):
        return READY
    return Readiness(False, "Progressing", waits)


def progress(spec: Fields, observed_object: ExternalObject) -> Progress | None:
    """A palette progresses when another shape becomes ready."""
    ready_names = ",".join(
        name for name, child in children_of(observed_object).items() if child.ready
    )
    return None if spec["deadline"] is None else Progress(f"ready: {ready_names}", spec["deadline"])


def summary(_fields: Fields, children: Mapping[str, Child]) -> Fields:
    """Return the number of ready shapes."""
    return {"ready": sum(each.ready for each in children.values())}


PALETTE = composed_kind(
    KIND,
    "palettes/v1",
    PaletteFields,
    compose=compose,
    summary=summary,
    ready=ready,
    outputs=PaletteOutputs,
    progress=progress,
)


def palette(
    name: str, *colors: str, prefix: str = "", namespace: str = "default", **rest: object
) -> Manifest:
    """Return the manifest of a palette."""
    spec: Fields = {"colors": list(colors), "providerConfigRef": {"name": CONFIG}, **rest}
    if prefix:
        spec["name"] = prefix
    return Manifest("palettes/v1", KIND, Metadata(name, namespace), spec)
