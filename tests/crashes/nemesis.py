"""All faults of the crash tests, in random order from a seed.

Faults are drawn from a deck that is reshuffled when it is empty, so each run has every fault, even
on a slow machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

import httpx

from infra.bus.streams import INTAKE, TIMERS
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusError
from infra.jetstream.outgoing import MESSAGE_ID
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject, stream_state
from reconciler.failpoints import Failpoint
from tests.crashes.lane import Lane
from tests.crashes.role_process import RoleProcess

PROCESSES = 2
MAX_REPEATED = 20
FIRST_FAULTS = ("process killed", "process paused")
"""Faults that every run has, even if it ends after two."""

_FAILPOINTS = [
    point for point in Failpoint if point not in (Failpoint.INIT_STEP, Failpoint.RESTORE_STEP)
]
_API_FAULTS: list[dict[str, object]] = [
    {"lost_reply_rate": 0.5, "methods": ["POST", "PUT", "DELETE"]},
    {"error_rate": 0.5},
    {"error_after_rate": 0.5, "methods": ["POST", "PUT", "DELETE"]},
    {"throttle_rate": 0.5, "retry_after_seconds": 1},
    {"latency_ms": 300, "latency_jitter_ms": 1500},
    {"listing_fail_after_pages": 0},
    {"listing_lag_seconds": 1},
]


def shuffled_faults(kinds: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Yield faults endlessly: each once, the most important first; then all, reshuffled."""
    first = [kind for kind in FIRST_FAULTS if kind in kinds]
    deck = sorted(set(kinds) - set(first))
    rng.shuffle(deck)
    yield from first + deck
    while True:
        deck = sorted(kinds)
        rng.shuffle(deck)
        yield from deck


class Nemesis:
    """Injects faults on a lane, one after another, and restarts its processes."""

    def __init__(self, lane: Lane, seed: int) -> None:
        self.fault_counts: Counter[str] = Counter()
        self.deaths = 0
        self._lane = lane
        self._random = random.Random(seed)
        # Separate, because the number of deaths differs between runs, but the faults must not.
        self._failpoint_rng = random.Random(f"{seed}/failpoints")
        self._processes: list[RoleProcess] = []
        self._injectors: dict[str, Callable[[], Awaitable[None]]] = {
            "process killed": self._kill_process,
            "process paused": self._pause_process,
            "server killed": self._lane.restart_server,
            "server paused": lambda: self._pause(self._lane.server.pid),
            "API killed": self._lane.restart_api,
            "API paused": lambda: self._pause(self._lane.api.pid),
            "API faulty": self._break_api,
            "timers purged": self._purge_timers,
            "messages repeated": self._repeat_messages,
        }
        self._deck = shuffled_faults(tuple(self._injectors), random.Random(f"{seed}/deck"))

    @property
    def has_caused_every_fault(self) -> bool:
        """Whether each fault was injected at least once, and a process has died."""
        return self.deaths > 0 and self.fault_counts.keys() == self._injectors.keys()

    async def run(self) -> None:
        """Inject faults until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._supervise())
            while True:
                await asyncio.sleep(self._random.uniform(0.2, 1.5))
                fault = next(self._deck)
                await self._injectors[fault]()
                self.fault_counts[fault] += 1

    async def heal(self) -> None:
        """End all faults, and leave one process running."""
        for each in self._processes:
            if each.exit_code is None:
                each.resume()
            await each.kill()
        await self._lane.repair()
        self._processes = [self._lane.fork()]

    async def _supervise(self) -> None:
        """Restart dead processes, half of them with a random failpoint."""
        while True:
            living = [each for each in self._processes if each.exit_code is None]
            self.deaths += len(self._processes) - len(living)
            while len(living) < PROCESSES:
                living.append(self._lane.fork(self._choose_failpoint()))
            self._processes = living
            await asyncio.sleep(0.1)

    def _choose_failpoint(self) -> str:
        rng = self._failpoint_rng
        if rng.random() < 0.5:
            return ""
        arrival = rng.randint(1, 20)
        return f"{rng.choice(_FAILPOINTS)}:{arrival}"

    async def _kill_process(self) -> None:
        if (victim := self._choose_process()) is not None:
            await victim.kill()

    async def _pause_process(self) -> None:
        if (victim := self._choose_process()) is not None:
            await self._pause(victim.pid)

    def _choose_process(self) -> RoleProcess | None:
        living = [each for each in self._processes if each.exit_code is None]
        return self._random.choice(living) if living else None

    async def _pause(self, pid: int) -> None:
        """Pause a process, sometimes for longer than every lease."""
        seconds = self._random.uniform(0.1, 3.0)
        try:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        except ProcessLookupError:
            return
        finally:
            resume_if_running(pid)

    async def _break_api(self) -> None:
        faults = self._random.choice(_API_FAULTS)
        try:
            await self._lane.break_api(**faults, seed=self._random.randint(0, 2**31))
            await asyncio.sleep(self._random.uniform(0.5, 3.0))
            await self._lane.break_api()
        except httpx.HTTPError:
            return

    async def _purge_timers(self) -> None:
        await self._ignore_outages(api_request(self._lane.nc, f"STREAM.PURGE.{TIMERS}", {}))

    async def _repeat_messages(self) -> None:
        """Republish old messages of the intake: late, duplicate and out of order."""

        async def repeat() -> None:
            last = (await stream_state(self._lane.nc, INTAKE)).last_seq
            start = self._random.randint(1, max(1, last - MAX_REPEATED))
            old = await read_subject(
                self._lane.nc, INTAKE, "in.>", start_seq=start, limit=MAX_REPEATED
            )
            self._random.shuffle(old)
            for message in old:
                if message.subject.endswith(".ProviderConfig.default"):
                    continue
                subject = "rec." + message.subject.split(".", 2)[2]
                fresh = {MESSAGE_ID: uuid.uuid4().hex}
                await publish(self._lane.nc, subject, message.payload, headers=fresh)

        await self._ignore_outages(repeat())

    async def _ignore_outages(self, work: Awaitable[object]) -> None:
        try:
            await work
        except BusError:
            return


def resume_if_running(pid: int) -> None:
    """Resume a paused process if it is still running."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
