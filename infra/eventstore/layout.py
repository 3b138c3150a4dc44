"""The interface of layouts, which convert between stored events and stream messages."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from eventsourcing.persistence import Notification, StoredEvent, Tracking

from infra.jetstream.reads import StoredMessage
from infra.jetstream.sequences import Entry, Head


class EventLayout(Protocol):
    """The subjects of an application's events, and their encoding.

    The events of one aggregate are ordered by version.
    """

    @property
    def stream(self) -> str:
        """The name of the stream."""
        ...

    @property
    def events_filter(self) -> str:
        """The subject filter that matches all events, and no other messages."""
        ...

    @property
    def has_digests(self) -> bool:
        """Whether events carry the digest of their aggregate's history."""
        ...

    @property
    def gapless(self) -> bool:
        """Whether an aggregate's versions must be 1, 2, 3, … instead of only increasing."""
        ...

    def stream_config(self, replicas: int) -> dict[str, Any]:
        """Return the stream's configuration; raises `ProgrammingError` for Reconciler's log."""
        ...

    def sequence_of(self, originator_id: UUID | str) -> str:
        """Return the subject filter of one aggregate's events; raises `DataError`."""
        ...

    def sequence_at(self, subject: str) -> str:
        """Return the subject filter of the sequence to which a subject belongs."""
        ...

    def encode(self, event: StoredEvent) -> Entry:
        """Encode an event; raises `DataError` if this layout cannot represent it."""
        ...

    def decode(self, message: StoredMessage) -> Notification:
        """Decode an event; raises `DataError` if the message does not have this layout."""
        ...

    def version_of(self, message: StoredMessage) -> int:
        """Return an event's version; raises `DataError`."""
        ...

    def history(
        self, messages: Sequence[StoredMessage], after: Head, lte: int | None
    ) -> list[Notification]:
        """Decode the messages of one aggregate after a head, at least up to a version.

        Raises:
            InternalError: the messages are not the history that was written.
        """
        ...


@runtime_checkable
class TrackingLayout(EventLayout, Protocol):
    """A layout whose stream also contains tracking records, so that one batch can write both."""

    def tracking_sequence_of(self, application_name: str) -> str:
        """Return the subject filter of one application's tracking records; raises `DataError`."""
        ...

    def encode_tracking(self, tracking: Tracking) -> Entry:
        """Encode a tracking record; raises `DataError`."""
        ...
