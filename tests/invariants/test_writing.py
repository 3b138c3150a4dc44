"""Invariants 4 and 5: wakeups carry no facts, and one of two writers wins."""

from __future__ import annotations

import asyncio
import itertools
import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

import pytest

from events.envelope import encode_intake
from events.external import ExternalObject
from events.intake import ActionError, Declared, IntakeData, Observed, Reported, TimerFired
from events.log import ActionDecided, ActionFailed, ActionSucceeded, SpecDeclared
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from events.subjects import Intake
from infra.bus.event_log import JetStreamLog
from infra.bus.streams import TIMERS, LogIdentity
from infra.jetstream.connection import api_request
from reconciler.ports import (
    AppendLostError,
    DeadLetter,
    IntakeDelivery,
    Rejection,
    Reply,
    ResourceAppend,
    TimerRequest,
)
from reconciler.resource.evolve import fold
from reconciler.roles.decider.decider import Decider
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.sweeper import sweeper
from tests.scenarios.harness import ACTOR, World, every, manifest, only, shape, type_names


def now() -> datetime:
    return datetime.now(UTC)


async def test_4_wakeups_stale_observations_and_old_results_change_nothing(world: World):
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged", generation=1)
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)
    first = every(ActionDecided, await world.facts("foo"))[0].action
    position = await world.log_position()
    created_object = every(ActionSucceeded, await world.facts("foo"))[0].object
    assert created_object is not None
    green = ExternalObject("foo", {"type": "Square", "color": "Green"}, created_object.uid)

    def report_of(error: ActionError | None) -> Reported:
        return Reported(first.action_id, 1, now(), now(), "zombie", error, green)

    stale_messages: list[tuple[Intake, IntakeData]] = [
        ("timer", TimerFired("Retry")),
        ("timer", TimerFired("Sweep")),
        ("timer", TimerFired("ConfigChanged")),
        ("observed", Observed("default", "foo", green, "Read", as_of=0)),
        ("observed", Observed("default", "foo", None, "CompleteListing", as_of=1)),
        ("observed", Observed("elsewhere", "foo", None, "Read", as_of=10**9)),
        ("result", report_of(None)),
        ("result", report_of(ActionError("NotFound", "gone"))),
        ("result", report_of(ActionError("Unknown", "no response"))),
    ]
    for what, data in [*stale_messages, *reversed(stale_messages)]:
        await world.publish(shape("foo"), data, what)

    await world.until_observed_again()
    assert await world.log_position() == position
    assert await world.human.effects() == ["POST", "PUT"]


async def test_4_an_old_result_does_not_end_the_action_in_flight(world: World):
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged", generation=1)
    first = only(ActionDecided, await world.facts("foo")).action
    await world.human.inject_faults(latency_ms=300, methods=["PUT"])
    await world.declare("foo", color="Purple")

    async def is_update_in_flight() -> bool:
        return len(every(ActionDecided, await world.facts("foo"))) == 2

    await world.until(is_update_in_flight, "the update is in flight")
    failed = Reported(first.action_id, 1, now(), now(), "zombie", ActionError("Refused", "refused"))
    await world.publish(shape("foo"), failed, "result")

    await world.until_outcome("foo", "Converged", generation=2)
    assert await world.human.effects() == ["POST", "PUT"]
    assert every(ActionFailed, await world.facts("foo")) == []


async def test_4_a_resource_whose_timer_was_lost_is_found_by_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sweeper, "SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(sweeper, "OVERDUE_SECONDS", 0.1)
    await world.restart_reconciler()
    await world.human.inject_faults(error_rate=1, methods=["POST"], remaining=1)
    await world.declare("foo")
    await world.until_outcome("foo", "Degraded")

    await api_request(world.nc, f"STREAM.PURGE.{TIMERS}", {})

    await world.until_outcome("foo", "Converged")
    assert await world.human.effects() == ["POST"]


# --- two deciders


class DirectReader:
    """Implements ``reconciler.ports.IntakeReader``, for batches that the test passes directly."""

    def __init__(self) -> None:
        self.acked: list[IntakeDelivery] = []

    @property
    def slots(self) -> int:
        return 0

    async def extend(self, deliveries: Sequence[IntakeDelivery]) -> None: ...

    async def next_batch(self, max_seconds: float = math.inf) -> Sequence[IntakeDelivery]:
        raise NotImplementedError

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        self.acked += deliveries

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        raise AssertionError(f"{len(deliveries)} messages could not be decided")

    async def was_sole_reader(self, deliveries: Sequence[IntakeDelivery]) -> bool:
        return bool(deliveries)

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        return [[] for _ in deliveries]

    async def declarations_of(
        self, known: Mapping[ResourceKey, Collection[int]]
    ) -> Mapping[ResourceKey, Sequence[IntakeDelivery]]:
        return {}

    async def close(self) -> None: ...


class DiscardingSink:
    """Implements ``reconciler.ports.DecisionSink``."""

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None: ...

    async def send_replies(self, replies: Sequence[tuple[str, Reply]]) -> None: ...

    async def reject(self, rejections: Sequence[Rejection]) -> None: ...

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        raise AssertionError(letters[0].reason)

    async def discard(self, letters: Sequence[DeadLetter]) -> None:
        raise AssertionError(letters[0].reason)


class CountingLog(JetStreamLog):
    """The log; counts the appends that lost to another writer."""

    lost = 0

    async def append(self, appends: Sequence[ResourceAppend]) -> Sequence[int]:
        try:
            return await super().append(appends)
        except AppendLostError:
            self.lost += 1
            raise


class Replica:
    """A decider with its own state, as in a separate process."""

    def __init__(self, world: World) -> None:
        self.log = CountingLog(world.nc, LogIdentity(world.log.log_id))
        self.inbox = DirectReader()
        configurations = Configurations()
        configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://nowhere")
        self.decider = Decider(
            reader=self.inbox,
            log=self.log,
            sink=DiscardingSink(),
            kinds=world.kinds,
            configurations=configurations,
        )


_positions = itertools.count(1)


def delivery(data: IntakeData, what: Intake = "desired", name: str = "foo") -> IntakeDelivery:
    message_id = uuid.uuid4().hex
    payload = encode_intake(message_id, ACTOR, data, time=now())
    key: ResourceKey = shape(name)
    subject = f"in.0.{what}.{key.tokens}"
    return IntakeDelivery(next(_positions), subject, payload, message_id, None, 1, None)


def red_declaration(name: str = "foo") -> IntakeDelivery:
    return delivery(Declared(manifest(name, color="Red")), name=name)


async def test_5_a_decider_with_a_stale_state_conflicts_refolds_and_decides_once(
    bare_world: World,
):
    world = bare_world
    current, zombie = Replica(world), Replica(world)
    await current.decider.handle([red_declaration()])
    await zombie.decider.handle([delivery(TimerFired("Sweep"), "timer")])  # loads the resource
    decided = only(ActionDecided, await world.facts("foo")).action
    created_object = ExternalObject("foo", decided.fields, "u-1", "1", decided.labels)
    result = Reported(decided.action_id, 1, now(), now(), "w", object=created_object)
    report = delivery(result, "result")
    await current.decider.handle([report])

    await zombie.decider.handle([report])  # in its state, the creation is still in flight
    await zombie.decider.handle([delivery(Declared(manifest("foo", color="Purple")))])

    assert (current.log.lost, zombie.log.lost) == (0, 1)
    history = await world.history("foo")
    assert [event.resourceversion for event in history] == list(range(1, len(history) + 1))
    assert type_names([event.data for event in history]) == [
        "SpecDeclared",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
        "SpecDeclared",
        "ActionDecided",
    ]
    assert len(zombie.inbox.acked) == 3


async def test_5_one_append_of_two_concurrent_deciders_wins_for_each_resource(bare_world: World):
    """Both repeatedly process the same forty messages at the same time, in opposite order."""
    world = bare_world
    current, other_replica = Replica(world), Replica(world)
    shapes = [f"foo-{number}" for number in range(40)]
    for color in ("Red", "Green", "Blue"):
        batch = [delivery(Declared(manifest(name, color=color)), name=name) for name in shapes]
        await asyncio.gather(
            current.decider.handle(batch), other_replica.decider.handle(batch[::-1])
        )

    assert current.log.lost + other_replica.log.lost > 0
    assert len(current.inbox.acked) == len(other_replica.inbox.acked) == 120
    for name in shapes:
        history = await world.history(name)
        fold(history)  # gapless, or it raises
        facts = [event.data for event in history]
        assert [each.generation for each in every(SpecDeclared, facts)] == [1, 2, 3]
        assert len(every(ActionDecided, facts)) == 1


async def test_5_a_second_replica_does_not_change_the_effects(world: World):
    """Two complete reconcilers on one bus; both observe and decide."""
    other_world = World.on_bus_of(world)
    await other_world.start_reconciler()
    try:
        shapes = [f"foo-{number}" for number in range(30)]
        await world.declare_all([manifest(name) for name in shapes])
        for name in shapes:
            await world.until_outcome(name, "Converged")
        await world.human.delete("foo-7")
        await world.human.update("foo-8", color="Green")

        async def are_repaired() -> bool:
            existing_shape = await world.human.find("foo-8")
            seven = await world.human.find("foo-7")
            return (
                existing_shape is not None
                and existing_shape["color"] == "Red"
                and seven is not None
            )

        await world.until(are_repaired, "both are repaired")
        await world.until_observed_again()
        await other_world.until_observed_again()
    finally:
        await other_world.stop_reconciler()
    assert await world.human.effects("foo-7") == ["POST", "human DELETE", "POST"]
    assert await world.human.effects("foo-8") == ["POST", "human PUT", "PUT"]
    assert len(await world.human.effects()) == 30 + 4
