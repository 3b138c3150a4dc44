"""The ``ManifestSet`` kind: the resources that `reconciler apply --set` declared."""

from __future__ import annotations

from typing import Annotated

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from events.names import ResourceKey
from events.stored_content import CONTENT

_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}(?!\n)$")]


class ManifestSetFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resources declared as one set (apply --set)."""

    content: Annotated[
        _Digest,
        msgspec.Meta(description="Digest of the content that `reconciler apply --set` stored."),
    ]


def compose(_key: ResourceKey, spec: Fields, _observed: ExternalObject | None) -> Fields:
    """Return the declared content."""
    return {CONTENT: spec[CONTENT]}
