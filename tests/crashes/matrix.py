"""Runs cases of the matrix: something happens at a step, and the end is the same as without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from events.log import ActionDecided, ActionSucceeded, Operation
from reconciler.failpoints import Failpoint
from tests.crashes.cases import Case, Trouble
from tests.crashes.lane import PREFIX, Lane, config_key
from tests.crashes.role_process import RoleProcess

LANES = 4
"""So many cases at once: most of a case is waiting for leases of the dead to run out."""

_BY_OBSERVATION = (
    Failpoint.OBSERVER_LISTED,
    Failpoint.OBSERVER_PUBLISHED,
    Failpoint.DECIDER_BATCH_HALF_SENT,  # what a look leads to is a turn of several events
)
_BY_SWEEP = (Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE)
_METHODS: dict[Operation, str] = {"Create": "POST", "Update": "PUT", "Delete": "DELETE"}


class Story:
    """One case on its lane: what is there before, what is asked for, and how it must end."""

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        self.lane = lane
        self.case = case
        late = case.point in _BY_SWEEP
        self.config = f"late-{number}" if late else "default"
        self.name = f"{self.config if late else PREFIX + 'foo'}-{number}"
        self.outcome = "Deleted" if case.operation == "Delete" else "Converged"
        self.generation = 1 if case.operation == "Create" else 2
        self._policy: dict[str, object] = {}
        if late:
            self._policy["providerConfigRef"] = {"name": self.config}
        if case.point in _BY_OBSERVATION:
            self.generation = 1
            if case.operation == "Delete":
                self.outcome = "Converged"
                self._policy["policy"] = {"mode": "Absent", "adoption": "Adopt"}

    # --- before

    async def declare_what_is_there(self) -> None:
        """Ask for what must be there before the case begins."""
        if self.case.point in _BY_SWEEP:
            await self.lane.configure(self.config, self.config)
        if self.case.operation != "Create" or self.case.point in _BY_OBSERVATION:
            await self.lane.declare(self.name, "Red", **self._policy)

    async def until_there(self) -> None:
        """Wait for that; a process runs."""
        if self.case.operation != "Create" or self.case.point in _BY_OBSERVATION:
            await self.lane.until_outcome(self.name, "Converged")
        if self.case.point in _BY_SWEEP:
            await self.lane.withdraw_config(self.config)
            # The two are of different partitions: asked before it is withdrawn, it would be done.
            await self.lane.until_outcome(config_key(self.config), "Deleted")
            await self.ask()
            await self.lane.until_outcome(self.name, "Held", self.generation)

    # --- the operation

    async def ask(self) -> None:
        """Ask for the operation."""
        if self.case.operation == "Delete":
            await self.lane.withdraw(self.name)
        else:
            await self.lane.declare(self.name, "Purple", **self._policy)

    async def cause(self) -> None:
        """Do what leads to the operation, while no process runs."""
        lane, name = self.lane, self.name
        if self.case.point in _BY_SWEEP:
            await lane.configure(self.config, self.config)
        elif self.case.point not in _BY_OBSERVATION:
            await self.ask()
        elif self.case.operation == "Create":
            await lane.delete_by_hand(name)
        elif self.case.operation == "Update":
            await lane.paint_by_hand(name, "Green")
        else:
            await lane.make_by_hand(name)

    # --- the end

    async def until_done(self) -> None:
        """Wait until it is as it was asked for."""
        wanted = [_METHODS[self.case.operation]]

        async def has_happened() -> bool:
            return (await self.new_effects())[-1:] == wanted

        await self.lane.until(has_happened, f"{wanted} of {self.name}")
        await self.lane.until_outcome(self.name, self.outcome, self.generation)
        await self.lane.until_at_rest()

    async def begin(self) -> None:
        """Remember what happened until now."""
        self._before = len(await self.lane.effects(self.name))
        self._events_before = len(await self.lane.history(self.name))

    async def new_effects(self) -> list[str]:
        """What the product has done to the object since then."""
        effects = (await self.lane.effects(self.name))[self._before :]
        return [each for each in effects if not each.startswith("human ")]

    async def assert_done_once(self) -> None:
        """See that there was one effect, and that the log tells one action and one end of it."""
        operation = self.case.operation
        assert await self.new_effects() == [_METHODS[operation]]
        news = [each.data for each in (await self.lane.history(self.name))[self._events_before :]]
        decided = [each.action for each in news if isinstance(each, ActionDecided)]
        succeeded = [each for each in news if isinstance(each, ActionSucceeded)]
        assert [each.operation for each in decided] == [operation]
        # A dead decider held the first report, so that of the second worker may overtake it.
        late = [each for each in succeeded if each.late]
        succeeded = [each for each in succeeded if not each.late]
        assert [each.action_id for each in succeeded] == [decided[0].action_id]
        assert all(each.outdated for each in late), "what is told late explains, and no more"
        if self._must_be_a_repeat():
            assert succeeded[0].replayed or operation == "Delete", "the first answer came again"
        await self.lane.assert_sound()

    def _must_be_a_repeat(self) -> bool:
        """The call had its effect, and its answer died with the process or on its way."""
        case = self.case
        killed = case.trouble == "process killed"
        return case.point is Failpoint.WORKER_CALLED and (killed or case.lost_reply)


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
    other = lane.fork()
    await story.until_done()
    await story.assert_done_once()
    paused.resume()
    await other.stop()
    await lane.declare(story.name, "Blue")  # only the one that was paused is there to decide it
    await lane.until_outcome(story.name, "Converged", story.generation + 1)
    await lane.until_at_rest()
    await lane.assert_sound()
    await paused.stop()


async def _finish(story: Story, process: RoleProcess) -> None:
    await story.until_done()
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

    def __init__(self, folder: Path, cases: Sequence[Case]) -> None:
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
            async with Lane(folder).here() as lane:
                stories = [Story(lane, case, number) for number, case in enumerate(cases)]
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
        await story.declare_what_is_there()
    process = lane.fork()
    for story in stories:
        await story.until_there()
    await lane.until_at_rest()
    await process.stop()


async def run_story(story: Story) -> None:
    """Run one case, prepared before."""
    await story.begin()
    if story.case.lost_reply:
        await story.lane.break_api(
            lost_reply_rate=1, remaining=1, methods=["POST", "PUT", "DELETE"]
        )
    await story.cause()
    await _TROUBLES[story.case.trouble](story)
