"""The resources of a composed kind: ``composition`` of a ``KindDefinition`` (ADR 0052).

An *expression* is CEL, with or without a leading ``=``. A *template* is JSON in which a string with
a leading ``=`` is such an expression. `infra.providers.composition` defines their variables and
limits.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from events.manifest import Fields, ManifestStruct, Token
from events.rest_definition import MAX_ENTRIES, BoundedText, OutputType

MAX_PARTS: Final = 64

PartState = Literal["Present", "Absent", "Created"]
"""A part is kept as declared, withdrawn, or created once and then left unchanged."""

_PartName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,40}(?!\n)$")]
_OutputName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}(?!\n)$")]


class PartMetadata(ManifestStruct, frozen=True):
    """Templates for the name and metadata of a part.

    The default name is the name of the composed resource, a hyphen, and the name of the part.
    """

    name: Annotated[
        BoundedText,
        msgspec.Meta(
            description="Name of the part. Default: the name of the composed resource, a "
            "hyphen, and the name of the part."
        ),
    ] = ""
    labels: Annotated[dict[str, BoundedText], msgspec.Meta(description="Labels of the part.")] = {}  # noqa: RUF012 - msgspec copies it
    annotations: Annotated[
        dict[str, BoundedText], msgspec.Meta(description="Annotations of the part.")
    ] = {}  # noqa: RUF012


class PartManifest(ManifestStruct, frozen=True):
    """The manifest of a part; its spec is a template. Its namespace is the composed resource's."""

    api_version: Annotated[str, msgspec.Meta(description="apiVersion of the part.")]
    kind: Annotated[Token, msgspec.Meta(description="Kind of the part.")]
    metadata: Annotated[
        PartMetadata, msgspec.Meta(description="Name, labels and annotations of the part.")
    ] = PartMetadata()
    spec: Annotated[Fields, msgspec.Meta(description="Template of the part's spec.")] = {}  # noqa: RUF012


class PartDefinition(ManifestStruct, frozen=True):
    """One part, or one part for each item of a list.

    ``when`` and ``for_each`` are expressions: whether the part exists, and the list. The manifest
    reads each item as ``item``.
    """

    name: Annotated[
        _PartName,
        msgspec.Meta(
            description="Unique name of the part. Expressions use it to refer to the part."
        ),
    ]
    manifest: Annotated[
        PartManifest,
        msgspec.Meta(
            description="Manifest of the part. A string that begins with = is an expression."
        ),
    ]
    when: Annotated[
        BoundedText,
        msgspec.Meta(description="Boolean expression: whether the part exists. Default: true."),
    ] = ""
    for_each: Annotated[
        BoundedText,
        msgspec.Meta(
            description="List expression: the part has one resource for each item. "
            "Default: one resource."
        ),
    ] = ""
    state: Annotated[
        PartState,
        msgspec.Meta(
            description="Present: kept as the manifest declares. Absent: withdrawn. Created: "
            "created once and then left unchanged."
        ),
    ] = "Present"


class ComposedOutput(ManifestStruct, frozen=True):
    """A value that composed resources provide to others, as an expression."""

    value: Annotated[BoundedText, msgspec.Meta(description="Expression for the value.")]
    type: Annotated[OutputType, msgspec.Meta(description="Type of the value.")] = "String"
    about: Annotated[
        str,
        msgspec.Meta(max_length=300, description="Description, as `reconciler explain` shows it."),
    ] = ""


class CompositionSpec(ManifestStruct, frozen=True):
    """Parts and outputs of the objects of a defined kind.

    ``ready`` is an expression. By default, all parts must be ready.
    """

    parts: Annotated[
        tuple[PartDefinition, ...],
        msgspec.Meta(
            min_length=1, max_length=MAX_PARTS, description="Parts of the composed resource."
        ),
    ]
    ready: Annotated[
        BoundedText,
        msgspec.Meta(
            description="Boolean expression: whether the resource is ready. Default: "
            "when all parts are ready."
        ),
    ] = ""
    outputs: Annotated[
        dict[_OutputName, ComposedOutput],
        msgspec.Meta(max_length=MAX_ENTRIES, description="Values for other resources."),
    ] = {}  # noqa: RUF012
