"""The layout of Reconciler's log, so that the `eventsourcing` library can read and write it."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from eventsourcing.persistence import (
    DataError,
    InternalError,
    Notification,
    ProgrammingError,
    StoredEvent,
)

from events import subjects
from events.envelope import InvalidMessageError, decode_log
from events.integrity import HistoryChain, LogDamage, LogDamagedError, RecordedEvent
from events.log import LogEvent, log_suffix
from events.names import InvalidNameError, ResourceKey
from infra.jetstream.reads import StoredMessage
from infra.jetstream.sequences import Entry, Head, digest_of

LOG: Final = "LOG_1"


class HistoryDamagedError(InternalError):
    """The log does not contain the history that was written. `damage`: the first damage found."""

    def __init__(self, damage: LogDamage) -> None:
        super().__init__(f"the log is damaged: {damage}; restore it before you continue")
        self.damage = damage


class _Envelope(msgspec.Struct):
    """The fields that locate an event of any type, even one from a later release."""

    type: str
    subject: str
    resourceversion: int


_decoder = msgspec.json.Decoder(_Envelope)


class ResourceLayout:
    """The resource log: ids are `namespace/kind/name`, topics are CloudEvent types.

    An event's version is its `resourceversion`, and its state is the whole CloudEvent, so that the
    library reads and writes the same events as the decider. The stream belongs to Reconciler and is
    never created here.
    """

    def __init__(self, base: str = "", purpose: str = "events") -> None:
        """Accept a layout's usual arguments, although the log has only one name and purpose."""

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return LOG

    @property
    def events_filter(self) -> str:
        """The subject filter for all events."""
        return "log.>"

    @property
    def has_digests(self) -> bool:
        """Whether events carry the digest of their resource's history; always true (ADR 0010)."""
        return True

    @property
    def gapless(self) -> bool:
        """Whether versions must be 1, 2, 3, …; always true, so that a gap reveals a loss."""
        return True

    def stream_config(self, replicas: int) -> dict[str, Any]:  # noqa: ARG002
        """Raise `ProgrammingError`."""
        raise ProgrammingError(
            f"stream {LOG} belongs to Reconciler, which creates it; set CREATE_TABLE=no"
        )

    def sequence_of(self, originator_id: UUID | str) -> str:
        """Return the subject filter of one resource's events; raises `DataError`."""
        return subjects.log_filter(_key(originator_id))

    def sequence_at(self, subject: str) -> str:
        """Return the subject filter of the events of a subject's resource."""
        return subjects.log_filter_of(subject)

    def encode(self, event: StoredEvent) -> Entry:
        """Encode an event; raises `DataError` if it differs from its CloudEvent."""
        key = _key(event.originator_id)
        content = _log_event(event)
        subject = subjects.log(key, log_suffix(content.data))
        return Entry(subjects.log_filter(key), event.originator_version, subject, event.state)

    def decode(self, message: StoredMessage) -> Notification:
        """Decode an event; raises `DataError`."""
        envelope = _envelope(message)
        return Notification(
            originator_id=envelope.subject,
            originator_version=envelope.resourceversion,
            topic=envelope.type,
            state=message.payload,
            id=message.seq,
        )

    def version_of(self, message: StoredMessage) -> int:
        """Return an event's version; raises `DataError`."""
        return _envelope(message).resourceversion

    def history(
        self, messages: Sequence[StoredMessage], after: Head, lte: int | None
    ) -> list[Notification]:
        """Decode a resource's events up to a version; raises `HistoryDamagedError`."""
        if not messages:
            return []
        chain = HistoryChain(after.version or 0, after.digest, after.position)
        resource = "/".join(messages[0].subject.split(".")[1:4])
        notifications: list[Notification] = []
        for message in messages:
            if lte is not None and len(notifications) + (after.version or 0) >= lte:
                break  # later events are not requested, and may be damaged
            recorded = RecordedEvent(
                message.seq, message.subject, message.payload, digest_of(message)
            )
            try:
                event = chain.verify_next(recorded, resource)
            except LogDamagedError as error:
                raise HistoryDamagedError(error.damage) from None
            notifications.append(
                Notification(
                    originator_id=event.subject,
                    originator_version=event.resourceversion,
                    topic=event.type,
                    state=message.payload,
                    id=message.seq,
                )
            )
        return notifications


def _key(originator_id: UUID | str) -> ResourceKey:
    if isinstance(originator_id, UUID):
        raise DataError(f"{originator_id} is a UUID; use the resource's id, namespace/kind/name")
    try:
        return ResourceKey.parse(originator_id)
    except InvalidNameError as error:
        raise DataError(str(error)) from error


def _log_event(event: StoredEvent) -> LogEvent:
    """Decode the state, and check that its id, version and topic match the event."""
    try:
        content = decode_log(event.state)
    except InvalidMessageError as error:
        raise DataError(f"{event.originator_id}@{event.originator_version}: {error}") from error
    decoded = (content.subject, content.resourceversion, content.type)
    expected = (event.originator_id, event.originator_version, event.topic)
    if decoded != expected:
        raise DataError(f"the CloudEvent is {decoded}, but the recorded event is {expected}")
    return content


def _envelope(message: StoredMessage) -> _Envelope:
    """Decode the envelope, and check that it is stored on its resource's subject."""
    try:
        envelope = _decoder.decode(message.payload)
        key = subjects.parse_log(message.subject)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"message {message.seq} on {message.subject} is not a log event: {error}"
        ) from error
    if envelope.subject != str(key):
        raise DataError(f"message {message.seq} on {message.subject} is for {envelope.subject!r}")
    return envelope
