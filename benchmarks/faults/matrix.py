"""Measures the same work with each fault at several steps, and without a fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.results import Row, row
from reconciler.failpoints import Failpoint
from tests.crashes.cases import OPERATIONS, Case, Fault
from tests.crashes.lane import Lane
from tests.crashes.matrix import Story, prepare
from tests.crashes.role_process import RoleProcess
from tests.judge.from_bus import check

NO_FAULT = "none (baseline)"
STEPS = (
    Failpoint.DECIDER_TOOK,
    Failpoint.DECIDER_BETWEEN_EVENTS,
    Failpoint.DECIDER_APPENDED,
    Failpoint.WORKER_BEFORE_CALL,
    Failpoint.WORKER_CALLED,
    Failpoint.WORKER_REPORTED,
)
_FAULTS: tuple[Fault | None, ...] = (
    None,
    "process killed",
    "server killed",
    "API killed",
    "process paused",
)


async def run_matrix(folder: Path, *, advance: Callable[[int], None]) -> list[Row]:
    """Run every fault at every step with every operation, one after another, on one bus.

    ``advance`` is called after each case with the total number of cases.
    """
    cases: list[tuple[Fault | None, Case]] = [
        (fault, Case(_fault_of_case(fault), step, operation))
        for fault in _FAULTS
        for step in STEPS
        for operation in OPERATIONS
    ]
    times: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    async with Lane(folder).open() as lane:
        stories = [Story(lane, case, number) for number, (_, case) in enumerate(cases)]
        await prepare(lane, stories)
        for (fault, _case), story in zip(cases, stories, strict=True):
            name = fault or NO_FAULT
            await story.record_baseline()
            await story.trigger()
            times.setdefault(name, []).append(await _measure_recovery(story, fault))
            counts[name] = counts.get(name, 0) + len(await story.new_effects())
            await lane.kill_processes()
            advance(len(cases))
        findings = await check(lane.nc, lane.api.url, acknowledged=lane.acknowledged)
    by_name = {
        story.name: fault or NO_FAULT for (fault, _), story in zip(cases, stories, strict=True)
    }
    return [
        row(
            name,
            kills=0 if name == NO_FAULT else len(seconds),
            effects=counts[name],
            findings=[
                each for each in findings if by_name.get(each.subject.split("/")[-1]) == name
            ],
            seconds=seconds,
        )
        for name, seconds in times.items()
    ]


def _fault_of_case(fault: Fault | None) -> Fault:
    return "process killed" if fault is None else fault


async def _measure_recovery(story: Story, fault: Fault | None) -> float:
    """Cause the fault, and return the seconds until the resource is in its declared state."""
    lane, point = story.lane, story.case.point
    began = time.perf_counter()
    match fault:
        case None:
            lane.fork()
        case "process killed":
            await lane.fork(point).wait_until_killed_at(point)
            began = time.perf_counter()
            lane.fork()
        case "process paused":
            process = lane.fork(f"{point}=stop")
            await process.wait_until_paused_at(point)
            began = time.perf_counter()
            lane.fork()
        case _:
            await _kill_server(lane, point, fault)
            began = time.perf_counter()
            await (lane.restart_server() if fault == "server killed" else lane.restart_api())
    await story.wait_until_done()
    return time.perf_counter() - began


async def _kill_server(lane: Lane, point: Failpoint, fault: Fault) -> RoleProcess:
    pid = lane.server.pid if fault == "server killed" else lane.api.pid
    process = lane.fork(f"{point}=kill:{pid}")
    await process.wait_until_reached(point)
    return process
