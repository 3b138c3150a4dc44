"""What a rule is: one function, the only place where an invariant is judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from events.names import ResourceKey
from tests.judge.history import Call, Effect, History, Recorded
from tests.judge.ledger import Ledger, Resource

Breach = tuple[ResourceKey | str, str]
"""The subject of a breach, and what is wrong with it."""

Evidence = Literal["messages", "answers", "effects", "objects", "truth"]
Moment = Literal["event", "call", "effect", "end"]
_INVARIANTS = re.compile(r"\(invariants? ([0-9, ]+)\)")


class Rule(NamedTuple):
    """One invariant's judge: a generator of breaches, and what it needs to be recorded."""

    name: str
    moment: Moment
    breaches: Callable[..., Iterator[Breach]]
    invariants: tuple[int, ...]
    needs: tuple[Evidence, ...]

    def can_judge(self, history: History) -> bool:
        """Return whether a history records what the rule needs."""
        return all(getattr(history, each) is not None for each in self.needs)


RULES: list[Rule] = []


def _added(moment: Moment, breaches: Callable[..., Any], needs: tuple[Evidence, ...]) -> None:
    named = _INVARIANTS.search(breaches.__doc__ or "")
    assert named is not None, f"{breaches.__name__}: name the invariant in its docstring"
    numbers = tuple(int(each) for each in named[1].split(","))
    RULES.append(Rule(breaches.__name__, moment, breaches, numbers, needs))


_OfEvent = Callable[[Ledger, Resource, Recorded], Iterator[Breach]]
_OfCall = Callable[[Ledger, Call], Iterator[Breach]]
_OfEffect = Callable[[Ledger, Effect], Iterator[Breach]]
_OfEnd = Callable[[Ledger], Iterator[Breach]]


def on_event(*needs: Evidence) -> Callable[[_OfEvent], _OfEvent]:
    """Register a rule about an event, given its resource as the events before it leave it."""

    def add(rule: _OfEvent) -> _OfEvent:
        _added("event", rule, needs)
        return rule

    return add


def on_call(*needs: Evidence) -> Callable[[_OfCall], _OfCall]:
    """Register a rule about a request for a write."""

    def add(rule: _OfCall) -> _OfCall:
        _added("call", rule, needs)
        return rule

    return add


def on_effect(*needs: Evidence) -> Callable[[_OfEffect], _OfEffect]:
    """Register a rule about an effect, before the ledger has it."""

    def add(rule: _OfEffect) -> _OfEffect:
        _added("effect", rule, ("effects", *needs))
        return rule

    return add


def at_end(*needs: Evidence) -> Callable[[_OfEnd], _OfEnd]:
    """Register a rule about a history that has come to rest."""

    def add(rule: _OfEnd) -> _OfEnd:
        _added("end", rule, needs)
        return rule

    return add
