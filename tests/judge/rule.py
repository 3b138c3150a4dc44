"""A rule is one function, and the only place where its invariant is judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from events.log import LogEvent, ResourceEvent
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from tests.judge.history import History, Truth
from tests.judge.ledger import Ledger, Resource

Breach = tuple[ResourceKey | str, str]
"""The subject of a breach, and what is wrong with it."""

Evidence = Literal["messages", "replies", "effects", "objects", "truth"]
Moment = Literal["event", "call", "effect", "end"]
_INVARIANTS = re.compile(r"\(invariants? ([0-9, ]+)\)")
_Data = TypeVar("_Data", bound=ResourceEvent)
_Rule = TypeVar("_Rule", bound=Callable[..., Iterator[Any]])


@dataclass(frozen=True, slots=True)
class JudgedEvent(Generic[_Data]):
    """An event in the log, and its resource as of the previous event."""

    ledger: Ledger
    resource: Resource
    event: LogEvent
    data: _Data

    @property
    def truth(self) -> Truth:
        """The facts of a simulated world; the rule must list "truth" in its needs."""
        assert self.ledger.history.truth is not None
        return self.ledger.history.truth

    def settings(self, config: str = "") -> list[ProviderConfigSpec]:
        """Return all versions of a configuration: a decider may have read an older one."""
        default = self.resource.spec.provider_config if self.resource.spec else ""
        return self.ledger.configs[config or default]


class Rule(NamedTuple):
    """One invariant's judge: a generator of breaches, and the evidence that it needs."""

    name: str
    moment: Moment
    breaches: Callable[..., Iterator[Any]]
    invariants: tuple[int, ...]
    needs: tuple[Evidence, ...]
    event_types: tuple[type[Any], ...]

    def can_judge(self, history: History) -> bool:
        """Return whether a history records what the rule needs."""
        return all(getattr(history, each) is not None for each in self.needs)


RULES: list[Rule] = []


def on(
    *event_types: type[_Data], needs: tuple[Evidence, ...] = ()
) -> Callable[[Callable[[JudgedEvent[_Data]], Iterator[str]]], object]:
    """Register a rule about events of the given types, or of all; it yields what is wrong."""
    return _register("event", needs, event_types)


def rule(moment: Moment, *needs: Evidence) -> Callable[[_Rule], _Rule]:
    """Register a rule about each call or each effect; it yields what is wrong with it.

    With the moment "end", it yields breaches of a history at rest.
    """
    return _register(moment, needs)


def _register(
    moment: Moment, needs: tuple[Evidence, ...], event_types: tuple[type[Any], ...] = ()
) -> Callable[[_Rule], _Rule]:
    def add(breaches: _Rule) -> _Rule:
        named = _INVARIANTS.search(breaches.__doc__ or "")
        assert named is not None, f"{breaches.__name__}: name its invariant in the docstring"
        numbers = tuple(int(each) for each in named[1].split(","))
        RULES.append(Rule(breaches.__name__, moment, breaches, numbers, needs, event_types))
        return breaches

    return add
