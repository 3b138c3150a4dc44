"""Check recorded turns with the product's own folds and ``decide`` (invariants 5 and 10).

They do not judge a history: a defect in the fold would affect both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from events.log import LogEvent, ResourceEvent
from events.names import ResourceKey
from reconciler.resource.decide import continue_turn, decide
from reconciler.resource.evolve import HistoryGapError, evolve
from reconciler.resource.state import NEW, ResourceState
from reconciler.resource.turn import Command, Context, Turn
from tests.judge.agreement import Agreement


class RecordedTurn(NamedTuple):
    """A turn of a decider."""

    key: ResourceKey
    before: ResourceState
    decide: Callable[[], Turn]
    events: Sequence[LogEvent]


class Turns:
    """Records turns, and folds the log into states."""

    def __init__(self) -> None:
        self.recorded: list[RecordedTurn] = []
        self.states: dict[ResourceKey, ResourceState] = {}
        self._turn_of: dict[int, RecordedTurn] = {}
        self._rows: dict[ResourceKey, Agreement] = {}

    def decide(self, state: ResourceState, commands: Sequence[Command], context: Context) -> Turn:
        """Decide a turn as the decider does, and record it."""
        frozen, repeated = _freeze(context), list(commands)
        return self._record(state, context.key, lambda: decide(state, repeated, frozen))

    def continue_turn(
        self,
        state: ResourceState,
        events: Sequence[ResourceEvent],
        cause: Command,
        context: Context,
    ) -> Turn:
        """Continue a turn as the decider does for a move, and record it."""
        frozen = _freeze(context)
        return self._record(state, context.key, lambda: continue_turn(state, events, cause, frozen))

    def _record(
        self, state: ResourceState, key: ResourceKey, decide_turn: Callable[[], Turn]
    ) -> Turn:
        turn = decide_turn()
        recorded = RecordedTurn(key, state, decide_turn, tuple(turn.events))
        self.recorded.append(recorded)
        for event in turn.events:
            self._turn_of[id(event)] = recorded
        return turn

    def check_appended(
        self, decided: Sequence[LogEvent], stored: Sequence[LogEvent]
    ) -> Iterator[str]:
        """Fold stored events; yield a problem unless a turn decided them from the fold."""
        key = stored[0].key
        state, turn = self.states.get(key, NEW), self._turn_of.get(id(decided[0]))
        if turn is None:
            yield f"{key}: an event was stored that no turn decided"
        elif decided[0] is turn.events[0] and turn.before != state:
            yield (
                f"{key}: version {state.version + 1} was decided from a state that is not the "
                f"fold of the log: {_difference(turn.before, state)}"
            )
        for event in stored:
            try:
                state = evolve(state, event)
            except HistoryGapError:
                return  # the rule about versions reports it
            row = self._rows.setdefault(key, Agreement(event.subject))
            yield from row.disagreements(event, state)
        self.states[key] = state

    def unrepeatable_turns(self) -> Iterator[str]:
        """Decide every turn again; yield the turns that now decide different events."""
        for turn in self.recorded:
            if tuple(turn.decide().events) != turn.events:
                version = turn.before.version
                yield f"{turn.key}: version {version} is decided differently when repeated"


def _freeze(context: Context) -> Context:
    """Copy the parts of a context that later events change."""
    return replace(
        context,
        configs=dict(context.configs),
        withdrawn_configs=tuple(context.withdrawn_configs),
        providers=dict(context.providers or {}) or None,
        twins=dict(context.twins),
        silences=dict(context.silences),
        new_scopes=dict(context.new_scopes),
    )


def _difference(left: ResourceState, right: ResourceState) -> str:
    names = [
        name
        for name in ResourceState.__struct_fields__
        if getattr(left, name) != getattr(right, name)
    ]
    return ", ".join(f"{n}: {getattr(left, n)!r} is not {getattr(right, n)!r}" for n in names)
