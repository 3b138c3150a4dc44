"""One turn of a shape: all that came in for it, folded and decided at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from events.intake import Answer, Reported
from events.log import (
    SOURCE,
    LogEvent,
    RetryScheduled,
    ShapeEvent,
    event_id,
    event_type,
)
from reconciler.shape.declaring import may_be_old
from reconciler.shape.evolve import evolve
from reconciler.shape.facts import record_facts
from reconciler.shape.inputs import Command, Context
from reconciler.shape.outcomes import outcome_to_record
from reconciler.shape.plan import next_step
from reconciler.shape.standing import Standing
from reconciler.shape.state import ShapeState

_MOST_STEPS = 16
"""A turn takes at most four steps; more would be a loop, which must not run for ever."""


class UnstableDecisionError(RuntimeError):
    """A turn came to no end: a defect in ``decide``, reported instead of looping."""


@dataclass(slots=True)
class Turn:
    """What came of a turn: the state after it, the events to append, an answer for each command.

    ``doubtful`` are commands that made a generation and may be old ones that were sent again.
    """

    key_text: str
    context: Context
    state: ShapeState
    cause: Command
    events: list[LogEvent] = field(default_factory=list[LogEvent])
    answers: list[Answer | None] = field(default_factory=list[Answer | None])
    doubtful: list[Command] = field(default_factory=list[Command])

    def record(self, data: ShapeEvent) -> ShapeState:
        """Put an event into its envelope and fold it."""
        if self.cause.first_position is None and may_be_old(self.state, data):
            self.doubtful.append(self.cause)
        version = self.state.version + 1
        event = LogEvent(
            id=event_id(self.context.key, version),
            source=SOURCE,
            type=event_type(data),
            subject=self.key_text,
            time=self.context.now,
            shapeversion=version,
            data=data,
            causeid=self.cause.message_id,
            causeposition=self.cause.position,
            actor=self.cause.actor,
        )
        self.state = evolve(self.state, event)
        self.events.append(event)
        return self.state

    @property
    def timers(self) -> list[RetryScheduled]:
        """The waits that this turn decided, each to be timed."""
        return [event.data for event in self.events if isinstance(event.data, RetryScheduled)]


def take_turn(state: ShapeState, commands: Sequence[Command], context: Context) -> Turn:
    """Fold what has come in and decide, level-triggered, what follows (pure).

    ``commands`` are in intake order and not empty. Raises ``UnstableDecisionError``.
    """
    turn = Turn(str(context.key), context, state, commands[0])
    for command in commands:
        turn.cause = command
        turn.answers.append(record_facts(turn.state, command, context, turn.record))
        if isinstance(command.data, Reported):
            _decide(turn)  # a result ends an action: what it leads to is decided before the next
    _decide(turn)
    return turn


def _decide(turn: Turn) -> None:
    for _ in range(_MOST_STEPS):
        step = next_step(turn.state, turn.context)
        if isinstance(step, Standing):
            outcome = outcome_to_record(turn.state, step)
            if outcome is not None:
                turn.record(outcome)
            return
        turn.record(step)
    raise UnstableDecisionError(
        f"{turn.key_text}: no end after {_MOST_STEPS} steps: "
        + ", ".join(event.type for event in turn.events)
    )
