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
MANY = 100  # enough to decide some of them together, even on a busy machine
MAX_OPEN_BATCHES = 50
SERVER_FORGETS_SECONDS = 10.0


async def test_22_a_batch_whose_sender_died_is_invisible_and_decided_again(
    lane: Lane, name: str
) -> None:
    names = [f"{name}-{number}" for number in range(MANY)]
    await asyncio.gather(*(lane.declare(each) for each in names))
    dying = lane.fork(Failpoint.DECIDER_BATCH_HALF_SENT)
    await dying.wait_until_killed_at(Failpoint.DECIDER_BATCH_HALF_SENT)
    stored = [await read_subject(lane.nc, LOG, log_filter(key(each))) for each in names]
    assert sum(map(len, stored)) < MANY, "no event of the incomplete batch may be visible"
    next_process = lane.fork()
    for each in names:
        await lane.wait_for_outcome(each, "Converged")
    await lane.wait_until_idle()
    assert [await lane.effects(each) for each in names] == [["POST"]] * MANY
    await lane.assert_sound()
    await next_process.stop()


async def test_22_the_decider_waits_while_other_clients_keep_all_batches_open(
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

    await lane.wait_until(is_running, "the roles are running")
    in_time = time.monotonic() - opened < SERVER_FORGETS_SECONDS - 2
    for each in names:
        await lane.wait_for_outcome(each, "Converged")
    await lane.wait_until_idle()
    refused = "failed to process a batch; retrying" in process.error_output
    assert refused or not in_time, "the server must refuse one batch too many"
    assert await lane.history(f"{name}-x") == [], "no event of an open batch may be visible"
    assert [await lane.effects(each) for each in names] == [["POST"]] * MANY
    await lane.assert_sound()
    await process.stop()
