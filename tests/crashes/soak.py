"""Fault 25, the soak: random faults from a seed, then recovery, then the judge's verdict.

    ./run python -m tests.crashes.soak --seed 7 --minutes 10

Clients declare, change and withdraw resources, and another one deletes and changes objects out of
band. Two processes of the product run; each is restarted when it dies, half of them with a random
failpoint. The nemesis kills and pauses processes, nats-server and the API, makes the API fail and
lose responses, purges timers and repeats old messages. At the end all faults stop, and nothing may
be lost, leaked or duplicated. A seed determines the choices, but not their timing. A slow machine
runs longer, until each fault has been injected once. The exit status is 1 if the judge has
findings; the data are then kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvloop

from tests.crashes.lane import PREFIX, Lane
from tests.crashes.nemesis import Nemesis
from tests.judge.from_bus import check
from tests.judge.judging import Finding

COUNT = 40
CLIENTS = 4
COLORS = ("Red", "Green", "Blue", "Purple", "Yellow", "Black", "White")
MIN_DECLARATIONS = 50
MAX_EXTRA_SECONDS = 90.0
"""Maximum extension of a run in which not every fault has been injected yet."""

SETTLE_TIMEOUT_SECONDS = 90.0
"""Maximum recovery time after all faults, including backoff, leases and sweeps."""


@dataclass
class SoakResult:
    """Counts of a run, and the findings of the judge."""

    seed: int
    declarations: int = 0
    direct_changes: int = 0
    deaths: int = 0
    settle_seconds: float = 0.0
    effects: int = 0
    events: int = 0
    fault_counts: Counter[str] = field(default_factory=Counter[str])
    findings: list[Finding] = field(default_factory=list[Finding])

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.declarations} declarations, "
            f"{self.direct_changes} out-of-band changes, "
            f"{self.deaths} process deaths, {self.events} events, {self.effects} effects, "
            f"settled in {self.settle_seconds:.1f} s",
            "  "
            + ", ".join(f"{name} {count}" for name, count in sorted(self.fault_counts.items())),
            *(f"  FOUND {each}" for each in self.findings),
        ]
        return "\n".join(lines)


async def soak(folder: Path, *, seed: int, seconds: float) -> SoakResult:
    """Run the soak and return the result; raises only for a bug in the soak itself."""
    result = SoakResult(seed)
    async with Lane(folder).open() as lane:
        await lane.settle()
        nemesis = Nemesis(lane, seed)
        clients = [
            asyncio.create_task(_declare(lane, result, random.Random(f"{seed}/{number}"), number))
            for number in range(CLIENTS)
        ]
        clients.append(
            asyncio.create_task(_change_objects(lane, result, random.Random(f"{seed}/hand")))
        )
        nemesis_task = asyncio.create_task(nemesis.run())
        deadline_task = asyncio.create_task(_wait_until_enough(lane, nemesis, seconds))
        completed, _ = await asyncio.wait(
            {deadline_task, nemesis_task, *clients}, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (deadline_task, nemesis_task, *clients):
            task.cancel()
        await asyncio.gather(deadline_task, nemesis_task, *clients, return_exceptions=True)
        for task in completed:
            task.result()
        await nemesis.heal()
        result.fault_counts, result.deaths = nemesis.fault_counts, nemesis.deaths
        await _judge(lane, result)
    return result


async def _wait_until_enough(lane: Lane, nemesis: Nemesis, seconds: float) -> None:
    """Wait until the time is up and enough has happened, or until the maximum extension."""
    await asyncio.sleep(seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MAX_EXTRA_SECONDS):
            while (  # noqa: ASYNC110 - there is no event to await
                not nemesis.has_caused_every_fault or len(lane.acknowledged) < MIN_DECLARATIONS
            ):
                await asyncio.sleep(0.1)


async def _judge(lane: Lane, result: SoakResult) -> None:
    """Wait until the judge has no findings, or until the deadline."""
    began = time.monotonic()
    while True:
        await lane.wait_until_idle()
        result.findings = await check(
            lane.nc, lane.api.url, acknowledged=lane.acknowledged, by_hand=lane.out_of_band_names
        )
        result.settle_seconds = time.monotonic() - began
        if not result.findings or result.settle_seconds > SETTLE_TIMEOUT_SECONDS:
            break
        await asyncio.sleep(0.5)
    result.declarations = len(lane.acknowledged)
    result.effects = await lane.count_effects()
    result.events = await lane.count_events()


async def _declare(lane: Lane, result: SoakResult, rng: random.Random, number: int) -> None:
    """Declare, change and withdraw separate resources, one after another, until cancelled."""
    names = [f"{PREFIX}{number}-{index}" for index in range(COUNT // CLIENTS)]
    colors: dict[str, str] = {}
    while True:
        name = rng.choice(names)
        if name in colors and rng.random() < 0.3:
            del colors[name]
            await lane.withdraw(name)
        else:
            other_colors = [color for color in COLORS if color != colors.get(name)]
            colors[name] = rng.choice(other_colors)
            await lane.declare(name, colors[name])
        await asyncio.sleep(rng.uniform(0, 0.2))


async def _change_objects(lane: Lane, result: SoakResult, rng: random.Random) -> None:
    """Delete and recolor objects directly in the API, at random intervals."""
    names = [
        f"{PREFIX}{number}-{index}"
        for number in range(CLIENTS)
        for index in range(COUNT // CLIENTS)
    ]
    while True:
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        name = rng.choice(names)
        try:
            if rng.random() < 0.5:
                await lane.delete_object(name)
            else:
                await lane.recolor_object(name, rng.choice(COLORS))
        except httpx.HTTPError:
            continue  # it does not exist now, or the API is unavailable
        result.direct_changes += 1


def main() -> int:
    """Run the soak from the command line."""
    parser = argparse.ArgumentParser(description="Inject random faults, chosen by a seed.")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the random choices"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="duration (%(default)g)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    result = uvloop.run(soak(folder, seed=options.seed, seconds=options.minutes * 60))
    print(result)
    if result.findings:
        print(f"  the data are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
