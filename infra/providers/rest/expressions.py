"""CEL with limits: the library does not limit the cost, so inputs must be small (ADR 0049).

Limits are computed from the syntax tree (ADR 0057). The library iterates over a map in random
order, so the input of each loop is sorted first: a decision must be deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import cel

from events.manifest import InvalidManifestError
from infra.providers.rest.cost import MAX_COPIES, Cost
from infra.providers.rest.syntax import LISTING_LOOPS, ExpressionSyntaxError, Node, loops_in, parsed

MAX_CHARACTERS: Final = 1000
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
"""Functions that an expression may call: pure, and with the same result on every machine."""

_ORDERED: Final = "__ordered"
_INT64: Final = 2**63


class ExpressionError(ValueError):
    """The expression ``text`` has no value for this input."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class NothingThereError(ExpressionError):
    """An expression refers to a field or an item that does not exist."""


class Expression:
    """One compiled expression over a set of variable names."""

    def __init__(self, text: str, where: str, variables: Collection[str]) -> None:
        """Compile the expression; raises ``InvalidManifestError`` for one that always fails."""
        self.text = text.strip()
        if len(self.text) > MAX_CHARACTERS:
            raise InvalidManifestError(
                f"{where}: an expression can have at most {MAX_CHARACTERS} characters,"
                f" not {len(self.text)}"
            )
        tree, problem = _tree(self.text)
        try:
            # Compile the text as written first, so that the positions in an error message fit it.
            program = None if problem.startswith("brackets") else cel.compile(self.text)
        except ValueError as error:
            what = " ".join(str(error).split("|")[0].split())
            what = what.partition("ERROR: <input>:")[2] or what
            raise InvalidManifestError(
                f"{where}: {self.text!r} is not a CEL expression: at {what}"
            ) from None
        if tree is None or program is None:
            raise InvalidManifestError(f"{where}: {self.text!r}: {problem}")
        self._tree = tree
        loops = [*loops_in(tree)]
        self._nesting = max((1 + around for _, around in loops), default=0)
        self._members = MAX_MEMBERS_OF_NESTED if self._nesting >= MAX_NESTED_LOOPS else MAX_MEMBERS
        if problem := _problem(tree, len(loops), self._nesting):
            raise InvalidManifestError(f"{where}: {problem}")
        listing = [each for each, _ in loops if each.name in LISTING_LOOPS]
        self._program = cel.compile(_with_order(self.text, listing)) if listing else program
        self._check_names(where, variables, {each.variable for each, _ in loops})

    def _check_names(self, where: str, variables: Collection[str], bound: set[str]) -> None:
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
        """Return the maximal duration for an input of ``values`` values, in about microseconds."""
        looped = values * values // 10 if self._nesting else 0
        return 20 + values + looped * (200 if self._nesting >= MAX_NESTED_LOOPS else 1)

    def value(self, variables: Mapping[str, Any]) -> Any:
        """Evaluate the expression to JSON; raises ``ExpressionError``."""
        given = {name: variables[name] for name in self.variables if name in variables}
        _check_input(self.text, given, self._members)
        if self._nesting and Cost(self._tree, given).copies > MAX_COPIES:
            raise ExpressionError(
                f"{self.text!r} would copy more than {MAX_COPIES} values in its loops; loop "
                "over fewer items, or keep less of each",
                self.text,
            )
        try:
            result = self._program.execute(cel.Context(variables=given, functions=_FUNCTIONS))
        except LookupError as error:
            raise NothingThereError(f"{self.text!r} has no value at {error}", self.text) from None
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise ExpressionError(f"evaluating {self.text!r} failed: {error}", self.text) from None
        if not _is_json(result):
            strange = f"{self.text!r} returns {type(result).__name__}, which is not JSON"
            raise ExpressionError(strange, self.text)
        return result


def _tree(text: str) -> tuple[Node | None, str]:
    """Return the tree of an expression, or None and the reason."""
    try:
        return parsed(text), ""
    except ExpressionSyntaxError as problem:
        return None, str(problem)


def _with_order(text: str, loops: Collection[Node]) -> str:
    """Return the expression with loops that visit the keys of a map in sorted order."""
    for at in sorted((each.at for each in loops), reverse=True):
        text = f"{text[:at]}.{_ORDERED}(){text[at:]}"
    return text


def _ordered(members: Any) -> Any:
    if not isinstance(members, dict):
        return members
    keys = cast("dict[Any, Any]", members)
    return sorted(keys, key=lambda each: (type(each).__name__, each))


_FUNCTIONS: Final = {_ORDERED: _ordered}


def _problem(tree: Node, loops: int, nesting: int) -> str:
    if loops > MAX_LOOPS:
        return f"{loops} loops (map, filter, all, exists), but at most {MAX_LOOPS} are allowed"
    if nesting > MAX_NESTED_LOOPS:
        return f"loops are nested deeper than {MAX_NESTED_LOOPS}"
    sums = sum(len(each.parts) - 1 for each in tree.walk() if each.kind == "Sum")
    return f"{sums} operators +, but at most {MAX_SUMS} are allowed" if sums > MAX_SUMS else ""


def count_values(value: Any) -> int:
    """Return the number of values in JSON, including nested ones."""
    if isinstance(value, dict):
        return 1 + sum(map(count_values, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return 1 + sum(map(count_values, cast("list[Any]", value)))
    return 1


def _check_input(text: str, variables: Mapping[str, Any], most: int) -> None:
    """Raise ``ExpressionError`` for an input of more than ``most`` values."""
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
