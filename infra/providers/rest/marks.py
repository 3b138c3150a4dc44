"""Metadata that an object stores for Reconciler: labels, uid and the key of the last action."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from events.rest_definition import MetadataField
from infra.providers.responses import UNDECODABLE
from infra.providers.rest.expressions import ExpressionError
from infra.providers.rest.json_paths import MISSING, Finder

KEY_LABEL: Final = "reconciler/key"
UID_LABEL: Final = "reconciler/uid"


class ObjectMarks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of an object, stored as JSON by an API that has one string for it."""

    labels: dict[str, str] = {}
    key: str | None = None
    uid: str | None = None


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(ObjectMarks)
_NONE: Final = ObjectMarks()


class Marking:
    """Reads and writes the metadata of objects, as a map of strings or as one string."""

    def __init__(self, marks: MetadataField, location: str) -> None:
        self._at = Finder(marks.at, location, "object")
        self.is_map = marks.form == "Map"

    @property
    def steps(self) -> tuple[str, ...] | None:
        """Steps of the metadata's path; None for an expression."""
        return self._at.steps

    def read(self, content: Any) -> ObjectMarks:
        """Return the metadata of an object, empty for another client's object."""
        try:
            value = self._at.find(content)
        except ExpressionError:
            return _NONE
        if value is MISSING or value is None:
            return _NONE
        if not self.is_map:
            return _decode(value)
        if not isinstance(value, dict):
            return _NONE
        mapping = cast("dict[str, Any]", value)
        labels = {name: each for name, each in mapping.items() if isinstance(each, str)}
        key, uid = labels.pop(KEY_LABEL, None), labels.pop(UID_LABEL, None)
        return ObjectMarks(labels, key, uid)

    def value(self, labels: Mapping[str, str], key: str, uid: str | None) -> dict[str, str] | str:
        """Return the metadata of an object in the format that its API stores."""
        if not self.is_map:
            return _encoder.encode(ObjectMarks(dict(labels), key, uid)).decode()
        return {**labels, KEY_LABEL: key} | ({} if uid is None else {UID_LABEL: uid})


def build_uid(idempotency_key: str) -> str:
    """Return the uid of a new object in an API without uids. It is the same for every retry."""
    return hashlib.blake2b(idempotency_key.encode(), digest_size=12).hexdigest()


def _decode(value: Any) -> ObjectMarks:
    try:
        return _decoder.decode(value) if isinstance(value, str) else _NONE
    except (*UNDECODABLE, UnicodeEncodeError):
        return _NONE  # text that another client wrote
