"""Dead letters: messages that could not be processed, with the reason and their handling.

A dead letter never changes. Each retry and dismissal is appended as a ``DeadLetterHandled``, so
that the original message and its handling stay visible (ADR 0013). Messages beyond a namespace's
quota are only counted (ADR 0017).
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from events.envelope import MAX_MESSAGE_BYTES
from events.field_types import description
from events.names import InvalidNameError, ResourceKey

Stage = Literal["intake", "declaration", "request", "decision", "action", "observation", "listing"]
"""Stage that could not process a message. ``DeadLetterRecord`` explains each one."""

KEPT_BYTES = MAX_MESSAGE_BYTES
"""Maximum size in bytes of a payload that is kept in full. It covers every valid message."""

PREVIEW_BYTES = 64 * 1024
"""Number of bytes of a longer payload to keep. The reason and the size are always kept."""

MAX_REASON_CHARACTERS = 2_000
MAX_COUNTS = 200
"""Maximum number of counted (namespace, stage) pairs, because senders choose the namespaces."""

OTHERS = "*"
"""Common name for the oldest counted namespaces, if there are too many."""

_INTAKE_TOKENS = 6
_MAX_ID = 256


class DeadLetterRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A message that could not be processed.

    Messages in the ``quota`` stage (too many waiting messages in the namespace) are only counted;
    see ``Discarded``.
    """

    stage: Annotated[
        str,
        description(
            "intake: the decider could not read the message. declaration: the decider rejected it. "
            "request: the decider rejected an approval, a release or a finalizer. decision: the "
            "decider failed. action: no worker could read the action. observation: the object is "
            "too large. listing: a listing that another observer published was rejected."
        ),
    ]
    reason: Annotated[str, description("Reason for the rejection.")]
    subject: Annotated[str, description("Subject of the message.")]
    position: Annotated[int, description("Position of the message in the stream of its subject.")]
    message_id: Annotated[str, description("Id of the message.")]
    at: Annotated[datetime, description("Time of the rejection.")]
    size: Annotated[int, description("Size of the message in bytes.")]
    payload: Annotated[str, description("The message.")]
    payload_encoding: Annotated[
        Literal["text", "base64"],
        description("Encoding of the payload: base64 if the message is not text."),
    ]
    payload_truncated: Annotated[
        bool, description("Whether the payload contains only the beginning of the message.")
    ]


class DeadLetterHandled(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A retry or a dismissal of a dead letter. ``number`` is its position in its stream.

    ``position`` is the intake position of a retried message. ``corrected``: it had a different
    payload.
    """

    number: int
    stage: str
    resolution: Literal["Retried", "Dismissed"]
    by: str
    at: datetime
    position: int = 0
    corrected: bool = False
    note: str = ""


class Discarded(msgspec.Struct, frozen=True, rename="camel"):
    """Number of a namespace's messages that were discarded without a dead letter.

    ``stage`` has the same values as in ``DeadLetterRecord``.
    """

    namespace: str
    stage: str
    count: int
    first_at: datetime
    last_at: datetime


class _Sender(msgspec.Struct, frozen=True):
    source: str = ""


_sender = msgspec.json.Decoder(_Sender)


def make_record(
    *,
    stage: str,
    reason: str,
    subject: str,
    position: int,
    message_id: str,
    at: datetime,
    payload: bytes,
    room: int = KEPT_BYTES,
) -> DeadLetterRecord:
    """Return the record of a message. ``room``: number of payload bytes that the bus can store."""
    kept = payload if len(payload) <= min(KEPT_BYTES, room) else payload[: min(PREVIEW_BYTES, room)]
    text, encoding = _encode_payload(kept)
    return DeadLetterRecord(
        stage=stage,
        reason=reason[:MAX_REASON_CHARACTERS],
        subject=subject,
        position=position,
        message_id=message_id[:_MAX_ID],
        at=at,
        size=len(payload),
        payload=text,
        payload_encoding=encoding,
        payload_truncated=len(kept) < len(payload),
    )


def _encode_payload(kept: bytes) -> tuple[str, Literal["text", "base64"]]:
    """Return bytes as text, or in base64 if they are not text or would be longer as text."""
    try:
        text = kept.decode()
    except UnicodeDecodeError:
        return base64.b64encode(kept).decode(), "base64"
    if len(msgspec.json.encode(text)) > 2 + (len(kept) + 2) // 3 * 4:
        return base64.b64encode(kept).decode(), "base64"
    return text, "text"


def payload_of(record: DeadLetterRecord) -> bytes:
    """Return the stored bytes of the payload."""
    if record.payload_encoding == "base64":
        return base64.b64decode(record.payload)
    return record.payload.encode()


def published_subject(record: DeadLetterRecord) -> str:
    """Return the subject on which the message was published.

    The stream stores it under a different one.
    """
    parts = record.subject.split(".")
    if parts[0] == "in" and len(parts) == _INTAKE_TOKENS:
        return ".".join(["rec", *parts[2:]])
    return record.subject


def resource_of(record: DeadLetterRecord) -> ResourceKey | None:
    """Return the resource that the subject of a message names, or None."""
    parts = record.subject.split(".")
    index = {"in": 3, "rec": 2, "log": 1}.get(parts[0])
    if index is None or len(parts) != index + (4 if parts[0] == "log" else 3):
        return None
    try:
        return ResourceKey.checked(*parts[index : index + 3])
    except InvalidNameError:
        return None


def sender_of(record: DeadLetterRecord) -> str:
    """Return the source of the message, if it is a readable CloudEvent; empty otherwise."""
    return sender_in(payload_of(record))


def sender_in(payload: bytes) -> str:
    """Return the source of a CloudEvent; empty if the payload is not one."""
    try:
        return _sender.decode(payload).source[:_MAX_ID]
    except (ValueError, RecursionError):
        return ""


def count_discarded(
    counts: Iterable[Discarded], new: Iterable[tuple[str, str]], at: datetime
) -> Sequence[Discarded]:
    """Return the counts by namespace and stage, increased by new messages. The newest are last."""
    counted = {(each.namespace, each.stage): each for each in counts}
    for (namespace, stage), count in Counter(new).items():
        _add(counted, Discarded(namespace, stage, count, at, at))
    for oldest in list(counted.values()):
        if len(counted) <= MAX_COUNTS:
            break
        if oldest.namespace != OTHERS:
            del counted[oldest.namespace, oldest.stage]
            _add(counted, msgspec.structs.replace(oldest, namespace=OTHERS))
    return list(counted.values())


def _add(counted: dict[tuple[str, str], Discarded], more: Discarded) -> None:
    key = (more.namespace, more.stage)
    known = counted.pop(key, None)
    if known is not None:
        first, last = min(known.first_at, more.first_at), max(known.last_at, more.last_at)
        more = Discarded(*key, known.count + more.count, first, last)
    counted[key] = more
