"""What the roles need from outside: one narrow protocol each, implemented in ``infra``.

All of them work on lists: a role calls the bus once per micro-batch, never once per event. Every
method may raise ``BusError`` classes of the implementation. Those mean "unknown", and the roles
do the same again, which is safe (invariants 3 and 5).
"""

from __future__ import annotations

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
        """Of what it is an event, in the words of the `eventsourcing` library."""
        return self.event.subject

    @property
    def originator_version(self) -> int:
        """Which of its events it is, in the words of the `eventsourcing` library."""
        return self.event.resourceversion


class LoadedResource(msgspec.Struct, frozen=True, gc=False):
    """All that the log has of one resource: a state that was kept, and the events after it.

    ``last_position`` is that of the newest event, 0 for a resource without any. ``damage`` says why
    the history must not be folded, if it must not; the events are those before it.
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
"""Called in order with the events, once a resource."""


class AppendLostError(Exception):
    """A compare-and-set failed: nothing of the whole append was stored."""


class AppendRefusedError(Exception):
    """The bus will never take an append, as with an event that is too long: nothing was stored."""


class EventFeed(Protocol):
    """The log's events in order, in lists, followed for ever."""

    @property
    def caught_up(self) -> bool:
        """Whether everything that was in the log at the start has been handed out."""
        ...

    @property
    def position(self) -> int:
        """The last position handed out."""
        ...

    async def next_events(self) -> Sequence[StoredEvent]:
        """Wait for the next events; an empty list says that the end was reached."""
        ...


EVENTS_BETWEEN_SAVES: Final = 50
"""A state is kept after so many events, and none of a shorter history."""


class EventLog(Protocol):
    """The event log: the only truth."""

    @property
    def log_id(self) -> str:
        """A random name that this log got when it was made: no two logs share it."""
        ...

    @property
    def epoch(self) -> str:
        """A random name that this log got when it was restored last, empty if it never was."""
        ...

    @property
    def restored_as_of(self) -> str:
        """The time of the backup that this log was restored from, empty if it never was."""
        ...

    async def load(
        self,
        keys: Sequence[ResourceKey],
        *,
        from_leader: bool = False,
        use_cache: bool = True,
    ) -> Mapping[ResourceKey, LoadedResource]:
        """Load many resources; ``from_leader`` after a conflict, where a follower may lag."""
        ...

    async def append(self, appends: Sequence[ResourceAppend]) -> Sequence[int]:
        """Append for many resources, all or nothing; gives each resource's new last position.

        Raises ``AppendLostError`` when another writer was first for at least one of them, and
        ``AppendRefusedError`` when at least one event can never be stored.
        """
        ...

    async def save_states(self, states: Mapping[ResourceKey, tuple[int, bytes]]) -> None:
        """Keep states by the position they hold for; losing one costs time, never truth."""
        ...

    async def newest_positions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        """Return each resource's newest position as the leader knows it, 0 for none."""
        ...

    async def of_kind(self, namespace: str, kind: str) -> Sequence[StoredEvent]:
        """Read every event of the resources of one kind in one namespace, up to the leader's."""
        ...

    def follow(
        self,
        after: int = 0,
        *,
        damaged: DamageListener | None = None,
        max_resources: int | None = None,
    ) -> AbstractAsyncContextManager[EventFeed]:
        """Follow the log from behind a position.

        ``damaged`` is told where the log is not what was written; what a resource has behind its
        damage is not handed out. ``max_resources`` bounds of how many resources the feed remembers
        the newest event, to check that the next one follows on it (``events.integrity.LogChains``).
        """
        ...

    async def last_position(self) -> int:
        """Return the position of the newest event."""
        ...


class IntakeDelivery(msgspec.Struct, frozen=True, gc=False):
    """A message of the intake, to be acknowledged when its events are in the log.

    ``position`` is its place in the intake. ``receipt`` belongs to the implementation.
    ``stored_at`` is when the bus got it, by the bus's clock. ``user`` published it, as the bus's
    server vouches; empty where it does not.
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
    """Reads the intake in order per resource."""

    @property
    def slots(self) -> int:
        """Number of messages of a partition that may be handed out and not acknowledged."""
        ...

    async def next_batch(self, *, wait: bool = True) -> Sequence[IntakeDelivery]:
        """Return what is available; wait for at least one message, unless told not to."""
        ...

    async def extend(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Have these not delivered again soon: they still wait to be decided."""
        ...

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Report that these are done with."""
        ...

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        """Have these delivered again."""
        ...

    async def was_alone(self, deliveries: Sequence[IntakeDelivery]) -> bool:
        """Return whether no other reader was handed any of their partitions since these were."""
        ...

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        """Read what was declared of the same resources after these, to look at and not to ack."""
        ...

    async def declarations_of(
        self, known: Mapping[ResourceKey, Collection[int]]
    ) -> Mapping[ResourceKey, Sequence[IntakeDelivery]]:
        """Read all declarations of these resources that the intake still has, to look at.

        Where it has none but those at the positions that are known, the resource may be left out.
        """
        ...

    async def close(self) -> None:
        """Let another reader take over."""
        ...


class IntakeMessageOut(NamedTuple):
    """A message for the intake. It may be stored twice; ``message_id`` identifies it."""

    what: Intake
    key: ResourceKey
    data: IntakeData
    message_id: str


class NotStoredError(Exception):
    """Some of several messages were not stored, or that is unknown.

    ``missing`` are their indexes. Publish only these again: where there is room for a few messages
    at a time, a repeat of all of them would store the first ones again and again.
    """

    def __init__(self, why: Exception, missing: Sequence[int]) -> None:
        super().__init__(str(why))
        self.missing = missing


class IntakeWriter(Protocol):
    """Publishes to the intake."""

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        """Publish all and wait until all are stored; raises ``NotStoredError``."""
        ...

    async def last_position(self) -> int:
        """Return the intake's last position: the logical time of now."""
        ...


class Rejection(NamedTuple):
    """A declaration that was refused, to be told among the outcomes."""

    key: ResourceKey
    answer: Reply
    actor: str
    at: datetime


class DeadLetter(NamedTuple):
    """A message that could not be used, and why.

    ``dedup_key``: what the letter is about, for what would come again and again (a listing's
    object, an action): the newest letter about it is not repeated while its content is the same.
    ``content`` is a digest of that. ``usable``: nothing is wrong with the message itself, so it is
    never given up.
    """

    stage: Stage | Literal["quota"]
    reason: str
    delivery: IntakeDelivery
    dedup_key: str = ""
    content: str = ""
    usable: bool = False


class TimerRequest(NamedTuple):
    """A wish to be woken: one per resource and purpose, a newer one replaces it."""

    key: ResourceKey
    at: datetime
    purpose: WaitPurpose = "Retry"


class DecisionSink(Protocol):
    """Where a decider sends what is not an event of the log."""

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        """Schedule retries; a lost timer costs time, never truth."""
        ...

    async def answer(self, answers: Sequence[tuple[str, Reply]]) -> None:
        """Send replies to publishers, on their reply subjects."""
        ...

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        """Publish rejected outcomes; if it raises, only some may be stored."""
        ...

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Store dead letters, or count them where their namespace has its share of the room.

        Gives those for which there is no room now; raises if it is unknown what is stored.
        """
        ...

    async def discard(self, letters: Sequence[DeadLetter]) -> None:
        """Count messages that are given up without a letter; if it raises, perhaps they are."""
        ...


class ActionDelivery(msgspec.Struct, frozen=True, gc=False):
    """A decided action or retry, to be acknowledged when its result is in the intake.

    ``is_count_certain``: whether the bus cannot have forgotten an earlier delivery.
    """

    position: int
    event: LogEvent
    delivered: int
    receipt: object
    is_count_certain: bool = True


class NotTakenError(Exception):
    """The bus has no room for the queue of a configuration now; those of others go on."""


class ActionReader(Protocol):
    """Hands out decided actions, each to one worker at a time, and each API's by themselves."""

    async def take_from(self, provider_config: str, most: int) -> None:
        """Take actions of a configuration too: so many at once, until there is room again.

        For one that is read already it changes their number. Raises ``NotTakenError``.
        """
        ...

    async def next_batch(self) -> Sequence[ActionDelivery]:
        """Wait for actions: at least one."""
        ...

    def make_room(self, delivery: ActionDelivery) -> None:
        """Take another action in the place of this one, which is not acknowledged yet."""
        ...

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Report that the results of these are stored."""
        ...

    async def still_working(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Extend the leases of these."""
        ...

    async def close(self) -> None:
        """Take no more."""
        ...


class ListingDelivery(msgspec.Struct, frozen=True, gc=False):
    """A part of another observer's listing; ``part`` is None if it could not be read.

    ``stored_at`` is when the bus got it, ``position`` its place in the stream of listings.
    """

    position: int
    subject: str
    stored_at: datetime
    payload: bytes
    part: ListingPart | None


class ListingReader(Protocol):
    """Hands out the parts of listings that other observers publish."""

    async def next_batch(self) -> Sequence[ListingDelivery]:
        """Wait for parts."""
        ...

    async def close(self) -> None:
        """Take no more."""
        ...


class LogCertainty(Protocol):
    """Knows whether the log is still the one that this process has read.

    After a lost connection it may be another one: a server came back with an older copy of its
    data. What was decided in one log must not be done for the other.
    """

    @property
    def is_certain(self) -> bool:
        """Whether it is known to be the same."""
        ...

    async def until_certain(self, seconds: float) -> bool:
        """Wait until that is known, so long at most; gives whether it is."""
        ...


class LogWatch(LogCertainty, Protocol):
    """Finds out whether the log is still the same, by what was read of it."""

    def saw(self, position: int, event: LogEvent) -> None:
        """Remember the newest event that was read."""
        ...

    async def run(self) -> None:
        """Ask for ever; raises when it is another log."""
        ...


class RateConflictError(Exception):
    """Another process has reserved calls since: nothing was stored."""


class RateStore(Protocol):
    """Keeps, for each rate limit, when its next call would come if calls came at an even pace.

    Times are seconds since 1970 by the bus's clock, one for all processes.
    """

    async def now(self) -> float:
        """Return the time of the bus."""
        ...

    async def load(self, name: str) -> tuple[float, int]:
        """Read a time and its revision; 0.0 and 0 if there is none yet."""
        ...

    async def save(self, name: str, time: float, revision: int) -> int:
        """Write a time over a revision and give the new one; raises ``RateConflictError``."""
        ...


class RowsConflictError(Exception):
    """Another projector has written since: nothing was stored."""


class RowStore(Protocol):
    """Keeps the rows of the read models; the one named ``checkpoint`` says as of when they are.

    Every save writes the checkpoint, so that its revision is that of all rows.
    """

    @property
    def rows_at_once(self) -> int:
        """So many rows are gathered for one save, which takes a few more."""
        ...

    async def load(self) -> Mapping[str, bytes]:
        """Read every row, as of one save."""
        ...

    async def checkpoint(self) -> tuple[bytes, int]:
        """Read the checkpoint alone, and its revision; empty and 0 if there is none."""
        ...

    async def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        """Write changed rows and the checkpoint over a revision, all or nothing; give the new one.

        Raises ``RowsConflictError`` when another revision is stored.
        """
        ...

    async def clear(self, before: int) -> None:
        """Remove every row that was written before a revision."""
        ...
