"""CEL with limits. The library does not limit the cost, so the input must be small (ADR 0049).

The limits apply to the syntax tree (ADR 0057). The library iterates over maps in random order, so
their keys are sorted first to make decisions deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import cel

from events.manifest import InvalidManifestError
from infra.providers.rest.cost import MAX_COPIES, Cost
from infra.providers.rest.syntax import LISTING_LOOPS, ExpressionSyntaxError, Node, loops_in, parse

MAX_CHARACTERS: Final = 1000
MAX_LOOPS: Final = 3
MAX_NESTED_LOOPS: Final = 2
MAX_SUMS: Final = 32
MAX_MEMBERS: Final = 500
MAX_NESTED_MEMBERS: Final = 50
MAX_VALUES: Final = 10_000
MAX_DEPTH: Final = 32
MAX_INPUT_CHARACTERS: Final = 256 * 1024

FUNCTIONS: Final = frozenset(
    {
        *("size", "contains", "startsWith", "endsWith", "matches", "min", "max"),
        *("string", "int", "double", "bool", "type", "dyn"),
    }
)
"""Functions that may be called: they are pure, and return the same result on every machine."""

_SORT_FUNCTION: Final = "__ordered"
_INT64: Final = 2**63


class ExpressionError(ValueError):
    """The expression ``text`` has no value for an input."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class MissingValueError(ExpressionError):
    """An expression reads a field or an item that does not exist."""


class Expression:
    """A compiled expression over named variables."""

    def __init__(self, text: str, location: str, variables: Collection[str]) -> None:
        """Compile an expression. Raises ``InvalidManifestError`` if it is invalid."""
        self.text = text.strip()
        if len(self.text) > MAX_CHARACTERS:
            raise InvalidManifestError(
                f"{location}: an expression can have at most {MAX_CHARACTERS} characters,"
                f" not {len(self.text)}"
            )
        tree, problem = _tree(self.text)
        try:
            # Compile the original text, because positions in messages refer to it.
            program = None if problem.startswith("brackets") else cel.compile(self.text)
        except ValueError as error:
            message = " ".join(str(error).split("|")[0].split())
            message = message.partition("ERROR: <input>:")[2] or message
            raise InvalidManifestError(
                f"{location}: {self.text!r} is not a CEL expression: at {message}"
            ) from None
        if tree is None or program is None:
            raise InvalidManifestError(f"{location}: {self.text!r}: {problem}")
        self._tree = tree
        loops = [*loops_in(tree)]
        self._nesting = max((1 + depth for _, depth in loops), default=0)
        self._members = MAX_NESTED_MEMBERS if self._nesting >= MAX_NESTED_LOOPS else MAX_MEMBERS
        if problem := _find_problem(tree, len(loops), self._nesting):
            raise InvalidManifestError(f"{location}: {problem}")
        listing = [each for each, _ in loops if each.name in LISTING_LOOPS]
        self._program = cel.compile(_with_order(self.text, listing)) if listing else program
        self._check_names(location, variables, {each.variable for each, _ in loops})

    def _check_names(self, location: str, variables: Collection[str], bound: set[str]) -> None:
        references = self._program.references()
        unknown = sorted({*references["variables"]} - {*variables} - bound)
        self.variables = frozenset(references["variables"]) & {*variables}
        if unknown:
            names = ", ".join(sorted(variables))
            raise InvalidManifestError(f"{location}: unknown variable {unknown[0]!r}; use {names}")
        functions = {
            each for each in references["functions"] if not each.startswith(("_", "@", "!", "-"))
        }
        if unknown_functions := sorted(functions - FUNCTIONS):
            names = ", ".join(sorted(FUNCTIONS))
            raise InvalidManifestError(
                f"{location}: unknown function {unknown_functions[0]!r}; use {names}"
            )

    def work(self, values: int) -> int:
        """Return the approximate maximum time in microseconds for a number of values."""
        loop_work = values * values // 10 if self._nesting else 0
        return 20 + values + loop_work * (200 if self._nesting >= MAX_NESTED_LOOPS else 1)

    def value(self, variables: Mapping[str, Any]) -> Any:
        """Evaluate the expression to JSON. Raises ``ExpressionError``."""
        inputs = {name: variables[name] for name in self.variables if name in variables}
        _check_input(self.text, inputs, self._members)
        if self._nesting and Cost(self._tree, inputs).copies > MAX_COPIES:
            raise ExpressionError(
                f"{self.text!r} would copy more than {MAX_COPIES} values in loops; loop "
                "over fewer items, or keep less of each",
                self.text,
            )
        try:
            result = self._program.execute(cel.Context(variables=inputs, functions=_FUNCTIONS))
        except LookupError as error:
            raise MissingValueError(f"{self.text!r} has no value at {error}", self.text) from None
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise ExpressionError(f"evaluating {self.text!r} failed: {error}", self.text) from None
        if not _is_json(result):
            message = f"{self.text!r} returns {type(result).__name__}, which is not JSON"
            raise ExpressionError(message, self.text)
        return result


def _tree(text: str) -> tuple[Node | None, str]:
    """Return the tree of an expression, or None with the reason."""
    try:
        return parse(text), ""
    except ExpressionSyntaxError as problem:
        return None, str(problem)


def _with_order(text: str, loops: Collection[Node]) -> str:
    """Return the expression with loops that iterate over a map's keys in sorted order."""
    for at in sorted((each.at for each in loops), reverse=True):
        text = f"{text[:at]}.{_SORT_FUNCTION}(){text[at:]}"
    return text


def _sort_keys(members: Any) -> Any:
    if not isinstance(members, dict):
        return members
    keys = cast("dict[Any, Any]", members)
    return sorted(keys, key=lambda each: (type(each).__name__, each))


_FUNCTIONS: Final = {_SORT_FUNCTION: _sort_keys}


def _find_problem(tree: Node, loops: int, nesting: int) -> str:
    if loops > MAX_LOOPS:
        return f"{loops} loops (map, filter, all, exists), but at most {MAX_LOOPS} are allowed"
    if nesting > MAX_NESTED_LOOPS:
        return f"loops are nested deeper than {MAX_NESTED_LOOPS}"
    sums = sum(len(each.parts) - 1 for each in tree.walk() if each.kind == "Sum")
    return f"{sums} operators +, but at most {MAX_SUMS} are allowed" if sums > MAX_SUMS else ""


def count_values(value: Any) -> int:
    """Count the values in JSON."""
    if isinstance(value, dict):
        return 1 + sum(map(count_values, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return 1 + sum(map(count_values, cast("list[Any]", value)))
    return 1


def _check_input(text: str, variables: Mapping[str, Any], max_members: int) -> None:
    """Raise ``ExpressionError`` for an input that is too large."""
    values = characters = 0
    pending: list[tuple[Any, int]] = [(each, 1) for each in variables.values()]
    while pending:
        value, depth = pending.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict | list):
            members = cast("dict[str, Any] | list[Any]", value)
            if len(members) > max_members or depth > MAX_DEPTH:
                raise ExpressionError(
                    (
                        f"{text!r}: its input exceeds the limit of {max_members} members or "
                        f"{MAX_DEPTH} levels"
                    ),
                    text,
                )
            if isinstance(members, dict):
                characters += sum(map(len, members))
                members = list(members.values())
            pending.extend((each, depth + 1) for each in members)
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
            mapping = cast("dict[Any, Any]", value)
            return all(isinstance(each, str) for each in mapping) and all(
                map(_is_json, mapping.values())
            )
        case _:
            return False
