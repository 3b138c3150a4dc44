"""The way between the processes and what they ask: late, lost, or cut short by a crash."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

from infra.jetstream.errors import BusUnavailableError
from tests.memory_bus.faults import OnRequest, Sort
from tests.memory_bus.loop import Process, VirtualLoop, current_process

PATIENCE_SECONDS = 4.0
"""How long a caller waits for an answer of the bus. The real one waits 15 s."""

MAX_DELAY_SECONDS = 0.3
"""The longest delay of one way, beyond half a millisecond."""

_T = TypeVar("_T")


class Network:
    """Carries requests; the faults that are armed strike the next one of their sort."""

    def __init__(
        self, loop: VirtualLoop, seed: str, *, max_delay_seconds: float = MAX_DELAY_SECONDS
    ) -> None:
        self._loop = loop
        self._seed = seed
        self._max_delay = max_delay_seconds
        self._latencies: dict[str, Callable[[], float]] = {}
        self._armed: list[OnRequest] = []
        self._away_until = 0.0
        self.is_healed = False
        self.struck: Counter[str] = Counter()
        self.crash: Callable[[Process], None] = lambda process: None
        self.pause: Callable[[Process, float], None] = lambda process, seconds: None
        self.trace: Callable[[str], None] | None = None

    # --- faults

    def arm(self, fault: OnRequest) -> None:
        """Have the next request of a sort go wrong."""
        self._armed.append(fault)

    def go_away(self, seconds: float) -> None:
        """Lose everything for a while."""
        self._away_until = max(self._away_until, self._loop.time() + seconds)

    def heal(self) -> None:
        """No more faults from now on."""
        self._armed.clear()
        self._away_until = 0.0
        self.is_healed = True

    @property
    def is_away(self) -> bool:
        """Whether nothing goes through."""
        return self._loop.time() < self._away_until

    def strike(self, what: Sort) -> OnRequest | None:
        """Take the fault that is armed for the next request of a sort, if there is one."""
        for index, fault in enumerate(self._armed):
            if fault.what == what:
                del self._armed[index]
                self.struck[f"{fault.what}: {fault.strike}"] += 1
                if self.trace is not None:
                    self.trace(f"FAULT {fault.what}: {fault.strike} {fault.seconds:g}")
                return fault
        return None

    def latency(self) -> float:
        """Draw how long one way takes for the current process: mostly short, now and then long."""
        name = self._loop.current_process().name
        draw = self._latencies.get(name)
        if draw is None:
            draw = self._latencies[name] = random.Random(f"{self._seed}/{name}").random
        return 0.0005 + self._max_delay * draw() ** 6

    # --- requests to the bus

    async def ask(self, what: Sort, operation: Callable[[], _T]) -> _T:
        """Have something done by the bus, and give its answer.

        Raises ``BusUnavailableError`` if no answer comes: then it is unknown whether it was done.
        """
        fault = self.strike(what) if self._armed else None
        await self.before(fault)
        answer: asyncio.Future[_T] = self._loop.create_future()
        going, coming = self.latency(), self.latency()
        if fault is not None and fault.strike == "delay":
            going += fault.seconds
        is_lost = fault is not None and fault.strike in ("lose request", "refuse")
        reply_is_lost = fault is not None and fault.strike in ("lose reply", "break")

        def arrive() -> None:
            if is_lost or self.is_away:
                return
            try:
                result = operation()
            except Exception as error:  # noqa: BLE001 - the answer is an error
                reply(error, None)
            else:
                reply(None, result)

        def reply(error: Exception | None, result: _T | None) -> None:
            if not reply_is_lost:
                self.outside(coming, lambda: _settle(answer, error, result))

        self.outside(going, arrive)
        self.after(fault)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await answer
        except TimeoutError:
            raise BusUnavailableError(f"{what}: no response before the timeout") from None

    def send(self, what: Sort, operation: Callable[[], object]) -> None:
        """Tell the bus something that it does not answer, such as an acknowledgement."""
        fault = self.strike(what) if self._armed else None
        if fault is not None and fault.strike == "crash before":
            self.crash(current_process())
            return
        going = self.latency()
        if fault is not None and fault.strike == "delay":
            going += fault.seconds
        is_lost = fault is not None and fault.strike in (
            "lose request",
            "lose reply",
            "refuse",
            "break",
        )

        def arrive() -> None:
            if not is_lost and not self.is_away:
                operation()

        self.outside(going, arrive)
        self.after(fault)

    # --- used by the API's clients too

    def outside(self, seconds: float, callback: Callable[[], object]) -> None:
        """Have something happen later, whatever becomes of the process that asked for it."""
        self._loop.call_later(seconds, callback, context=_outside)

    async def before(self, fault: OnRequest | None) -> None:
        """Stop the calling process before its request is sent, if the fault says so."""
        if fault is None or fault.strike not in ("crash before", "pause before"):
            return
        if fault.strike == "crash before":
            self.crash(current_process())
        else:
            self.pause(current_process(), fault.seconds)
        await asyncio.sleep(0)

    def after(self, fault: OnRequest | None) -> None:
        """Stop the calling process when its request is on the way, if the fault says so."""
        if fault is None:
            return
        if fault.strike == "crash after":
            self.crash(current_process())
        elif fault.strike == "pause after":
            self.pause(current_process(), fault.seconds)


def _settle(answer: asyncio.Future[_T], error: Exception | None, result: _T | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # pyright: ignore[reportArgumentType]


_outside = Context()
"""Belongs to no process: what is on the way arrives, though its sender may be dead by then."""
