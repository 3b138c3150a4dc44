"""CEL, bounded: the library has no limit of cost, so what it is given is small (ADR 0049).

`common-expression-language` copies a list for each element that ``map`` and ``filter`` add to it,
so their cost grows with the square of its length. It goes through a map in another order each time,
so what such a loop goes through is put in order first: a decision must not depend on chance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import cel

from events.manifest import InvalidManifestError

MAX_CHARACTERS: Final = 1000
MAX_BRACKETS: Final = 16
MAX_LOOPS: Final = 3
MAX_NESTED_LOOPS: Final = 2
MAX_SUMS: Final = 32
MAX_MEMBERS: Final = 500
MAX_MEMBERS_OF_NESTED: Final = 50
MAX_VALUES: Final = 10_000
MAX_DEPTH: Final = 32
MAX_INPUT_CHARACTERS: Final = 256 * 1024

FUNCTIONS: Final = frozenset(
    {
        *("size", "contains", "startsWith", "endsWith", "matches", "min", "max"),
        *("string", "int", "double", "bool", "type", "dyn"),
    }
)
"""What may be called: pure, and the same on every machine."""

_LOOP: Final = re.compile(r"\.\s*(?:map|filter|all|exists|exists_one)\s*\(\s*([A-Za-z_]\w*)\s*,")
_LISTING_LOOP: Final = re.compile(r"\.\s*(?=(?:map|filter)\s*\(\s*[A-Za-z_]\w*\s*,)")
_ORDERED: Final = "__ordered"
_TEXT: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
_INT64: Final = 2**63


class ExpressionError(ValueError):
    """An expression has no value for this input; ``text`` is the expression."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class NothingThereError(ExpressionError):
    """An expression asks for a field or an item that is not there."""


class Expression:
    """One compiled expression over variables of some names."""

    def __init__(self, text: str, where: str, variables: Collection[str]) -> None:
        """Compile it; raises ``InvalidManifestError`` for one that cannot work here."""
        self.text = text.strip()
        problem = _problem(self.text)
        self._nesting = _nesting(self.text)
        is_nested = self._nesting >= MAX_NESTED_LOOPS
        self._members = MAX_MEMBERS_OF_NESTED if is_nested else MAX_MEMBERS
        if problem:
            raise InvalidManifestError(f"{where}: {problem}")
        try:
            cel.compile(self.text)  # as it was written: what is said of it has its places
            self._program = cel.compile(_with_order(self.text))
        except ValueError as error:
            what = " ".join(str(error).split("|")[0].split())
            what = what.partition("ERROR: <input>:")[2] or what
            raise InvalidManifestError(
                f"{where}: {self.text!r} is not a CEL expression: at {what}"
            ) from None
        self._check_names(where, variables)

    def _check_names(self, where: str, variables: Collection[str]) -> None:
        bound = set(_LOOP.findall(_TEXT.sub("''", self.text)))
        used = self._program.references()
        unknown = sorted({*used["variables"]} - {*variables} - bound)
        self.variables = frozenset(used["variables"]) & {*variables}
        if unknown:
            known = ", ".join(sorted(variables))
            raise InvalidManifestError(f"{where}: unknown variable {unknown[0]!r}; use {known}")
        called = {each for each in used["functions"] if not each.startswith(("_", "@", "!", "-"))}
        if strange := sorted(called - FUNCTIONS):
            known = ", ".join(sorted(FUNCTIONS))
            raise InvalidManifestError(f"{where}: unknown function {strange[0]!r}; use {known}")

    def work(self, values: int) -> int:
        """Return about how many microseconds it takes for so many values, at most."""
        looped = values * values // 10 if self._nesting else 0
        return 20 + values + looped * (200 if self._nesting >= MAX_NESTED_LOOPS else 1)

    def value(self, variables: Mapping[str, Any]) -> Any:
        """Evaluate it to JSON; raises ``ExpressionError``."""
        given = {name: variables[name] for name in self.variables if name in variables}
        _check_input(self.text, given, self._members)
        try:
            result = self._program.execute(cel.Context(variables=given, functions=_FUNCTIONS))
        except LookupError as error:
            raise NothingThereError(f"{self.text!r} finds nothing at {error}", self.text) from None
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise ExpressionError(f"evaluating {self.text!r} failed: {error}", self.text) from None
        if not _is_json(result):
            strange = f"{self.text!r} returns {type(result).__name__}, which is not JSON"
            raise ExpressionError(strange, self.text)
        return result


def _with_order(text: str) -> str:
    """Return an expression whose loops go through the keys of a map in their order."""
    bare = _TEXT.sub(lambda found: "'" + " " * (len(found[0]) - 2) + "'", text)
    for loop in reversed([*_LISTING_LOOP.finditer(bare)]):
        text = f"{text[: loop.start()]}.{_ORDERED}(){text[loop.start() :]}"
    return text


def _ordered(members: Any) -> Any:
    if not isinstance(members, dict):
        return members
    keys = cast("dict[Any, Any]", members)
    return sorted(keys, key=lambda each: (type(each).__name__, each))


_FUNCTIONS: Final = {_ORDERED: _ordered}


def _problem(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        return f"an expression can have at most {MAX_CHARACTERS} characters, not {len(text)}"
    bare = _TEXT.sub("''", text)
    depth = most = 0
    for character in bare:
        depth += (character in "([{") - (character in ")]}")
        most = max(most, depth)
    if most > MAX_BRACKETS:
        return f"brackets are nested {most} deep, but at most {MAX_BRACKETS} are allowed"
    loops = len(_LOOP.findall(bare))
    if loops > MAX_LOOPS:
        return f"{loops} loops (map, filter, all, exists), but at most {MAX_LOOPS} are allowed"
    if _nesting(text) > MAX_NESTED_LOOPS:
        return f"loops are nested deeper than {MAX_NESTED_LOOPS}"
    if bare.count("+") > MAX_SUMS:
        return f"{bare.count('+')} operators +, but at most {MAX_SUMS} are allowed"
    return ""


def _nesting(text: str) -> int:
    """Count how deep the loops of an expression are nested."""
    bare = _TEXT.sub("''", text)
    loops = (each.start() for each in _LOOP.finditer(bare))
    return max((1 + _loops_around(bare, each) for each in loops), default=0)


def _loops_around(text: str, at: int) -> int:
    """Count the loops within which a place of an expression is."""
    around = 0
    for loop in _LOOP.finditer(text, 0, at):
        depth, end = 1, loop.end()
        while depth and end < len(text):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        around += end > at
    return around


def count_values(value: Any) -> int:
    """Count what there is in JSON."""
    if isinstance(value, dict):
        return 1 + sum(map(count_values, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return 1 + sum(map(count_values, cast("list[Any]", value)))
    return 1


def _check_input(text: str, variables: Mapping[str, Any], most: int) -> None:
    """Raise for an input that is larger than an expression may be asked to work on."""
    values = characters = 0
    waiting: list[tuple[Any, int]] = [(each, 1) for each in variables.values()]
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict | list):
            members = cast("dict[str, Any] | list[Any]", value)
            if len(members) > most or depth > MAX_DEPTH:
                raise ExpressionError(
                    (
                        f"{text!r}: its input exceeds the limit of {most} members or {MAX_DEPTH} "
                        "levels"
                    ),
                    text,
                )
            if isinstance(members, dict):
                characters += sum(map(len, members))
                members = list(members.values())
            waiting.extend((each, depth + 1) for each in members)
        if values > MAX_VALUES or characters > MAX_INPUT_CHARACTERS:
            raise ExpressionError(
                f"{text!r}: its input exceeds the limit of {MAX_VALUES} values or "
                f"{MAX_INPUT_CHARACTERS} characters",
                text,
            )


def _is_json(value: Any) -> bool:
    match value:
        case None | bool() | str():
            return True
        case int():
            return -_INT64 <= value < _INT64
        case float():
            return math.isfinite(value)
        case list():
            return all(map(_is_json, cast("list[Any]", value)))
        case dict():
            of_map = cast("dict[Any, Any]", value)
            return all(isinstance(each, str) for each in of_map) and all(
                map(_is_json, of_map.values())
            )
        case _:
            return False
