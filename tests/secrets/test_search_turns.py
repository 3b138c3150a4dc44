"""Searches for secrets alternate, so that no other search or work waits for a long one."""

from __future__ import annotations

import asyncio

from reconciler.roles.runtime.search_turns import TURN_BYTES, SearchTurns
from reconciler.secrecy import Search, Secrecy


async def test_a_short_search_waits_for_one_turn_of_each_long_one() -> None:
    turns = SearchTurns(Secrecy())
    pieces = 0

    def long_search() -> Search[None]:
        nonlocal pieces
        for _ in range(1_000):
            pieces += 1
            yield TURN_BYTES // 4

    def short_search() -> Search[str]:
        yield 1_000
        return "found"

    long_searches = [asyncio.create_task(turns.complete(long_search())) for _ in range(5)]
    await asyncio.sleep(0)
    pieces_before = pieces
    assert await turns.complete(short_search()) == "found"
    assert pieces - pieces_before <= 6 * 5
    for each in long_searches:
        each.cancel()
    await asyncio.wait(long_searches)


async def test_other_work_runs_between_the_turns_of_a_long_search() -> None:
    """One step for each turn is not enough: a declaration takes dozens of steps."""
    turns = SearchTurns(Secrecy())
    steps = 0

    async def declare() -> None:
        nonlocal steps
        for _ in range(100):
            steps += 1
            await asyncio.sleep(0)

    async def search() -> None:
        await turns.complete(iter_pieces())

    pieces = 0

    def iter_pieces() -> Search[None]:
        nonlocal pieces
        for _ in range(200):
            pieces += 1
            yield TURN_BYTES + 1

    search_task = asyncio.create_task(search())
    await asyncio.sleep(0)
    await declare()
    assert pieces <= 20
    search_task.cancel()
    await asyncio.wait([search_task])


async def test_small_objects_are_searched_without_a_pause() -> None:
    turns = SearchTurns(Secrecy("planted-token"))
    other_task = asyncio.create_task(asyncio.sleep(0))
    for _ in range(100):
        assert not await turns.complete(turns.secrecy.search("some text"))
    assert not other_task.done()
    await other_task


async def test_a_failed_or_canceled_search_does_not_keep_others_waiting() -> None:
    turns = SearchTurns(Secrecy())

    def fail() -> Search[None]:
        yield TURN_BYTES * 2
        raise ValueError("no text")

    def short() -> Search[str]:
        yield 1
        return "found"

    async with asyncio.timeout(10):
        first = asyncio.create_task(turns.complete(fail()))
        second = asyncio.create_task(turns.complete(fail()))
        await asyncio.sleep(0)
        second.cancel()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in results] == [ValueError, asyncio.CancelledError]
        assert await turns.complete(short()) == "found"
