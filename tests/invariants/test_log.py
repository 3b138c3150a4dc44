"""Invariants 1, 2, 3, 9, 10 and 13: the log is the source of truth, and records intents first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import httpx
import pytest

from events.envelope import IntakeMessage, decode_intake, encode_log
from events.intake import ActionError, Reported
from events.log import (
    Action,
    ActionDecided,
    ActionRetried,
    ActionSucceeded,
    DriftDetected,
    LogEvent,
    ResourceEvent,
    RetryScheduled,
)
from events.names import ResourceKey
from events.provider_config import Retry
from events.subjects import log, parse_stored_intake
from infra.bus.streams import INTAKE, LOG, TIMERS
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusRefusedError
from infra.jetstream.reads import StoredMessage, read_subject
from projections.read_models import rebuild
from reconciler.ports import EVENTS_BETWEEN_SAVES
from reconciler.resource.decide import decide
from reconciler.resource.state import NEW
from reconciler.resource.turn import Command, Context
from reconciler.roles.decider.repository import ResourceRepository
from tests.invariants.witness import Witness
from tests.scenarios.harness import World, api_config, every, now, only, shape


async def run_eventful_history(world: World) -> None:
    """Make resources converge, drift, be withdrawn, orphaned and refused; a human creates some."""
    await world.human.create("taken")
    await world.human.create("bar")
    for name in ("foo", "drifting", "leaving", "taken"):
        await world.declare(name)
    await world.declare("orphan", policy={"deletion": "Orphan"})
    for name in ("foo", "drifting", "leaving", "orphan"):
        await world.until_outcome(name, "Converged")
    await world.until_outcome("taken", "Conflict")
    await world.human.update("drifting", color="Green")
    await world.withdraw("leaving")
    await world.withdraw("orphan")
    await world.until_outcome("leaving", "Deleted")
    await world.until_outcome("orphan", "Released")
    await world.until_outcome("bar", "Unowned")

    async def is_corrected() -> bool:
        return (await world.human.get("drifting"))["color"] == "Red"

    await world.until(is_corrected, "the drift is corrected")
    await world.until_observed_again()


async def test_1_a_replay_rebuilds_every_row_byte_for_byte_without_a_call(world: World):
    await run_eventful_history(world)
    await world.stop_reconciler()
    rows_before = await world.rows()
    journal = await world.human.journal()
    await world.human.reset_counts()

    await world.erase_caches()
    await world.start_reconciler(["projector"])

    async def has_rows() -> bool:
        return "checkpoint" in await world.rows()

    await world.until(has_rows, "the rows are written again")
    assert await world.rows() == rows_before
    events = [(each.position, each.event) for each in await world.log.read_kind("*", "*")]
    assert dict(rebuild(events).rows()) == rows_before
    assert await world.human.requests() == {}
    assert await world.human.journal() == journal


async def test_1_a_cached_state_equals_the_state_folded_from_the_log(world: World):
    key = shape("foo")
    for turn in range(EVENTS_BETWEEN_SAVES // 4 + 1):
        await world.declare("foo", color=("Red", "Green")[turn % 2])
        await world.until_outcome("foo", "Converged", generation=turn + 1)
    await world.stop_reconciler()
    with_cache = (await ResourceRepository(world.log).get([key]))[key]
    assert with_cache.cached_version >= EVENTS_BETWEEN_SAVES

    await world.erase_caches()

    without = (await ResourceRepository(world.log).get([key]))[key]
    assert without.cached_version == 0
    assert (without.state, without.position) == (with_cache.state, with_cache.position)


async def test_2_the_intent_is_in_the_log_before_each_effect(bare_world: World):
    world, witness = bare_world, Witness(bare_world)
    world.kinds = witness.kinds()
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))

    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged", generation=1)
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)
    await world.withdraw("foo")
    await world.until_outcome("foo", "Deleted")

    assert [each.operation for each in witness.executed] == ["Create", "Update", "Delete"]
    assert witness.unrecorded == []
    assert all(each.causes for each in witness.executed)
    keys = [each["idempotency_key"] for each in await world.human.journal()]
    assert keys == [each.idempotency_key for each in witness.executed]


@pytest.mark.parametrize("fault", ["lost_reply_rate", "error_after_rate", "error_rate"])
async def test_3_every_attempt_has_the_key_and_the_parameters_of_the_action(
    bare_world: World, fault: str
):
    world, witness = bare_world, Witness(bare_world)
    world.kinds = witness.kinds()
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.human.inject_faults(**{fault: 1, "methods": ["POST"], "remaining": 2})

    await world.declare("foo")

    await world.until_outcome("foo", "Converged")
    facts = await world.facts("foo")
    decided = only(ActionDecided, facts).action
    assert witness.executed == [decided] * 3
    assert [(each.attempt, each.action) for each in every(ActionRetried, facts)] == [
        (2, decided),
        (3, decided),
    ]
    (effect,) = await world.human.journal()
    assert effect["idempotency_key"] == decided.idempotency_key


async def count_posts(world: World) -> int:
    return sum((await world.human.requests()).get("POST", {}).values())


async def test_9_a_backoff_survives_a_restart_and_no_resource_is_woken_without_cause(
    bare_world: World,
):
    world = bare_world
    await world.start_reconciler()
    long_retry = Retry(initial_seconds=600, max_seconds=600)
    await world.configure(api_config(world.human.url, retry=long_retry))
    await world.human.inject_faults(error_rate=1, methods=["POST"])
    await world.declare("foo")
    degraded = await world.until_outcome("foo", "Degraded")
    assert "fault was injected" in degraded.message
    await world.until_settled()
    position = await world.log_position()
    assert await count_posts(world) == 1

    await world.stop_reconciler()
    await world.erase_caches()
    await api_request(world.nc, f"STREAM.PURGE.{TIMERS}", {})
    await world.start_reconciler()
    await world.until_observed_again()

    assert await count_posts(world) == 1
    assert await world.log_position() == position
    status = await world.until(lambda: world.status("foo"), "the row is rebuilt")
    assert status.retry_at == only(RetryScheduled, await world.facts("foo")).at


async def test_9_the_attempt_count_continues_after_a_restart(bare_world: World):
    world = bare_world
    await world.start_reconciler()
    await world.configure(
        api_config(world.human.url, retry=Retry(initial_seconds=0.2, max_seconds=60))
    )
    await world.human.inject_faults(error_rate=1, methods=["POST"])
    await world.declare("foo")

    async def scheduled_retries() -> list[RetryScheduled]:
        return every(RetryScheduled, await world.facts("foo"))

    async def has_failed_twice() -> bool:
        return len(await scheduled_retries()) == 2

    await world.until(has_failed_twice, "two attempts failed")
    await world.stop_reconciler()
    await world.erase_caches()
    await world.human.clear_faults()
    await world.start_reconciler()

    await world.until_outcome("foo", "Converged")
    first, second = await scheduled_retries()
    assert 0.1 <= first.delay_seconds <= 0.2 <= second.delay_seconds <= 0.4
    facts = await world.facts("foo")
    assert [each.attempt for each in every(ActionRetried, facts)] == [2, 3]
    third = [event for event in await world.history("foo") if event.data == facts[-3]]
    assert third[0].time >= second.at


async def test_10_the_recorded_inputs_lead_to_the_recorded_events(world: World):
    await run_eventful_history(world)
    await world.stop_reconciler()
    configs = world.parts.configurations.by_name
    commands: dict[ResourceKey, list[Command]] = {}
    for message in await read_subject(world.nc, INTAKE, "in.>"):
        what, key = parse_stored_intake(message.subject)
        reported_message = decode_intake(message.payload, expected=what, fallback_id="")
        commands.setdefault(key, []).append(_command(message, reported_message))

    replayed = 0
    for key, inputs in commands.items():
        if key.kind != "Shape":
            continue
        state = NEW
        for moment, turn in groupby(await world.history(key), key=lambda event: event.time):
            recorded = list(turn)
            turn_commands = _take_until(inputs, recorded)
            kind = world.kinds.find(key.kind)
            log_id, epoch = world.log.log_id, world.log.epoch
            context = Context(key, moment, 0.0, log_id, kind, configs, epoch=epoch)
            repeated = decide(state, turn_commands, context)
            assert [encode_log(each) for each in repeated.events] == [
                encode_log(each) for each in recorded
            ]
            state = repeated.state
            replayed += len(recorded)
        assert state == (await ResourceRepository(world.log).get([key]))[key].state
    assert replayed > 30
    for name in ("foo", "drifting", "leaving", "orphan", "taken", "bar"):
        assert shape(name) in commands


def _command(message: StoredMessage, read: IntakeMessage) -> Command:
    stored_at = datetime.fromtimestamp(message.time_ns / 1e9, UTC)
    return Command(message.seq, read.id, read.source, read.data, stored_at=stored_at)


def _take_until(inputs: list[Command], recorded: Sequence[LogEvent]) -> list[Command]:
    """Take the commands up to the last one that a turn's events name as their cause."""
    last = max(event.causationposition for event in recorded)
    turn_commands = [each for each in inputs if each.position <= last]
    del inputs[: len(turn_commands)]
    return turn_commands


async def test_the_log_cannot_be_deleted_or_purged(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    stored = await read_subject(world.nc, LOG, f"{log(shape('foo'), 'fact')}")

    for request, body in (
        (f"STREAM.PURGE.{LOG}", {}),
        (f"STREAM.MSG.DELETE.{LOG}", {"seq": stored[0].seq}),
    ):
        with pytest.raises(BusRefusedError):
            await api_request(world.nc, request, body)
    assert len(await world.history("foo")) == 4


async def test_13_the_log_never_denies_an_effect_in_the_api(world: World):
    """The test deletes the object, like a worker that then dies; the next one's call is refused."""
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.stop_reconciler()
    await world.start_reconciler(["decider", "projector"])
    await world.withdraw("foo")

    async def decided() -> Action | None:
        actions = [each.action for each in every(ActionDecided, await world.facts("foo"))]
        return actions[-1] if actions[-1].operation == "Delete" else None

    action = await world.until(decided, "the deletion is decided")
    async with httpx.AsyncClient(base_url=world.human.url) as api:
        header = {"Idempotency-Key": action.idempotency_key}
        (await api.delete("/shapes/foo", headers=header)).raise_for_status()
    refused = ActionError("NotDone", "try again later", 503)
    report = Reported(action.action_id, 1, now(), now(), "another", refused, redelivered=True)
    await world.publish(shape("foo"), report, "result")
    await world.declare("foo", color="Blue")
    await world.stop_reconciler()
    await world.start_reconciler()

    await world.until_outcome("foo", "Converged", generation=3)
    assert (await world.human.get("foo"))["color"] == "Blue"
    await world.until_settled()
    facts = await world.facts("foo")
    deleted = only(ActionSucceeded, [e for e in facts if _is_about(e, action)])
    assert deleted.found_by == "Absence"
    assert not every(DriftDetected, facts), "no other client is blamed"


def _is_about(event: ResourceEvent, action: Action) -> bool:
    return getattr(event, "action_id", "") == action.action_id
