"""The bus in memory has the limits of JetStream: slots, deliveries, and stream capacity.

Both buses run the same random operations, as in ``test_comparison``. The tests wait as long as
necessary for expected messages, and only a moment for unexpected ones.
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
from tests.memory_bus.contract.buses import MemoryContractBus, Reading, Stream, on_jetstream
from tests.memory_bus.loop import VirtualLoop

SLOTS = 5
MAX_DELIVERIES = 3
_KEY = ResourceKey("default", "Shape", "foo")
_OPERATIONS = 14
_QUIET_SECONDS = 0.3
_DELAY_SECONDS = 1.0
_MAX_EXTRA = 4

Delivery = TypeVar("Delivery", IntakeDelivery, ActionDelivery)


@dataclass
class Bus:
    """The ports of one bus, and the capacity of its streams."""

    log: EventLog
    writer: IntakeWriter
    sink: DecisionSink
    intake: Reading[IntakeDelivery]
    actions: Reading[ActionDelivery]
    set_remaining_capacity: Callable[[Stream, int | None], Awaitable[None]]
    dead_letters: Callable[[], Awaitable[Sequence[object]]]
    ids: int = 0
    version: int = 0


# --- the operations; each leaves no message unacknowledged


async def check_slots(bus: Bus, dice: random.Random) -> Any:
    """A delivered message keeps its slot while its retry is delayed; free slots are used."""
    count = SLOTS + dice.randint(1, _MAX_EXTRA)
    first = await bus.writer.last_position() + 1
    await bus.writer.publish(_messages(bus, count))
    held = await bus.intake.wait_for(SLOTS)
    results: list[Any] = [_brief(held, first), await bus.intake.other_positions(held)]
    later = held[: dice.randint(0, SLOTS)]
    deliveries = [each for each in held if each not in later]
    await bus.intake.reader.retry_later(later, _DELAY_SECONDS)
    results.append(await bus.intake.other_positions(held))
    await bus.intake.reader.ack(deliveries)
    more = await bus.intake.wait_for(min(len(deliveries), count - SLOTS), excluding=held)
    results.append(
        _brief([each for each in more if each not in held and each.delivered == 1], first)
    )
    return [*results, await _ack_rest(bus, more, count - len(deliveries), first)]


async def _ack_rest(bus: Bus, deliveries: list[IntakeDelivery], expected: int, first: int) -> Any:
    """Acknowledge the remaining messages as they arrive."""
    all_deliveries = list(deliveries)
    await bus.intake.reader.ack(deliveries)
    while len({each.position for each in all_deliveries}) < expected:
        batch = await bus.intake.next_within(None)
        await bus.intake.reader.ack(batch)
        all_deliveries += batch
    return _brief(all_deliveries, first)


async def check_max_deliveries(bus: Bus, dice: random.Random) -> Any:
    """A message is not delivered more often than allowed, and its slot becomes free."""
    count = dice.randint(1, SLOTS)
    first = await bus.writer.last_position() + 1
    await bus.writer.publish(_messages(bus, count))
    results: list[Any] = []
    for _ in range(MAX_DELIVERIES):
        deliveries = await bus.intake.wait_for(count)
        results.append(_brief(deliveries, first))
        await bus.intake.reader.retry_later(deliveries, 0.0)
    results.append(await bus.intake.other_positions([]))
    await bus.writer.publish(_messages(bus, SLOTS))
    deliveries = await bus.intake.wait_for(SLOTS)
    await bus.intake.reader.ack(deliveries)
    return [*results, _brief(deliveries, first)]


async def check_leases(bus: Bus, dice: random.Random) -> Any:
    """Actions occupy slots, too."""
    count = SLOTS + dice.randint(1, _MAX_EXTRA)
    await _append(bus, count)
    await bus.actions.reader.add_queue("default", 10 * SLOTS)  # slots are the limit
    held = await bus.actions.wait_for(SLOTS)
    results: list[Any] = [_order(held), await bus.actions.other_positions(held)]
    deliveries = dice.sample(held, dice.randint(1, SLOTS))
    await bus.actions.reader.ack(deliveries)
    free = min(len(deliveries), count - SLOTS)
    more = await bus.actions.wait_for(free)
    results.append(_order(more))
    await bus.actions.reader.ack([each for each in held if each not in deliveries] + more)
    rest = await bus.actions.wait_for(count - SLOTS - free)
    await bus.actions.reader.ack(rest)
    return [*results, _order(rest)]


async def check_full_intake(bus: Bus, dice: random.Random) -> Any:
    """A full intake stores some of several messages, and names the rest."""
    position_before = await bus.writer.last_position()
    messages = _messages(bus, dice.choice((1, 2, 6, 20)))
    await bus.set_remaining_capacity("INTAKE", dice.randint(0, len(messages) - 1))
    with pytest.raises(NotStoredError) as raised:
        await bus.writer.publish(messages)
    results: list[Any] = [type(raised.value.__cause__), raised.value.missing]
    results.append(await bus.writer.last_position() - position_before)
    await bus.set_remaining_capacity("INTAKE", None)
    missing = [messages[index] for index in raised.value.missing]
    results.append(await _error_name(bus.writer.publish(missing)))
    results.append(await bus.writer.last_position() - position_before)
    return [*results, await _ack_rest(bus, [], len(messages), position_before + 1)]


async def check_full_log(bus: Bus, dice: random.Random) -> Any:
    """A turn is stored whole or not at all; of two single appends, the first may succeed."""
    count = dice.choice((1, 2, 3, 5))
    position_before = await bus.log.last_position()
    await bus.set_remaining_capacity("LOG_1", dice.randint(0, count))
    results: list[Any] = [await _error_name(_append(bus, count))]
    stored = await bus.log.last_position() - position_before
    bus.version = len(await history_of(bus.log, _KEY))
    await bus.set_remaining_capacity("LOG_1", None)
    deliveries = await bus.actions.wait_for(stored)
    await bus.actions.reader.ack(deliveries)
    return [*results, stored, bus.version]


async def check_full_dead_letters(bus: Bus, dice: random.Random) -> Any:
    """Some of several dead letters are stored, and the call fails."""
    count = dice.choice((1, 3, 6))
    dead_letters = [_dead_letter(bus, number) for number in range(count)]
    count_before = len(await bus.dead_letters())
    await bus.set_remaining_capacity("DEADLETTERS", dice.randint(0, count - 1))
    results: list[Any] = [
        await _error_name(bus.sink.store_dead_letters(dead_letters)),
        len(await bus.dead_letters()) - count_before,
    ]
    await bus.set_remaining_capacity("DEADLETTERS", None)
    results.append(await _error_name(bus.sink.store_dead_letters(dead_letters)))
    bus.ids += count
    return [*results, len(await bus.dead_letters()) - count_before]


_CHECKS = (
    check_slots,
    check_slots,
    check_max_deliveries,
    check_leases,
    check_full_intake,
    check_full_log,
    check_full_dead_letters,
)


async def play(bus: Bus, seed: int) -> list[str]:
    dice = random.Random(f"limits/{seed}")
    results: list[str] = []
    await bus.sink.store_dead_letters([_dead_letter(bus, -1)])
    for number in range(_OPERATIONS):
        operation = _CHECKS[number] if number < len(_CHECKS) else dice.choice(_CHECKS)
        result = await operation(bus, random.Random(f"{seed}/{number}"))
        results.append(f"{number} {operation.__name__}: {result!r}")
    return results


def _messages(bus: Bus, count: int) -> list[IntakeMessageOut]:
    bus.ids += count
    ids = range(bus.ids - count, bus.ids)
    return [IntakeMessageOut("timer", _KEY, TimerFired("Sweep"), f"id-{each}") for each in ids]


async def _append(bus: Bus, count: int) -> None:
    position = (await bus.log.newest_positions([_KEY]))[_KEY]
    versions = range(bus.version + 1, bus.version + 1 + count)
    await bus.log.append([ResourceAppend(_KEY, [_action(each) for each in versions], position)])
    bus.version += count


def _action(version: int) -> LogEvent:
    action = Action(event_id(_KEY, version), "key", "Create", 1, "default", _KEY.name, ())
    return event(_KEY, version, ActionDecided(action))


def _dead_letter(bus: Bus, number: int) -> DeadLetter:
    delivery = IntakeDelivery(1_000_000 + bus.ids + number, "in.0.x", b"x", "", None, 1, None)
    return DeadLetter("intake", "it is unusable", delivery)


async def _error_name(operation: Awaitable[object]) -> str:
    try:
        await operation
    except StreamFullError as error:
        return type(error).__name__
    return ""


def _brief(deliveries: Sequence[IntakeDelivery], first: int) -> list[tuple[int, int]]:
    return sorted((each.position - first, each.delivered) for each in deliveries)


def _order(deliveries: Sequence[ActionDelivery]) -> list[tuple[str, int]]:
    return [(each.event.id, each.delivered) for each in deliveries]


# --- the two buses


async def _play(ports: Ports, seed: int) -> list[str]:
    intake, actions = ports.reading(ports.intake_reader()), ports.reading(ports.action_reader())
    bus = Bus(
        ports.log,
        ports.writer,
        ports.sink,
        intake,
        actions,
        ports.set_remaining_capacity,
        ports.dead_letters,
    )
    try:
        return await play(bus, seed)
    finally:
        await ports.close()


async def play_on_server(url: str, seed: int) -> list[str]:
    async with on_jetstream(url, lease_seconds=10.0) as ports:
        return await _play(ports, seed)


def play_in_memory(seed: int) -> list[str]:
    loop = VirtualLoop(f"model/{seed}")

    async def run() -> list[str]:
        ports = MemoryContractBus(str(seed), max_unacknowledged=SLOTS, max_actions_leased=SLOTS)
        return await _play(ports, seed)

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set few slots and few deliveries, on the server and in memory."""
    intakes = streams._decider_consumer  # pyright: ignore[reportPrivateUsage]
    actions = streams._worker_consumer  # pyright: ignore[reportPrivateUsage]
    max_pending = {"max_ack_pending": SLOTS}

    def decider_consumer(name: str, subject_filter: str) -> dict[str, Any]:
        return {**intakes(name, subject_filter), **max_pending, "max_deliver": MAX_DELIVERIES}

    def worker_consumer(name: str) -> dict[str, Any]:
        return {**actions(name), **max_pending}

    monkeypatch.setattr(streams, "_decider_consumer", decider_consumer)
    monkeypatch.setattr(streams, "_worker_consumer", worker_consumer)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("seed", range(2))
async def test_both_buses_enforce_the_same_limits(fresh_bus_url: str, seed: int) -> None:
    assert play_in_memory(seed) == await play_on_server(fresh_bus_url, seed)
