"""References: the kind ``ShapeRef``, somebody's reliance on a resource of somebody else."""

from __future__ import annotations

from typing import Final, Literal

from events.manifest import Fields, ManifestStruct, Token
from events.names import ResourceKey

REFERENCE_KIND: Final = "ShapeRef"


def is_reference(key: ResourceKey) -> bool:
    """Return whether a resource is a reference to another one."""
    return key.kind == REFERENCE_KIND


class ReferenceTarget(ManifestStruct, frozen=True):
    """The resource that a ``ShapeRef`` refers to."""

    kind: Token
    name: Token
    namespace: Token = "default"


class ReferenceSpec(ManifestStruct, frozen=True):
    """The spec of a ``ShapeRef``: somebody relies on a resource of somebody else.

    ``on_withdrawal`` is what happens when that is withdrawn all the same: ``Keep`` holds the
    external object until the reference is withdrawn, ``Release`` lets it go without deleting it,
    ``Ignore`` has it deleted; the reference then dangles, and says so.
    """

    target: ReferenceTarget
    on_withdrawal: Literal["Keep", "Release", "Ignore"] = "Keep"


def target_of(fields: Fields) -> ResourceKey:
    """Read the target out of the checked fields of a ``ShapeRef``."""
    target = fields["target"]
    return ResourceKey(target.get("namespace", "default"), target["kind"], target["name"])
