"""Fault 23: the timer stream is purged; the sweep finds the waiting resources, which converge."""

from __future__ import annotations

import pytest

from events.log import ActionRetried, RetryScheduled
from events.subjects import schedule
from infra.bus.streams import TIMERS
from infra.jetstream.connection import api_request
from infra.jetstream.reads import read_subject
from tests.crashes.lane import Lane, key

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_23_the_sweep_finds_a_resource_whose_timer_was_lost(lane: Lane, name: str) -> None:
    process = lane.fork()
    await lane.break_api(
        throttle_rate=1, retry_after_seconds=2, methods=["POST"], remaining=1, name_prefix=name
    )
    await lane.declare(name)

    async def has_timer() -> bool:
        return bool(await read_subject(lane.nc, TIMERS, schedule(key(name), "retry")))

    await lane.wait_until(has_timer, "the second attempt is scheduled")
    await api_request(lane.nc, f"STREAM.PURGE.{TIMERS}", {})
    assert not await has_timer()
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    history = await lane.history(name)
    scheduled = [each.data for each in history if isinstance(each.data, RetryScheduled)]
    retried = [each for each in history if isinstance(each.data, ActionRetried)]
    assert (len(scheduled), len(retried)) == (1, 1)
    assert retried[0].time >= scheduled[0].at, "a retry must not be early"
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await process.stop()
