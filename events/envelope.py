"""Encodes and decodes CloudEvents 1.0 in structured JSON.

The NATS binding of CloudEvents (1.0.2) defines the structured mode, and a message stays complete
outside the bus. A bare manifest on a ``desired`` subject is also valid, so that any NATS client can
declare resources.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec

from events.field_hints import field_error
from events.intake import (
    INTAKE_TYPE_NAMES,
    INTAKE_TYPES,
    LISTING_TYPE,
    Declared,
    IntakeData,
    ListingPart,
)
from events.log import LogEvent
from events.manifest import Manifest
from events.names import ResourceKey
from events.subjects import INTAKE_KINDS, Intake

MAX_ID_CHARACTERS = 256
MAX_MESSAGE_BYTES = 512 * 1024
"""Maximum size of an intake message in bytes, because every read of its resource copies it."""

MAX_NESTING = 100
"""Maximum nesting of JSON. A decoder's limit depends on its stack, so one decoder could accept a
message into the log that the next one cannot read."""

_NESTING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class InvalidMessageError(ValueError):
    """A message is invalid for its subject. The error states the problem and its path."""


class CloudEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The envelope of an intake message, with encoded data."""

    specversion: str
    id: str
    source: str
    type: str
    data: msgspec.Raw
    subject: str | None = None
    time: datetime | None = None


class IntakeMessage(msgspec.Struct, frozen=True, gc=False):
    """A decoded intake message, with its id and its source."""

    id: str
    source: str
    data: IntakeData


class _Versioned(msgspec.Struct, gc=False):
    resourceversion: int


_encoder = msgspec.json.Encoder()
_envelope_decoder = msgspec.json.Decoder(CloudEvent)
_log_decoder = msgspec.json.Decoder(LogEvent)
_version_decoder = msgspec.json.Decoder(_Versioned)
_parts_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_manifest_decoder = msgspec.json.Decoder(Manifest)
_intake_decoders: dict[str, dict[str, msgspec.json.Decoder[IntakeData]]] = {
    what: {
        name: msgspec.json.Decoder(struct)
        for name, struct in INTAKE_TYPES.items()
        if name.split(".")[1] == what
    }
    for what in INTAKE_KINDS
}
"""Decoders by kind and type of the message."""
_listing_decoder: msgspec.json.Decoder[ListingPart] = msgspec.json.Decoder(ListingPart)


def encode_intake(message_id: str, source: str, data: IntakeData, *, time: datetime) -> bytes:
    """Encode an intake message as a CloudEvent."""
    return _encode(message_id, source, INTAKE_TYPE_NAMES[type(data)], data, time)


def encode_listing_part(
    message_id: str, source: str, data: ListingPart, *, time: datetime
) -> bytes:
    """Encode one message in a listing as a CloudEvent."""
    return _encode(message_id, source, LISTING_TYPE, data, time)


def _encode(message_id: str, source: str, event_type: str, data: object, time: datetime) -> bytes:
    return _encoder.encode(
        CloudEvent(
            specversion="1.0",
            id=message_id,
            source=source,
            type=event_type,
            time=time,
            data=msgspec.Raw(_encoder.encode(data)),
        )
    )


def decode_intake(
    payload: bytes, *, expected: Intake, fallback_id: str, resource: ResourceKey | None = None
) -> IntakeMessage:
    """Decode an intake message that was published under ``expected``.

    ``fallback_id`` is the id of a bare manifest. ``resource`` is the one in the subject of the
    message. A CloudEvent with a different subject is refused, because the server checked only the
    message's subject against the publisher's permissions. Raises ``InvalidMessageError``.
    """
    _check_text("message id", fallback_id)
    _check_nesting(payload)
    try:
        envelope = _envelope_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _decode_bare_manifest(payload, expected, fallback_id, error)
    if envelope.specversion != "1.0":
        raise InvalidMessageError(f"specversion {envelope.specversion!r}: unsupported; use '1.0'")
    if not envelope.id or not envelope.source:
        raise InvalidMessageError("id and source of a CloudEvent: must not be empty")
    if envelope.id != fallback_id:
        _check_text("id of the CloudEvent", envelope.id)
    _check_text("source of the CloudEvent", envelope.source)
    subject = envelope.subject
    if resource is not None and subject is not None and subject != str(resource):
        raise InvalidMessageError(
            f"subject {subject[:200]!r} of the CloudEvent: the message was published "
            f"for {resource}; use the same resource, or omit the subject"
        )
    decoders = _intake_decoders[expected]
    decoder = decoders.get(envelope.type)
    if decoder is None:
        raise InvalidMessageError(
            f"type {envelope.type[:80]!r} is not allowed on a {expected} subject; use "
            f"{' or '.join(decoders)}"
        )
    try:
        return IntakeMessage(envelope.id, envelope.source, decoder.decode(envelope.data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = _describe_error(error, decoder.type)
        raise InvalidMessageError(f"data of {envelope.type}: {reason}") from None


def _check_text(name: str, text: str) -> None:
    """Raise ``InvalidMessageError`` for text that is too long or not printable for events."""
    if len(text) > MAX_ID_CHARACTERS:
        raise InvalidMessageError(
            f"{name}: must have at most {MAX_ID_CHARACTERS} characters, because events copy it"
        )
    if not text.isprintable():  # it could forge a line of a history
        raise InvalidMessageError(
            f"{name} {text!a}: contains a character that is not printable; remove it"
        )


def _decode_bare_manifest(
    payload: bytes, expected: Intake, fallback_id: str, error: Exception
) -> IntakeMessage:
    if expected == "desired" and b'"apiVersion"' in payload and _has_field(payload, "apiVersion"):
        try:
            manifest = _manifest_decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as manifest_error:
            raise InvalidMessageError(_describe_error(manifest_error, Manifest)) from None
        return IntakeMessage(fallback_id, "anonymous", Declared(manifest))
    raise InvalidMessageError(f"not a CloudEvent in structured JSON: {error}") from None


def _describe_error(error: Exception, schema: Any) -> str:
    is_validation = isinstance(error, msgspec.ValidationError)
    return field_error(error, schema) if is_validation else str(error)


def _has_field(payload: bytes, field: str) -> bool:
    """Return whether a payload is a JSON object with this field."""
    try:
        return field in _parts_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _check_nesting(payload: bytes) -> None:
    """Raise ``InvalidMessageError`` for JSON that is nested too deeply, and for no other error."""
    if is_nested_deeper(payload, MAX_NESTING):
        raise InvalidMessageError(
            f"the JSON is nested too deeply; at most {MAX_NESTING} levels are allowed"
        )


def is_nested_deeper(payload: bytes, max_levels: int) -> bool:
    """Return whether JSON is nested deeper than ``max_levels``. Other errors are not detected."""
    if payload.count(b"{") + payload.count(b"[") <= max_levels:
        return False
    depth = 0
    for found in _NESTING.finditer(payload):
        first = payload[found.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        if depth > max_levels:
            return True
    return False


def decode_listing_part(payload: bytes) -> ListingPart:
    """Decode one message in a listing. Raises ``InvalidMessageError``."""
    _check_nesting(payload)
    try:
        envelope = _envelope_decoder.decode(payload)
        return _listing_decoder.decode(envelope.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessageError(f"not a valid part of a listing: {error}") from None


def encode_log(event: LogEvent) -> bytes:
    """Encode an event of the log."""
    return _encoder.encode(event)


def decode_log(payload: bytes) -> LogEvent:
    """Decode an event of the log.

    Raises ``InvalidMessageError`` if this release cannot read it.
    """
    try:
        return _log_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessageError(f"not a valid log event: {error}") from None


def version_in(payload: bytes) -> int:
    """Return only the version of a log event; 0 if the payload is not an event."""
    try:
        return _version_decoder.decode(payload).resourceversion
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def to_builtins(thing: object) -> Any:
    """Convert a struct of this package to dicts, lists and scalars, as in its JSON."""
    return msgspec.to_builtins(thing, str_keys=True)
