"""What a rule is: one function, the only place where an invariant is judged."""

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

Evidence = Literal["messages", "answers", "effects", "objects", "truth"]
Moment = Literal["event", "call", "effect", "end"]
_INVARIANTS = re.compile(r"\(invariants? ([0-9, ]+)\)")
_Data = TypeVar("_Data", bound=ResourceEvent)
_Rule = TypeVar("_Rule", bound=Callable[..., Iterator[Any]])


@dataclass(frozen=True, slots=True)
class Happening(Generic[_Data]):
    """An event of the log, and its resource as the events before it leave it."""

    ledger: Ledger
    resource: Resource
    event: LogEvent
    data: _Data

    @property
    def truth(self) -> Truth:
        """What a simulated world knows; the rule needs it."""
        assert self.ledger.history.truth is not None
        return self.ledger.history.truth

    def settings(self, config: str = "") -> list[ProviderConfigSpec]:
        """Return all that a configuration ever was: a decider may have read an older one."""
        default = self.resource.spec.provider_config if self.resource.spec else ""
        return self.ledger.configs[config or default]


class Rule(NamedTuple):
    """One invariant's judge: a generator of breaches, and what it needs to be recorded."""

    name: str
    moment: Moment
    breaches: Callable[..., Iterator[Any]]
    invariants: tuple[int, ...]
    needs: tuple[Evidence, ...]
    sorts: tuple[type[Any], ...]

    def can_judge(self, history: History) -> bool:
        """Return whether a history records what the rule needs."""
        return all(getattr(history, each) is not None for each in self.needs)


RULES: list[Rule] = []


def on(
    *sorts: type[_Data], needs: tuple[Evidence, ...] = ()
) -> Callable[[Callable[[Happening[_Data]], Iterator[str]]], object]:
    """Register a rule about events of some sorts, or of all; it yields what is wrong."""
    return _register("event", needs, sorts)


def rule(moment: Moment, *needs: Evidence) -> Callable[[_Rule], _Rule]:
    """Register a rule about each call or each effect, of which it yields what is wrong.

    At the end, it yields breaches of a history that has come to rest.
    """
    return _register(moment, needs)


def _register(
    moment: Moment, needs: tuple[Evidence, ...], sorts: tuple[type[Any], ...] = ()
) -> Callable[[_Rule], _Rule]:
    def add(breaches: _Rule) -> _Rule:
        named = _INVARIANTS.search(breaches.__doc__ or "")
        assert named is not None, f"{breaches.__name__}: name its invariant in the docstring"
        numbers = tuple(int(each) for each in named[1].split(","))
        RULES.append(Rule(breaches.__name__, moment, breaches, numbers, needs, sorts))
        return breaches

    return add
