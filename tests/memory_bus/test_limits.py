"""The bus in memory has the limits of JetStream: slots, deliveries, and room in its streams.

The same random operations on both, as in ``test_comparison``. Whatever is late on a slow machine is
waited for; that nothing more comes is asked for a moment only.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from events.intake import TimerFired
from events.log import Action, ActionDecided, LogEvent, event_id
from events.names import ResourceKey
from infra.bus import streams
from infra.jetstream.errors import StreamFullError
from reconciler.ports import (
    ActionDelivery,
    DeadLetter,
    DecisionSink,
    EventLog,
    IntakeDelivery,
    IntakeMessageOut,
    IntakeWriter,
    NotStoredError,
    ResourceAppend,
)
from tests.bus.histories import event, history_of
from tests.memory_bus.contract.buses import Bus as Ports
from tests.memory_bus.contract.buses import OnMemory, Reading, Stream, on_jetstream
from tests.memory_bus.loop import VirtualLoop

SLOTS = 5
MAX_DELIVERIES = 3
_KEY = ResourceKey("default", "Shape", "foo")
_OPERATIONS = 14
_MOMENT_SECONDS = 0.3
_DELAY_SECONDS = 1.0
_EXTRA = 4

Delivery = TypeVar("Delivery", IntakeDelivery, ActionDelivery)


@dataclass
class Bus:
    """The ports of one bus, and its streams' room."""

    log: EventLog
    writer: IntakeWriter
    sink: DecisionSink
    intake: Reading[IntakeDelivery]
    actions: Reading[ActionDelivery]
    leave_room: Callable[[Stream, int | None], Awaitable[None]]
    dead_letters: Callable[[], Awaitable[Sequence[object]]]
    ids: int = 0
    version: int = 0


# --- the operations; each leaves nothing open behind it


async def slots(bus: Bus, dice: random.Random) -> Any:
    """What is handed out keeps its slot, also while it is wanted later; a free one is used."""
    count = SLOTS + dice.randint(1, _EXTRA)
    first = await bus.writer.last_position() + 1
    await bus.writer.publish(_messages(bus, count))
    held = await bus.intake.until(SLOTS)
    results: list[Any] = [_brief(held, first), await bus.intake.anything_but(held)]
    later = held[: dice.randint(0, SLOTS)]
    deliveries = [each for each in held if each not in later]
    await bus.intake.reader.retry_later(later, _DELAY_SECONDS)
    results.append(await bus.intake.anything_but(held))
    await bus.intake.reader.ack(deliveries)
    more = await bus.intake.until(min(len(deliveries), count - SLOTS), but=held)
    results.append(
        _brief([each for each in more if each not in held and each.delivered == 1], first)
    )
    return [*results, await _finished(bus, more, count - len(deliveries), first)]


async def _finished(bus: Bus, deliveries: list[IntakeDelivery], expected: int, first: int) -> Any:
    """Acknowledge what is still open, as it comes."""
    all_came = list(deliveries)
    await bus.intake.reader.ack(deliveries)
    while len({each.position for each in all_came}) < expected:
        batch = await bus.intake.within(None)
        await bus.intake.reader.ack(batch)
        all_came += batch
    return _brief(all_came, first)


async def too_often(bus: Bus, dice: random.Random) -> Any:
    """What was handed out too often comes no more, and its slot is free."""
    count = dice.randint(1, SLOTS)
    first = await bus.writer.last_position() + 1
    await bus.writer.publish(_messages(bus, count))
    results: list[Any] = []
    for _ in range(MAX_DELIVERIES):
        deliveries = await bus.intake.until(count)
        results.append(_brief(deliveries, first))
        await bus.intake.reader.retry_later(deliveries, 0.0)
    results.append(await bus.intake.anything_but([]))
    await bus.writer.publish(_messages(bus, SLOTS))
    deliveries = await bus.intake.until(SLOTS)
    await bus.intake.reader.ack(deliveries)
    return [*results, _brief(deliveries, first)]


async def leases(bus: Bus, dice: random.Random) -> Any:
    """Actions have slots, too."""
    count = SLOTS + dice.randint(1, _EXTRA)
    await _append(bus, count)
    await bus.actions.reader.take_from("default", 10 * SLOTS)  # the slots bind, not the reader
    held = await bus.actions.until(SLOTS)
    results: list[Any] = [_order(held), await bus.actions.anything_but(held)]
    deliveries = dice.sample(held, dice.randint(1, SLOTS))
    await bus.actions.reader.ack(deliveries)
    free = min(len(deliveries), count - SLOTS)
    more = await bus.actions.until(free)
    results.append(_order(more))
    await bus.actions.reader.ack([each for each in held if each not in deliveries] + more)
    rest = await bus.actions.until(count - SLOTS - free)
    await bus.actions.reader.ack(rest)
    return [*results, _order(rest)]


async def full_intake(bus: Bus, dice: random.Random) -> Any:
    """Some of several are stored, and the rest is named."""
    position_before = await bus.writer.last_position()
    messages = _messages(bus, dice.choice((1, 2, 6, 20)))
    await bus.leave_room("INTAKE", dice.randint(0, len(messages) - 1))
    with pytest.raises(NotStoredError) as raised:
        await bus.writer.publish(messages)
    results: list[Any] = [type(raised.value.__cause__), raised.value.missing]
    results.append(await bus.writer.last_position() - position_before)
    await bus.leave_room("INTAKE", None)
    missing = [messages[place] for place in raised.value.missing]
    results.append(await _error_of(bus.writer.publish(missing)))
    results.append(await bus.writer.last_position() - position_before)
    return [*results, await _finished(bus, [], len(messages), position_before + 1)]


async def full_log(bus: Bus, dice: random.Random) -> Any:
    """A turn is stored whole or not at all; one of two events, if they go one by one."""
    count = dice.choice((1, 2, 3, 5))
    position_before = await bus.log.last_position()
    await bus.leave_room("LOG_1", dice.randint(0, count))
    results: list[Any] = [await _error_of(_append(bus, count))]
    stored = await bus.log.last_position() - position_before
    bus.version = len(await history_of(bus.log, _KEY))
    await bus.leave_room("LOG_1", None)
    deliveries = await bus.actions.until(stored)
    await bus.actions.reader.ack(deliveries)
    return [*results, stored, bus.version]


async def full_dead_letters(bus: Bus, dice: random.Random) -> Any:
    """Some of several letters are stored, and the whole has failed."""
    count = dice.choice((1, 3, 6))
    dead_letters = [_letter(bus, number) for number in range(count)]
    count_before = len(await bus.dead_letters())
    await bus.leave_room("DEADLETTERS", dice.randint(0, count - 1))
    results: list[Any] = [
        await _error_of(bus.sink.store_dead_letters(dead_letters)),
        len(await bus.dead_letters()) - count_before,
    ]
    await bus.leave_room("DEADLETTERS", None)
    results.append(await _error_of(bus.sink.store_dead_letters(dead_letters)))
    bus.ids += count
    return [*results, len(await bus.dead_letters()) - count_before]


_ALL = (slots, slots, too_often, leases, full_intake, full_log, full_dead_letters)


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


def _brief(deliveries: Sequence[IntakeDelivery], first: int) -> list[tuple[int, int]]:
    return sorted((each.position - first, each.delivered) for each in deliveries)


def _order(deliveries: Sequence[ActionDelivery]) -> list[tuple[str, int]]:
    return [(each.event.id, each.delivered) for each in deliveries]


# --- the two sides


async def _play(one: Ports, seed: int) -> list[str]:
    intake, actions = one.reading(one.intake_reader()), one.reading(one.action_reader())
    bus = Bus(one.log, one.writer, one.sink, intake, actions, one.leave_room, one.dead_letters)
    try:
        return await play(bus, seed)
    finally:
        await one.close()


async def on_the_server(url: str, seed: int) -> list[str]:
    async with on_jetstream(url, lease_seconds=10.0) as one:
        return await _play(one, seed)


def in_memory(seed: int) -> list[str]:
    loop = VirtualLoop(f"model/{seed}")

    async def run() -> list[str]:
        one = OnMemory(str(seed), max_unacknowledged=SLOTS, max_actions_leased=SLOTS)
        return await _play(one, seed)

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few slots and few deliveries, on the server and in memory."""
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
async def test_the_same_limits_have_the_same_answers(fresh_bus_url: str, seed: int) -> None:
    assert in_memory(seed) == await on_the_server(fresh_bus_url, seed)
