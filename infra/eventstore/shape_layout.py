"""The layout of the product's own log, so that the library can open it."""

from typing import Any, Final
from uuid import UUID

import msgspec
from eventsourcing.persistence import DataError, ProgrammingError, StoredEvent

from events import subjects
from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent, log_place
from events.names import InvalidNameError, ShapeKey
from infra.eventstore.layout import Entry, Position
from infra.jetstream.reads import StoredMessage

SHAPES: Final = "SHAPES"
_FIRST_VERSION: Final = 1


class _Envelope(msgspec.Struct):
    """What places an event, whatever its type: also one of a later release."""

    type: str
    subject: str
    shapeversion: int


_decoder = msgspec.json.Decoder(_Envelope)


class ShapeLayout:
    """The shapes' log: ids are `namespace/kind/name`, topics the CloudEvents types.

    An event's version is its `shapeversion`, and its state the whole CloudEvent, so that what the
    library reads and writes is what the decider reads and writes. The stream is the product's: it
    is never created from here.
    """

    def __init__(self, base: str = "", purpose: str = "events") -> None:
        """Take a layout's usual arguments; the log has one name and one purpose."""

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return SHAPES

    @property
    def events_filter(self) -> str:
        """The subject filter of every event."""
        return "log.>"

    @property
    def gapless(self) -> bool:
        """A shape's versions must be 1, 2, 3, …, so that a hole shows a loss."""
        return True

    def stream_config(self, replicas: int) -> dict[str, Any]:  # noqa: ARG002
        """Refuse: raises `ProgrammingError`."""
        raise ProgrammingError(
            f"stream {SHAPES} belongs to the reconciler, which creates it: set CREATE_TABLE=no"
        )

    def sequence_of(self, originator_id: UUID | str) -> str:
        """Return the subject filter of one shape's events; raises `DataError`."""
        return subjects.log_filter(_key(originator_id))

    def encode(self, event: StoredEvent) -> Entry:
        """Write an event; raises `DataError` if it is not the CloudEvent that it claims to be."""
        key = _key(event.originator_id)
        content = _log_event(event)
        return Entry(
            subjects.log(key, log_place(content.data)),
            event.state,
            None,
            sequence=subjects.log_filter(key),
            version=event.originator_version,
            opens=event.originator_version == _FIRST_VERSION,
            digested=True,
        )

    def decode(self, message: StoredMessage) -> StoredEvent:
        """Read an event; raises `DataError`."""
        envelope = _envelope(message)
        return StoredEvent(
            originator_id=envelope.subject,
            originator_version=envelope.shapeversion,
            topic=envelope.type,
            state=message.payload,
        )

    def position_of(self, message: StoredMessage) -> Position:
        """Read an event's place; raises `DataError`."""
        envelope = _envelope(message)
        return Position(subjects.log_filter(_key(envelope.subject)), envelope.shapeversion)


def _key(originator_id: UUID | str) -> ShapeKey:
    if isinstance(originator_id, UUID):
        raise DataError(f"{originator_id} is a UUID: a shape's id is the text namespace/kind/name")
    try:
        return ShapeKey.parse(originator_id)
    except InvalidNameError as error:
        raise DataError(str(error)) from error


def _log_event(event: StoredEvent) -> LogEvent:
    """Read the state, and see that id, version and topic say the same."""
    try:
        content = decode_log(event.state)
    except InvalidMessageError as error:
        raise DataError(f"{event.originator_id}@{event.originator_version}: {error}") from error
    inside = (content.subject, content.shapeversion, content.type)
    outside = (event.originator_id, event.originator_version, event.topic)
    if inside != outside:
        raise DataError(f"the CloudEvent is {inside}, and is to be stored as {outside}")
    return content


def _envelope(message: StoredMessage) -> _Envelope:
    """Read the envelope, and see that it is stored under the subject of its shape."""
    try:
        envelope = _decoder.decode(message.payload)
        key = subjects.parse_log(message.subject)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"message {message.seq} on {message.subject} is not of the log: {error}"
        ) from error
    if envelope.subject != str(key):
        raise DataError(f"message {message.seq} on {message.subject} is about {envelope.subject!r}")
    return envelope
