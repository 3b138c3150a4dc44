"""Where a decider's timers, answers, rejections and dead letters go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from events.envelope import encode_intake
from events.intake import Answer, TimerFired
from events.log import SOURCE
from events.names import ShapeKey
from events.subjects import intake as intake_subject
from reconciler.ports import DeadLetter, Rejection, TimerRequest
from tests.simulation.bus.intake import IntakeStream
from tests.simulation.clock import Clock, seconds_of
from tests.simulation.network import Network
from tests.simulation.plan import TimersFail

_LATE_SECONDS = 8.0
_SLACK_SECONDS = 0.25


class Decisions:
    """What the server has of them. A timer of a shape replaces the one before it."""

    def __init__(
        self, intake: IntakeStream, network: Network, time: Callable[[], float], seed: str
    ) -> None:
        self._intake = intake
        self._network = network
        self._time = time
        self._timers: dict[ShapeKey, TimerRequest] = {}
        self._faults: list[TimersFail] = []
        self.answers: list[tuple[str, Answer]] = []
        self.rejections: dict[tuple[ShapeKey, int], Rejection] = {}
        self.dead_letters: dict[tuple[str, int], DeadLetter] = {}

    def fail(self, fault: TimersFail) -> None:
        """Have the next timers fail."""
        self._faults += [fault] * fault.count

    def lose_timers(self) -> None:
        """Forget every timer."""
        self._timers.clear()

    def heal(self) -> None:
        """Have no timer fail any more."""
        self._faults.clear()

    def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        """Take timers in."""
        for timer in timers:
            self._timers[timer.key] = timer
            due = max(0.0, seconds_of(timer.at) - self._time())
            self._network.outside(due + _SLACK_SECONDS, lambda timer=timer: self._fire(timer))

    def _fire(self, timer: TimerRequest) -> None:
        if self._timers.get(timer.key) is not timer:
            return  # replaced, or lost
        del self._timers[timer.key]
        how = self._faults.pop(0).how if self._faults else None
        if how is not None:
            self._network.struck[f"timer {how}"] += 1
        if how == "late":
            self._network.outside(_LATE_SECONDS, lambda: self._wake(timer))
        if how in (None, "doubled"):
            self._wake(timer)
        if how == "doubled":
            self._network.outside(_SLACK_SECONDS, lambda: self._wake(timer))

    def _wake(self, timer: TimerRequest) -> None:
        payload = encode_intake(
            f"timer/{timer.key}/{timer.at.isoformat()}",
            SOURCE,
            TimerFired("Retry"),
            time=timer.at,
        )
        self._intake.store(intake_subject("timer", timer.key), payload)

    def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters, each once."""
        for each in letters:
            self.dead_letters[each.stage, each.delivery.position] = each

    def reject(self, rejections: Sequence[Rejection]) -> None:
        """Keep rejections, each once."""
        for each in rejections:
            self.rejections[each.key, each.answer.position] = each


class SimulatedSink:
    """Implements ``reconciler.ports.DecisionSink`` for one process."""

    def __init__(self, decisions: Decisions, network: Network, clock: Clock) -> None:
        self._decisions = decisions
        self._network = network
        self._clock = clock

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        await self._network.ask("timers", lambda: self._decisions.set_timers(timers))

    async def answer(self, answers: Sequence[tuple[str, Answer]]) -> None:
        if answers:
            self._network.send("answer", lambda: self._decisions.answers.extend(answers))

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        await self._network.ask("bury", lambda: self._decisions.reject(rejections))

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        await self._network.ask("bury", lambda: self._decisions.bury(letters))
