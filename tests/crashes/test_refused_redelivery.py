"""A worker dies or stops at its call; the same attempt is delivered again and refused.

Then a newer generation is declared. The log must not claim that nothing was done (scenario 31,
invariant 13, fault 26): a lookup comes first. The late effect of a worker that resumes is in the
history, and corrected.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import pytest
import pytest_asyncio

from events.log import (
    ActionDecided,
    ActionFailed,
    ActionSucceeded,
    DriftDetected,
    Operation,
    ResourceEvent,
)
from reconciler.failpoints import Failpoint
from tests.crashes.cases import OPERATIONS
from tests.crashes.lane import Lane
from tests.crashes.role_process import RoleProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

_METHODS: dict[Operation, str] = {"Create": "POST", "Update": "PUT", "Delete": "DELETE"}


@dataclass(frozen=True)
class Case:
    """What becomes of the first worker, and how the second one is refused."""

    operation: Operation
    first: Literal["killed after its call", "stands still before its call"]
    status: Literal[503, 429]

    def __str__(self) -> str:
        return f"{self.operation}, first worker {self.first}, then {self.status}"


CASES = [
    Case(operation, first, status)
    for operation, first, status in itertools.product(
        OPERATIONS, ("killed after its call", "stands still before its call"), (503, 429)
    )
]


@pytest_asyncio.fixture(loop_scope="module")
async def mended(lane: Lane) -> AsyncIterator[Lane]:
    """The lane, with nothing left of a case that failed."""
    yield lane
    await lane.kill_processes()
    await lane.mend()


async def declare_operation(lane: Lane, name: str, operation: Operation) -> int:
    """Ask for an operation, while no process runs; gives its generation."""
    if operation == "Create":
        await lane.declare(name, "Red")
        return 1
    await lane.declare(name, "Red")
    process = lane.fork()
    await lane.until_outcome(name, "Converged")
    await lane.until_at_rest()
    await process.stop()
    if operation == "Update":
        await lane.declare(name, "Purple")
    else:
        await lane.withdraw(name)
    return 2


async def start_first_worker(lane: Lane, case: Case) -> RoleProcess:
    """The first worker has the attempt, and does not report."""
    if case.first == "killed after its call":
        dead = lane.fork(Failpoint.WORKER_CALLED)
        await dead.killed_at(Failpoint.WORKER_CALLED)
        return dead
    still = lane.fork(f"{Failpoint.WORKER_BEFORE_CALL}=stop")
    await still.paused_at(Failpoint.WORKER_BEFORE_CALL)
    return still


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_scenario_31_a_refused_redelivery_is_not_taken_for_nothing_done(
    mended: Lane, name: str, case: Case
) -> None:
    lane = mended
    generation = await declare_operation(lane, name, case.operation)
    first = await start_first_worker(lane, case)
    effects = await lane.effects(name)
    was_done = case.first == "killed after its call"
    assert (effects[-1:] == [_METHODS[case.operation]]) is was_done or case.operation == "Create"

    await refuse_next_call(lane, name, case.status)
    await lane.declare(name, "Blue")  # it is there before the refusal: the action is outdated then
    other_process = lane.fork()
    await lane.until_outcome(name, "Converged", generation + 1)
    await until_painted(lane, name, "Blue")

    if not was_done:
        # Only the resumed worker is left, so it must correct its own late effect.
        count_before = len(await lane.effects(name))
        await lane.until_at_rest()
        await other_process.stop()
        first.resume()
        await lane.declare(name, "Green")
        await lane.until_outcome(name, "Converged", generation + 2)
        await until_painted(lane, name, "Green")
        assert len(await lane.effects(name)) > count_before
    await lane.until_at_rest()
    await lane.assert_sound()
    events = [each.data for each in await lane.history(name)]
    assert first_failure(events, case.operation).redelivered
    assert not [each for each in events if isinstance(each, DriftDetected)], "nobody else did it"
    if was_done and case.operation != "Create":
        assert is_recorded_as_done(events, case.operation)


async def refuse_next_call(lane: Lane, name: str, status: int) -> None:
    """The API refuses the next call for an object, and nothing after it."""
    if status == 429:
        await lane.break_api(throttle_rate=1, remaining=1, name_prefix=name)
    else:
        await lane.break_api(error_rate=1, error_status=status, remaining=1, name_prefix=name)


async def until_painted(lane: Lane, name: str, color: str) -> None:
    async def is_painted() -> bool:
        response = await lane.http.get(f"/shapes/{name}")
        return response.status_code == 200 and response.json()["color"] == color

    await lane.until(is_painted, f"{name} is {color}")


def first_failure(events: list[ResourceEvent], operation: Operation) -> ActionFailed:
    return next(
        each for each in events if isinstance(each, ActionFailed) and each.operation == operation
    )


def is_recorded_as_done(events: list[ResourceEvent], operation: Operation) -> bool:
    """Tell whether the first action of that operation is known to have been done."""
    decided = next(
        each.action
        for each in events
        if isinstance(each, ActionDecided) and each.action.operation == operation
    )
    return any(
        isinstance(each, ActionSucceeded) and each.action_id == decided.action_id for each in events
    )
