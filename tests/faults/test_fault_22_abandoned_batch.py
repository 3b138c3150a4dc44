"""Fault 22: uncommitted atomic batches: their sender died, or too many are open."""

from __future__ import annotations

import asyncio
import time

import pytest

from events.subjects import log_filter
from infra.bus.streams import LOG
from infra.jetstream.reads import read_subject
from reconciler.failpoints import Failpoint
from tests.crashes.lane import Lane, key

pytestmark = pytest.mark.asyncio(loop_scope="module")
MANY = 100  # so that some of them are decided together, on a busy machine, too
MAX_OPEN_BATCHES = 50
SERVER_FORGETS_SECONDS = 10.0


async def test_22_of_a_batch_whose_sender_died_nothing_is_visible_and_all_is_decided_again(
    lane: Lane, name: str
) -> None:
    names = [f"{name}-{number}" for number in range(MANY)]
    await asyncio.gather(*(lane.declare(each) for each in names))
    dying = lane.fork(Failpoint.DECIDER_BATCH_HALF_SENT)
    await dying.killed_at(Failpoint.DECIDER_BATCH_HALF_SENT)
    stored = [await read_subject(lane.nc, LOG, log_filter(key(each))) for each in names]
    assert sum(map(len, stored)) < MANY, "a batch of them was on its way, and none of it is there"
    following = lane.fork()
    for each in names:
        await lane.until_outcome(each, "Converged")
    await lane.until_at_rest()
    assert [await lane.effects(each) for each in names] == [["POST"]] * MANY
    await lane.assert_sound()
    await following.stop()


async def test_22_while_others_keep_all_batches_open_deciding_waits_and_then_continues(
    lane: Lane, name: str
) -> None:
    for number in range(MAX_OPEN_BATCHES):
        headers = {"Nats-Batch-Id": f"{name}-{number}", "Nats-Batch-Sequence": "1"}
        await lane.nc.publish(f"log.default.Shape.{name}-x.fact", b"{}", headers=headers)
    await lane.nc.flush()
    opened = time.monotonic()
    names = [f"{name}-{number}" for number in range(MANY)]
    await asyncio.gather(*(lane.declare(each) for each in names))
    process = lane.fork()

    async def is_running() -> bool:
        return "roles are running" in process.error_output

    await lane.until(is_running, "the roles run")
    in_time = time.monotonic() - opened < SERVER_FORGETS_SECONDS - 2
    for each in names:
        await lane.until_outcome(each, "Converged")
    await lane.until_at_rest()
    refused = "processing a batch failed; retrying" in process.error_output
    assert refused or not in_time, "the server refused one batch more"
    assert await lane.history(f"{name}-x") == [], "what was sent of the open batches is not there"
    assert [await lane.effects(each) for each in names] == [["POST"]] * MANY
    await lane.assert_sound()
    await process.stop()
