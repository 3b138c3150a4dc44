"""Objects of an external API, as providers, observers and the log represent them."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from events.field_types import description
from events.manifest import Fields

_encoder = msgspec.json.Encoder(order="deterministic")


class ExternalObject(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """An object as its API returns it.

    The log records every change to the outputs, so a value that changes continually, such as a
    counter, must not be an output.
    """

    name: Annotated[str, description("Name of the object.")]
    fields: Annotated[Fields, description("Fields of the kind, without name and labels.")]
    uid: Annotated[
        str | None,
        description(
            "Identity of the object. Two objects with the same name have different uids. It is "
            "null if the API has none."
        ),
    ] = None
    version: Annotated[
        str | None, description("Version or ETag of the object; null if the API has none.")
    ] = None
    labels: Annotated[dict[str, str], description("Labels of the object.")] = {}
    written_by: Annotated[
        str | None,
        description(
            "Idempotency key of the action that last wrote the object, if its provider stores it."
        ),
    ] = None
    outputs: Annotated[
        Fields,
        description(
            "Values that the API assigned, such as addresses, ports, ids and health. Counters are "
            "not recorded."
        ),
    ] = {}


def digest(existing: ExternalObject) -> str:
    """Return the digest of an object's content, which observers use to detect changes.

    The digest covers name, uid, fields, labels and outputs, regardless of the order of keys. It
    does not cover version and ``written_by``, because a write without a change is not an event.
    """
    content = (existing.name, existing.uid, existing.fields, existing.labels, existing.outputs)
    return hashlib.blake2b(_encoder.encode(content), digest_size=12).hexdigest()


def identity(existing: ExternalObject) -> str:
    """Return the digest of name, uid and labels, which determine the owner, without fields."""
    content = (existing.name, existing.uid, existing.labels)
    return hashlib.blake2b(_encoder.encode(content), digest_size=12).hexdigest()


def same_content(left: ExternalObject | None, right: ExternalObject | None) -> bool:
    """Return whether two observations have the same content. None is an absent object."""
    if left is None or right is None:
        return left is right
    return (
        left.name == right.name
        and left.uid == right.uid
        and left.fields == right.fields
        and left.labels == right.labels
        and left.outputs == right.outputs
    )
