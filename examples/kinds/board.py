"""A complete kind with components: a board of shapes with a frame, corners and a badge.

Put it in a package of your own, which registers it under `reconciler.kinds`;
docs/how-to/compose-kinds.md explains it.
"""

from typing import Literal

import msgspec

from events.external import ExternalObject
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from infra.providers.composition.kind import composed_kind
from reconciler.composites.components import (
    Component,
    ComponentsOutputs,
    Part,
    compose_components,
    ready,
    summary,
)

Form = Literal["Square", "Circle", "Hexagon"]
Color = Literal["Red", "Green", "Blue", "Black", "White"]


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    form: Form = "Square"
    color: Color = "Black"


class Corners(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    count: int = 4
    color: Color = "Blue"


class Badge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = False
    color: Color = "Red"


class BoardFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A board of shapes, with a flag and values for each component."""

    frame: Frame = Frame()
    corners: Corners = Corners()
    badge: Badge = Badge()


def shape(board: ResourceKey, name: str, form: str, color: str) -> Manifest:
    metadata = Metadata(f"{board.name}-{name}", board.namespace)
    return Manifest("shapes/v1", "Shape", metadata, {"type": form, "color": color})


def compose(board: ResourceKey, spec: Fields, observed: ExternalObject | None) -> Fields:
    """Return the content of a board; called again after each change of the board or its parts."""

    def frame(values: Fields) -> list[Part]:
        manifest = shape(board, "frame", values["form"], values["color"])
        return [Part(manifest, before_create=with_first_color, before_update=keep_form)]

    def corners(values: Fields) -> list[Part]:
        names = [f"corner-{number}" for number in range(values["count"])]
        return [Part(shape(board, name, "Circle", values["color"])) for name in names]

    def badge(values: Fields) -> list[Part]:
        return [Part(shape(board, "badge", "Hexagon", values["color"]), "Created")]

    parts = {"frame": frame, "corners": corners, "badge": badge}
    return compose_components(
        [Component(name, parts[name], spec[name]["enabled"], spec[name]) for name in parts],
        observed,
    )


def with_first_color(manifest: Manifest) -> Manifest:
    """Record the first color of a new frame as its label."""
    metadata = msgspec.structs.replace(
        manifest.metadata, labels={"first-color": manifest.spec["color"]}
    )
    return msgspec.structs.replace(manifest, metadata=metadata)


def keep_form(manifest: Manifest, declared: Manifest) -> Manifest:
    """Keep the form of an existing frame, and apply only the new color."""
    spec = {**manifest.spec, "type": declared.spec["type"]}
    return msgspec.structs.replace(manifest, metadata=declared.metadata, spec=spec)


BOARD = composed_kind(
    "Board",
    "boards/v1",
    BoardFields,
    compose=compose,
    summary=summary,
    ready=ready,
    outputs=ComponentsOutputs,
)
