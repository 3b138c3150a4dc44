"""Runs cases of the matrix: something happens at a step, and the end is the same as without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.crashes.cases import Case, Trouble
from tests.crashes.lane import Lane
from tests.crashes.role_process import RoleProcess
from tests.crashes.rows import story_of
from tests.crashes.story import Story

LANES = 4
"""So many cases at once: most of a case is waiting for leases of the dead to run out."""


# --- what happens


async def _process_killed(story: Story) -> None:
    lane, point = story.lane, story.case.point
    dying = lane.fork(_armed(story.case))
    await dying.killed_at(point)
    await lane.break_api()
    await _finish(story, lane.fork())


async def _server_killed(story: Story) -> None:
    lane, case = story.lane, story.case
    process = lane.fork(_armed(case, f"=kill:{lane.server.pid}"))
    await process.reached(case.point)
    await lane.restart_server()
    await _finish(story, process)


async def _api_killed(story: Story) -> None:
    lane, case = story.lane, story.case
    process = lane.fork(_armed(case, f"=kill:{lane.api.pid}"))
    await process.reached(case.point)
    await lane.restart_api()
    await _finish(story, process)


async def _process_paused(story: Story) -> None:
    """Another one takes over and finishes; the paused one wakes, and must find out."""
    lane, case = story.lane, story.case
    paused = lane.fork(_armed(case, "=stop"))
    await paused.paused_at(case.point)
    other_process = lane.fork()
    await story.wait_until_done()
    await story.assert_done_once()
    paused.resume()
    await other_process.stop()
    await lane.declare(story.name, "Blue")  # only the one that was paused is there to decide it
    await lane.until_outcome(story.name, "Converged", story.generation + 1)
    await lane.until_at_rest()
    await lane.assert_sound()
    await paused.stop()


async def _finish(story: Story, process: RoleProcess) -> None:
    await story.wait_until_done()
    await story.assert_done_once()
    await process.stop()


def _armed(case: Case, action: str = "") -> str:
    return f"{case.point}:{case.arrival}{action}"


_TROUBLES: dict[Trouble, Callable[[Story], Awaitable[None]]] = {
    "process killed": _process_killed,
    "server killed": _server_killed,
    "API killed": _api_killed,
    "process paused": _process_paused,
}


# --- many cases


class Matrix:
    """Runs all cases on a few lanes at once; each case's result can be asked for."""

    def __init__(
        self,
        folder: Path,
        cases: Sequence[Case],
        *,
        make_lane: Callable[[Path], Lane] = Lane,
        make_story: Callable[[Lane, Case, int], Story] = story_of,
    ) -> None:
        self._make_lane = make_lane
        self._make_story = make_story
        loop = asyncio.get_running_loop()
        self._results = {case: loop.create_future() for case in cases}
        lanes = min(LANES, len(cases))
        self._tasks = [
            asyncio.create_task(self._run_lane(folder / f"lane-{number}", cases[number::lanes]))
            for number in range(lanes)
        ]

    async def result(self, case: Case) -> None:
        """Wait for a case; raises what went wrong with it."""
        await self._results[case]

    async def close(self) -> None:
        """Stop what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run_lane(self, folder: Path, cases: Sequence[Case]) -> None:
        try:
            async with self._make_lane(folder).open() as lane:
                stories = [
                    self._make_story(lane, case, number) for number, case in enumerate(cases)
                ]
                await prepare(lane, stories)
                for story in stories:
                    await self._run(story)
        except Exception as error:  # noqa: BLE001 - told by each case that it keeps from running
            for case in cases:
                if not self._results[case].done():
                    self._results[case].set_exception(error)

    async def _run(self, story: Story) -> None:
        result = self._results[story.case]
        try:
            await run_story(story)
        except (Exception, AssertionError) as error:  # noqa: BLE001 - told by the case's own test
            result.set_exception(error)
            await story.lane.kill_processes()
            await story.lane.mend()
        else:
            result.set_result(None)


async def prepare(lane: Lane, stories: Sequence[Story]) -> None:
    """Make everything that must be there before, once for all cases of a lane."""
    for story in stories:
        await story.declare_existing()
    process = lane.fork()
    for story in stories:
        await story.until_there()
    await lane.until_at_rest()
    await process.stop()


async def run_story(story: Story) -> None:
    """Run one case, prepared before."""
    await story.begin()
    if story.case.lost_reply:
        await story.lane.break_api(lost_reply_rate=1, remaining=1, methods=story.lost_methods)
    await story.cause()
    await _TROUBLES[story.case.trouble](story)
