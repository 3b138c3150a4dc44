"""The recorded history of a run: what was published, what an API received, and how it ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from events.external import ExternalObject
from events.intake import IntakeData, Reply
from events.log import Action, LogEvent, Operation, SpecDeclared
from events.manifest import Fields
from events.names import ResourceKey


class RecordedEvent(NamedTuple):
    """An event of the log, its position, and when the server stored it, in seconds."""

    position: int
    stored_at: float
    event: LogEvent


class Message(NamedTuple):
    """A message of the intake; ``key`` and ``data`` are None where it cannot be read."""

    position: int
    key: ResourceKey | None
    message_id: str
    source: str
    data: IntakeData | None
    stored_at: float = 0.0
    reply_to: str | None = None


class AcknowledgedMessage(NamedTuple):
    """A declaration or withdrawal that the bus acknowledged as stored."""

    key: ResourceKey
    message_id: str


class Call(NamedTuple):
    """A request for a write that reached the API, whether or not it had an effect."""

    at: float
    action: Action


class Effect(NamedTuple):
    """A change of one object in the API; ``key`` is its idempotency key, if it has one.

    The later calls of an action use its key with a suffix: ``<key>/2``.
    """

    at: float
    operation: Operation
    name: str
    uid: str
    key: str | None
    after: ExternalObject | None = None


@dataclass(frozen=True)
class Promises:
    """What the API guarantees; an effect that it cannot prevent is not a breach."""

    idempotency_keys: bool = True
    unique_names: bool = True
    conditional_writes: bool = True
    labels: bool = True


class Truth(Protocol):
    """Facts that only a simulated world can provide. Times are in seconds on its clock.

    ``checked`` returns declared fields as their kind completes them, or raises
    ``InvalidManifestError``. ``is_too_recent``: an object that was written at that time
    cannot have stayed ready yet. ``shows_result``: a read of the API shows the result of a
    resource's creation. ``explains``: the outcome names the reason why a spec cannot be applied.
    ``has_copies``: another copy of the log also writes to the API.
    """

    @property
    def has_copies(self) -> bool: ...

    def checked(self, kind: str, fields: Fields) -> Fields: ...
    def is_rightly_refused(self, message: Message) -> bool: ...
    def was_absent_within(self, name: str, uid: str | None, begin: float, end: float) -> bool: ...
    def was_hidden_since(self, name: str, begin: float) -> bool: ...
    def seconds_to_expiry(self, existing: ExternalObject) -> float | None: ...
    def is_starting(self, uid: str | None) -> bool: ...
    def is_too_recent(self, at: float) -> bool: ...
    def shows_result(self, key: ResourceKey, existing: ExternalObject | None) -> bool: ...
    def expected_fields(self, spec: SpecDeclared) -> Fields: ...
    def explains(self, spec: SpecDeclared, outcome: str) -> bool: ...


@dataclass
class History:
    """The history of one run. The rules that need a field with the value None are skipped.

    ``log`` is in the log's order, ``effects`` in the API's. ``objects`` are those of the API at the
    end; with None, ``effects`` are incomplete. ``by_hand`` has the names of objects that may be
    changed without an idempotency key, None for all. ``secrets`` maps the names of secrets to the
    values that objects have. ``secret_values`` must not be in the log. ``people`` may approve, None
    for all. ``misnamed`` has uids that the API returned by mistake. Owner labels begin with
    ``log_id``. The ``damaged`` resources have damaged logs. ``is_final``: all faults have
    stopped and all scheduled work is done, so nothing may be pending.
    """

    log: list[RecordedEvent] = field(default_factory=list[RecordedEvent])
    messages: dict[int, Message] | None = field(default_factory=dict[int, Message])
    refused: set[int] = field(default_factory=set[int])
    dead_letters: set[int] = field(default_factory=set[int])
    replies: list[tuple[str, Reply]] | None = None
    acknowledged: Iterable[AcknowledgedMessage] = ()
    calls: list[Call] = field(default_factory=list[Call])
    effects: list[Effect] | None = field(default_factory=list[Effect])
    objects: Collection[ExternalObject] | None = None
    by_hand: Collection[str] | None = ()
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    secret_values: Collection[str] = ()
    people: Collection[str] | None = None
    misnamed: Collection[str] = ()
    log_id: str | None = None
    damaged: Collection[ResourceKey] = ()
    promises: Promises = Promises()
    truth: Truth | None = None
    is_final: bool = False

    def message(self, position: int) -> Message | None:
        """Return the intake message at a position, None where it is not recorded."""
        return None if self.messages is None else self.messages.get(position)

    def add(self, message: Message) -> None:
        """Add a message from the intake."""
        assert self.messages is not None
        self.messages[message.position] = message
