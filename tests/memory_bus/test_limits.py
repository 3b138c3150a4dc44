"""The simulated bus has the limits of the real one: slots, deliveries, and room in its streams.

The same random operations on both, as in ``test_contract``. Whatever is late on a slow machine is
waited for; that nothing more comes is asked for a moment only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from nats.aio.client import Client

from events.intake import TimerFired
from events.log import Action, ActionDecided, LogEvent, event_id
from events.names import ResourceKey
from infra.bus import streams
from infra.bus.actions import JetStreamActionReader
from infra.bus.decision_sink import JetStreamDecisionSink
from infra.bus.event_log import open_log
from infra.bus.intake import JetStreamIntakeReader, JetStreamIntakeWriter
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, connect
from infra.jetstream.errors import StreamFullError
from infra.jetstream.reads import stream_state
from reconciler.ports import (
    ActionDelivery,
    DeadLetter,
    DecisionSink,
    EventLog,
    IntakeDelivery,
    IntakeMessageOut,
    IntakeWriter,
    ResourceAppend,
)
from tests.bus.histories import event, history_of
from tests.memory_bus.actions import ActionQueue, MemoryActionReader
from tests.memory_bus.clock import Clock
from tests.memory_bus.decisions import Decisions, MemoryDecisionSink
from tests.memory_bus.intake import IntakeStream, MemoryIntakeReader, MemoryIntakeWriter
from tests.memory_bus.log import LogStream, MemoryLog
from tests.memory_bus.loop import VirtualLoop
from tests.memory_bus.network import Network
from tests.memory_bus.room import Room

SLOTS = 5
MAX_DELIVERIES = 3
_KEY = ResourceKey("default", "Shape", "foo")
_OPERATIONS = 14
_MOMENT_SECONDS = 0.3
_DELAY_SECONDS = 1.0
_EXTRA = 4

Delivery = TypeVar("Delivery", IntakeDelivery, ActionDelivery)


class Reads(Generic[Delivery]):
    """What a reader hands out; a question that is not answered in time stays open for the next."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._asked: asyncio.Future[Sequence[Delivery]] | None = None

    async def within(self, seconds: float | None) -> list[Delivery]:
        """Give the next messages; none if none come in time."""
        asked = self._asked or asyncio.ensure_future(self.reader.next_batch())
        done, _ = await asyncio.wait([asked], timeout=seconds)
        self._asked = None if done else asked
        return list(asked.result()) if done else []

    async def until(self, wanted: int, *, but: Iterable[Delivery] = ()) -> list[Delivery]:
        """Wait for so many messages that are not these, and give all that came."""
        known = {each.position for each in but}
        came: list[Delivery] = []
        while sum(each.position not in known for each in came) < wanted:
            came += await self.within(None)
        return came

    async def anything_but(self, these: Iterable[Delivery]) -> list[int]:
        """Look for a moment whether anything else comes."""
        known = {each.position for each in these}
        return [
            each.position
            for each in await self.within(_MOMENT_SECONDS)
            if each.position not in known
        ]

    def close(self) -> None:
        if self._asked is not None:
            self._asked.cancel()


@dataclass
class Bus:
    """The ports of one bus, and its streams' room."""

    log: EventLog
    writer: IntakeWriter
    sink: DecisionSink
    intake: Reads[IntakeDelivery]
    actions: Reads[ActionDelivery]
    leave_room: Callable[[str, int | None], Awaitable[None]]
    letters: Callable[[], Awaitable[int]]
    ids: int = 0
    version: int = 0


# --- the operations; each leaves nothing open behind it


async def slots(bus: Bus, dice: random.Random) -> Any:
    """What is handed out keeps its slot, also while it is wanted later; a free one is used."""
    count = SLOTS + dice.randint(1, _EXTRA)
    first = await bus.writer.last_position() + 1
    await bus.writer.publish(_messages(bus, count))
    held = await bus.intake.until(SLOTS)
    seen: list[Any] = [_brief(held, first), await bus.intake.anything_but(held)]
    later = held[: dice.randint(0, SLOTS)]
    done = [each for each in held if each not in later]
    await bus.intake.reader.retry_later(later, _DELAY_SECONDS)
    seen.append(await bus.intake.anything_but(held))
    await bus.intake.reader.ack(done)
    more = await bus.intake.until(min(len(done), count - SLOTS), but=held)
    seen.append(_brief([each for each in more if each not in held and each.delivered == 1], first))
    return [*seen, await _finished(bus, more, count - len(done), first)]


async def _finished(bus: Bus, came: list[IntakeDelivery], wanted: int, first: int) -> Any:
    """Acknowledge what is still open, as it comes."""
    all_came = list(came)
    await bus.intake.reader.ack(came)
    while len({each.position for each in all_came}) < wanted:
        batch = await bus.intake.within(None)
        await bus.intake.reader.ack(batch)
        all_came += batch
    return _brief(all_came, first)


async def too_often(bus: Bus, dice: random.Random) -> Any:
    """What was handed out too often comes no more, and its slot is free."""
    count = dice.randint(1, SLOTS)
    first = await bus.writer.last_position() + 1
    await bus.writer.publish(_messages(bus, count))
    seen: list[Any] = []
    for _ in range(MAX_DELIVERIES):
        came = await bus.intake.until(count)
        seen.append(_brief(came, first))
        await bus.intake.reader.retry_later(came, 0.0)
    seen.append(await bus.intake.anything_but([]))
    await bus.writer.publish(_messages(bus, SLOTS))
    came = await bus.intake.until(SLOTS)
    await bus.intake.reader.ack(came)
    return [*seen, _brief(came, first)]


async def leases(bus: Bus, dice: random.Random) -> Any:
    """Actions have slots, too."""
    count = SLOTS + dice.randint(1, _EXTRA)
    await _append(bus, count)
    await bus.actions.reader.take_from("default", 10 * SLOTS)  # the slots bind, not the reader
    held = await bus.actions.until(SLOTS)
    seen: list[Any] = [_order(held), await bus.actions.anything_but(held)]
    done = dice.sample(held, dice.randint(1, SLOTS))
    await bus.actions.reader.ack(done)
    free = min(len(done), count - SLOTS)
    more = await bus.actions.until(free)
    seen.append(_order(more))
    await bus.actions.reader.ack([each for each in held if each not in done] + more)
    rest = await bus.actions.until(count - SLOTS - free)
    await bus.actions.reader.ack(rest)
    return [*seen, _order(rest)]


async def full_intake(bus: Bus, dice: random.Random) -> Any:
    """Some of several are stored, and the whole has failed; what is known needs no room."""
    known = _messages(bus, 1)
    await bus.writer.publish(known)
    before = await bus.writer.last_position()
    messages = [*_messages(bus, dice.choice((1, 2, 6, 20))), *known]
    await bus.leave_room("INTAKE", dice.randint(0, len(messages) - 2))
    seen: list[Any] = [await _error_of(bus.writer.publish(messages))]
    seen.append(await bus.writer.last_position() - before)
    seen.append(await _error_of(bus.writer.publish(known)))
    await bus.leave_room("INTAKE", None)
    seen.append(await _error_of(bus.writer.publish(messages)))
    seen.append(await bus.writer.last_position() - before)
    return [*seen, await _finished(bus, [], len(messages), before)]


async def full_log(bus: Bus, dice: random.Random) -> Any:
    """A turn is stored whole or not at all; one of two events, if they go one by one."""
    count = dice.choice((1, 2, 3, 5))
    before = await bus.log.last_position()
    await bus.leave_room("LOG_1", dice.randint(0, count))
    seen: list[Any] = [await _error_of(_append(bus, count))]
    stored = await bus.log.last_position() - before
    bus.version = len(await history_of(bus.log, _KEY))
    await bus.leave_room("LOG_1", None)
    came = await bus.actions.until(stored)
    await bus.actions.reader.ack(came)
    return [*seen, stored, bus.version]


async def full_letters(bus: Bus, dice: random.Random) -> Any:
    """Some of several letters are stored, and the whole has failed."""
    count = dice.choice((1, 3, 6))
    letters = [_letter(bus, number) for number in range(count)]
    before = await bus.letters()
    await bus.leave_room("DEADLETTERS", dice.randint(0, count - 1))
    seen: list[Any] = [
        await _error_of(bus.sink.store_dead_letters(letters)),
        await bus.letters() - before,
    ]
    await bus.leave_room("DEADLETTERS", None)
    seen.append(await _error_of(bus.sink.store_dead_letters(letters)))
    bus.ids += count
    return [*seen, await bus.letters() - before]


_ALL = (slots, slots, too_often, leases, full_intake, full_log, full_letters)


async def play(bus: Bus, seed: int) -> list[str]:
    dice = random.Random(f"limits/{seed}")
    answers: list[str] = []
    await bus.sink.store_dead_letters([_letter(bus, -1)])
    for number in range(_OPERATIONS):
        operation = _ALL[number] if number < len(_ALL) else dice.choice(_ALL)
        answer = await operation(bus, random.Random(f"{seed}/{number}"))
        answers.append(f"{number} {operation.__name__}: {answer!r}")
    return answers


def _messages(bus: Bus, count: int) -> list[IntakeMessageOut]:
    bus.ids += count
    ids = range(bus.ids - count, bus.ids)
    return [IntakeMessageOut("timer", _KEY, TimerFired("Sweep"), f"id-{each}") for each in ids]


async def _append(bus: Bus, count: int) -> None:
    position = (await bus.log.newest_positions([_KEY]))[_KEY]
    versions = range(bus.version + 1, bus.version + 1 + count)
    await bus.log.append([ResourceAppend(_KEY, [_decided(each) for each in versions], position)])
    bus.version += count


def _decided(version: int) -> LogEvent:
    action = Action(event_id(_KEY, version), "key", "Create", 1, "default", _KEY.name, ())
    return event(_KEY, version, ActionDecided(action))


def _letter(bus: Bus, number: int) -> DeadLetter:
    delivery = IntakeDelivery(1_000_000 + bus.ids + number, "in.0.x", b"x", "", None, 1, None)
    return DeadLetter("intake", "it is of no use", delivery)


async def _error_of(doing: Awaitable[object]) -> str:
    try:
        await doing
    except StreamFullError as error:
        return type(error).__name__
    return ""


def _brief(came: Sequence[IntakeDelivery], first: int) -> list[tuple[int, int]]:
    return sorted((each.position - first, each.delivered) for each in came)


def _order(came: Sequence[ActionDelivery]) -> list[tuple[str, int]]:
    return [(each.event.id, each.delivered) for each in came]


# --- the two sides


async def on_the_server(folder: Path, seed: int) -> list[str]:
    server = EmbeddedServer()
    await server.start(folder)
    try:
        nc = await connect(server.url, name="model")
        await streams.ensure_topology(nc)
        bus = Bus(
            await open_log(nc),
            JetStreamIntakeWriter(nc, "model"),
            JetStreamDecisionSink(nc),
            Reads(JetStreamIntakeReader(nc)),
            Reads(JetStreamActionReader(nc)),
            lambda stream, messages: _leave_room(nc, stream, messages),
            lambda: _count(nc, streams.DEADLETTERS),
        )
        try:
            return await play(bus, seed)
        finally:
            bus.intake.close()
            bus.actions.close()
            await nc.close()
    finally:
        await server.stop()


async def _leave_room(nc: Client, stream: str, messages: int | None) -> None:
    state = await stream_state(nc, stream)
    most = -1 if messages is None else state.messages + messages
    assert most, f"{stream} is empty, and no limit is 0"
    await api_request(nc, f"STREAM.UPDATE.{stream}", {**state.config, "max_msgs": most})


async def _count(nc: Client, stream: str) -> int:
    return (await stream_state(nc, stream)).messages


def in_the_simulation(seed: int) -> list[str]:
    loop = VirtualLoop(f"model/{seed}")
    network = Network(loop, f"model/{seed}")
    log = LogStream(loop.time)
    intake = IntakeStream(network, loop.time, str(seed), max_ack_pending=SLOTS)
    queue = ActionQueue(log, network, loop.time, max_ack_pending=SLOTS)
    decisions = Decisions(intake, network, loop.time, str(seed))
    clock = Clock(loop.time)
    rooms = {
        "INTAKE": intake.room,
        "LOG_1": log.room,
        "DEADLETTERS": decisions.letters_room,
    }

    async def leave_room(stream: str, messages: int | None) -> None:
        room: Room = rooms[stream]
        room.leave(messages)

    async def letters() -> int:
        return len(decisions.dead_letters)

    async def run() -> list[str]:
        bus = Bus(
            MemoryLog(log, network),
            MemoryIntakeWriter(intake, network, "model", clock),
            MemoryDecisionSink(decisions, network, clock),
            Reads(MemoryIntakeReader(intake, network, "model", str(seed))),
            Reads(MemoryActionReader(queue, network, "model", str(seed))),
            leave_room,
            letters,
        )
        try:
            return await play(bus, seed)
        finally:
            bus.intake.close()
            bus.actions.close()

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few slots and few deliveries, on the server and in the simulation."""
    intakes = streams._decider_consumer  # pyright: ignore[reportPrivateUsage]
    actions = streams._worker_consumer  # pyright: ignore[reportPrivateUsage]
    few = {"max_ack_pending": SLOTS}

    def decider_consumer(name: str, subject_filter: str) -> dict[str, Any]:
        return {**intakes(name, subject_filter), **few, "max_deliver": MAX_DELIVERIES}

    def worker_consumer(name: str) -> dict[str, Any]:
        return {**actions(name), **few}

    monkeypatch.setattr(streams, "_decider_consumer", decider_consumer)
    monkeypatch.setattr(streams, "_worker_consumer", worker_consumer)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("seed", range(2))
async def test_the_same_limits_have_the_same_answers(tmp_path: Path, seed: int) -> None:
    simulated = in_the_simulation(seed)
    assert simulated == await on_the_server(tmp_path, seed)
