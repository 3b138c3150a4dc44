"""The SDK's client on the bus in memory, for other services and operators."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from events.dead_letter import DeadLetterHandled, DeadLetterRecord, make_record
from events.envelope import encode_intake
from events.intake import Reply
from events.log import OutcomeRecorded
from events.names import ResourceKey
from events.subjects import intake as intake_subject
from reconciler.errors import WaitTimeoutError
from reconciler.ports import DeadLetter, IntakeMessageOut, StoredEvent
from reconciler.sdk import Client
from reconciler.sdk.messages import as_key
from tests.memory_bus.bus import MemoryBus
from tests.memory_bus.clock import Clock, date_of
from tests.memory_bus.decisions import rejected_event
from tests.memory_bus.log import MemoryLog
from tests.memory_bus.rows import MemoryRows


class MemoryClientBus:
    """The in-memory counterpart of ``infra.bus.client_bus.JetStreamClientBus``."""

    def __init__(self, bus: MemoryBus, source: str) -> None:
        self._bus = bus
        self.source = source
        self._rows = MemoryRows(bus.rows, bus.network)
        self._clock = Clock(bus.loop.time)
        self._inboxes = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._handled: list[DeadLetterHandled] = []
        bus.decisions.after_reply.append(self._receive)

    def _receive(self, subject: str, reply: Reply) -> None:
        waiting = self._waiting.pop(subject, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    # --- the intake

    async def store(self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float) -> None:
        """Store messages."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._store([(*self._outgoing(each), None) for each in messages])
        except TimeoutError:
            raise WaitTimeoutError("the bus did not confirm the messages") from None

    async def request(
        self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float
    ) -> Sequence[Reply | None]:
        """Store messages and wait for the replies; None for one that does not arrive in time."""
        requests = [(*self._outgoing(each), self._inbox()) for each in messages]
        replies = [self._waiting[inbox] for *_, inbox in requests]
        await self._store(requests)
        await asyncio.wait(replies, timeout=timeout_seconds)
        return [each.result() if each.done() else None for each in replies]

    async def ask_raw(
        self, subject: str, payload: bytes, *, message_id: str = "", reply_timeout_seconds: float
    ) -> tuple[int, Reply | None]:
        """Store bytes; return their position, and the reply if it arrives in time."""
        inbox = self._inbox()
        reply = self._waiting[inbox]
        [position] = await self._store([(subject, payload, message_id, inbox)])
        await asyncio.wait([reply], timeout=reply_timeout_seconds)
        return position, reply.result() if reply.done() else None

    async def publish_again(
        self, subject: str, payload: bytes, message_id: str, *, reply_timeout_seconds: float
    ) -> tuple[int, Reply | None]:
        """Store a message in the intake unchanged, under a new id."""
        return await self.ask_raw(
            subject, payload, message_id=message_id, reply_timeout_seconds=reply_timeout_seconds
        )

    def _inbox(self) -> str:
        inbox = f"_INBOX.{self.source}.{next(self._inboxes)}"
        self._waiting[inbox] = self._bus.loop.create_future()
        return inbox

    def _outgoing(self, message: IntakeMessageOut) -> tuple[str, bytes, str]:
        identity = message.message_id
        payload = encode_intake(identity, self.source, message.data, time=self._clock.now())
        return intake_subject(message.what, message.key), payload, identity

    async def _store(self, messages: Sequence[tuple[str, bytes, str, str | None]]) -> list[int]:
        stream = self._bus.intake
        return await self._bus.network.ask(
            "publish", lambda: [stream.store(*each) for each in messages]
        )

    async def last_intake_position(self) -> int:
        """Return the intake's last position."""
        return self._bus.intake.last_position

    # --- dead letters

    async def dead_letters(
        self, *, limit: int | None = None
    ) -> tuple[Mapping[int, DeadLetterRecord], Sequence[DeadLetterHandled]]:
        """Return the dead letters by number, and the records of how they were handled."""
        letters = self._bus.decisions.dead_letters.values()
        numbered = list(enumerate(map(self._record, letters), start=1))
        return dict(numbered[-limit:] if limit else numbered), self._handled

    async def record_handling(self, handled: DeadLetterHandled) -> None:
        """Record how a dead letter was handled."""
        self._handled.append(handled)

    def _record(self, letter: DeadLetter) -> DeadLetterRecord:
        delivery = letter.delivery
        return make_record(
            stage=letter.stage,
            reason=letter.reason,
            subject=delivery.subject,
            position=delivery.position,
            message_id=delivery.message_id,
            at=delivery.stored_at or self._clock.now(),
            payload=delivery.payload,
        )

    # --- outcomes

    @asynccontextmanager
    async def outcomes(
        self, tokens: Sequence[str], *, after: int | None
    ) -> AsyncGenerator[_OutcomeFeed]:
        """Follow the outcomes of resources, by key, from now on."""
        del after, tokens  # the caller filters the outcomes
        yield _OutcomeFeed(self._bus)

    async def last_outcomes(self, keys: Sequence[ResourceKey]) -> Sequence[StoredEvent]:
        """Return each resource's newest outcome."""
        expected_keys = set(keys)
        newest: dict[ResourceKey, StoredEvent] = {}
        for each in self._bus.log.events:
            if each.event.key in expected_keys and isinstance(each.event.data, OutcomeRecorded):
                newest[each.event.key] = each
        return list(newest.values())

    async def all_outcomes(self, key: ResourceKey) -> Sequence[OutcomeRecorded]:
        """Return every outcome of a resource and every rejection, in chronological order."""
        log, decisions = self._bus.log, self._bus.decisions
        found = [
            (date_of(log.stored_at[each.position - 1]), each.event.data)
            for each in log.events
            if each.event.key == key
        ]
        found += [
            (date_of(at), rejected_event(rejection).data)
            for (rejected, _), (rejection, at) in decisions.rejections.items()
            if rejected == key
        ]
        found.sort(key=lambda each: each[0])
        return [data for _, data in found if isinstance(data, OutcomeRecorded)]

    # --- read models

    async def row(self, name: str) -> bytes | None:
        """Read one row."""
        return (await self._rows.get([name])).get(name)

    async def rows(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match."""
        return await self._rows.read_matching(pattern)


class _OutcomeFeed:
    """The new outcomes in the log, as ``infra.bus.outcome_feeds`` delivers them."""

    def __init__(self, bus: MemoryBus) -> None:
        self._log = bus.log
        self._position = bus.log.last_position
        self._new_arrival = asyncio.Event()
        bus.log.after_store.append(lambda _append, _stored: self._new_arrival.set())

    async def next_outcomes(self) -> Sequence[StoredEvent]:
        """Wait for outcomes."""
        while self._position == self._log.last_position:
            self._new_arrival.clear()
            await self._new_arrival.wait()
        new = self._log.events[self._position :]
        self._position = self._log.last_position
        return [each for each in new if isinstance(each.event.data, OutcomeRecorded)]


class MemoryClient(Client):
    """The SDK's client; it reads histories from the log in memory."""

    def __init__(self, bus: MemoryBus, source: str) -> None:
        self.bus = MemoryClientBus(bus, source)
        super().__init__(cast("Any", self.bus), cast("Any", None))
        self._memory_log = MemoryLog(bus.log, bus.network)

    async def history(self, resource: ResourceKey | str) -> list[StoredEvent]:
        key = as_key(resource)
        return [
            each
            for each in await self._memory_log.read_kind(key.namespace, key.kind)
            if each.event.key == key
        ]
