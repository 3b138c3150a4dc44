"""A resource's events and former states, read with the `eventsourcing` library.

`ResourceLog` is the log as an application of the library, with its repository and projections, for
standalone programs. `History` reads over a program's existing connection. Both only read: users
declare resources, and deciders write the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from eventsourcing.application import AggregateNotFoundError, Application, Repository
from eventsourcing.persistence import (
    EventStore,
    InfrastructureFactory,
    JSONTranscoder,
    Mapper,
    Notification,
    NotSupportedError,
    PersistenceError,
)
from eventsourcing.persistence import StoredEvent as RecordedEvent
from eventsourcing.utils import Environment
from nats.aio.client import Client

from events.envelope import decode_log
from events.integrity import LogDamage
from events.names import ResourceKey
from infra.bus.retries import retry_read
from infra.eventstore.bus import Bus, RunningLoop
from infra.eventstore.factory import CREATE_TABLE, EVENT_LAYOUT_TOPIC, JetStreamFactory
from infra.eventstore.recorders import JetStreamAggregateRecorder
from infra.eventstore.resource_layout import HistoryDamagedError, ResourceLayout
from infra.jetstream.errors import BusError
from reconciler.ports import StoredEvent
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW, ResourceState

_LAYOUT: Final = "infra.eventstore.resource_layout:ResourceLayout"


class ResourceHistory(msgspec.Struct, frozen=True):
    """A resource as of one version: its state, and the events that led to it.

    ``id`` is its ``namespace/kind/name``. ``damage`` states where the log is damaged. Everything
    before it is intact and included.
    """

    id: str
    state: ResourceState
    events: tuple[StoredEvent, ...]
    damage: LogDamage | None = None

    @property
    def version(self) -> int:
        """Number of events of the resource."""
        return self.state.version

    def until(self, position: int) -> ResourceHistory:
        """Return the past as of a position of the log, without damage after that position."""
        earlier = [each for each in self.events if each.position <= position]
        past = project(None, earlier) or ResourceHistory(self.id, NEW, ())
        is_damaged = self.damage is not None and self.damage.position <= position
        return msgspec.structs.replace(past, damage=self.damage) if is_damaged else past


def project(past: ResourceHistory | None, events: Iterable[StoredEvent]) -> ResourceHistory | None:
    """Fold events into a resource's past: a `projector_func` of the library's repository."""
    state, folded = (NEW, []) if past is None else (past.state, list(past.events))
    for stored in events:
        state = evolve(state, stored.event)
        folded.append(stored)
    return ResourceHistory(folded[0].originator_id, state, tuple(folded)) if folded else None


class LogMapper(Mapper[str]):
    """Converts the library's stored events to log events, with their positions."""

    def __init__(self) -> None:
        super().__init__(JSONTranscoder())  # unused, because events.envelope decodes

    def to_domain_event(self, stored_event: RecordedEvent) -> StoredEvent:
        """Decode an event; raises `InvalidMessageError` for an event from a newer release."""
        position = stored_event.id if isinstance(stored_event, Notification) else 0
        return StoredEvent(position, decode_log(stored_event.state))

    def to_stored_event(self, domain_event: Any) -> RecordedEvent:
        """Raise `NotSupportedError`, because only deciders write."""
        del domain_event
        raise NotSupportedError("only deciders write the log; declare resources instead")


class LogStore(EventStore[str]):
    """The library's event store over the log, which also reads positions."""

    mapper: LogMapper  # pyright: ignore[reportIncompatibleVariableOverride] - returns StoredEvent
    recorder: JetStreamAggregateRecorder

    def get(
        self,
        originator_id: str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Iterator[StoredEvent]:
        """Return a resource's events by version; raises `HistoryDamagedError`."""
        recorded = self.recorder.select_history(
            originator_id, gt=gt, lte=lte, desc=desc, limit=limit
        )
        return map(self.mapper.to_domain_event, recorded)


class ResourceLog(Application[str]):
    """The log as an application of the library; `NATS_URL` is the address of the bus.

    ::

        log = ResourceLog(env={"NATS_URL": "nats://127.0.0.1:4222"})
        past = log.repository.get("default/Shape/foo", version=3, projector_func=project)

    A projection stores its position under this `name`.
    """

    def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
        """Return the recorders' factory; raises `OperationalError` without a connection."""
        settings = {**env, EVENT_LAYOUT_TOPIC: _LAYOUT, CREATE_TABLE: "no"}
        return JetStreamFactory(Environment(env.name, settings))

    def construct_mapper(self) -> LogMapper:
        """Return the mapper that decodes log events."""
        return LogMapper()

    def construct_event_store(self) -> LogStore:
        """Return the event store of the repository."""
        return LogStore(self.mapper, self.recorder)


class History:
    """Reads the past of resources over a connection of the running event loop."""

    def __init__(self, nc: Client) -> None:
        recorder = JetStreamAggregateRecorder(Bus(nc, RunningLoop()), ResourceLayout())
        self._nc = nc
        self._repository = Repository(LogStore(LogMapper(), recorder))

    async def get(self, key: ResourceKey, *, version: int | None = None) -> ResourceHistory:
        """Return a resource's past as of a version, or as of now; if damaged, its intact part.

        An event from a newer release counts as damage. Raises ``BusError``.
        """
        try:
            return await self._past(key, version)
        except HistoryDamagedError as error:
            intact = await self._past(key, error.damage.version - 1)
            return msgspec.structs.replace(intact, damage=error.damage)

    async def _past(self, key: ResourceKey, version: int | None) -> ResourceHistory:
        return await retry_read(self._nc, lambda: asyncio.to_thread(self._read, key, version))

    def _read(self, key: ResourceKey, version: int | None) -> ResourceHistory:
        try:
            past = self._repository.get(str(key), version=version, projector_func=project)
        except AggregateNotFoundError:
            return ResourceHistory(str(key), NEW, ())
        except PersistenceError as error:
            if isinstance(error.__cause__, BusError):
                raise error.__cause__ from None
            raise
        return past
