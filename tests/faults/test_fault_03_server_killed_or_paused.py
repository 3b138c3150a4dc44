"""Fault 3: nats-server is killed, or paused, while much is under way.

The pause is of 5 seconds, not of 30: longer than every lease and pin here, and shorter than the
time after which a client gives a silent connection up, so that both ends believe in it all along.
``python -m tests.crashes.soak`` has both, for as long as one likes.
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
        await lane.until_outcome(each, "Converged")
    await lane.until_at_rest()
    assert [await lane.effects(each) for each in names] == [["POST"]] * len(names)
    await lane.assert_sound()


async def test_3_a_server_killed_again_and_again_loses_nothing_that_it_acknowledged(
    lane: Lane, name: str
) -> None:
    declared: list[str] = []
    is_over = asyncio.Event()

    async def declare_until_over(writer: int) -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            await lane.declare(f"{name}-{writer}-{number}")
            declared.append(f"{name}-{writer}-{number}")
            await asyncio.sleep(0.02)  # not more in all than can be looked at one by one

    process = lane.fork()
    await process.ready()
    writers = [asyncio.create_task(declare_until_over(writer)) for writer in range(WRITERS)]
    for _ in range(KILLS):
        expected = len(declared) + WRITERS

        async def some_more_are_stored(expected: int = expected) -> bool:
            return len(declared) >= expected

        await lane.until(some_more_are_stored, "more is declared")
        await lane.restart_server()
    is_over.set()
    await asyncio.gather(*writers)
    await converge(lane, declared)
    await process.stop()


async def test_3_a_server_that_is_paused_longer_than_every_lease_resumes_where_it_was(
    lane: Lane, name: str
) -> None:
    names = [f"{name}-{number}" for number in range(COUNT)]
    processes = [lane.fork(), lane.fork()]
    for each in processes:
        await each.ready()
    writing = asyncio.create_task(declare_slowly(lane, names))

    async def one_exists() -> bool:
        return bool(await lane.effects(names[0]))

    await lane.until(one_exists, "the first exists")
    os.kill(lane.server.pid, signal.SIGSTOP)
    await asyncio.sleep(PAUSE_SECONDS)  # the fault itself: so long nothing answers
    os.kill(lane.server.pid, signal.SIGCONT)
    await writing
    await converge(lane, names)
    for each in processes:
        await each.stop()
