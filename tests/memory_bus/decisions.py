"""A decider's timers, replies, rejections and dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from events.envelope import encode_intake
from events.intake import Reply, TimerFired
from events.log import SOURCE, LogEvent, OutcomeRecorded, event_type
from events.names import ResourceKey
from events.subjects import intake as intake_subject
from events.subjects import namespace_of
from infra.jetstream.errors import StreamFullError
from reconciler.ports import DeadLetter, Rejection, TimerRequest
from tests.memory_bus.capacity import Capacity
from tests.memory_bus.clock import Clock, seconds_of
from tests.memory_bus.faults import TimersFail
from tests.memory_bus.intake import IntakeStream
from tests.memory_bus.network import Network

_LATE_SECONDS = 8.0
_SLACK_SECONDS = 0.25
_RETRY_SECONDS = 1.0


class Decisions:
    """Decisions as the server stores them. A resource's new timer replaces the previous one."""

    def __init__(
        self, intake: IntakeStream, network: Network, time: Callable[[], float], seed: str
    ) -> None:
        self._intake = intake
        self._network = network
        self._time = time
        self._timers: dict[tuple[ResourceKey, str], TimerRequest] = {}
        self._faults: list[TimersFail] = []
        self.dead_letter_capacity = Capacity("DEADLETTERS")
        self.replies: list[tuple[str, Reply]] = []
        self.after_reply: list[Callable[[str, Reply], object]] = []
        self.rejections: dict[tuple[ResourceKey, int], tuple[Rejection, float]] = {}
        self.dead_letters: dict[tuple[str, int], DeadLetter] = {}
        self._stored_contents: dict[tuple[str, str, str], str] = {}
        self.discarded: Counter[tuple[str, str]] = Counter()
        self.given_up: set[int] = set()

    def fail(self, fault: TimersFail) -> None:
        """Make the next timers fail."""
        self._faults += [fault] * fault.count

    def lose_timers(self) -> None:
        """Forget every timer."""
        self._timers.clear()

    def heal(self) -> None:
        """Let all timers succeed again."""
        self._faults.clear()

    def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        """Set timers."""
        for timer in timers:
            self._timers[timer.key, timer.purpose] = timer
            due = max(0.0, seconds_of(timer.at) - self._time())
            self._network.call_later(due + _SLACK_SECONDS, lambda timer=timer: self._fire(timer))

    def _fire(self, timer: TimerRequest) -> None:
        if self._timers.get((timer.key, timer.purpose)) is not timer:
            return  # replaced, or lost
        del self._timers[timer.key, timer.purpose]
        how = self._faults.pop(0).how if self._faults else None
        if how is not None:
            self._network.strike_counts[f"timer {how}"] += 1
        if how == "late":
            self._network.call_later(_LATE_SECONDS, lambda: self._wake(timer))
        if how in (None, "doubled"):
            self._wake(timer)
        if how == "doubled":
            self._network.call_later(_SLACK_SECONDS, lambda: self._wake(timer))

    def _wake(self, timer: TimerRequest) -> None:
        payload = encode_intake(
            f"timer/{timer.key}/{timer.at.isoformat()}",
            SOURCE,
            TimerFired(timer.purpose),
            time=timer.at,
        )
        self._store_fired(intake_subject("timer", timer.key), payload)

    def _store_fired(self, subject: str, payload: bytes) -> None:
        """Store a fired timer in the intake; retry while the stream is full."""
        try:
            self._intake.store(subject, payload)
        except StreamFullError:
            self._network.call_later(_RETRY_SECONDS, lambda: self._store_fired(subject, payload))

    def send_replies(self, replies: Sequence[tuple[str, Reply]]) -> None:
        """Deliver replies to the publishers that are waiting for them, if any."""
        self.replies += replies
        for subject, reply in replies:
            for hook in self.after_reply:
                hook(subject, reply)

    def store_dead_letters(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Store each dead letter once; return those that do not fit."""
        waiting: list[DeadLetter] = []
        for letter in letters:
            name = letter.stage, letter.delivery.position
            about = letter.stage, namespace_of(letter.delivery.subject), letter.dedup_key
            if letter.dedup_key and self._stored_contents.get(about) == letter.content:
                continue  # the newest dead letter about it is identical
            try:
                if name not in self.dead_letters:
                    self.dead_letter_capacity.reserve()
                self.dead_letters[name] = letter
                self._stored_contents[about] = letter.content
            except StreamFullError:
                waiting.append(letter)
        return waiting

    def discard(self, letters: Sequence[DeadLetter]) -> None:
        """Count messages for which no dead letter is stored."""
        for each in letters:
            self.discarded[namespace_of(each.delivery.subject), each.stage] += 1
            self.given_up.add(each.delivery.position)

    def reject(self, rejections: Sequence[Rejection]) -> None:
        """Store each rejection once."""
        for each in rejections:
            self.rejections.setdefault((each.key, each.reply.position), (each, self._time()))


def rejected_event(rejection: Rejection) -> LogEvent:
    """Return a rejection as an event of the outcome stream."""
    reply = rejection.reply
    data = OutcomeRecorded("Rejected", reply.generation, reply.reason, reply.message)
    return LogEvent(
        id=f"{rejection.key}#rejected-{reply.position}",
        source=SOURCE,
        type=event_type(data),
        subject=str(rejection.key),
        time=rejection.at,
        resourceversion=0,
        data=data,
        causationposition=reply.position,
        actor=rejection.actor,
    )


class MemoryDecisionSink:
    """Implements ``reconciler.ports.DecisionSink`` for one process."""

    def __init__(self, decisions: Decisions, network: Network, clock: Clock) -> None:
        self._decisions = decisions
        self._network = network
        self._clock = clock

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        await self._network.ask("timers", lambda: self._decisions.set_timers(timers))

    async def send_replies(self, replies: Sequence[tuple[str, Reply]]) -> None:
        if replies:
            self._network.send("answer", lambda: self._decisions.send_replies(replies))

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        await self._network.ask("dead letters", lambda: self._decisions.reject(rejections))

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        return await self._network.ask(
            "dead letters", lambda: self._decisions.store_dead_letters(letters)
        )

    async def discard(self, letters: Sequence[DeadLetter]) -> None:
        if letters:
            await self._network.ask("dead letters", lambda: self._decisions.discard(letters))
