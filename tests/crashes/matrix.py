"""Runs cases of the matrix: a fault at a step must not change the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.crashes.cases import Case, Fault
from tests.crashes.lane import Lane
from tests.crashes.role_process import RoleProcess
from tests.crashes.rows import create_story
from tests.crashes.story import Story

LANES = 4
"""Number of concurrent cases; a case mostly waits for the leases of a dead process to expire."""


# --- faults


async def _kill_process_at_step(story: Story) -> None:
    lane, point = story.lane, story.case.point
    dying = lane.fork(_failpoint(story.case))
    await dying.wait_until_killed_at(point)
    await lane.break_api()
    await _finish(story, lane.fork())


async def _kill_server_at_step(story: Story) -> None:
    lane, case = story.lane, story.case
    process = lane.fork(_failpoint(case, f"=kill:{lane.server.pid}"))
    await process.wait_until_reached(case.point)
    await lane.restart_server()
    await _finish(story, process)


async def _kill_api_at_step(story: Story) -> None:
    lane, case = story.lane, story.case
    process = lane.fork(_failpoint(case, f"=kill:{lane.api.pid}"))
    await process.wait_until_reached(case.point)
    await lane.restart_api()
    await _finish(story, process)


async def _pause_process_at_step(story: Story) -> None:
    """Another process finishes the work; the resumed one must detect that."""
    lane, case = story.lane, story.case
    paused = lane.fork(_failpoint(case, "=stop"))
    await paused.wait_until_paused_at(case.point)
    other_process = lane.fork()
    await story.wait_until_done()
    await story.assert_done_once()
    paused.resume()
    await other_process.stop()
    await lane.declare(story.name, "Blue")  # only the resumed process is left to decide this
    await lane.wait_for_outcome(story.name, "Converged", story.generation + 1)
    await lane.wait_until_idle()
    await lane.assert_sound()
    await paused.stop()


async def _finish(story: Story, process: RoleProcess) -> None:
    await story.wait_until_done()
    await story.assert_done_once()
    await process.stop()


def _failpoint(case: Case, action: str = "") -> str:
    return f"{case.point}:{case.arrival}{action}"


_INJECTORS: dict[Fault, Callable[[Story], Awaitable[None]]] = {
    "process killed": _kill_process_at_step,
    "server killed": _kill_server_at_step,
    "API killed": _kill_api_at_step,
    "process paused": _pause_process_at_step,
}


# --- all cases


class Matrix:
    """Runs all cases on several concurrent lanes, and provides the result of each."""

    def __init__(
        self,
        folder: Path,
        cases: Sequence[Case],
        *,
        make_lane: Callable[[Path], Lane] = Lane,
        make_story: Callable[[Lane, Case, int], Story] = create_story,
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
        """Wait for a case; raises its error if it failed."""
        await self._results[case]

    async def close(self) -> None:
        """Stop the cases that are still running."""
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
        except Exception as error:  # noqa: BLE001 - each case that cannot run reports it
            for case in cases:
                if not self._results[case].done():
                    self._results[case].set_exception(error)

    async def _run(self, story: Story) -> None:
        result = self._results[story.case]
        try:
            await run_story(story)
        except (Exception, AssertionError) as error:  # noqa: BLE001 - the case's own test reports it
            result.set_exception(error)
            await story.lane.kill_processes()
            await story.lane.repair()
        else:
            result.set_result(None)


async def prepare(lane: Lane, stories: Sequence[Story]) -> None:
    """Create the initial state of all cases of a lane."""
    for story in stories:
        await story.declare_existing()
    process = lane.fork()
    for story in stories:
        await story.wait_until_prepared()
    await lane.wait_until_idle()
    await process.stop()


async def run_story(story: Story) -> None:
    """Run one prepared case."""
    await story.record_baseline()
    if story.case.lost_reply:
        await story.lane.break_api(lost_reply_rate=1, remaining=1, methods=story.lost_methods)
    await story.trigger()
    await _INJECTORS[story.case.fault](story)
