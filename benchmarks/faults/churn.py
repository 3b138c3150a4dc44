"""SIGKILLs while objects are created and deleted; then a start with many that have converged."""

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
READS_AT_ONCE = 10


async def run_churn(folder: Path, *, shapes: int, kills: int) -> Row:
    """Create all, then delete all, while the one process of the product is killed at random."""
    names = [f"{PREFIX}{number}" for number in range(shapes)]
    chance = random.Random(shapes)
    async with Lane(folder).open() as lane:
        await lane.settle()
        killing = _Killing(lane, chance)
        seconds = [await killing.during(_declared(lane, names), kills // 2)]
        seconds.append(await killing.during(_withdrawn(lane, names), kills - kills // 2))
        findings = await check(lane.nc, lane.api.url, acknowledged=lane.acknowledged)
        effects = await lane.count_effects()
    return row(
        f"{shapes} created, then deleted, {kills} SIGKILLs",
        kills=killing.count,
        effects=effects,
        found=findings,
        seconds=seconds,
    )


class _Killing:
    """Kills the one process of the product again and again, and starts it anew."""

    def __init__(self, lane: Lane, chance: random.Random) -> None:
        self.count = 0
        self._lane = lane
        self._chance = chance

    async def during(self, work: asyncio.Future[None], kills: int) -> float:
        """Kill so often while the work is done; give the seconds from the last kill to its end."""
        process: RoleProcess = self._lane.fork()
        for _ in range(kills):
            await process.ready()
            await asyncio.sleep(self._chance.uniform(0.05, 0.4))
            await process.kill()
            self.count += 1
            process = self._lane.fork()
        began = time.perf_counter()
        await work
        await self._lane.until_at_rest()
        seconds = time.perf_counter() - began
        await process.stop()
        return seconds


def _declared(lane: Lane, names: list[str]) -> asyncio.Future[None]:
    async def work() -> None:
        await lane.declare_all(names)
        await _until_count(lane, len(names))

    return asyncio.ensure_future(work())


def _withdrawn(lane: Lane, names: list[str]) -> asyncio.Future[None]:
    async def work() -> None:
        await lane.declare_all(names, withdrawn=True)
        await _until_count(lane, 0)

    return asyncio.ensure_future(work())


async def _until_count(lane: Lane, expected: int) -> None:
    async def reached() -> bool:
        return await lane.count_objects() == expected

    await lane.until(reached, f"{expected} objects", seconds=300)


async def run_fleet(folder: Path, *, shapes: int) -> Fleet:
    """Kill the product with many converged resources, start it, and count what it asks of the API.

    The next listing after the start's is an hour away, so that each GET beyond the pages of that
    one listing is a read of a single resource.
    """
    names = [f"{PREFIX}{number}" for number in range(shapes)]
    async with Lane(folder).open() as lane:
        await ensure_topology(lane.nc)  # with the product's leases: much is leased at once here
        await lane.configure("default", PREFIX, resync_seconds=3_600)
        await lane.settle()
        first = lane.fork()
        await lane.declare_all(names)
        await _until_count(lane, shapes)
        await lane.until_at_rest()
        await first.kill()
        events = (await stream_state(lane.nc, LOG)).last_seq
        (await lane.http.delete("/_stats")).raise_for_status()
        began = time.perf_counter()
        second = lane.fork()
        await second.ready()
        pages = max(1, -(-shapes // PAGE))
        await lane.until(lambda: _has_listed(lane.http, pages), "the listing")
        await lane.until_at_rest()
        seconds = time.perf_counter() - began
        requests = (await lane.http.get("/_stats")).json()["requests"]
        gets = sum(requests.get("GET", {}).values())
        writes = sum(sum(requests.get(each, {}).values()) for each in ("POST", "PUT", "DELETE"))
        return Fleet(
            shapes=shapes,
            settle_seconds=round(seconds, 2),
            one_read_each_seconds=round(await _read_all_singly(lane.http, names), 2),
            resource_reads=gets - pages,
            listing_requests=pages,
            external_writes=writes,
            new_events=(await stream_state(lane.nc, LOG)).last_seq - events,
        )


async def _read_all_singly(http: httpx.AsyncClient, names: list[str]) -> float:
    """Read every resource alone, some at once, and give the seconds."""
    began = time.perf_counter()
    waiting = iter(names)

    async def read() -> None:
        for name in waiting:
            (await http.get(f"/shapes/{name}")).raise_for_status()

    await asyncio.gather(*(read() for _ in range(READS_AT_ONCE)))
    return time.perf_counter() - began


async def _has_listed(http: httpx.AsyncClient, pages: int) -> bool:
    requests = (await http.get("/_stats")).json()["requests"]
    return sum(requests.get("GET", {}).values()) >= pages
