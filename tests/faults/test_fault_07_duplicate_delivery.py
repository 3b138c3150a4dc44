"""Fault 7: everything is delivered several times, after short leases and as new messages."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from events.subjects import log
from infra.bus.streams import INTAKE, LOG, TIMERS, worker_consumer
from infra.jetstream.connection import api_request
from infra.jetstream.outgoing import MESSAGE_ID
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject, stream_state
from tests.crashes.lane import Lane, key

_ACTIONS = worker_consumer("default")

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_7_a_message_that_is_repeated_after_the_window_changes_nothing(
    lane: Lane, name: str
) -> None:
    """The stream treats it as new, because its header is new; only the resource detects it."""
    process = lane.fork()
    await lane.withdraw(name)  # the resource is not declared yet, so this changes nothing
    for color in ("Red", "Red", "Green", "Purple"):
        await lane.declare(name, color)
    await lane.wait_for_outcome(name, "Converged", 3)
    await lane.wait_until_idle()
    messages = await read_subject(lane.nc, INTAKE, f"in.*.*.{key(name).tokens}")
    kinds = {message.subject.split(".")[2] for message in messages}
    assert {"desired", "result"} <= kinds
    position = (await stream_state(lane.nc, LOG)).last_seq
    effects = await lane.effects(name)

    for message in [*messages, *reversed(messages)]:
        subject = "rec." + message.subject.split(".", 2)[2]
        fresh = {MESSAGE_ID: uuid.uuid4().hex}
        ack = await publish(lane.nc, subject, message.payload, headers=fresh)
        assert not ack.duplicate
    await lane.wait_until_idle()

    assert await lane.effects(name) == effects
    assert (await stream_state(lane.nc, LOG)).last_seq == position
    await lane.assert_sound()
    await process.stop()


async def test_7_an_action_that_is_redelivered_during_its_call_has_one_effect(
    lane: Lane, name: str
) -> None:
    """The lease is 200 ms and the call takes a second, so the action is redelivered repeatedly."""
    await set_lease(lane, 0.2)
    await lane.break_api(latency_ms=1000, methods=["POST"])
    processes = [lane.fork(), lane.fork()]
    for each in processes:
        await each.wait_until_ready()
    count_before = await deliveries(lane)
    await lane.declare(name)
    await lane.wait_for_outcome(name, "Converged")
    await lane.break_api()
    await lane.wait_until_idle()
    actions = await read_subject(lane.nc, LOG, log(key(name), "action.default"))
    assert await deliveries(lane) - count_before > len(actions), "some must be redelivered"
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await asyncio.gather(*(each.stop() for each in processes))
    await set_lease(lane, 1.0)


async def test_7_a_repeated_timer_message_changes_nothing(lane: Lane, name: str) -> None:
    process = lane.fork()
    await lane.break_api(error_rate=1, methods=["POST"], remaining=1)
    await lane.declare(name)
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    fired = await read_subject(lane.nc, TIMERS, f"fired.{key(name).tokens}")
    assert fired, "the second attempt's timer must have fired"
    position = (await stream_state(lane.nc, LOG)).last_seq
    for _ in range(3):
        await publish(lane.nc, fired[0].subject, fired[0].payload)
    await lane.wait_until_idle()
    assert (await stream_state(lane.nc, LOG)).last_seq == position
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await process.stop()


async def deliveries(lane: Lane) -> int:
    info = await api_request(lane.nc, f"CONSUMER.INFO.{LOG}.{_ACTIONS}", None)
    return int(info["delivered"]["consumer_seq"])


async def set_lease(lane: Lane, seconds: float) -> None:
    info = await api_request(lane.nc, f"CONSUMER.INFO.{LOG}.{_ACTIONS}", None)
    config = info["config"] | {"ack_wait": int(seconds * 1e9)}
    body = {"stream_name": LOG, "config": config, "action": "update"}
    await api_request(lane.nc, f"CONSUMER.CREATE.{LOG}.{_ACTIONS}", body)
