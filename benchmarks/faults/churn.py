"""SIGKILLs during creation and deletion, then a restart with many converged objects."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import httpx

from benchmarks.faults.results import Fleet, Row, row
from infra.bus.streams import LOG, ensure_topology
from infra.jetstream.reads import stream_state
from tests.crashes.lane import PREFIX, Lane
from tests.crashes.role_process import RoleProcess
from tests.judge.from_bus import check

PAGE = 1_000
CONCURRENT_READS = 10


async def run_churn(folder: Path, *, shapes: int, kills: int) -> Row:
    """Create all objects, then delete them, and kill the product's only process at random."""
    names = [f"{PREFIX}{number}" for number in range(shapes)]
    rng = random.Random(shapes)
    async with Lane(folder).open() as lane:
        await lane.settle()
        killer = _Killer(lane, rng)
        seconds = [await killer.kill_during(_declare(lane, names), kills // 2)]
        seconds.append(await killer.kill_during(_withdraw(lane, names), kills - kills // 2))
        findings = await check(lane.nc, lane.api.url, acknowledged=lane.acknowledged)
        effects = await lane.count_effects()
    return row(
        f"{shapes} created, then deleted, {kills} SIGKILLs",
        kills=killer.count,
        effects=effects,
        findings=findings,
        seconds=seconds,
    )


class _Killer:
    """Repeatedly kills and restarts the product's only process."""

    def __init__(self, lane: Lane, rng: random.Random) -> None:
        self.count = 0
        self._lane = lane
        self._random = rng

    async def kill_during(self, work: asyncio.Future[None], kills: int) -> float:
        """Kill the process during the work; return the seconds from the last kill to the end."""
        process: RoleProcess = self._lane.fork()
        for _ in range(kills):
            await process.wait_until_ready()
            await asyncio.sleep(self._random.uniform(0.05, 0.4))
            await process.kill()
            self.count += 1
            process = self._lane.fork()
        began = time.perf_counter()
        await work
        await self._lane.wait_until_idle()
        seconds = time.perf_counter() - began
        await process.stop()
        return seconds


def _declare(lane: Lane, names: list[str]) -> asyncio.Future[None]:
    async def work() -> None:
        await lane.declare_all(names)
        await _wait_for_count(lane, len(names))

    return asyncio.ensure_future(work())


def _withdraw(lane: Lane, names: list[str]) -> asyncio.Future[None]:
    async def work() -> None:
        await lane.declare_all(names, withdrawn=True)
        await _wait_for_count(lane, 0)

    return asyncio.ensure_future(work())


async def _wait_for_count(lane: Lane, expected: int) -> None:
    async def is_reached() -> bool:
        return await lane.count_objects() == expected

    await lane.wait_until(is_reached, f"{expected} objects", seconds=300)


async def run_fleet(folder: Path, *, shapes: int) -> Fleet:
    """Kill the product when many resources have converged, restart it, and count its API requests.

    The listing after the one at startup is an hour away, so each GET beyond the pages of the first
    one reads an individual resource.
    """
    names = [f"{PREFIX}{number}" for number in range(shapes)]
    async with Lane(folder).open() as lane:
        # Restore the product's leases, because many messages are leased at the same time here.
        await ensure_topology(lane.nc)
        await lane.configure("default", PREFIX, resync_seconds=3_600)
        await lane.settle()
        first = lane.fork()
        await lane.declare_all(names)
        await _wait_for_count(lane, shapes)
        await lane.wait_until_idle()
        await first.kill()
        events = (await stream_state(lane.nc, LOG)).last_seq
        (await lane.http.delete("/_stats")).raise_for_status()
        began = time.perf_counter()
        second = lane.fork()
        await second.wait_until_ready()
        pages = max(1, -(-shapes // PAGE))
        await lane.wait_until(lambda: _has_listed(lane.http, pages), "the listing")
        await lane.wait_until_idle()
        seconds = time.perf_counter() - began
        requests = (await lane.http.get("/_stats")).json()["requests"]
        gets = sum(requests.get("GET", {}).values())
        writes = sum(sum(requests.get(each, {}).values()) for each in ("POST", "PUT", "DELETE"))
        return Fleet(
            shapes=shapes,
            settle_seconds=round(seconds, 2),
            individual_reads_seconds=round(await _read_individually(lane.http, names), 2),
            resource_reads=gets - pages,
            listing_requests=pages,
            external_writes=writes,
            new_events=(await stream_state(lane.nc, LOG)).last_seq - events,
        )


async def _read_individually(http: httpx.AsyncClient, names: list[str]) -> float:
    """Read every resource individually, several concurrently, and return the seconds taken."""
    began = time.perf_counter()
    waiting = iter(names)

    async def read() -> None:
        for name in waiting:
            (await http.get(f"/shapes/{name}")).raise_for_status()

    await asyncio.gather(*(read() for _ in range(CONCURRENT_READS)))
    return time.perf_counter() - began


async def _has_listed(http: httpx.AsyncClient, pages: int) -> bool:
    requests = (await http.get("/_stats")).json()["requests"]
    return sum(requests.get("GET", {}).values()) >= pages
