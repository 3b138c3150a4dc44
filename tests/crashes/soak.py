"""Fault 25, the soak: everything at random from a seed, then rest, then the checker's verdict.

    ./run python -m tests.crashes.soak --seed 7 --minutes 10

Clients declare, change and withdraw; people delete and paint by hand; two processes of the product
work on it, each started again when it dies, half of them to die at some failpoint; and the nemesis
kills and pauses processes, nats-server and the API, makes the API lie and lose replies, purges
timers and repeats old messages. At the end everything is healed, and nothing may be lost, leaked or
duplicated. A seed gives the same choices, though not the same moments; a slow machine takes longer,
so that each kind of trouble has come once, too. Exit status 1: something is wrong, and the data are
kept for a look.
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
LEAST_DECLARATIONS = 50
MAX_LONGER_SECONDS = 90.0
"""So much longer than it was told it lasts at most, until enough has happened."""

HEAL_SECONDS = 90.0
"""So long what was broken may take to settle: backoff, leases and sweeps included."""


@dataclass
class Soaked:
    """What was done, and what the judge found."""

    seed: int
    declarations: int = 0
    by_hand: int = 0
    deaths: int = 0
    settle_seconds: float = 0.0
    effects: int = 0
    events: int = 0
    troubles: Counter[str] = field(default_factory=Counter[str])
    findings: list[Finding] = field(default_factory=list[Finding])

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.declarations} declarations, {self.by_hand} changes by hand, "
            f"{self.deaths} deaths of processes, {self.events} events, {self.effects} effects, "
            f"settled in {self.settle_seconds:.1f} s",
            "  " + ", ".join(f"{name} {count}" for name, count in sorted(self.troubles.items())),
            *(f"  FOUND {each}" for each in self.findings),
        ]
        return "\n".join(lines)


async def soak(folder: Path, *, seed: int, seconds: float) -> Soaked:
    """Run it; gives what was found, and raises only for a defect of the soak itself."""
    result = Soaked(seed)
    async with Lane(folder).open() as lane:
        await lane.settle()
        nemesis = Nemesis(lane, seed)
        people = [
            asyncio.create_task(_declare(lane, result, random.Random(f"{seed}/{number}"), number))
            for number in range(CLIENTS)
        ]
        people.append(asyncio.create_task(_meddle(lane, result, random.Random(f"{seed}/hand"))))
        breaking = asyncio.create_task(nemesis.run())
        enough = asyncio.create_task(_until_enough(lane, nemesis, seconds))
        completed, _ = await asyncio.wait(
            {enough, breaking, *people}, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (enough, breaking, *people):
            task.cancel()
        await asyncio.gather(enough, breaking, *people, return_exceptions=True)
        for task in completed:
            task.result()
        await nemesis.heal()
        result.troubles, result.deaths = nemesis.done, nemesis.deaths
        await _judge(lane, result)
    return result


async def _until_enough(lane: Lane, nemesis: Nemesis, seconds: float) -> None:
    """Wait until time is up and something has happened in it, or it is much too late."""
    await asyncio.sleep(seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MAX_LONGER_SECONDS):
            while (  # noqa: ASYNC110 - nothing tells
                not nemesis.has_done_everything or len(lane.acknowledged) < LEAST_DECLARATIONS
            ):
                await asyncio.sleep(0.1)


async def _judge(lane: Lane, result: Soaked) -> None:
    """Wait until the checker finds nothing, or until the deadline."""
    began = time.monotonic()
    while True:
        await lane.until_at_rest()
        result.findings = await check(
            lane.nc, lane.api.url, acknowledged=lane.acknowledged, by_hand=lane.by_hand
        )
        result.settle_seconds = time.monotonic() - began
        if not result.findings or result.settle_seconds > HEAL_SECONDS:
            break
        await asyncio.sleep(0.5)
    result.declarations = len(lane.acknowledged)
    result.effects = await lane.count_effects()
    result.events = await lane.count_events()


async def _declare(lane: Lane, result: Soaked, chance: random.Random, number: int) -> None:
    """Declare, change and withdraw separate resources, one after another, until cancelled."""
    names = [f"{PREFIX}{number}-{index}" for index in range(COUNT // CLIENTS)]
    colors: dict[str, str] = {}
    while True:
        name = chance.choice(names)
        if name in colors and chance.random() < 0.3:
            del colors[name]
            await lane.withdraw(name)
        else:
            other_colors = [color for color in COLORS if color != colors.get(name)]
            colors[name] = chance.choice(other_colors)
            await lane.declare(name, colors[name])
        await asyncio.sleep(chance.uniform(0, 0.2))


async def _meddle(lane: Lane, result: Soaked, chance: random.Random) -> None:
    """Delete and repaint objects directly in the API, now and then."""
    names = [
        f"{PREFIX}{number}-{index}"
        for number in range(CLIENTS)
        for index in range(COUNT // CLIENTS)
    ]
    while True:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        name = chance.choice(names)
        try:
            if chance.random() < 0.5:
                await lane.delete_by_hand(name)
            else:
                await lane.paint_by_hand(name, chance.choice(COLORS))
        except httpx.HTTPError:
            continue  # it does not exist now, or the API is unavailable
        result.by_hand += 1


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Everything goes wrong, at random, from a seed.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random choices")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (%(default)g)")
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
