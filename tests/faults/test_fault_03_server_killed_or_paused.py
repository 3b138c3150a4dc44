"""Fault 3: nats-server is killed or paused while many actions are in progress.

The pause lasts 5 seconds instead of 30: longer than every lease and pin here, and shorter than the
time after which a client closes a silent connection, so both ends keep the connection.
``python -m tests.crashes.soak`` does both for any length of time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal

import pytest

from tests.crashes.lane import Lane

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAUSE_SECONDS = 5.0
COUNT = 60
WRITERS = 6
KILLS = 3


async def declare_slowly(lane: Lane, names: list[str]) -> None:
    for each in names:
        await lane.declare(each)


async def converge(lane: Lane, names: list[str]) -> None:
    for each in names:
        await lane.wait_for_outcome(each, "Converged")
    await lane.wait_until_idle()
    assert [await lane.effects(each) for each in names] == [["POST"]] * len(names)
    await lane.assert_sound()


async def test_3_a_repeatedly_killed_server_loses_no_acknowledged_message(
    lane: Lane, name: str
) -> None:
    declared: list[str] = []
    is_finished = asyncio.Event()

    async def declare_until_finished(writer: int) -> None:
        for number in itertools.count():
            if is_finished.is_set():
                return
            await lane.declare(f"{name}-{writer}-{number}")
            declared.append(f"{name}-{writer}-{number}")
            await asyncio.sleep(0.02)  # few enough to check each of them

    process = lane.fork()
    await process.wait_until_ready()
    writers = [asyncio.create_task(declare_until_finished(writer)) for writer in range(WRITERS)]
    for _ in range(KILLS):
        expected = len(declared) + WRITERS

        async def some_more_are_stored(expected: int = expected) -> bool:
            return len(declared) >= expected

        await lane.wait_until(some_more_are_stored, "more is declared")
        await lane.restart_server()
    is_finished.set()
    await asyncio.gather(*writers)
    await converge(lane, declared)
    await process.stop()


async def test_3_a_server_that_is_paused_longer_than_every_lease_resumes_where_it_stopped(
    lane: Lane, name: str
) -> None:
    names = [f"{name}-{number}" for number in range(COUNT)]
    processes = [lane.fork(), lane.fork()]
    for each in processes:
        await each.wait_until_ready()
    writing = asyncio.create_task(declare_slowly(lane, names))

    async def one_exists() -> bool:
        return bool(await lane.effects(names[0]))

    await lane.wait_until(one_exists, "the first exists")
    os.kill(lane.server.pid, signal.SIGSTOP)
    await asyncio.sleep(PAUSE_SECONDS)  # the fault itself: nothing responds
    os.kill(lane.server.pid, signal.SIGCONT)
    await writing
    await converge(lane, names)
    for each in processes:
        await each.stop()
