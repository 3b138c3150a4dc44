"""Content of a large composed object, stored separately in chunks by digest.

A chunk that does not change is not stored again. The object contains only the digest of its
content, so a decision about a thousand parts is a small event (ADR 0053).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from events.composition import (
    CHILDREN,
    COMPOSED_SET_KIND,
    MANIFESTS,
    digest_of,
    manifest_of,
    without_name,
)
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError, Manifest, ManifestStruct
from events.names import SYSTEM_NAMESPACE, ResourceKey

COMPOSED_CONTENT_KIND: Final = "ComposedContent"

COMPOSED_KINDS: Final = frozenset({COMPOSED_SET_KIND, COMPOSED_CONTENT_KIND})
"""Reconciler's own kinds, which the providers of composed kinds write into the log."""

CONTENT: Final = "content"
"""Field of an object with stored content: the digest of the content."""

HEAD: Final = "head"
"""Output of an object that follows a source: the newest revision, with its content."""

MAX_PARTS: Final = 2000
"""Maximum number of parts. One event contains the generations of all parts."""

_MAX_CHUNK_BYTES: Final = 128 * 1024
_USUAL_CHUNK_BYTES: Final = 32 * 1024
"""Typical size of a chunk. If one part changes, its chunk is stored again, so small chunks cost
less to write and more to read."""

_encoder = msgspec.json.Encoder(order="deterministic")


class Part(NamedTuple):
    """One part of the content and its origin, such as ``deploy/web.yaml:14``."""

    manifest: Manifest
    origin: str = ""


class ComposedContentSpec(ManifestStruct, frozen=True):
    """Manifests of a composed resource (internal)."""

    parent: Annotated[str, msgspec.Meta(description="Composed resource, as NAMESPACE/KIND/NAME.")]
    chunks: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Digests of the chunks of large content."),
    ] = ()
    children: Annotated[
        dict[str, str], msgspec.Meta(description="Digest of the manifest of each part.")
    ] = {}  # noqa: RUF012 - msgspec copies it
    manifests: Annotated[
        dict[str, Fields], msgspec.Meta(description="Manifests without their names, by digest.")
    ] = {}  # noqa: RUF012 - msgspec copies it
    origins: Annotated[
        dict[str, str], msgspec.Meta(description="File and line that each part comes from.")
    ] = {}  # noqa: RUF012 - msgspec copies it


class StoredContent(NamedTuple):
    """Content in its stored form. Its digest identifies an index, which lists the chunks."""

    digest: str
    documents: Mapping[str, ComposedContentSpec]


def stored_content(parent: str, parts: Sequence[Part]) -> StoredContent:
    """Return content divided into chunks. Raises ``InvalidManifestError`` if it is too large."""
    if len(parts) > MAX_PARTS:
        raise InvalidManifestError(
            f"{parent}: {len(parts)} parts are more than the limit of {MAX_PARTS}; split the set"
        )
    chunks = [_chunk(parent, each) for each in _divide(parts)]
    documents = {_name(each): each for each in chunks}
    index = ComposedContentSpec(parent, chunks=tuple(documents))
    return StoredContent(_name(index), {**documents, _name(index): index})


def find_part_problem(parent: ResourceKey, key: ResourceKey) -> str:
    """Return the reason why a resource cannot be part of another; empty if it can.

    Permission to declare the set in one namespace must not apply to another one.
    """
    if key.kind in COMPOSED_KINDS:
        return (
            f"{key}: only Reconciler itself declares resources of kind {key.kind}; remove this "
            "manifest"
        )
    if parent.namespace not in (SYSTEM_NAMESPACE, key.namespace):
        return f"{key}: must be in the namespace of its set, {parent.namespace!r}"
    if key == parent:
        return f"{key}: cannot be part of itself; remove this manifest"
    return ""


def contents_in(existing: ExternalObject | None, declared: Fields) -> set[str]:
    """Return the digests of the contents that an object has, or may have next."""
    observed_fields = {} if existing is None else existing.fields
    head: Mapping[str, str] = {} if existing is None else existing.outputs.get(HEAD, {})
    contents = (each.get(CONTENT) for each in (observed_fields, head, declared))
    # The content of a File may be a reference instead of a digest.
    return {each for each in contents if isinstance(each, str)}


def merge_chunks(chunks: Iterable[ComposedContentSpec]) -> Fields:
    """Return chunks in the form of an object that contains its whole content."""
    children: dict[str, str] = {}
    manifests: dict[str, Fields] = {}
    for each in chunks:
        children |= each.children
        manifests |= each.manifests
    return {CHILDREN: children, MANIFESTS: manifests}


def parts_of(chunks: Iterable[ComposedContentSpec]) -> Iterator[Part]:
    """Return the parts in some chunks."""
    for chunk in chunks:
        for name, digest in chunk.children.items():
            yield Part(manifest_of(name, chunk.manifests[digest]), chunk.origins.get(name, ""))


def _divide(parts: Sequence[Part]) -> list[list[Part]]:
    """Divide parts by a digest of their names, so that a changed part does not move the others."""
    sizes = {
        str(each.manifest.key): len(_encoder.encode(each.manifest)) + len(each.origin.encode())
        for each in parts
    }
    largest = max(sizes, key=lambda name: sizes[name], default="")
    if largest and sizes[largest] > _MAX_CHUNK_BYTES:
        raise InvalidManifestError(
            f"{largest}: the manifest is {sizes[largest]} bytes long, more than the limit of "
            f"{_MAX_CHUNK_BYTES} for a part; make it smaller"
        )
    number = 1
    while number * _USUAL_CHUNK_BYTES < sum(sizes.values()):
        number *= 2
    while True:
        buckets: dict[int, list[Part]] = {}
        for each in sorted(parts, key=lambda part: str(part.manifest.key)):
            buckets.setdefault(_bucket(str(each.manifest.key), number), []).append(each)
        heaviest = max(
            (sum(sizes[str(each.manifest.key)] for each in bucket) for bucket in buckets.values()),
            default=0,
        )
        if heaviest <= _MAX_CHUNK_BYTES:
            return [buckets[each] for each in sorted(buckets)]
        number *= 2


def _bucket(name: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) % number


def _chunk(parent: str, parts: Sequence[Part]) -> ComposedContentSpec:
    manifests: dict[str, Fields] = {}
    children: dict[str, str] = {}
    for part in parts:
        body = without_name(part.manifest)
        children[str(part.manifest.key)] = digest = digest_of(body)
        manifests[digest] = body
    origins = {str(each.manifest.key): each.origin for each in parts if each.origin}
    return ComposedContentSpec(parent, (), children, manifests, origins)


def _name(document: ComposedContentSpec) -> str:
    return hashlib.blake2b(_encoder.encode(document), digest_size=16).hexdigest()
