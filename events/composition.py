"""A composed object: which resources it is made of, as the log and its provider speak of it.

Its fields are two maps: ``children`` from a resource (``namespace/kind/name``) to the digest of
what it is declared as, and ``manifests`` from that digest to the manifest without a name. So many
alike children cost one manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, cast

import msgspec

from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError, Manifest, ManifestStruct, Metadata
from events.names import SYSTEM_NAMESPACE, InvalidNameError, ResourceKey

COMPOSED_SET_KIND: Final = "ComposedSet"

PART_OF_LABEL: Final = "reconciler/part-of"
"""Label of a child: the resource it is a part of, as ``namespace.kind.name``."""

REFUSED: Final = "Refused"
"""Outcome of a child that was not taken in, and why its parent is not ready."""

STUCK: Final = frozenset({REFUSED, "Failed", "Held", "Conflict", "Disputed", "Degraded"})
"""Outcomes of a child that no time alone will mend."""

MAX_CONTENT_BYTES: Final = 128 * 1024
"""Half of what an object may have: how its children stand is in it, too."""

MAX_DECLARED_BYTES: Final = 4 * 1024 * 1024
"""Of all parts of an object. Each is declared by itself: a short object that repeats a long part
would fill the memory of a worker, and the log."""

CHILDREN: Final = "children"
RETRY_AT: Final = "retryAt"
MANIFESTS: Final = "manifests"

_encoder = msgspec.json.Encoder(order="deterministic")


class ComposedSetSpec(ManifestStruct, frozen=True):
    """The parts of a composed resource (internal)."""

    parent: Annotated[str, msgspec.Meta(description="Composed resource, as NAMESPACE/KIND/NAME.")]
    uid: Annotated[
        str, msgspec.Meta(description="Id of the set, derived from the key of its first action.")
    ]
    key: Annotated[str, msgspec.Meta(description="Idempotency key of the newest action.")]
    labels: Annotated[
        dict[str, str], msgspec.Meta(description="Labels of the composed object.")
    ] = {}  # noqa: RUF012 - msgspec copies it
    fields: Annotated[Fields, msgspec.Meta(description="Content of the composed object.")] = {}  # noqa: RUF012 - msgspec copies it
    generations: Annotated[
        dict[str, int],
        msgspec.Meta(description="Generation of each part that was declared for this set."),
    ] = {}  # noqa: RUF012 - msgspec copies it
    refused: Annotated[
        dict[str, str], msgspec.Meta(description="Reason for the refusal of each refused part.")
    ] = {}  # noqa: RUF012 - msgspec copies it
    refusals: Annotated[int, msgspec.Meta(description="Number of consecutive refusals.")] = 0
    retry_at: Annotated[
        datetime | None,
        msgspec.Meta(description="Time at which the refused parts are declared again (ISO 8601)."),
    ] = None
    leaving: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Parts whose declaration was withdrawn and that may still exist."),
    ] = ()

    def __post_init__(self) -> None:
        names = (self.parent, *self.generations, *self.refused, *self.leaving)
        children, manifests = self.fields.get(CHILDREN, {}), self.fields.get(MANIFESTS, {})
        if not (isinstance(children, dict) and isinstance(manifests, dict)):
            raise ValueError("fields: children and manifests must be maps")  # noqa: TRY004 - msgspec's
        own = ResourceKey.parse(self.parent).namespace
        for name in (*names, *cast("dict[str, object]", children)):
            key = ResourceKey.parse(name)  # raises InvalidNameError, a ValueError
            # How its parts stand is shown: what others declare must not be among them.
            if own not in (SYSTEM_NAMESPACE, key.namespace):
                raise ValueError(f"{name}: must be in the namespace of its set, {own!r}")

    @property
    def set_key(self) -> ResourceKey:
        """The set of its parent: each has one."""
        parent = ResourceKey.parse(self.parent)
        return ResourceKey(parent.namespace, COMPOSED_SET_KIND, f"{parent.kind}-{parent.name}")


class Child(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How a child stands, among the outputs of the composed object."""

    outcome: str = "Pending"
    ready: bool = False
    reason: str = ""
    message: str = ""
    outputs: Fields = {}


def parent_in(labels: Mapping[str, str]) -> ResourceKey | None:
    """Return what a resource with these labels is a part of; None for nothing that has a name."""
    try:
        return ResourceKey.parse(labels.get(PART_OF_LABEL, "").replace(".", "/"))
    except InvalidNameError:  # anybody may write a label
        return None


def as_part(manifest: Manifest, parent: str) -> Manifest:
    """Return a child with the label that says whose it is."""
    labels = {**manifest.metadata.labels, PART_OF_LABEL: parent.replace("/", ".")}
    metadata = msgspec.structs.replace(manifest.metadata, labels=labels)
    return msgspec.structs.replace(manifest, metadata=metadata)


def describe_part_conflict(name: str, labels: Mapping[str, str], part_of: str) -> str:
    """Say why a resource that is declared with these labels cannot be a part; empty if it can."""
    owner = labels.get(PART_OF_LABEL, "")
    if owner == part_of:
        return ""
    by = f"is already a part of {owner}" if owner else "is already declared separately"
    return f"{name} {by}; withdraw that declaration, or choose another name"


def blocker(children: Mapping[str, Child]) -> str:
    """Name the first child that cannot be used, and why; empty if all can."""
    for name, child in children.items():
        if not child.ready:
            why = ": ".join(each for each in (child.reason, child.message) if each)
            return f"waits for {name}: {why or child.outcome}"
    return ""


def content_of(children: Iterable[Manifest]) -> Fields:
    """Return the fields of an object that is made of these resources.

    Raises ``InvalidManifestError`` if they are too large for one event, together with their status,
    or to be declared.
    """
    manifests: dict[str, Fields] = {}
    digests: dict[str, str] = {}
    known: dict[tuple[object, ...], str] = {}  # the replicas of a template have the same objects
    sizes: dict[str, int] = {}
    every = list(children)  # kept, so that no other object has an id of theirs
    for each in every:
        metadata = each.metadata
        identity = (id(each.spec), id(metadata.labels), id(metadata.annotations), each.api_version)
        digest = known.get(identity)
        if digest is None:
            body = without_name(each)
            encoded = _encoder.encode(body)
            digest = known[identity] = _digest_of(encoded)
            manifests[digest], sizes[digest] = body, len(encoded)
        digests[str(each.key)] = digest
    content = {CHILDREN: digests, MANIFESTS: manifests}
    size = len(_encoder.encode(content))
    if size > MAX_CONTENT_BYTES:
        raise InvalidManifestError(
            f"the {len(digests)} parts have {size} bytes, more than the limit of "
            f"{MAX_CONTENT_BYTES}; divide the resource"
        )
    total = sum(sizes[digest] for digest in digests.values())
    if total > MAX_DECLARED_BYTES:
        raise InvalidManifestError(
            f"the {len(digests)} parts have {total} bytes together, more than the limit of "
            f"{MAX_DECLARED_BYTES}; use fewer or smaller ones, or divide the resource"
        )
    return content


def manifests_of(fields: Fields) -> Iterator[Manifest]:
    """Return the resources that an object with these fields is made of."""
    bodies: Mapping[str, Any] = fields.get(MANIFESTS, {})
    for name, digest in fields.get(CHILDREN, {}).items():
        body = bodies.get(digest)
        if body is None:  # somebody else has declared it otherwise
            continue
        yield manifest_of(name, body)


def children_of(observed: ExternalObject | None) -> Mapping[str, Child]:
    """Return how the children stand that are there, by name."""
    if observed is None:
        return {}
    shown: Mapping[str, Any] = observed.outputs.get(CHILDREN, {})
    return {name: msgspec.convert(each, Child) for name, each in shown.items()}


def manifest_of(name: str, body: Fields) -> Manifest:
    """Return a manifest that was kept without its name."""
    key = ResourceKey.parse(name)
    metadata = Metadata(key.name, key.namespace, body["labels"], body["annotations"])
    return Manifest(body["apiVersion"], key.kind, metadata, body["spec"])


def digest_of(body: Fields) -> str:
    """Digest a manifest without its name."""
    return _digest_of(_encoder.encode(body))


def _digest_of(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


def without_name(manifest: Manifest) -> Fields:
    """Return what many alike parts have in common."""
    return {
        "apiVersion": manifest.api_version,
        "labels": dict(manifest.metadata.labels),
        "annotations": dict(manifest.metadata.annotations),
        "spec": dict(manifest.spec),
    }
