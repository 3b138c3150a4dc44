"""Label selectors in kubectl format: ``team=payments,tier!=web,env in (dev, test),!legacy``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from reconciler.cli.errors import UsageError

_CONDITION_HINT: Final = "use key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
_KEY: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_TERM: Final = re.compile(
    rf"(?P<not>!)?\s*(?P<key>{_KEY})"
    r"(?:\s*(?P<sign>==|=|!=)\s*(?P<value>[^,()!=\s]*)"
    r"|\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?"
)


class Term(NamedTuple):
    """One condition; ``values`` is None if any value matches."""

    key: str
    values: frozenset[str] | None
    wanted: bool


class Selector(NamedTuple):
    """Conditions that must all hold; an empty selector selects everything."""

    terms: tuple[Term, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether a resource with these labels is selected."""
        return all(_is_satisfied(term, labels) for term in self.terms)


def _is_satisfied(term: Term, labels: Mapping[str, str]) -> bool:
    has = term.key in labels and (term.values is None or labels[term.key] in term.values)
    return has == term.wanted


def parse_selector(text: str) -> Selector:
    """Parse a selector; an empty string selects everything. Raises ``UsageError``."""
    return Selector(tuple(_term(part.strip(), text) for part in _parts(text) if text))


def _parts(text: str) -> list[str]:
    """Split a selector at the commas outside parentheses."""
    return re.split(r",(?![^()]*\))", text)


def _term(part: str, text: str) -> Term:
    match = _TERM.fullmatch(part)
    if match is None or (match["not"] and (match["sign"] or match["word"])):
        raise UsageError(f"--selector {text!r}: {part!r} is not a condition; {_CONDITION_HINT}")
    if match["sign"]:
        return Term(match["key"], frozenset({match["value"]}), match["sign"] != "!=")
    if match["word"]:
        values = frozenset(each.strip() for each in match["values"].split(","))
        return Term(match["key"], values, match["word"] == "in")
    return Term(match["key"], None, not match["not"])
