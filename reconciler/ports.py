"""What the roles require from their environment: narrow protocols, implemented in ``infra``.

All of them work on lists: a role calls the bus once per batch, never once per event. Every method
may raise the ``BusError`` classes of its implementation. The result of the call is then unknown,
and the roles repeat it, which is safe (invariants 3 and 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from events.dead_letter import Stage
from events.intake import IntakeData, ListingPart, Reply, WaitPurpose
from events.integrity import LogDamage
from events.log import LogEvent
from events.names import ResourceKey
from events.subjects import Intake


class StoredEvent(NamedTuple):
    """An event and its position in the log."""

    position: int
    event: LogEvent

    @property
    def originator_id(self) -> str:
        """Name of the resource, as the `eventsourcing` library calls it."""
        return self.event.subject

    @property
    def originator_version(self) -> int:
        """Version of the resource after the event, as the `eventsourcing` library calls it."""
        return self.event.resourceversion


class LoadedResource(msgspec.Struct, frozen=True, gc=False):
    """The history of one resource in the log: a stored state, and the events after it.

    ``last_position`` is the position of the newest event, or 0 if there is none. ``damage`` is set
    if the history must not be folded, and ``events`` then end before it.
    """

    last_position: int
    cached: bytes | None
    events: Sequence[LogEvent]
    damage: LogDamage | None = None


class ResourceAppend(NamedTuple):
    """Events to append to one resource, if its last position is still ``expected_position``."""

    key: ResourceKey
    events: Sequence[LogEvent]
    expected_position: int


DamageListener = Callable[[LogDamage], object]
"""Called in the order of the events, once per resource."""


class AppendLostError(Exception):
    """A compare-and-set failed, so nothing was stored."""


class AppendRefusedError(Exception):
    """The bus will never accept an append, for example because an event is too long.

    Nothing was stored.
    """


class EventFeed(Protocol):
    """An endless feed of the log's events, in order and in batches."""

    @property
    def caught_up(self) -> bool:
        """Whether all events that existed at the start have been delivered."""
        ...

    @property
    def position(self) -> int:
        """Position of the last delivered event."""
        ...

    async def next_events(self) -> Sequence[StoredEvent]:
        """Wait for the next events. An empty list means that the end was reached."""
        ...


EVENTS_BETWEEN_SAVES: Final = 50
"""Number of events after which a state is stored. Shorter histories have no stored state."""


class EventLog(Protocol):
    """The event log: the only source of truth."""

    @property
    def log_id(self) -> str:
        """Random name that this log was given at its creation. Each log has a different name."""
        ...

    @property
    def epoch(self) -> str:
        """Random name given to this log at its last restore; empty if it was never restored."""
        ...

    @property
    def restored_as_of(self) -> str:
        """Time of the backup from which this log was restored; empty if it was never restored."""
        ...

    async def load(
        self,
        keys: Sequence[ResourceKey],
        *,
        from_leader: bool = False,
        use_cache: bool = True,
    ) -> Mapping[ResourceKey, LoadedResource]:
        """Load many resources. Use ``from_leader`` after a conflict, as a follower may lag."""
        ...

    async def append(self, appends: Sequence[ResourceAppend]) -> Sequence[int]:
        """Append to many resources, all or nothing. Return the new last position of each.

        Raises ``AppendLostError`` if another writer appended first to at least one of them, and
        ``AppendRefusedError`` if at least one event can never be stored.
        """
        ...

    async def save_states(self, states: Mapping[ResourceKey, tuple[int, bytes]]) -> None:
        """Store states with their positions. A lost state only costs time."""
        ...

    async def newest_positions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        """Return each resource's newest position from the leader, or 0 if it has no events."""
        ...

    async def read_kind(self, namespace: str, kind: str) -> Sequence[StoredEvent]:
        """Read every event of a kind's resources in a namespace, up to the leader's last event."""
        ...

    def follow(
        self,
        after: int = 0,
        *,
        on_damage: DamageListener | None = None,
        max_resources: int | None = None,
    ) -> AbstractAsyncContextManager[EventFeed]:
        """Follow the log after a position.

        ``on_damage`` is called if the log differs from what was written. Events of a resource after
        its damage are not delivered. ``max_resources`` limits the number of resources whose newest
        event the feed remembers, to check that the next event follows it
        (``events.integrity.LogChains``).
        """
        ...

    async def missing_events(self) -> int:
        """Return the number of positions without an event. A log never deletes events."""
        ...

    async def last_position(self) -> int:
        """Return the position of the newest event."""
        ...


class IntakeDelivery(msgspec.Struct, frozen=True, gc=False):
    """A message in the intake. It is acknowledged when its events are in the log.

    ``position`` is its position in the intake. ``receipt`` belongs to the implementation.
    ``stored_at`` is the time at which the bus stored it, by its clock. ``user`` is the publisher
    according to the server; empty if the server does not name it.
    """

    position: int
    subject: str
    payload: bytes
    message_id: str
    reply_to: str | None
    delivered: int
    receipt: object
    stored_at: datetime | None = None
    user: str = ""


class IntakeReader(Protocol):
    """Reads the intake, in order per resource."""

    @property
    def slots(self) -> int:
        """Number of messages from a partition that may be delivered and not yet acknowledged."""
        ...

    async def next_batch(self, max_seconds: float = math.inf) -> Sequence[IntakeDelivery]:
        """Return the available messages. Wait for the first one, but at most ``max_seconds``."""
        ...

    async def extend(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Delay the redelivery of these messages, which are still waiting for a decision."""
        ...

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Acknowledge these messages."""
        ...

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        """Request the redelivery of these messages after a delay."""
        ...

    async def was_sole_reader(self, deliveries: Sequence[IntakeDelivery]) -> bool:
        """Return whether no other reader received messages from their partitions after these."""
        ...

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        """Read later declarations of the same resources, without acknowledging them."""
        ...

    async def declarations_of(
        self, known: Mapping[ResourceKey, Collection[int]]
    ) -> Mapping[ResourceKey, Sequence[IntakeDelivery]]:
        """Read all declarations of these resources in the intake, without acknowledging them.

        A resource whose only declarations are at known positions may be left out.
        """
        ...

    async def close(self) -> None:
        """Close the reader, so that another one continues."""
        ...


class IntakeMessageOut(NamedTuple):
    """A message for the intake. It may be stored twice; ``message_id`` identifies it."""

    what: Intake
    key: ResourceKey
    data: IntakeData
    message_id: str


class NotStoredError(Exception):
    """At least one of several messages was not stored, or may not have been.

    ``missing`` contains their indexes. Publish only these again. If the stream accepts only a few
    messages at a time, publishing all of them again would store only the first ones repeatedly.
    """

    def __init__(self, cause: Exception, missing: Sequence[int]) -> None:
        super().__init__(str(cause))
        self.missing = missing


class IntakeWriter(Protocol):
    """Publishes to the intake."""

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        """Publish all and wait until all are stored. Raises ``NotStoredError``."""
        ...

    async def last_position(self) -> int:
        """Return the last position of the intake: the current logical time."""
        ...


class ExternalName(NamedTuple):
    """A name in an API that a resource is about to use. ``is_path``: see ``Capabilities``.

    ``is_use``: the resource only uses the object with this name, which the owner may permit.
    """

    config: str
    kind: str
    name: str
    requester: str
    is_path: bool = False
    is_use: bool = False


NameSearch = Callable[[ExternalName], str]
"""Returns the resource other than the requester that owns a name, or ""."""


class NameDirectory(Protocol):
    """Shows a process without read models which resources own external names."""

    async def find_owners(self, names: Sequence[ExternalName]) -> Sequence[str]:
        """Ask the observers, and return the answer of one `NameSearch` for each name.

        If no observer runs, no name has an owner. Raises if none answers in time.
        """
        ...

    async def answer(self, search: NameSearch) -> None:
        """Answer the requests of other processes until canceled."""
        ...


class Rejection(NamedTuple):
    """A refused declaration, to be published among the outcomes."""

    key: ResourceKey
    reply: Reply
    actor: str
    at: datetime


class DeadLetter(NamedTuple):
    """A message that could not be processed, and the reason.

    ``dedup_key`` identifies the cause of dead letters that would recur, such as an object in a
    listing or an action. The newest one is not repeated while the ``content`` digest is the same.
    ``usable``: the message itself is valid, so it is never discarded.
    """

    stage: Stage | Literal["quota"]
    reason: str
    delivery: IntakeDelivery
    dedup_key: str = ""
    content: str = ""
    usable: bool = False


class TimerRequest(NamedTuple):
    """A request to wake a resource. A newer one for the same resource and purpose replaces it."""

    key: ResourceKey
    at: datetime
    purpose: WaitPurpose = "Retry"


class DecisionSink(Protocol):
    """Destination of everything that a decider sends, except events of the log."""

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        """Schedule wake-ups. A lost timer only causes a delay."""
        ...

    async def send_replies(self, replies: Sequence[tuple[str, Reply]]) -> None:
        """Send replies to publishers, on their reply subjects."""
        ...

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        """Publish rejections. If this raises, only some of them may be stored."""
        ...

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Store dead letters; count those beyond their namespace's share.

        Returns those for which there is currently no space. Raises if it is unknown which are
        stored.
        """
        ...

    async def discard(self, letters: Sequence[DeadLetter]) -> None:
        """Count messages that are discarded without a dead letter.

        If this raises, they may have been counted.
        """
        ...


class ActionDelivery(msgspec.Struct, frozen=True, gc=False):
    """A decided action or retry. It is acknowledged when its result is in the intake.

    ``is_count_certain``: whether ``delivered`` certainly counts all earlier deliveries. ``size``:
    bytes of the message.
    """

    position: int
    event: LogEvent
    delivered: int
    receipt: object
    is_count_certain: bool = True
    size: int = 0


class QueueRefusedError(Exception):
    """The bus currently has no space for a configuration's queue. Other queues continue."""


class ActionReader(Protocol):
    """Delivers each decided action to one worker at a time, with a separate queue per API."""

    async def add_queue(self, provider_config: str, limit: int) -> None:
        """Also read the actions of a configuration, with a limit on unacknowledged ones.

        For a configuration that is already read, this changes the limit. Raises
        ``QueueRefusedError``.
        """
        ...

    async def next_batch(self) -> Sequence[ActionDelivery]:
        """Wait for at least one action."""
        ...

    def free_slot(self, delivery: ActionDelivery) -> None:
        """Allow one more action in addition to this one, which has not been acknowledged yet."""
        ...

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Acknowledge these actions, because their results are stored."""
        ...

    async def extend_leases(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Extend the leases of these actions."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class ListingDelivery(msgspec.Struct, frozen=True, gc=False):
    """A part of another observer's listing. ``part`` is None if it could not be decoded.

    ``stored_at`` is the time at which the bus stored it. ``position`` is its position in the stream
    of listings.
    """

    position: int
    subject: str
    stored_at: datetime
    payload: bytes
    part: ListingPart | None


class ListingReader(Protocol):
    """Delivers the parts of listings that other observers publish."""

    async def next_batch(self) -> Sequence[ListingDelivery]:
        """Wait for parts."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class LogCertainty(Protocol):
    """Whether the log is still the one that this process has read.

    After a lost connection, it may be a different log, if a server returned with an older copy of
    its data. A process must not execute the decisions of one log for another.
    """

    @property
    def is_certain(self) -> bool:
        """Whether it is certain that the log is the same."""
        ...

    async def wait_until_certain(self, seconds: float) -> bool:
        """Wait for certainty, at most ``seconds``. Return whether the log is the same."""
        ...


class LogWatch(LogCertainty, Protocol):
    """Compares the log with what this process has read of it, to detect a different log."""

    def record_read(self, position: int, event: LogEvent) -> None:
        """Remember the newest event that was read."""
        ...

    async def run(self) -> None:
        """Compare continually. Raises if the log is a different one."""
        ...


class RateConflictError(Exception):
    """Another process reserved calls in the meantime. Nothing was stored."""


class RateStore(Protocol):
    """Stores, for each rate limit, when its next call may start if calls are evenly spaced.

    Times are seconds since 1970 by the clock of the bus, which all processes share.
    """

    async def now(self) -> float:
        """Return the bus's current time."""
        ...

    async def load(self, name: str) -> tuple[float, int]:
        """Read a time and its revision; 0.0 and 0 if none is stored yet."""
        ...

    async def save(self, name: str, time: float, revision: int) -> int:
        """Replace the time at a revision, and return the new revision.

        Raises ``RateConflictError``.
        """
        ...


class RowsConflictError(Exception):
    """Another projector wrote in the meantime. Nothing was stored."""


class RowStore(Protocol):
    """Stores the rows of the read models. The ``checkpoint`` row contains their log position.

    Every save writes the checkpoint, so its revision applies to all rows.
    """

    @property
    def rows_per_save(self) -> int:
        """Number of rows that are collected for one save. The save may contain a few more."""
        ...

    async def load(self) -> Mapping[str, bytes]:
        """Read every row, as of one save."""
        ...

    async def checkpoint(self) -> tuple[bytes, int]:
        """Read only the checkpoint and its revision; empty and 0 if there is none."""
        ...

    async def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        """Replace changed rows and the checkpoint at a revision, all or nothing.

        Returns the new revision. Raises ``RowsConflictError`` if another revision is stored.
        """
        ...

    async def clear(self, before: int) -> None:
        """Remove every row that was written before a revision."""
        ...
