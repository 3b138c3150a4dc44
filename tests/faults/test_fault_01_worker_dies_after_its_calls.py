"""Fault 1: a worker with many calls in progress is killed before it acknowledges them.

Fault 2, a kill at every step of every operation, is the crash matrix (tests/crashes).
"""

from __future__ import annotations

import asyncio

import pytest

from reconciler.failpoints import Failpoint
from tests.crashes.lane import Lane

pytestmark = pytest.mark.asyncio(loop_scope="module")
COUNT = 30


@pytest.mark.parametrize(
    "is_response_lost", [False, True], ids=["response received", "response lost"]
)
async def test_1_each_call_is_repeated_with_its_key_and_has_one_effect(
    lane: Lane, name: str, is_response_lost: bool
) -> None:
    names = [f"{name}-{number}" for number in range(COUNT)]
    await asyncio.gather(*(lane.declare(each) for each in names))
    if is_response_lost:
        await lane.break_api(lost_reply_rate=0.5, methods=["POST"], seed=1)
    dying = lane.fork(f"{Failpoint.WORKER_CALLED}/Create:{COUNT // 2}")
    await dying.wait_until_killed_at(Failpoint.WORKER_CALLED)
    created_count = sum([len(await lane.effects(each)) for each in names])
    assert created_count > 1, "on a busy machine some of the calls are second attempts"
    await lane.break_api()
    next_process = lane.fork()
    for each in names:
        await lane.wait_for_outcome(each, "Converged")
    await lane.wait_until_idle()
    assert [await lane.effects(each) for each in names] == [["POST"]] * COUNT
    await lane.assert_sound()
    await next_process.stop()
