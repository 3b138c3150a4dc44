"""The general layout: any originator id, topic and state."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote
from uuid import UUID

from eventsourcing.persistence import DataError, Notification, StoredEvent, Tracking

from infra.eventstore.tokens import escape, originator_id_of, token_of
from infra.jetstream.reads import StoredMessage
from infra.jetstream.sequences import Entry, Head

TOPIC: Final = "ES-Topic"
VERSION: Final = "ES-Version"
NEWEST: Final = "ES-Newest-Version"
_DUPLICATE_WINDOW_NS: Final = 120 * 1_000_000_000
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class HeaderLayout:
    """One subject per aggregate, with the topic and version in headers and the state as body.

    ==========================  ===================================================
    ``<base>_<purpose>``        the stream
    ``es.<base>.<purpose>.*``   its events, with the aggregate as the last token
    ``es-tracking.<base>.*``    tracking records, in the event stream
    ==========================  ===================================================
    """

    def __init__(self, base: str, purpose: str = "events") -> None:
        base, purpose = _stream_name(base), _stream_name(purpose)
        self._stream = f"{base}_{purpose}"
        self._prefix = f"es.{base}.{purpose}"
        self._tracking = f"es-tracking.{base}"
        self._has_tracking = purpose == "events"

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream

    @property
    def events_filter(self) -> str:
        """The subject filter for all events."""
        return f"{self._prefix}.*"

    @property
    def has_digests(self) -> bool:
        """Whether messages carry digests; only those in Reconciler's log do."""
        return False

    @property
    def gapless(self) -> bool:
        """Whether versions must be 1, 2, 3, …; always false, because the library allows gaps."""
        return False

    def stream_config(self, replicas: int) -> dict[str, Any]:
        """Return the stream's configuration: an append-only log with the server's sync interval."""
        subjects = [self.events_filter]
        if self._has_tracking:
            subjects.append(f"{self._tracking}.*")
        return {
            "name": self._stream,
            "subjects": subjects,
            "retention": "limits",
            "discard": "new",
            "storage": "file",
            "compression": "none",  # a crash loses a replica with compressed blocks (ADR 0014)
            "num_replicas": replicas,
            "duplicate_window": _DUPLICATE_WINDOW_NS,
            "allow_direct": True,
            "allow_atomic": True,
            "deny_delete": True,
            "deny_purge": True,
        }

    def sequence_of(self, originator_id: UUID | str) -> str:
        """Return the subject of one aggregate's events; raises `DataError`."""
        return f"{self._prefix}.{token_of(originator_id)}"

    def sequence_at(self, subject: str) -> str:
        """Return the subject, because a sequence has only one."""
        return subject

    def tracking_sequence_of(self, application_name: str) -> str:
        """Return the subject of one application's tracking records; raises `DataError`."""
        return f"{self._tracking}.{token_of(application_name)}"

    def encode(self, event: StoredEvent) -> Entry:
        """Encode an event; raises `DataError`."""
        subject = self.sequence_of(event.originator_id)
        headers = {TOPIC: _encode_topic(event.topic), VERSION: str(event.originator_version)}
        return Entry(subject, event.originator_version, subject, event.state, headers)

    def encode_tracking(self, tracking: Tracking) -> Entry:
        """Encode a tracking record. Its version is the position in the other application."""
        subject = self.tracking_sequence_of(tracking.application_name)
        version = tracking.notification_id
        return Entry(subject, version, subject, b"", {VERSION: str(version)})

    def decode(self, message: StoredMessage) -> Notification:
        """Decode an event; raises `DataError`."""
        return Notification(
            originator_id=originator_id_of(message.subject.rpartition(".")[2]),
            originator_version=version_of(message),
            topic=_decode_topic(_read_header(message, TOPIC)),
            state=message.payload,
            id=message.seq,
        )

    def version_of(self, message: StoredMessage) -> int:
        """Return the version of an event or a tracking record; raises `DataError`."""
        return version_of(message)

    def history(
        self, messages: Sequence[StoredMessage], after: Head, lte: int | None
    ) -> list[Notification]:
        """Decode events. Versions may have gaps, so there is nothing to check."""
        del after, lte
        return [self.decode(message) for message in messages]


class SnapshotLayout(HeaderLayout):
    """The layout of snapshots. An older version may be stored after a newer one.

    Such a late snapshot carries the newest version so far in a header, so that an aggregate's last
    message indicates its newest snapshot.
    """

    def version_of(self, message: StoredMessage) -> int:
        """Return the newest version of the aggregate so far; raises `DataError`."""
        is_late = NEWEST in (message.headers or {})
        return _version(message, NEWEST if is_late else VERSION)


def version_of(message: StoredMessage) -> int:
    """Return the message's own version; raises `DataError`."""
    return _version(message, VERSION)


def _version(message: StoredMessage, name: str) -> int:
    text = _read_header(message, name)
    try:
        return int(text)
    except ValueError:
        raise _build_not_event_error(message, f"its {name} header is {text!r}") from None


def _stream_name(text: str) -> str:
    """Return a name unchanged if possible, so that users recognize it in stream lists."""
    return text if _NAME.fullmatch(text) else escape(text)


@lru_cache(maxsize=4096)
def _encode_topic(topic: str) -> str:
    """Encode a topic as one line of ASCII."""
    return quote(topic, safe=":._-<>[],")


@lru_cache(maxsize=4096)
def _decode_topic(header: str) -> str:
    return unquote(header)


def _read_header(message: StoredMessage, name: str) -> str:
    value = (message.headers or {}).get(name)
    if value is None:
        raise _build_not_event_error(message, f"its {name} header is missing")
    return value


def _build_not_event_error(message: StoredMessage, reason: str) -> DataError:
    return DataError(f"message {message.seq} on {message.subject} is not an event: {reason}")
