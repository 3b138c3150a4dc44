"""Compute an expression's maximum cost for an input from its tree, before the evaluation.

For each element that ``map`` or ``filter`` adds, ``common-expression-language`` copies the list
with all its contents, so a loop over n elements copies n²/2 results (ADR 0057).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from infra.providers.rest.syntax import LISTING_LOOPS, LOOPS, Node

MAX_COPIES: Final = 1_250_000
"""Limit on the values that an expression copies, which takes 0.2 s."""

MAX_WORK: Final = 200_000
"""Approximate maximum time for expressions that belong together, in microseconds."""

COPIES_PER_MICROSECOND: Final = 6

COPIES_PER_CONVERSION: Final = 12
"""Passing a value to the library takes as long as this many copies of it."""

_COPIES_PER_RESULT: Final = 3
"""The same for returning a value from the library."""

_COPIES_PER_SEARCH: Final = 6
"""Searching a string takes as long as this many copies of it."""

CHARACTERS_PER_VALUE: Final = 256
"""Copying this many characters takes as long as copying a value."""

_SCALAR_FUNCTIONS: Final = frozenset(
    {*LOOPS, "has", "size", "contains", "startsWith", "endsWith"}
) | {*("matches", "int", "double", "bool", "type")}

_SELECTING_FUNCTIONS: Final = frozenset({"dyn", "min", "max"})
"""Functions that return an argument."""


class WorkLimitError(ValueError):
    """Expressions would take too long."""


class Work:
    """The remaining time of expressions that belong together, such as all those of an object."""

    def __init__(self) -> None:
        self._remaining = MAX_WORK

    def add(self, microseconds: int) -> None:
        """Count time. Once it is used up, each call raises ``WorkLimitError``."""
        self._remaining -= microseconds
        if self._remaining < 0:
            raise WorkLimitError


class _Value(Protocol):
    """The largest possible value of a subexpression."""

    def size(self) -> int:
        """Return the number of values in it, plus the cost of long strings."""
        ...

    def members(self) -> int:
        """Return the number of members that a loop iterates over."""
        ...

    def element(self) -> _Value:
        """Return the value of a loop's variable."""
        ...

    def field(self, name: str) -> _Value:
        """Return the value of a field."""
        ...

    def items(self) -> _Value:
        """Return the value at any index or key."""
        ...


class InputValue:
    """Any of several values from the input, which expressions share.

    Examining a large value is slow, so its parts are kept for the next expression. If
    ``is_converted`` is true, each reference to the value converts it again.
    """

    def __init__(self, values: Sequence[Any], *, is_converted: bool = False) -> None:
        self._values = values
        self.is_converted = is_converted
        self._size = 0
        self._fields: dict[str, _Value] = {}
        self._element: InputValue | None = None
        self._items: InputValue | None = None

    def size(self) -> int:
        """Return the size of the largest value."""
        self._size = self._size or max(map(_size, self._values), default=1)
        return self._size

    def members(self) -> int:
        """Return the number of members of the longest value."""
        return max((len(_elements(each)) for each in self._values), default=0)

    def element(self) -> _Value:
        """Return the value of a loop's variable."""
        if self._element is None:
            elements = [item for each in self._values for item in _elements(each)]
            self._element = InputValue(elements)
        return self._element

    def field(self, name: str) -> _Value:
        """Return the value of a field."""
        if name not in self._fields:
            maps = (cast("dict[str, Any]", each) for each in self._values if isinstance(each, dict))
            self._fields[name] = InputValue([each[name] for each in maps if name in each])
        return self._fields[name]

    def items(self) -> _Value:
        """Return the value at any index or key."""
        if self._items is None:
            maps = (cast("dict[str, Any]", each) for each in self._values if isinstance(each, dict))
            lists = (cast("list[Any]", each) for each in self._values if isinstance(each, list))
            values = (*lists, *(each.values() for each in maps))
            self._items = InputValue([item for each in values for item in each])
        return self._items


class _ComputedValue:
    """A value that the expression creates.

    ``inner_values`` are the possible values of its members and fields.
    """

    def __init__(self, size: int, members: int = 0, inner_values: Sequence[_Value] = ()) -> None:
        self._size = size
        self._members = members
        self._inner_values = inner_values

    def size(self) -> int:
        return self._size

    def members(self) -> int:
        return self._members

    def element(self) -> _Value:
        return _combine(self._inner_values)

    def field(self, name: str) -> _Value:
        del name
        return _combine(self._inner_values)

    def items(self) -> _Value:
        return _combine(self._inner_values)


class _Alternatives:
    """Any of several values: as large as the largest, with as many members as the longest."""

    def __init__(self, values: Sequence[_Value]) -> None:
        self._values = values

    def size(self) -> int:
        return max(each.size() for each in self._values)

    def members(self) -> int:
        return max(each.members() for each in self._values)

    def element(self) -> _Value:
        return _combine([each.element() for each in self._values])

    def field(self, name: str) -> _Value:
        return _combine([each.field(name) for each in self._values])

    def items(self) -> _Value:
        return _combine([each.items() for each in self._values])


def _combine(values: Sequence[_Value]) -> _Value:
    return _Alternatives(values) if values else _ComputedValue(1)


class Cost:
    """Counts the values that an expression copies; ``copies`` is the result."""

    def __init__(self, tree: Node, variables: Mapping[str, InputValue]) -> None:
        self.copies = 0
        result = self._count(tree, variables)
        self.copies += _COPIES_PER_RESULT * result.size()

    def _count(self, node: Node, variables: Mapping[str, _Value]) -> _Value:
        """Add the cost of a subexpression and of copying its result."""
        value = self._value(node, variables)
        self.copies += value.size()
        return value

    def _value(self, node: Node, variables: Mapping[str, _Value]) -> _Value:
        match node.kind:
            case "Literal":
                return _ComputedValue(1 + len(node.name) // CHARACTERS_PER_VALUE)
            case "Name":
                return self._variable(variables.get(node.name.removeprefix(".")))
            case "Field":
                return self._container(node.parts[0], variables).field(node.name)
            case "Index":
                container = self._container(node.parts[0], variables)
                self._count(node.parts[1], variables)
                return container.items()
            case "Choice":
                condition, if_true, if_false = node.parts
                self._count(condition, variables)
                return _combine((self._value(if_true, variables), self._value(if_false, variables)))
            case "Loop":
                return self._loop(node, variables)
            case "Call" if node.name in _SCALAR_FUNCTIONS:
                return self._scalar(node, variables)
            case "Scalar":
                return self._scalar(node, variables)
            case "Call" if node.name in _SELECTING_FUNCTIONS:
                return _combine(self._count_all(node.parts, variables))
            case "Call" | "Sum" | "List" | "Map":
                values = self._count_all(node.parts, variables)
                size = 1 + sum(each.size() for each in values)
                if node.kind in ("Sum", "Call"):
                    members = sum(each.members() for each in values)
                    return _ComputedValue(size, members, [each.element() for each in values])
                return _ComputedValue(size, len(values), values)

    def _scalar(self, node: Node, variables: Mapping[str, _Value]) -> _Value:
        values = self._count_all(node.parts, variables)
        if node.name == "contains":
            self.copies += _COPIES_PER_SEARCH * values[0].size()
        return _ComputedValue(1)

    def _variable(self, value: _Value | None) -> _Value:
        if isinstance(value, InputValue) and value.is_converted:
            self.copies += COPIES_PER_CONVERSION * value.size()
        return value or _ComputedValue(1)

    def _container(self, node: Node, variables: Mapping[str, _Value]) -> _Value:
        """Return the value of a container, which is copied unless it is a variable."""
        return (self._value if node.kind == "Name" else self._count)(node, variables)

    def _count_all(self, nodes: Iterable[Node], variables: Mapping[str, _Value]) -> list[_Value]:
        return [self._count(each, variables) for each in nodes]

    def _loop(self, node: Node, variables: Mapping[str, _Value]) -> _Value:
        container, *body = node.parts
        items = self._count(container, variables)
        count, element = items.members(), items.element()
        copies_before = self.copies
        results = self._count_all(body, {**variables, node.variable: element})
        self.copies = copies_before + count * (1 + self.copies - copies_before)
        if node.name not in LISTING_LOOPS:
            return _ComputedValue(1)
        result = element if node.name == "filter" or not results else results[-1]
        self.copies += _COPIES_PER_RESULT * items.size()  # sorting its keys in Python
        self.copies += count * count // 2 * result.size()
        return _ComputedValue(1 + count * result.size(), count, (result,))


def _elements(value: Any) -> Collection[Any]:
    return cast("Collection[Any]", value) if isinstance(value, list | dict) else ()


def _size(value: Any) -> int:
    """Count the values in JSON, plus the cost of long strings."""
    count, pending = 0, [value]
    while pending:
        each = pending.pop()
        count += 1
        if isinstance(each, str):
            count += len(each) // CHARACTERS_PER_VALUE
        elif isinstance(each, dict):
            mapping = cast("dict[str, Any]", each)
            count += len(mapping)
            pending.extend(mapping.values())
        elif isinstance(each, list):
            pending.extend(cast("list[Any]", each))
    return count
