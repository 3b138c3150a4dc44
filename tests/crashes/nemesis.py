"""Whatever can go wrong, at random, from a seed: everything that the crash tests do, at once.

Troubles are dealt from a deck that is shuffled anew when it is empty, so that no run, however slow
its machine, is without one of them.
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
REPEATED_AT_ONCE = 20
DEALT_FIRST = ("process killed", "process paused")
"""What every run must have had, be it ended after two troubles."""

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


def dealt(kinds: Sequence[str], chance: random.Random) -> Iterator[str]:
    """Draw troubles until cancelled: each once, the most important ones first; then all of them."""
    first = [kind for kind in DEALT_FIRST if kind in kinds]
    deck = sorted(set(kinds) - set(first))
    chance.shuffle(deck)
    yield from first + deck
    while True:
        deck = sorted(kinds)
        chance.shuffle(deck)
        yield from deck


class Nemesis:
    """Breaks things on a lane, one after another, and keeps its processes coming back."""

    def __init__(self, lane: Lane, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.deaths = 0
        self._lane = lane
        self._random = random.Random(seed)
        # Of its own: how often a process dies differs between runs, the troubles must not.
        self._failpoint_chance = random.Random(f"{seed}/failpoints")
        self._processes: list[RoleProcess] = []
        self._troubles: dict[str, Callable[[], Awaitable[None]]] = {
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
        self._deck = dealt(tuple(self._troubles), random.Random(f"{seed}/deck"))

    @property
    def has_done_everything(self) -> bool:
        """Whether each trouble has come at least once, and a process has died of it."""
        return self.deaths > 0 and self.done.keys() == self._troubles.keys()

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._supervise())
            while True:
                await asyncio.sleep(self._random.uniform(0.2, 1.5))
                trouble = next(self._deck)
                await self._troubles[trouble]()
                self.done[trouble] += 1

    async def heal(self) -> None:
        """End all troubles, and leave one process running that nothing happens to."""
        for each in self._processes:
            if each.exit_code is None:
                each.resume()
            await each.kill()
        await self._lane.mend()
        self._processes = [self._lane.fork()]

    async def _supervise(self) -> None:
        """Start again what has died, every other one to die at some failpoint."""
        while True:
            living = [each for each in self._processes if each.exit_code is None]
            self.deaths += len(self._processes) - len(living)
            while len(living) < PROCESSES:
                living.append(self._lane.fork(self._some_failpoint()))
            self._processes = living
            await asyncio.sleep(0.1)

    def _some_failpoint(self) -> str:
        chance = self._failpoint_chance
        if chance.random() < 0.5:
            return ""
        arrival = chance.randint(1, 20)
        return f"{chance.choice(_FAILPOINTS)}:{arrival}"

    async def _kill_process(self) -> None:
        if (victim := self._some_living()) is not None:
            await victim.kill()

    async def _pause_process(self) -> None:
        if (victim := self._some_living()) is not None:
            await self._pause(victim.pid)

    def _some_living(self) -> RoleProcess | None:
        living = [each for each in self._processes if each.exit_code is None]
        return self._random.choice(living) if living else None

    async def _pause(self, pid: int) -> None:
        """Pause a process for longer than every lease, or for a moment."""
        seconds = self._random.uniform(0.1, 3.0)
        try:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        except ProcessLookupError:
            return
        finally:
            with_luck(pid)

    async def _break_api(self) -> None:
        faults = self._random.choice(_API_FAULTS)
        try:
            await self._lane.break_api(**faults, seed=self._random.randint(0, 2**31))
            await asyncio.sleep(self._random.uniform(0.5, 3.0))
            await self._lane.break_api()
        except httpx.HTTPError:
            return

    async def _purge_timers(self) -> None:
        await self._ignoring_outages(api_request(self._lane.nc, f"STREAM.PURGE.{TIMERS}", {}))

    async def _repeat_messages(self) -> None:
        """Publish old messages of the intake again: late, duplicate and reordered."""

        async def repeat() -> None:
            last = (await stream_state(self._lane.nc, INTAKE)).last_seq
            start = self._random.randint(1, max(1, last - REPEATED_AT_ONCE))
            old = await read_subject(
                self._lane.nc, INTAKE, "in.>", start_seq=start, limit=REPEATED_AT_ONCE
            )
            self._random.shuffle(old)
            for message in old:
                if message.subject.endswith(".ProviderConfig.default"):
                    continue
                subject = "rec." + message.subject.split(".", 2)[2]
                fresh = {MESSAGE_ID: uuid.uuid4().hex}
                await publish(self._lane.nc, subject, message.payload, headers=fresh)

        await self._ignoring_outages(repeat())

    async def _ignoring_outages(self, doing: Awaitable[object]) -> None:
        try:
            await doing
        except BusError:
            return


def with_luck(pid: int) -> None:
    """Let a paused process go on, if it still lives."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
