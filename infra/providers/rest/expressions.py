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
from infra.providers.rest.cost import (
    CHARACTERS_PER_VALUE,
    COPIES_PER_MICROSECOND,
    MAX_COPIES,
    Cost,
    Work,
    WorkLimitError,
)
from infra.providers.rest.patterns import PatternError, read_pattern
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

_MATCHES: Final = "matches"
_SORT_FUNCTION: Final = "__ordered"
_MATCH_FUNCTION: Final = f"__{_MATCHES}"
_REFERENCES_PER_COPY: Final = 8
_INT64: Final = 2**63


class ExpressionError(ValueError):
    """The expression ``text`` has no value for an input."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class MissingValueError(ExpressionError):
    """An expression reads a field or an item that does not exist."""


class ExpressionWorkError(ExpressionError):
    """An expression would take too long, alone or after others."""


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
        self._copies = 1 + sum(len(each.parts) - 1 for each in tree.walk() if each.kind == "Sum")
        references = sum(each.kind == "Name" for each in tree.walk())
        self._copies *= 1 + references // _REFERENCES_PER_COPY
        calls = [each for each in tree.walk() if each.kind == "Call" and each.name == _MATCHES]
        for each in calls:
            _check_pattern(each, location)
        insertions = {each.at: "__" for each in calls}
        insertions |= {
            each.at: f".{_SORT_FUNCTION}()" for each, _ in loops if each.name in LISTING_LOOPS
        }
        self._program = cel.compile(_insert(self.text, insertions)) if insertions else program
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
        # The library's own ``matches`` has no limits, so each call must have been replaced.
        if unknown_functions := sorted(functions - (FUNCTIONS - {_MATCHES})):
            names = ", ".join(sorted(FUNCTIONS))
            raise InvalidManifestError(
                f"{location}: unknown function {unknown_functions[0]!r}; use {names}"
            )

    def value(self, variables: Mapping[str, Any], work: Work | None = None) -> Any:
        """Evaluate the expression to JSON, and count its work. Raises ``ExpressionError``."""
        inputs = {name: variables[name] for name in self.variables if name in variables}
        values = _check_input(self.text, inputs, self._members)
        try:
            return self._evaluate(inputs, values, work or Work())
        except WorkLimitError:
            raise ExpressionWorkError(
                f"{self.text!r} would take too long; read fewer values, or match simpler patterns",
                self.text,
            ) from None

    def _evaluate(self, inputs: dict[str, Any], values: int, work: Work) -> Any:
        work.add(20 + values * self._copies)
        self._count_loops(inputs, work)
        matcher = _Matcher(work)
        functions = {_SORT_FUNCTION: _sort_keys, _MATCH_FUNCTION: matcher.is_match}
        try:
            result = self._program.execute(cel.Context(variables=inputs, functions=functions))
        except LookupError as error:
            raise MissingValueError(f"{self.text!r} has no value at {error}", self.text) from None
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise ExpressionError(f"evaluating {self.text!r} failed: {error}", self.text) from None
        if isinstance(matcher.error, WorkLimitError):
            raise matcher.error
        if matcher.error is not None:
            message = f"evaluating {self.text!r} failed: {matcher.error}"
            raise ExpressionError(message, self.text) from None
        if not _is_json(result):
            message = f"{self.text!r} returns {type(result).__name__}, which is not JSON"
            raise ExpressionError(message, self.text)
        return result

    def _count_loops(self, inputs: Mapping[str, Any], work: Work) -> None:
        if not self._nesting:
            return
        copies = Cost(self._tree, inputs).copies
        if copies > MAX_COPIES:
            raise ExpressionError(
                f"{self.text!r} would copy more than {MAX_COPIES} values in loops; loop "
                "over fewer items, or keep less of each",
                self.text,
            )
        work.add(copies // COPIES_PER_MICROSECOND)


def _tree(text: str) -> tuple[Node | None, str]:
    """Return the tree of an expression, or None with the reason."""
    try:
        return parse(text), ""
    except ExpressionSyntaxError as problem:
        return None, str(problem)


def _insert(text: str, insertions: Mapping[int, str]) -> str:
    """Return text with other strings inserted at their positions."""
    for at, inserted in sorted(insertions.items(), reverse=True):
        text = f"{text[:at]}{inserted}{text[at:]}"
    return text


def _check_pattern(call: Node, location: str) -> None:
    """Raise ``InvalidManifestError`` for an invalid pattern that is a literal."""
    if not call.parts or call.parts[-1].kind != "Literal":
        return
    pattern = cel.evaluate(call.parts[-1].name)
    if isinstance(pattern, str):
        try:
            read_pattern(pattern).is_in("")
        except PatternError as error:
            raise InvalidManifestError(f"{location}: pattern {pattern!r} {error}") from None


class _Matcher:
    """The function ``matches`` of one evaluation.

    ``error`` is its first error. The function does not raise it, because the library would log it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.error: ValueError | None = None

    def is_match(self, text: Any, pattern: Any) -> bool:
        """Return whether text contains a match; False after an error."""
        if self.error is not None:
            return False
        if not isinstance(text, str) or not isinstance(pattern, str):
            self.error = ValueError("matches: the text and the pattern must be strings")
            return False
        try:
            self._work.add(len(pattern))
            compiled = read_pattern(pattern)
            self._work.add(compiled.work(text))
            return compiled.is_in(text)
        except PatternError as error:
            self.error = ValueError(f"pattern {pattern[:100]!r} {error}")
        except WorkLimitError as error:
            self.error = error
        return False


def _sort_keys(members: Any) -> Any:
    if not isinstance(members, dict):
        return members
    keys = cast("dict[Any, Any]", members)
    return sorted(keys, key=lambda each: (type(each).__name__, each))


def _find_problem(tree: Node, loops: int, nesting: int) -> str:
    if loops > MAX_LOOPS:
        return f"{loops} loops (map, filter, all, exists), but at most {MAX_LOOPS} are allowed"
    if nesting > MAX_NESTED_LOOPS:
        return f"loops are nested deeper than {MAX_NESTED_LOOPS}"
    sums = sum(len(each.parts) - 1 for each in tree.walk() if each.kind == "Sum")
    return f"{sums} operators +, but at most {MAX_SUMS} are allowed" if sums > MAX_SUMS else ""


def _check_input(text: str, variables: Mapping[str, Any], max_members: int) -> int:
    """Return the number of values. Raises ``ExpressionError`` for an input that is too large.

    ``CHARACTERS_PER_VALUE`` characters count as a value.
    """
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
    return values + characters // CHARACTERS_PER_VALUE


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
