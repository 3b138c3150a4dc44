"""How a stored event becomes a message of a stream, and comes back: the interface of layouts."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from eventsourcing.persistence import StoredEvent, Tracking

from infra.jetstream.reads import StoredMessage


@dataclass(frozen=True, slots=True)
class Entry:
    """One message to append to one sequence: an aggregate's, or a tracked application's.

    Attributes:
        subject: where it is stored.
        payload: its body.
        headers: its headers, if it has any.
        sequence: the subject filter that covers the whole sequence, and no other.
        version: its position in that sequence.
        opens: whether nothing is expected to be in the sequence yet.
        digested: whether it is stored with the digest of its sequence up to it.
    """

    subject: str
    payload: bytes
    headers: dict[str, str] | None
    sequence: str
    version: int
    opens: bool
    digested: bool = False


class Position(NamedTuple):
    """Which sequence a message belongs to (its subject filter), and its version there."""

    sequence: str
    version: int


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
    def gapless(self) -> bool:
        """Whether an aggregate's versions must be 1, 2, 3, …; else they only have to rise."""
        ...

    def stream_config(self, replicas: int) -> dict[str, Any]:
        """Return the stream's configuration; raises `ProgrammingError` where it is not ours."""
        ...

    def sequence_of(self, originator_id: UUID | str) -> str:
        """Return the subject filter of one aggregate's events; raises `DataError`."""
        ...

    def encode(self, event: StoredEvent) -> Entry:
        """Write an event; raises `DataError` if this layout can't hold it."""
        ...

    def decode(self, message: StoredMessage) -> StoredEvent:
        """Read an event; raises `DataError` if the message isn't one of this layout."""
        ...

    def position_of(self, message: StoredMessage) -> Position:
        """Read just an event's place in its sequence; raises `DataError`."""
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
