"""The fields of a composed object: the resources that it consists of.

There are two maps. ``children`` maps each resource (``namespace/kind/name``) to the digest of its
manifest. ``manifests`` maps that digest to the manifest without its name. Many identical parts
therefore need one manifest.
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
"""Label of a part that names its parent: ``namespace.kind.name``."""

REFUSED: Final = "Refused"
"""Outcome of a part that a decider refused, and reason for the outcome of its parent."""

STUCK: Final = frozenset({REFUSED, "Failed", "Held", "Conflict", "Disputed", "Degraded"})
"""Outcomes of a part that do not change without intervention."""

MAX_CONTENT_BYTES: Final = 128 * 1024
"""Maximum size of the content, in bytes: half of an object's limit, because the object also
contains the status of its parts."""

MAX_DECLARED_BYTES: Final = 4 * 1024 * 1024
"""Maximum total size of all declared parts, in bytes. Each part is declared separately. A short
object that repeats a long part could otherwise fill the log and the memory of a worker."""

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
        msgspec.Meta(description="Parts that are not in the set anymore, but may still exist."),
    ] = ()

    def __post_init__(self) -> None:
        names = (self.parent, *self.generations, *self.refused, *self.leaving)
        children, manifests = self.fields.get(CHILDREN, {}), self.fields.get(MANIFESTS, {})
        if not (isinstance(children, dict) and isinstance(manifests, dict)):
            raise ValueError("fields: children and manifests must be maps")  # noqa: TRY004 - msgspec's
        own = ResourceKey.parse(self.parent).namespace
        for name in (*names, *cast("dict[str, object]", children)):
            key = ResourceKey.parse(name)  # raises InvalidNameError, a ValueError
            # The set shows the status of its parts, which must not reveal other namespaces.
            if own not in (SYSTEM_NAMESPACE, key.namespace):
                raise ValueError(f"{name}: must be in the namespace of its set, {own!r}")

    @property
    def set_key(self) -> ResourceKey:
        """Key of the parent's set. Each parent has one."""
        return set_key_of(ResourceKey.parse(self.parent))


class Child(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Status of a part, in the outputs of the composed object."""

    outcome: str = "Pending"
    ready: bool = False
    reason: str = ""
    message: str = ""
    outputs: Fields = {}
    # From the log of its parent, see `reconciler.resource.availability`; only in decisions.
    available: bool = False
    interruptions: int = 0

    @property
    def run(self) -> str:
        """Start time of its process, which changes with each restart; empty if it has none."""
        return str(self.outputs.get("startedAt", ""))


def set_key_of(parent: ResourceKey) -> ResourceKey:
    """Return the key of a composed resource's set."""
    return ResourceKey(parent.namespace, COMPOSED_SET_KIND, f"{parent.kind}-{parent.name}")


def parent_in(labels: Mapping[str, str]) -> ResourceKey | None:
    """Return the parent that the labels of a resource name; None if they name none."""
    try:
        return ResourceKey.parse(labels.get(PART_OF_LABEL, "").replace(".", "/"))
    except InvalidNameError:  # any client may write a label
        return None


def as_part(manifest: Manifest, parent: str) -> Manifest:
    """Return the manifest of a part, with the label that names its parent."""
    labels = {**manifest.metadata.labels, PART_OF_LABEL: parent.replace("/", ".")}
    metadata = msgspec.structs.replace(manifest.metadata, labels=labels)
    return msgspec.structs.replace(manifest, metadata=metadata)


def describe_part_conflict(name: str, labels: Mapping[str, str], part_of: str) -> str:
    """Describe why a declared resource cannot become a part; empty if it can."""
    owner = labels.get(PART_OF_LABEL, "")
    if owner == part_of:
        return ""
    conflict = f"is already part of {owner}" if owner else "is already declared separately"
    return f"{name} {conflict}; withdraw that declaration, or choose another name"


def blocker(children: Mapping[str, Child]) -> str:
    """Return the first part that is not ready, with the reason; empty if all are ready."""
    for name, child in children.items():
        if not child.ready:
            why = ": ".join(each for each in (child.reason, child.message) if each)
            return f"waiting for {name}: {why or child.outcome}"
    return ""


def content_of(children: Iterable[Manifest]) -> Fields:
    """Return the fields of an object that consists of these resources.

    Raises ``InvalidManifestError`` if they are too large to be declared, or to fit into one event
    with their status.
    """
    manifests: dict[str, Fields] = {}
    digests: dict[str, str] = {}
    known: dict[tuple[object, ...], str] = {}  # replicas share the objects of their template
    sizes: dict[str, int] = {}
    all_manifests = list(children)  # keeps the objects alive, so that ids are unique
    for manifest in all_manifests:
        metadata = manifest.metadata
        identity = (
            id(manifest.spec),
            id(metadata.labels),
            id(metadata.annotations),
            manifest.api_version,
        )
        digest = known.get(identity)
        if digest is None:
            body = without_name(manifest)
            encoded = _encoder.encode(body)
            digest = known[identity] = _digest_of(encoded)
            manifests[digest], sizes[digest] = body, len(encoded)
        digests[str(manifest.key)] = digest
    content = {CHILDREN: digests, MANIFESTS: manifests}
    size = len(_encoder.encode(content))
    if size > MAX_CONTENT_BYTES:
        raise InvalidManifestError(
            f"the {len(digests)} parts take up {size} bytes, more than the limit of "
            f"{MAX_CONTENT_BYTES}; split the resource"
        )
    total = sum(sizes[digest] for digest in digests.values())
    if total > MAX_DECLARED_BYTES:
        raise InvalidManifestError(
            f"the {len(digests)} parts take up {total} bytes in total, more than the limit of "
            f"{MAX_DECLARED_BYTES}; use fewer or smaller ones, or split the resource"
        )
    return content


def manifests_of(fields: Fields) -> Iterator[Manifest]:
    """Return the manifests that the fields of an object contain."""
    bodies: Mapping[str, Any] = fields.get(MANIFESTS, {})
    for name, digest in fields.get(CHILDREN, {}).items():
        body = bodies.get(digest)
        if body is None:  # another client's declaration, whose manifest is unknown
            continue
        yield manifest_of(name, body)


def children_of(observed: ExternalObject | None) -> Mapping[str, Child]:
    """Return the status of each existing part, by name."""
    if observed is None:
        return {}
    children: Mapping[str, Any] = observed.outputs.get(CHILDREN, {})
    return {name: msgspec.convert(each, Child) for name, each in children.items()}


def manifest_of(name: str, body: Fields) -> Manifest:
    """Return the manifest from its stored form without a name."""
    key = ResourceKey.parse(name)
    metadata = Metadata(key.name, key.namespace, body["labels"], body["annotations"])
    return Manifest(body["apiVersion"], key.kind, metadata, body["spec"])


def digest_of(body: Fields) -> str:
    """Return the digest of a manifest without its name."""
    return _digest_of(_encoder.encode(body))


def _digest_of(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


def without_name(manifest: Manifest) -> Fields:
    """Return the part of a manifest that identical parts share."""
    return {
        "apiVersion": manifest.api_version,
        "labels": dict(manifest.metadata.labels),
        "annotations": dict(manifest.metadata.annotations),
        "spec": dict(manifest.spec),
    }
