"""The two buses, with one interface for the tests of the ports."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec
from nats.aio.client import Client

from events.intake import Reply
from events.names import ResourceKey
from infra.bus import streams
from infra.bus.actions import JetStreamActionReader
from infra.bus.dead_letters import read_discarded, read_letters
from infra.bus.decision_sink import JetStreamDecisionSink
from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.foreign_listings import JetStreamListingReader
from infra.bus.intake import JetStreamIntakeReader, JetStreamIntakeWriter
from infra.bus.rates import JetStreamRates
from infra.bus.rows import JetStreamRows
from infra.jetstream.connection import api_request, connect
from infra.jetstream.outgoing import MESSAGE_ID
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject, stream_state
from reconciler.ports import (
    ActionDelivery,
    ActionReader,
    DecisionSink,
    EventLog,
    IntakeDelivery,
    IntakeReader,
    IntakeWriter,
    ListingDelivery,
    ListingReader,
    RateStore,
    RowStore,
)
from tests.memory_bus.actions import MemoryActionReader
from tests.memory_bus.bus import MAX_ACTIONS_LEASED, MAX_UNACKNOWLEDGED, MemoryBus
from tests.memory_bus.clock import Clock, date_of
from tests.memory_bus.decisions import MemoryDecisionSink
from tests.memory_bus.intake import MemoryIntakeReader, MemoryIntakeWriter
from tests.memory_bus.listings import MemoryListingReader
from tests.memory_bus.log import MemoryLog
from tests.memory_bus.loop import VirtualLoop
from tests.memory_bus.rates import MemoryRates
from tests.memory_bus.rows import MemoryRows

Stream = Literal["LOG_1", "INTAKE", "DEADLETTERS"]
Delivery = TypeVar("Delivery", IntakeDelivery, ActionDelivery, ListingDelivery)

QUIET_SECONDS = 0.3
"""How long a test waits for a message that must not arrive."""


class Reading(Generic[Delivery]):
    """The messages of a reader; a request without a response in time stays open."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._pending: asyncio.Future[Sequence[Delivery]] | None = None

    async def next_within(self, seconds: float | None) -> list[Delivery]:
        """Return the next messages, or none if none arrive in time."""
        pending = self._pending or asyncio.ensure_future(self.reader.next_batch())
        completed, _ = await asyncio.wait([pending], timeout=seconds)
        self._pending = None if completed else pending
        return list(pending.result()) if completed else []

    async def wait_for(
        self, expected: int, *, excluding: Iterable[Delivery] = ()
    ) -> list[Delivery]:
        """Wait for this many messages in addition to ``excluding``; return all that arrive."""
        known_positions = {each.position for each in excluding}
        deliveries: list[Delivery] = []
        while sum(each.position not in known_positions for each in deliveries) < expected:
            deliveries += await self.next_within(None)
        return deliveries

    async def other_positions(self, known: Iterable[Delivery]) -> list[int]:
        """Return the positions of other messages that arrive within ``QUIET_SECONDS``."""
        known_positions = {each.position for each in known}
        return [
            each.position
            for each in await self.next_within(QUIET_SECONDS)
            if each.position not in known_positions
        ]

    def close(self) -> None:
        """Drop the open request."""
        if self._pending is not None:
            self._pending.cancel()


class Bus(ABC):
    """Every port of one bus. Each reader belongs to a new process; ``close`` closes them all."""

    lease_seconds: float
    log: EventLog
    writer: IntakeWriter
    sink: DecisionSink

    def __init__(self) -> None:
        self._readings: list[Reading[Any]] = []

    def reading(self, reader: Any) -> Reading[Any]:
        """Return the messages of a reader, which is closed with the bus."""
        self._readings.append(Reading(reader))
        return self._readings[-1]

    async def close(self) -> None:
        """Close all readers."""
        for each in self._readings:
            each.close()
            await each.reader.close()

    @abstractmethod
    def intake_reader(self) -> IntakeReader: ...

    @abstractmethod
    def action_reader(self) -> ActionReader: ...

    @abstractmethod
    def listing_reader(self) -> ListingReader: ...

    @abstractmethod
    def rows(self) -> RowStore: ...

    @abstractmethod
    def rates(self) -> RateStore: ...

    @abstractmethod
    def now(self) -> datetime:
        """Return the time of the bus."""

    @abstractmethod
    async def publish(
        self, subject: str, payload: bytes, message_id: str = "", reply_to: str | None = None
    ) -> None:
        """Store bytes in the intake, as any client can."""

    @abstractmethod
    async def publish_listing(self, subject: str, payload: bytes) -> None:
        """Store part of a listing."""

    @abstractmethod
    async def inbox(self) -> tuple[str, asyncio.Future[Reply]]:
        """Return a reply subject, and a future for its reply."""

    @abstractmethod
    async def set_remaining_capacity(self, stream: Stream, messages: int | None) -> None:
        """Let a stream accept this many more messages; None for no limit."""

    @abstractmethod
    async def dead_letters(self) -> list[tuple[str, int]]:
        """Return the stage and position of each dead letter."""

    @abstractmethod
    async def discarded(self) -> int:
        """Return the number of messages for which no dead letter was stored."""

    @abstractmethod
    async def rejections(self, key: ResourceKey) -> int:
        """Return how many rejections of a resource are stored."""


class MemoryContractBus(Bus):
    """The bus in memory, in virtual time."""

    lease_seconds = 10.0

    def __init__(
        self,
        seed: str,
        *,
        max_unacknowledged: int = MAX_UNACKNOWLEDGED,
        max_actions_leased: int = MAX_ACTIONS_LEASED,
    ) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._seed = seed
        self._bus = bus = MemoryBus(
            loop,
            seed,
            max_unacknowledged=max_unacknowledged,
            max_actions_leased=max_actions_leased,
            may_be_damaged=True,  # its histories are verified like those of the server
        )
        self._clock = Clock(loop.time)
        self._names = itertools.count(1)
        self.log = MemoryLog(bus.log, bus.network)
        self.writer = MemoryIntakeWriter(bus.intake, bus.network, "test", self._clock)
        self.sink = MemoryDecisionSink(bus.decisions, bus.network, self._clock)

    def _name(self) -> str:
        return f"process-{next(self._names)}"

    def intake_reader(self) -> IntakeReader:
        return MemoryIntakeReader(self._bus.intake, self._bus.network, self._name(), self._seed)

    def action_reader(self) -> ActionReader:
        return MemoryActionReader(self._bus.actions, self._bus.network, self._name(), self._seed)

    def listing_reader(self) -> ListingReader:
        return MemoryListingReader(self._bus.listings, self._bus.network)

    def rows(self) -> RowStore:
        return MemoryRows(self._bus.rows, self._bus.network)

    def rates(self) -> RateStore:
        return MemoryRates(self._bus.rates, self._bus.network)

    def now(self) -> datetime:
        return date_of(self._bus.loop.time())

    async def publish(
        self, subject: str, payload: bytes, message_id: str = "", reply_to: str | None = None
    ) -> None:
        self._bus.intake.store(subject, payload, message_id, reply_to)

    async def publish_listing(self, subject: str, payload: bytes) -> None:
        self._bus.listings.store(subject, payload)

    async def inbox(self) -> tuple[str, asyncio.Future[Reply]]:
        subject = f"_INBOX.{self._name()}"
        future: asyncio.Future[Reply] = self._bus.loop.create_future()

        def receive(replied_subject: str, reply: Reply) -> None:
            if replied_subject == subject:
                future.set_result(reply)

        self._bus.decisions.after_reply.append(receive)
        return subject, future

    async def set_remaining_capacity(self, stream: Stream, messages: int | None) -> None:
        capacity = {
            "LOG_1": self._bus.log.capacity,
            "INTAKE": self._bus.intake.capacity,
            "DEADLETTERS": self._bus.decisions.dead_letter_capacity,
        }[stream]
        capacity.set_remaining(messages)

    async def dead_letters(self) -> list[tuple[str, int]]:
        return list(self._bus.decisions.dead_letters)

    async def discarded(self) -> int:
        return self._bus.decisions.discarded.total()

    async def rejections(self, key: ResourceKey) -> int:
        return sum(rejected == key for rejected, _ in self._bus.decisions.rejections)


class JetStreamContractBus(Bus):
    """The product's bus, on a separate account."""

    def __init__(self, nc: Client, log: JetStreamLog, lease_seconds: float) -> None:
        super().__init__()
        self.lease_seconds = lease_seconds
        self._nc = nc
        self._identity = log.identity
        self.log = log
        self.writer = JetStreamIntakeWriter(nc, "test")
        self.sink = JetStreamDecisionSink(nc)

    def intake_reader(self) -> IntakeReader:
        return JetStreamIntakeReader(self._nc, self._identity)

    def action_reader(self) -> ActionReader:
        return JetStreamActionReader(self._nc)

    def listing_reader(self) -> ListingReader:
        return JetStreamListingReader(self._nc)

    def rows(self) -> RowStore:
        return JetStreamRows(self._nc)

    def rates(self) -> RateStore:
        return JetStreamRates(self._nc)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def publish(
        self, subject: str, payload: bytes, message_id: str = "", reply_to: str | None = None
    ) -> None:
        headers: dict[str, str] = {}
        if message_id:
            headers[MESSAGE_ID] = message_id
        if reply_to is not None:
            headers["Reconciler-Reply-To"] = reply_to
        await publish(self._nc, subject, payload, headers=headers)

    async def publish_listing(self, subject: str, payload: bytes) -> None:
        await publish(self._nc, subject, payload)

    async def inbox(self) -> tuple[str, asyncio.Future[Reply]]:
        subject = self._nc.new_inbox()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        async def receive(message: Any) -> None:
            future.set_result(msgspec.json.decode(message.data, type=Reply))

        await self._nc.subscribe(subject, cb=receive)  # pyright: ignore[reportUnknownMemberType]
        await self._nc.flush()
        return subject, future

    async def set_remaining_capacity(self, stream: Stream, messages: int | None) -> None:
        state = await stream_state(self._nc, stream)
        max_messages = -1 if messages is None else state.messages + messages
        assert max_messages, f"{stream} is empty, and 0 would mean no limit"
        await api_request(
            self._nc, f"STREAM.UPDATE.{stream}", {**state.config, "max_msgs": max_messages}
        )

    async def dead_letters(self) -> list[tuple[str, int]]:
        stored = await read_letters(self._nc)
        return [(each.stage, each.position) for each in stored.letters.values()]

    async def discarded(self) -> int:
        return sum(each.count for each in await read_discarded(self._nc))

    async def rejections(self, key: ResourceKey) -> int:
        return len(await read_subject(self._nc, streams.REJECTIONS, f"rejection.{key.tokens}"))


@asynccontextmanager
async def on_jetstream(url: str, lease_seconds: float) -> AsyncGenerator[Bus]:
    """Create the streams at a URL, and return their ports."""
    nc = await connect(url, name="contract")
    try:
        await streams.ensure_topology(nc)
        bus = JetStreamContractBus(nc, await open_log(nc), lease_seconds)
        yield bus
        await bus.close()
    finally:
        await nc.close()
