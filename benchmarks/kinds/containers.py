"""The cost of creating, repairing, changing and listing containers, compared with direct calls."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.kinds.systems import (
    CONCURRENCY,
    REST_SECONDS,
    Systems,
    manifest,
    wait_until,
)
from events.manifest import Manifest
from events.names import ResourceKey

COMMAND = ["/bin/sleep", "1000000"]
SMALL, LARGE = 64 << 20, 128 << 20
_CONFIG = "bench"
_PREFIX = "bench-"
_LISTED = "listed-"


class Creation(msgspec.Struct, frozen=True):
    """Times to start and to remove all containers, with one method."""

    method: str
    created_seconds: float
    removed_seconds: float
    cpu_seconds: dict[str, float]


class Repair(msgspec.Struct, frozen=True):
    """Time to repair an out-of-band change, and Docker's own time for the repair; medians."""

    disruption: str
    repaired_seconds: float
    docker_seconds: float


class Listing(msgspec.Struct, frozen=True):
    """The cost of one listing; the times are from dockerd's log."""

    method: str
    seconds: float
    cpu_seconds: dict[str, float]


def _container(systems: Systems, name: str, config: str = _CONFIG, **more: object) -> Manifest:
    spec = {"image": systems.image, "command": COMMAND, "stopSeconds": 0, **more}
    return manifest("docker/v1", "Container", name, config, **spec)


def _body(systems: Systems, **limits: int) -> dict[str, object]:
    return {"Image": systems.image, "Cmd": COMMAND, "StopTimeout": 0, "HostConfig": limits}


# --- many containers


async def measure_creation(systems: Systems, count: int, rounds: int) -> list[Creation]:
    """Create and remove the same containers with each method in turn; return the medians."""
    await systems.configure(_CONFIG, "docker", _PREFIX)
    methods: dict[str, Callable[[int, int], Awaitable[tuple[float, float]]]] = {
        "reconciler": lambda count, number: _by_reconciler(systems, count, number),
        f"the Engine, called directly, {CONCURRENCY} at the same time": lambda count, _: _directly(
            systems, count
        ),
    }
    if (compose := _compose_command()) is not None:
        methods["docker compose up, down"] = lambda count, _: _by_compose(systems, compose, count)
    measurements: dict[str, list[Creation]] = {name: [] for name in methods}
    for number in range(rounds + 1):  # the first round is a warm-up
        for name, run_method in methods.items():
            cpu_before, children = systems.cpu(), _cpu_of_children()
            creation_seconds, removed = await run_method(count if number else 2, number)
            used = _difference(systems.cpu(), cpu_before)
            used["compose"] = round(_cpu_of_children() - children, 2)
            if number:
                measurements[name].append(Creation(name, creation_seconds, removed, used))
    return [_median(each) for each in measurements.values()]


async def _by_reconciler(systems: Systems, count: int, number: int) -> tuple[float, float]:
    manifests = [_container(systems, f"{_PREFIX}{number}-{each}") for each in range(count)]
    creation_seconds = await systems.declare(manifests)
    return creation_seconds, await systems.withdraw([each.key for each in manifests])


async def _directly(systems: Systems, count: int) -> tuple[float, float]:
    async def create(number: int) -> str:
        response = await systems.call_engine(
            "POST", "/containers/create", _body(systems), name=f"direct-{number}"
        )
        uid = msgspec.json.decode(response)["Id"]
        await systems.call_engine("POST", f"/containers/{uid}/start")
        return uid

    began = time.perf_counter()
    uids = await asyncio.gather(*map(create, range(count)))
    creation_seconds = time.perf_counter() - began
    await asyncio.gather(
        *(systems.call_engine("DELETE", f"/containers/{uid}", force="true") for uid in uids)
    )
    return creation_seconds, time.perf_counter() - began - creation_seconds


def _compose_command() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        process = subprocess.run([*command, "version"], capture_output=True, check=False)
        if process.returncode == 0:
            return command
    return None


async def _by_compose(systems: Systems, command: list[str], count: int) -> tuple[float, float]:
    service = {
        "image": systems.image,
        "command": COMMAND,
        "network_mode": "bridge",
        "stop_grace_period": "0s",
    }
    services = {f"s{number}": service for number in range(count)}
    with tempfile.TemporaryDirectory(prefix="compose-") as folder:
        path = Path(folder) / "compose.json"
        path.write_text(json.dumps({"version": "3", "services": services}))
        project = [*command, "-f", str(path), "-p", "composed"]
        began = time.perf_counter()
        await _run([*project, "up", "-d"], systems)
        creation_seconds = time.perf_counter() - began
        await _run([*project, "down", "-t", "0"], systems)
        return creation_seconds, time.perf_counter() - began - creation_seconds


async def _run(command: list[str], systems: Systems) -> None:
    environment = {
        **os.environ,
        "DOCKER_HOST": systems.engine.endpoint,
        "COMPOSE_PARALLEL_LIMIT": str(CONCURRENCY),
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, output = await process.communicate()
    assert process.returncode == 0, output.decode()


def _median(rounds: list[Creation]) -> Creation:
    names = rounds[0].cpu_seconds
    return Creation(
        rounds[0].method,
        statistics.median(each.created_seconds for each in rounds),
        statistics.median(each.removed_seconds for each in rounds),
        {name: statistics.median(each.cpu_seconds[name] for each in rounds) for name in names},
    )


# --- repairs


async def measure_repairs(systems: Systems, times: int) -> list[Repair]:
    """Measure the repair of each out-of-band change, and Docker's own time for it."""
    name = f"{_PREFIX}harmed"
    await systems.declare([_container(systems, name, memoryBytes=SMALL)])
    path = f"/containers/{name}"
    limit = {"Memory": LARGE, "MemorySwap": 2 * LARGE}
    disruptions: dict[str, Callable[[], Awaitable[object]]] = {
        "docker kill": lambda: systems.call_engine("POST", f"{path}/kill"),
        "docker stop": lambda: systems.call_engine("POST", f"{path}/stop", t="0"),
        "docker update --memory": lambda: systems.call_engine("POST", f"{path}/update", limit),
        "docker rm -f": lambda: systems.call_engine("DELETE", path, force="true"),
    }
    by_docker = await _by_docker(systems, times)
    repairs: list[Repair] = []
    for disruption, do in disruptions.items():
        durations: list[float] = []
        for _ in range(times):
            await asyncio.sleep(REST_SECONDS)
            await do()
            durations.append(
                await wait_until(lambda: _is_repaired(systems, name), f"{disruption} is undone")
            )
        repairs.append(Repair(disruption, statistics.median(durations), by_docker[disruption]))
    return repairs


async def _is_repaired(systems: Systems, name: str) -> bool:
    container: dict[str, Any] = msgspec.json.decode(
        await systems.call_engine("GET", f"/containers/{name}/json")
    )
    return (
        "State" in container
        and container["State"]["Running"]
        and (container["HostConfig"]["Memory"] == SMALL)
    )


async def _by_docker(systems: Systems, times: int) -> Mapping[str, float]:
    """Return the time of the calls that undo each change, under no other load."""
    starts: list[float] = []
    updates: list[float] = []
    creations: list[float] = []
    for number in range(times):
        began = time.perf_counter()
        name = f"direct-{number}"
        await systems.call_engine(
            "POST", "/containers/create", _body(systems, Memory=SMALL), name=name
        )
        created = time.perf_counter()
        await systems.call_engine("POST", f"/containers/{name}/start")
        started = time.perf_counter()
        limit = {"Memory": LARGE, "MemorySwap": 2 * LARGE}
        await systems.call_engine("POST", f"/containers/{name}/update", limit)
        updates.append(time.perf_counter() - started)
        creations.append(started - began)
        starts.append(started - created)
        await systems.call_engine("DELETE", f"/containers/{name}", force="true")
    start, update, creation = map(statistics.median, (starts, updates, creations))
    return {
        "docker kill": start,
        "docker stop": start,
        "docker update --memory": update,
        "docker rm -f": creation,
    }


# --- calls per change


async def count_calls(systems: Systems) -> dict[str, Counter[str]]:
    """Count the calls to the Engine for each type of change, until the system is idle."""
    name = f"{_PREFIX}counted"
    key = ResourceKey("default", "Container", name)
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "created": lambda: systems.declare([_container(systems, name, memoryBytes=SMALL)]),
        "changed in place (memory)": lambda: systems.declare(
            [_container(systems, name, memoryBytes=LARGE)], 2
        ),
        "replaced (command)": lambda: systems.declare(
            [_container(systems, name, memoryBytes=LARGE, command=["/bin/sleep", "7777"])], 3
        ),
        "killed, and repaired": lambda: _kill(systems, name),
        "withdrawn": lambda: systems.withdraw([key], 3),
    }
    counters: dict[str, Counter[str]] = {}
    for change, do in changes.items():
        await asyncio.sleep(REST_SECONDS)
        mark, _ = systems.marks()
        await do()
        await asyncio.sleep(REST_SECONDS)
        counters[change] = systems.calls_since(mark)
    counters["killed, and repaired"]["POST /containers/*/kill"] -= 1  # the benchmark's own call
    return {change: +counts for change, counts in counters.items()}


async def _kill(systems: Systems, name: str) -> None:
    await systems.call_engine("POST", f"/containers/{name}/kill")
    await asyncio.sleep(REST_SECONDS)


# --- listings


async def measure_listing(systems: Systems, count: int, times: int) -> list[Listing]:
    """List created containers, with the reconciler and directly."""
    limit = asyncio.Semaphore(CONCURRENCY)

    async def create(number: int) -> None:
        async with limit:
            name = f"{_LISTED}{number}"
            await systems.call_engine("POST", "/containers/create", _body(systems), name=name)

    await asyncio.gather(*map(create, range(count)))
    await systems.configure("listed", "docker", _LISTED)  # records each container once
    await wait_until(lambda: _are_all_unowned(systems, count), "all containers are known")
    await asyncio.sleep(REST_SECONDS)
    cpu_before, (mark, _) = systems.cpu(), systems.marks()
    await systems.configure("listed", "docker", _LISTED, resync_seconds=1)
    await wait_until(lambda: _has_been_listed(systems, mark, times), f"{times} listings")
    used = _difference(systems.cpu(), cpu_before)
    own_seconds = systems.listing_seconds(mark)[:times]
    await systems.configure("listed", "docker", _LISTED)
    await asyncio.sleep(REST_SECONDS)
    return [
        Listing("reconciler", statistics.median(own_seconds), _divide(used, times)),
        await _listing_directly(systems, times),
    ]


async def _are_all_unowned(systems: Systems, count: int) -> bool:
    await asyncio.sleep(0.5)
    counts = (await systems.client.fleet()).counts
    return sum(each.count for each in counts if each.outcome == "Unowned") >= count


async def _has_been_listed(systems: Systems, mark: int, times: int) -> bool:
    await asyncio.sleep(0.2)
    return len(systems.listing_seconds(mark)) > times  # the first `times` are complete


async def _listing_directly(systems: Systems, times: int) -> Listing:
    """Make the same calls, eight concurrently like the provider, and discard the responses."""
    limit = asyncio.Semaphore(8)

    async def inspect(uid: str) -> None:
        async with limit:
            await systems.call_engine("GET", f"/containers/{uid}/json")

    cpu_before, durations = systems.cpu(), list[float]()
    for _ in range(times):
        began = time.perf_counter()
        container = msgspec.json.decode(
            await systems.call_engine("GET", "/containers/json", all="true")
        )
        listed = [each["Id"] for each in container if each["Names"][0].startswith(f"/{_LISTED}")]
        await asyncio.gather(*map(inspect, listed))
        durations.append(time.perf_counter() - began)
    used = _divide(_difference(systems.cpu(), cpu_before), times)
    return Listing("the same calls, directly", statistics.median(durations), used)


def _difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: round(after[name] - before[name], 2) for name in after}


def _divide(used: Mapping[str, float], times: int) -> dict[str, float]:
    return {name: round(seconds / times, 3) for name, seconds in used.items()}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
