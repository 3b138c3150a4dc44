"""Applies the rules to records as they arrive, or to a whole history that is read later."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from tests.judge import actions, end, holds, log, objects, references
from tests.judge.history import Call, Effect, History, RecordedEvent
from tests.judge.ledger import Ledger
from tests.judge.rule import RULES, JudgedEvent, Moment

MODULES = (log, actions, objects, holds, references, end)
"""The rule modules. Importing one registers its rules."""


INVARIANTS: Mapping[int, tuple[str, ...]] = {
    1: ("tests/invariants/test_log.py", "tests/simulation/ending.py"),
    2: ("tests/invariants/test_log.py",),
    3: ("tests/invariants/test_log.py",),
    4: ("tests/invariants/test_writing.py", "tests/resource/test_any_history.py"),
    5: ("tests/invariants/test_writing.py", "tests/judge/turns.py"),
    6: ("tests/invariants/test_safety.py",),
    7: ("tests/invariants/test_safety.py", "tests/resource/test_ownership.py"),
    8: ("tests/invariants/test_safety.py", "tests/resource/test_convergence.py"),
    9: ("tests/invariants/test_log.py",),
    10: ("tests/invariants/test_log.py", "tests/judge/turns.py"),
    11: ("tests/invariants/test_nothing_is_lost.py",),
    12: ("tests/invariants/test_safety.py",),
    13: ("tests/invariants/test_log.py",),
    14: ("tests/scenarios/test_flooding.py", "tests/judge/log.py"),
    15: ("tests/scenarios/test_many.py",),
    16: ("tests/resource/test_readiness.py", "tests/resource/test_due.py"),
    17: ("tests/resource/test_definitions.py", "tests/resource/test_approval.py"),
}
"""The tests of each invariant, in addition to the rules, which name theirs in their docstrings."""


class Finding(NamedTuple):
    """One breach: its rule, its subject, and what is wrong."""

    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.text}"


class Judge:
    """Follows one history; the feeder adds each record to it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.ledger = Ledger(history)
        self._rules = [each for each in RULES if each.can_judge(history)]

    def event(self, recorded: RecordedEvent) -> list[Finding]:
        """Judge an event of the log, and add it to the ledger."""
        event = recorded.event
        resource = self.ledger.resource(event.key)
        judged_event = JudgedEvent(self.ledger, resource, event, event.data)
        breaches = self._apply("event", event.id, event.data, judged_event)
        self.ledger.add_event(event)
        return breaches

    def call(self, call: Call) -> list[Finding]:
        """Judge a request that reached the API, and add it to the ledger."""
        breaches = self._apply("call", call.action.action_id, call, self.ledger, call)
        self.ledger.sent.setdefault(call.action.idempotency_key, call.action)
        return breaches

    def effect(self, effect: Effect) -> list[Finding]:
        """Judge an effect in the API, and add it to the ledger."""
        breaches = self._apply("effect", effect.name, effect, self.ledger, effect)
        self.ledger.add_effect(effect)
        return breaches

    def end(self) -> list[Finding]:
        """Judge a history at rest."""
        return [
            Finding(rule.name, str(subject), text)
            for rule in self._rules
            if rule.moment == "end"
            for subject, text in rule.breaches(self.ledger)
        ]

    def _apply(self, moment: Moment, subject: str, data: object, *what: object) -> list[Finding]:
        return [
            Finding(rule.name, subject, text)
            for rule in self._rules
            if rule.moment == moment
            and (not rule.event_types or isinstance(data, rule.event_types))
            for text in rule.breaches(*what)
        ]


def findings(history: History) -> list[Finding]:
    """Return every breach in a recorded history at rest.

    Records are processed in the order of their times; for equal times, events come first.
    """
    judge = Judge(history)
    breaches: list[Finding] = []
    records = heapq.merge(
        ((each.stored_at, 0, each) for each in history.log),
        ((each.at, 1, each) for each in history.calls),
        ((each.at, 2, each) for each in history.effects or ()),
        key=lambda record: record[:2],
    )
    for _, _, record in records:
        match record:
            case RecordedEvent():
                breaches += judge.event(record)
            case Call():
                breaches += judge.call(record)
            case Effect():
                breaches += judge.effect(record)
    return list(dict.fromkeys([*breaches, *judge.end()]))


def skipped_rules(history: History) -> list[str]:
    """Return the names of the rules for which a history lacks evidence."""
    return [each.name for each in RULES if not each.can_judge(history)]
