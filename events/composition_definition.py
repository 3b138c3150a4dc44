"""Which resources an object is made of: ``composition`` of a ``KindDefinition`` (ADR 0052).

An *expression* is CEL, with or without ``=`` before it. A *template* is JSON in which a text behind
``=`` is such an expression. What they mean, and their bounds, is in `infra.providers.composition`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from events.manifest import Fields, ManifestStruct, Token
from events.rest_definition import MAX_ENTRIES, OutputType, Place

MAX_PARTS: Final = 64

PartState = Literal["Present", "Absent", "Created"]
"""Kept as its manifest says, withdrawn, or made once and then left as it is."""

_PartName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,40}(?!\n)$")]
_OutputName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}(?!\n)$")]


class PartMetadata(ManifestStruct, frozen=True):
    """What a part is called, and what is attached to it; each a template.

    Without ``name`` it has the composed resource's name and the part's, with a hyphen between.
    """

    name: Place = ""
    labels: dict[str, Place] = {}  # noqa: RUF012 - msgspec copies it
    annotations: dict[str, Place] = {}  # noqa: RUF012


class PartManifest(ManifestStruct, frozen=True):
    """The manifest of a part; its spec is a template. Its namespace is the composed resource's."""

    api_version: str
    kind: Token
    metadata: PartMetadata = PartMetadata()
    spec: Fields = {}  # noqa: RUF012


class PartDefinition(ManifestStruct, frozen=True):
    """One part, or with ``for_each`` one for each item of a list.

    ``when`` and ``for_each`` are expressions: whether it is there at all, and the list, each item
    of which the manifest knows as ``item``.
    """

    name: _PartName
    manifest: PartManifest
    when: Place = ""
    for_each: Place = ""
    state: PartState = "Present"


class ComposedOutput(ManifestStruct, frozen=True):
    """A value that composed resources give to others: an expression."""

    value: Place
    type: OutputType = "String"
    about: Annotated[str, msgspec.Meta(max_length=300)] = ""


class CompositionSpec(ManifestStruct, frozen=True):
    """What the objects of a defined kind are made of, and what they give to others.

    ``ready`` is an expression; without it all parts must be ready.
    """

    parts: Annotated[tuple[PartDefinition, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    ready: Place = ""
    outputs: Annotated[dict[_OutputName, ComposedOutput], msgspec.Meta(max_length=MAX_ENTRIES)] = {}  # noqa: RUF012
