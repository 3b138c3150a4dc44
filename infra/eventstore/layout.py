"""How a stored event becomes a message of a stream, and comes back: the interface of layouts."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from eventsourcing.persistence import Notification, StoredEvent, Tracking

from infra.jetstream.reads import StoredMessage
from infra.jetstream.sequences import Entry, Head


class EventLayout(Protocol):
    """Where the events of an application are, and how they are written there.

    Events of one aggregate are in the order of their versions.
    """

    @property
    def stream(self) -> str:
        """The name of the stream."""
        ...

    @property
    def events_filter(self) -> str:
        """The subject filter of every event, and of nothing else."""
        ...

    @property
    def digested(self) -> bool:
        """Whether events are stored with the digest of their aggregate's history."""
        ...

    @property
    def gapless(self) -> bool:
        """Whether an aggregate's versions must be 1, 2, 3, …; else they only have to rise."""
        ...

    def stream_config(self, replicas: int) -> dict[str, Any]:
        """Return the stream's configuration; raises `ProgrammingError` where it is not ours."""
        ...

    def sequence_of(self, originator_id: UUID | str) -> str:
        """Return the subject filter of one aggregate's events; raises `DataError`."""
        ...

    def sequence_at(self, subject: str) -> str:
        """Return the subject filter of the sequence that a subject belongs to."""
        ...

    def encode(self, event: StoredEvent) -> Entry:
        """Write an event; raises `DataError` if this layout can't hold it."""
        ...

    def decode(self, message: StoredMessage) -> Notification:
        """Read an event; raises `DataError` if the message isn't one of this layout."""
        ...

    def version_of(self, message: StoredMessage) -> int:
        """Read just an event's version; raises `DataError`."""
        ...

    def history(
        self, messages: Sequence[StoredMessage], after: Head, lte: int | None
    ) -> list[Notification]:
        """Read the messages of one aggregate behind a head, up to a version at least.

        Raises `InternalError` where that is not the history that was written.
        """
        ...


@runtime_checkable
class TrackingLayout(EventLayout, Protocol):
    """A layout whose stream holds tracking records too, so that one batch can write both."""

    def tracking_sequence_of(self, application_name: str) -> str:
        """Return the subject filter of one application's tracking records; raises `DataError`."""
        ...

    def encode_tracking(self, tracking: Tracking) -> Entry:
        """Write a tracking record; raises `DataError`."""
        ...
