"""A worker dies or stops at its call; the same attempt is delivered again and refused.

Then a newer generation is declared. The log must not claim that nothing was done (scenario 31,
invariant 13, fault 26): a lookup comes first. The late effect of a worker that resumes is recorded
in the history, and corrected.
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
    """What happens to the first worker, and how the API refuses the second."""

    operation: Operation
    first: Literal["killed after its call", "paused before its call"]
    status: Literal[503, 429]

    def __str__(self) -> str:
        return f"{self.operation}, first worker {self.first}, then {self.status}"


CASES = [
    Case(operation, first, status)
    for operation, first, status in itertools.product(
        OPERATIONS, ("killed after its call", "paused before its call"), (503, 429)
    )
]


@pytest_asyncio.fixture(loop_scope="module")
async def repaired_lane(lane: Lane) -> AsyncIterator[Lane]:
    """Yield the lane, and repair it after a failed case."""
    yield lane
    await lane.kill_processes()
    await lane.repair()


async def declare_operation(lane: Lane, name: str, operation: Operation) -> int:
    """Request an operation while no process is running, and return its generation."""
    if operation == "Create":
        await lane.declare(name, "Red")
        return 1
    await lane.declare(name, "Red")
    process = lane.fork()
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    await process.stop()
    if operation == "Update":
        await lane.declare(name, "Purple")
    else:
        await lane.withdraw(name)
    return 2


async def start_first_worker(lane: Lane, case: Case) -> RoleProcess:
    """Start a worker that receives the attempt, but does not report."""
    if case.first == "killed after its call":
        killed_worker = lane.fork(Failpoint.WORKER_CALLED)
        await killed_worker.wait_until_killed_at(Failpoint.WORKER_CALLED)
        return killed_worker
    paused_worker = lane.fork(f"{Failpoint.WORKER_BEFORE_CALL}=stop")
    await paused_worker.wait_until_paused_at(Failpoint.WORKER_BEFORE_CALL)
    return paused_worker


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_scenario_31_a_refused_redelivery_does_not_prove_that_nothing_was_done(
    repaired_lane: Lane, name: str, case: Case
) -> None:
    lane = repaired_lane
    generation = await declare_operation(lane, name, case.operation)
    first = await start_first_worker(lane, case)
    effects = await lane.effects(name)
    was_done = case.first == "killed after its call"
    assert (effects[-1:] == [_METHODS[case.operation]]) is was_done or case.operation == "Create"

    await refuse_next_call(lane, name, case.status)
    await lane.declare(name, "Blue")  # before the refusal, so the action is outdated
    other_process = lane.fork()
    await lane.wait_for_outcome(name, "Converged", generation + 1)
    await wait_until_colored(lane, name, "Blue")

    if not was_done:
        # Only the resumed worker is left, so it must correct its own late effect.
        count_before = len(await lane.effects(name))
        await lane.wait_until_idle()
        await other_process.stop()
        first.resume()
        await lane.declare(name, "Green")
        await lane.wait_for_outcome(name, "Converged", generation + 2)
        await wait_until_colored(lane, name, "Green")
        assert len(await lane.effects(name)) > count_before
    await lane.wait_until_idle()
    await lane.assert_sound()
    events = [each.data for each in await lane.history(name)]
    assert first_failure(events, case.operation).redelivered
    assert not [each for each in events if isinstance(each, DriftDetected)], (
        "no other client changed the object"
    )
    if was_done and case.operation != "Create":
        assert is_recorded_as_done(events, case.operation)


async def refuse_next_call(lane: Lane, name: str, status: int) -> None:
    """Make the API refuse only the next call for an object."""
    if status == 429:
        await lane.break_api(throttle_rate=1, remaining=1, name_prefix=name)
    else:
        await lane.break_api(error_rate=1, error_status=status, remaining=1, name_prefix=name)


async def wait_until_colored(lane: Lane, name: str, color: str) -> None:
    async def is_painted() -> bool:
        response = await lane.http.get(f"/shapes/{name}")
        return response.status_code == 200 and response.json()["color"] == color

    await lane.wait_until(is_painted, f"{name} is {color}")


def first_failure(events: list[ResourceEvent], operation: Operation) -> ActionFailed:
    return next(
        each for each in events if isinstance(each, ActionFailed) and each.operation == operation
    )


def is_recorded_as_done(events: list[ResourceEvent], operation: Operation) -> bool:
    """Return whether the log records the first action of that operation as succeeded."""
    decided = next(
        each.action
        for each in events
        if isinstance(each, ActionDecided) and each.action.operation == operation
    )
    return any(
        isinstance(each, ActionSucceeded) and each.action_id == decided.action_id for each in events
    )
