"""CEL with limits. The library does not limit the cost, so the input must be small (ADR 0049).

The limits apply to the syntax tree (ADR 0057). The library iterates over maps in random order, so
their keys are sorted first to make decisions deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, cast

import cel

from events.manifest import InvalidManifestError
from infra.providers.rest.cost import (
    COPIES_PER_CONVERSION,
    COPIES_PER_MICROSECOND,
    MAX_COPIES,
    Cost,
    InputValue,
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
_MICROSECONDS_PER_EVALUATION: Final = 50
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
        """Evaluate the expression once. See ``evaluate``."""
        return self.evaluate(Inputs(variables, work))

    def evaluate(self, inputs: Inputs) -> Any:
        """Evaluate the expression to JSON, and count its work. Raises ``ExpressionError``."""
        try:
            return self._evaluate(inputs)
        except WorkLimitError:
            raise ExpressionWorkError(
                f"{self.text!r} would take too long; read fewer values, or match simpler patterns",
                self.text,
            ) from None

    def _evaluate(self, inputs: Inputs) -> Any:
        self._check_size(inputs)
        copies = Cost(self._tree, inputs.values_of(self.variables)).copies
        if self._nesting and copies > MAX_COPIES:
            raise ExpressionError(
                f"{self.text!r} would copy more than {MAX_COPIES} values in loops; loop "
                "over fewer items, or keep less of each",
                self.text,
            )
        inputs.work.add(_MICROSECONDS_PER_EVALUATION + copies // COPIES_PER_MICROSECOND)
        matcher = inputs.matcher
        matcher.reset()
        try:
            result = self._program.execute(inputs.context(self.variables))
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

    def _check_size(self, inputs: Inputs) -> None:
        """Raise ``ExpressionError`` for an input that is too large."""
        sizes = [inputs.size_of(name) for name in sorted(self.variables) if name in inputs]
        if any(each.members > self._members or each.is_deep for each in sizes):
            raise ExpressionError(
                f"{self.text!r}: its input exceeds the limit of {self._members} members or "
                f"{MAX_DEPTH} levels",
                self.text,
            )
        if _is_too_large(
            sum(each.values for each in sizes), sum(each.characters for each in sizes)
        ):
            raise ExpressionError(
                f"{self.text!r}: its input exceeds the limit of {MAX_VALUES} values or "
                f"{MAX_INPUT_CHARACTERS} characters",
                self.text,
            )
        if any(each.is_long for each in sizes):
            raise ExpressionError(
                f"{self.text!r}: its input has an integer of more than 64 bits", self.text
            )


class Inputs:
    """The variables of expressions that belong together, and their remaining work.

    Each variable is examined once, and passed to the library once for all expressions with the same
    variables. So the cost of many expressions over one large value is that of examining it once,
    plus what each of them copies.
    """

    def __init__(self, variables: Mapping[str, Any], work: Work | None = None) -> None:
        self.work = work or Work()
        self._variables = dict(variables)
        self._replaced: dict[str, Any] = {}
        self._sizes: dict[str, _Size] = {}
        self._values: dict[str, InputValue] = {}
        self._contexts: dict[frozenset[str], cel.Context] = {}
        self.matcher = _Matcher(self.work)

    def __contains__(self, name: str) -> bool:
        """Return whether a variable has a value."""
        return name in self._variables

    @property
    def variables(self) -> Mapping[str, Any]:
        """The current value of each variable."""
        return self._variables

    def replace(self, name: str, value: Any) -> None:
        """Set a variable that changes often, such as the item of a loop.

        Each reference to it converts its value, because a changed context is converted as a whole.
        """
        if name not in self._replaced:
            self._contexts.clear()
        self._variables[name] = self._replaced[name] = value
        self._sizes.pop(name, None)
        self._values.pop(name, None)

    def size_of(self, name: str) -> _Size:
        """Return the size of a variable."""
        if name not in self._sizes:
            self._sizes[name] = _measure(self._variables[name])
        return self._sizes[name]

    def values_of(self, names: Collection[str]) -> Mapping[str, InputValue]:
        """Return variables in the form that ``Cost`` examines."""
        for name in names:
            if name not in self._values and name in self._variables:
                self._values[name] = InputValue(
                    [self._variables[name]], is_converted=name in self._replaced
                )
        return self._values

    def context(self, names: frozenset[str]) -> cel.Context:
        """Return a context with these variables. Raises the library's errors."""
        context = self._contexts.get(names)
        if context is None:
            constant = {
                name: None if name in self._replaced else self._variables[name]
                for name in names
                if name in self._variables
            }
            copies = sum(
                COPIES_PER_CONVERSION * self.values_of(names)[name].size() for name in constant
            )
            self.work.add(copies // COPIES_PER_MICROSECOND)
            functions = {_SORT_FUNCTION: _sort_keys, _MATCH_FUNCTION: self.matcher.is_match}
            context = cel.Context(variables=constant, functions=functions)
            if not self._replaced.keys().isdisjoint(names):
                # called for each name first; for null, the library falls back to the constant
                context.set_variable_resolver(self._replaced.get)
            self._contexts[names] = context
        return context


class _Size(NamedTuple):
    """The size of a value, counted up to the first limit that it exceeds.

    ``members``: the number of members in the largest list or map. ``is_deep`` and ``is_long``:
    whether the value's levels or one of its integers exceed the limits.
    """

    values: int
    characters: int
    members: int
    is_deep: bool
    is_long: bool


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
    """The ``matches`` function.

    ``error`` is the first error of an evaluation. The function does not raise it, because the
    library would log it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.error: ValueError | None = None

    def reset(self) -> None:
        """Clear the error from an earlier evaluation."""
        self.error = None

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
    return f"{sums} + operators, but at most {MAX_SUMS} are allowed" if sums > MAX_SUMS else ""


def _measure(variable: Any) -> _Size:
    """Return the size of a variable. Stops at the first limit that it exceeds."""
    values = characters = max_members = 0
    is_deep = is_long = False
    pending: list[tuple[Any, int]] = [(variable, 1)]
    while pending:
        value, depth = pending.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, int):
            is_long |= not -_INT64 <= value < _INT64
        elif isinstance(value, dict | list):
            members = cast("dict[str, Any] | list[Any]", value)
            max_members, is_deep = max(max_members, len(members)), depth > MAX_DEPTH
            if max_members > MAX_MEMBERS or is_deep:
                break
            if isinstance(members, dict):
                characters += sum(map(len, members))
                members = list(members.values())
            pending.extend((each, depth + 1) for each in members)
        if _is_too_large(values, characters):
            break
    return _Size(values, characters, max_members, is_deep, is_long)


def _is_too_large(values: int, characters: int) -> bool:
    return values > MAX_VALUES or characters > MAX_INPUT_CHARACTERS


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
