"""The network between the processes and the bus, with delays, losses and crashes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

from infra.jetstream.errors import BusUnavailableError
from tests.memory_bus.faults import OnRequest, RequestType
from tests.memory_bus.loop import Process, VirtualLoop, current_process

TIMEOUT_SECONDS = 4.0
"""How long a caller waits for a response from the bus; the product waits 15 s."""

MAX_DELAY_SECONDS = 0.3
"""Maximum delay of one direction, in addition to half a millisecond."""

_T = TypeVar("_T")


class Network:
    """Carries requests; an armed fault affects the next request of its type."""

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
        self.strike_counts: Counter[str] = Counter()
        self.crash: Callable[[Process], None] = lambda process: None
        self.pause: Callable[[Process, float], None] = lambda process, seconds: None
        self.trace: Callable[[str], None] | None = None

    # --- faults

    def arm(self, fault: OnRequest) -> None:
        """Make the next request of a type fail."""
        self._armed.append(fault)

    def go_away(self, seconds: float) -> None:
        """Lose all requests and responses for some time."""
        self._away_until = max(self._away_until, self._loop.time() + seconds)

    def heal(self) -> None:
        """Stop all faults."""
        self._armed.clear()
        self._away_until = 0.0
        self.is_healed = True

    @property
    def is_away(self) -> bool:
        """Whether all requests are lost."""
        return self._loop.time() < self._away_until

    def strike(self, what: RequestType) -> OnRequest | None:
        """Remove and return the fault that is armed for a type of request, if any."""
        for index, fault in enumerate(self._armed):
            if fault.what == what:
                del self._armed[index]
                self.strike_counts[f"{fault.what}: {fault.strike}"] += 1
                if self.trace is not None:
                    self.trace(f"FAULT {fault.what}: {fault.strike} {fault.seconds:g}")
                return fault
        return None

    def latency(self) -> float:
        """Draw the latency of one direction for the current process; most are short."""
        name = self._loop.current_process().name
        draw = self._latencies.get(name)
        if draw is None:
            draw = self._latencies[name] = random.Random(f"{self._seed}/{name}").random
        return 0.0005 + self._max_delay * draw() ** 6

    # --- requests to the bus

    async def ask(self, what: RequestType, operation: Callable[[], _T]) -> _T:
        """Run an operation on the bus, and return its result.

        Raises ``BusUnavailableError`` without a response; whether it ran is then unknown.
        """
        fault = self.strike(what) if self._armed else None
        await self.before(fault)
        response: asyncio.Future[_T] = self._loop.create_future()
        request_seconds, reply_seconds = self.latency(), self.latency()
        if fault is not None and fault.strike == "delay":
            request_seconds += fault.seconds
        is_lost = fault is not None and fault.strike in ("lose request", "refuse")
        reply_is_lost = fault is not None and fault.strike in ("lose reply", "break")

        def arrive() -> None:
            if is_lost or self.is_away:
                return
            try:
                result = operation()
            except Exception as error:  # noqa: BLE001 - the response is an error
                reply(error, None)
            else:
                reply(None, result)

        def reply(error: Exception | None, result: _T | None) -> None:
            if not reply_is_lost:
                self.call_later(reply_seconds, lambda: _settle(response, error, result))

        self.call_later(request_seconds, arrive)
        self.after(fault)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await response
        except TimeoutError:
            raise BusUnavailableError(f"{what}: no response before the timeout") from None

    def send(self, what: RequestType, operation: Callable[[], object]) -> None:
        """Send the bus a message without a response, such as an acknowledgment."""
        fault = self.strike(what) if self._armed else None
        if fault is not None and fault.strike == "crash before":
            self.crash(current_process())
            return
        request_seconds = self.latency()
        if fault is not None and fault.strike == "delay":
            request_seconds += fault.seconds
        is_lost = fault is not None and fault.strike in (
            "lose request",
            "lose reply",
            "refuse",
            "break",
        )

        def arrive() -> None:
            if not is_lost and not self.is_away:
                operation()

        self.call_later(request_seconds, arrive)
        self.after(fault)

    # --- also used by the API's clients

    def call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        """Run a callback later, even if the calling process is killed."""
        self._loop.call_later(seconds, callback, context=_outside)

    async def before(self, fault: OnRequest | None) -> None:
        """Crash or pause the calling process before its request is sent, as the fault requires."""
        if fault is None or fault.strike not in ("crash before", "pause before"):
            return
        if fault.strike == "crash before":
            self.crash(current_process())
        else:
            self.pause(current_process(), fault.seconds)
        await asyncio.sleep(0)

    def after(self, fault: OnRequest | None) -> None:
        """Crash or pause the calling process after its request is sent, as the fault requires."""
        if fault is None:
            return
        if fault.strike == "crash after":
            self.crash(current_process())
        elif fault.strike == "pause after":
            self.pause(current_process(), fault.seconds)


def _settle(response: asyncio.Future[_T], error: Exception | None, result: _T | None) -> None:
    if response.done():
        return
    if error is not None:
        response.set_exception(error)
    else:
        response.set_result(result)  # pyright: ignore[reportArgumentType]


_outside = Context()
"""Belongs to no process, so that a message arrives even after its sender was killed."""
