"""Random operations have the same results on the bus in memory and on JetStream."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from events.intake import TimerFired
from events.log import (
    Action,
    ActionDecided,
    LogEvent,
    OutcomeRecorded,
    ResourceEvent,
    SpecWithdrawn,
    event_id,
    event_type,
)
from events.names import ResourceKey
from projections.read_models import CHECKPOINT
from reconciler.ports import (
    ActionReader,
    AppendLostError,
    EventLog,
    IntakeMessageOut,
    IntakeReader,
    IntakeWriter,
    ResourceAppend,
    RowsConflictError,
    RowStore,
)
from tests.bus.histories import history_of
from tests.memory_bus.contract.buses import Bus as Ports
from tests.memory_bus.contract.buses import MemoryContractBus, on_jetstream
from tests.memory_bus.loop import VirtualLoop

_SHAPES = [ResourceKey("default", "Shape", name) for name in ("foo", "bar", "baz", "qux", "zoo")]
_START = datetime(2030, 1, 1, tzinfo=UTC)
_OPERATION_COUNT = 80


@dataclass
class Bus:
    """The ports of one bus, and the state that this test expects there."""

    log: EventLog
    writer: IntakeWriter
    reader: IntakeReader
    actions: ActionReader
    rows: list[RowStore]
    checkpoint: bytes = b""
    revisions: list[int] = field(default_factory=lambda: [0, 0])
    heads: dict[ResourceKey, tuple[int, int]] = field(
        default_factory=dict[ResourceKey, tuple[int, int]]
    )
    waiting: int = 0
    decided: int = 0
    ids: int = 0


# --- the operations, with the same random numbers on both buses; each returns its result


async def append(bus: Bus, dice: random.Random) -> Any:
    """Append to some resources; most expected positions are current, some are outdated."""
    appends: list[ResourceAppend] = []
    for key in dice.sample(_SHAPES, dice.choice((1, 1, 1, 2, 4))):
        position, version = bus.heads.get(key, (0, 0))
        count, is_old = dice.choice((1, 2, 3, 5)), dice.random() < 0.15
        events = [_event(key, version + number, dice) for number in range(1, count + 1)]
        appends.append(ResourceAppend(key, events, max(0, position - 1) if is_old else position))
    try:
        positions = await bus.log.append(appends)
    except AppendLostError:
        return "lost", await bus.log.last_position()
    for each, position in zip(appends, positions, strict=True):
        bus.heads[each.key] = position, each.events[-1].resourceversion
        bus.decided += sum(isinstance(event.data, ActionDecided) for event in each.events)
    return list(positions)


async def load(bus: Bus, dice: random.Random) -> Any:
    """Load some resources, with or without their cached states."""
    keys = dice.sample(_SHAPES, dice.randint(1, 5))
    from_leader, states = dice.random() < 0.5, dice.random() < 0.7
    loaded = await bus.log.load(keys, from_leader=from_leader, use_cache=states)
    results: list[Any] = []
    for key in keys:
        shape = loaded[key]
        cached_version = 0 if shape.cached is None else int(shape.cached)
        versions = [event.resourceversion for event in shape.events]
        assert versions == list(range(cached_version + 1, cached_version + 1 + len(versions)))
        results.append((str(key), shape.last_position, max([cached_version, *versions])))
    return results


async def save_state(bus: Bus, dice: random.Random) -> Any:
    """Save the state of a resource as of its newest event."""
    key = dice.choice(_SHAPES)
    if key in bus.heads:
        position, version = bus.heads[key]
        await bus.log.save_states({key: (position, str(version).encode())})
    return None


async def read_log(bus: Bus, dice: random.Random) -> Any:
    """Call the other read operations of the log."""
    key = dice.choice(_SHAPES)
    history = [each.id for each in await history_of(bus.log, key)]
    kind = [each.position for each in await bus.log.read_kind("default", "Shape")]
    newest = await bus.log.newest_positions(_SHAPES)
    return history, sorted(kind), dict(newest), await bus.log.last_position()


async def follow(bus: Bus, dice: random.Random) -> Any:
    """Follow the log from a random position to its end."""
    after = dice.randint(0, await bus.log.last_position())
    events: list[tuple[int, str]] = []
    async with bus.log.follow(after) as feed:
        while not feed.caught_up:
            events += [(each.position, each.event.id) for each in await feed.next_events()]
    return events


async def publish(bus: Bus, dice: random.Random) -> Any:
    """Publish some messages, some of them for a second time."""
    messages: list[IntakeMessageOut] = []
    for _ in range(dice.choice((1, 2, 6))):
        if bus.ids and dice.random() < 0.2:
            number = dice.randint(1, bus.ids)
        else:
            bus.ids += 1
            number = bus.ids
        key = _SHAPES[number % len(_SHAPES)]
        messages.append(IntakeMessageOut("timer", key, TimerFired("Sweep"), f"id-{number}"))
    before = await bus.writer.last_position()
    await bus.writer.publish(messages)
    after = await bus.writer.last_position()
    bus.waiting += after - before
    return after


async def read(bus: Bus, dice: random.Random) -> Any:
    """Read all waiting messages; acknowledge most, and redeliver the rest immediately."""
    deliveries: list[Any] = []
    while len(deliveries) < bus.waiting:
        deliveries += await bus.reader.next_batch()
    acknowledged = [each for each in deliveries if (each.position * 7 + each.delivered) % 4]
    later = [each for each in deliveries if each not in acknowledged]
    await bus.reader.ack(acknowledged)
    await bus.reader.retry_later(later, 0.0)
    bus.waiting = len(later)
    return sorted(
        (each.position, each.subject.split(".")[2:], each.message_id, each.delivered)
        for each in deliveries
    )


async def read_without_acknowledging(bus: Bus) -> Any:
    """Read all waiting messages without acknowledgment; they are redelivered after the lease."""
    first, again = dict[int, int](), dict[int, int]()
    while len(first) < bus.waiting:
        first |= {each.position: each.delivered for each in await bus.reader.next_batch()}
    while len(again) < bus.waiting:
        batch = await bus.reader.next_batch()
        again |= {each.position: each.delivered for each in batch}
        await bus.reader.ack(batch)
    bus.waiting = 0
    assert all(again[position] == first[position] + 1 for position in first)
    return sorted(again.items())


async def execute_actions(bus: Bus, _dice: random.Random) -> Any:
    """Read every decided action in order, and acknowledge it."""
    deliveries: list[tuple[int, str, int]] = []
    while len(deliveries) < bus.decided:
        batch = await bus.actions.next_batch()
        deliveries += [(each.position, each.event.id, each.delivered) for each in batch]
        await bus.actions.ack(batch)
    bus.decided = 0
    return deliveries


async def write_rows(bus: Bus, dice: random.Random) -> Any:
    """Write rows as one of two writers; one with an outdated checkpoint is refused."""
    side = dice.randrange(len(bus.rows))
    store = bus.rows[side]
    if dice.random() < 0.5:
        bus.checkpoint, bus.revisions[side] = await store.checkpoint()
    if dice.random() < 0.2:
        await store.clear(bus.revisions[side])
    number = dice.randint(1, 99)
    changes = {f"status.{number % 3}": str(number).encode() if number % 5 else None}
    try:
        saved = {**changes, CHECKPOINT: str(number).encode()}
        bus.revisions[side] = await store.save(saved, bus.revisions[side])
    except RowsConflictError:
        return "conflict", bus.checkpoint
    return sorted((await store.load()).items()), bus.checkpoint


_OPERATION_CHOICES: tuple[Callable[[Bus, random.Random], Any], ...] = (
    append,
    append,
    append,
    load,
    load,
    save_state,
    read_log,
    follow,
    publish,
    publish,
    read,
    read,
    execute_actions,
    execute_actions,
    write_rows,
)


async def play(bus: Bus, seed: int) -> list[str]:
    await bus.actions.add_queue("default", 16)
    dice = random.Random(f"operations/{seed}")
    results: list[str] = []
    for number in range(_OPERATION_COUNT):
        operation = dice.choice(_OPERATION_CHOICES)
        own_dice = random.Random(f"{seed}/{number}")
        result = await operation(bus, own_dice)
        results.append(f"{number} {operation.__name__}: {result!r}")
    await publish(bus, dice)
    redelivered = await read_without_acknowledging(
        bus
    )  # at the end, because it takes a whole lease
    results.append(f"redelivered: {redelivered!r}")
    return results


def _event(key: ResourceKey, version: int, dice: random.Random) -> LogEvent:
    action = Action(event_id(key, version), "key", "Create", 1, "default", key.name, ())
    data: Sequence[ResourceEvent] = (
        ActionDecided(action),
        OutcomeRecorded("Converged", version, "AsDeclared"),
        SpecWithdrawn(version),
    )
    what = dice.choice(data)
    return LogEvent(
        id=event_id(key, version),
        source="test",
        type=event_type(what),
        subject=str(key),
        time=_START,
        resourceversion=version,
        data=what,
    )


# --- the two buses


def _bus(ports: Ports) -> Bus:
    reader, actions = ports.intake_reader(), ports.action_reader()
    return Bus(ports.log, ports.writer, reader, actions, [ports.rows(), ports.rows()])


async def play_on_server(url: str, seed: int) -> list[str]:
    async with on_jetstream(url, lease_seconds=10.0) as ports:
        bus = _bus(ports)
        try:
            return await play(bus, seed)
        finally:
            await bus.reader.close()
            await bus.actions.close()


def play_in_memory(seed: int) -> list[str]:
    loop = VirtualLoop(f"model/{seed}")

    async def run() -> list[str]:
        return await play(_bus(MemoryContractBus(str(seed))), seed)

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
async def test_both_buses_return_the_same_results(fresh_bus_url: str, seed: int) -> None:
    assert play_in_memory(seed) == await play_on_server(fresh_bus_url, seed)
