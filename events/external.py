"""Objects of an external API, as providers, observers and the log speak of them."""

from __future__ import annotations

import hashlib

import msgspec

from events.manifest import Fields

_encoder = msgspec.json.Encoder(order="deterministic")


class ExternalObject(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One object as its API shows it.

    ``uid`` tells two objects of one name apart; ``version`` is the API's version or ETag, if it has
    one; ``fields`` are the kind's own, without name and labels. ``written_by`` is the idempotency
    key of the action that wrote it last, where its provider leaves that in the object. ``outputs``
    are what the API made of it, for others to use: addresses, ports, ids, an expiry, a health. They
    are recorded, so what changes by itself all the time (counters) is none.
    """

    name: str
    fields: Fields
    uid: str | None = None
    version: str | None = None
    labels: dict[str, str] = {}
    written_by: str | None = None
    outputs: Fields = {}


def digest(thing: ExternalObject) -> str:
    """Digest an object's content, so that an observer can tell a change without keeping the object.

    Two objects with the same name, uid, fields, labels and outputs have the same digest, whatever
    the order of their keys. Version and ``written_by`` are left out: a touch is no event.
    """
    content = (thing.name, thing.uid, thing.fields, thing.labels, thing.outputs)
    return hashlib.blake2b(_encoder.encode(content), digest_size=12).hexdigest()


def identity(thing: ExternalObject) -> str:
    """Digest what tells whose an object is: name, uid and labels, and not its fields."""
    content = (thing.name, thing.uid, thing.labels)
    return hashlib.blake2b(_encoder.encode(content), digest_size=12).hexdigest()


def same_content(left: ExternalObject | None, right: ExternalObject | None) -> bool:
    """Return whether two looks at an object show the same thing; None stands for its absence."""
    if left is None or right is None:
        return left is right
    return (
        left.name == right.name
        and left.uid == right.uid
        and left.fields == right.fields
        and left.labels == right.labels
        and left.outputs == right.outputs
    )
