"""The maximal cost of an expression for an input, computed from its tree before evaluation.

For each element that ``map`` and ``filter`` append, ``common-expression-language`` copies the list
so far, including all nested values. A loop over n elements copies n²/2 results (ADR 0057).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from infra.providers.rest.syntax import LISTING_LOOPS, LOOPS, Node

MAX_COPIES: Final = 2_500_000
"""Limit of values that an expression may copy. One takes 80 ns, so the limit is 0.2 s."""

_CHARACTERS: Final = 256
"""Number of characters that take as long to copy as one more value."""

_SCALARS: Final = frozenset({*LOOPS, "has", "size", "contains", "startsWith", "endsWith"}) | {
    *("matches", "int", "double", "bool", "type")
}

_ITSELF: Final = frozenset({"dyn", "min", "max"})
"""Functions that return one of their arguments."""


class _Value(Protocol):
    """The maximal size and structure of the value of an expression or a part of it."""

    def size(self) -> int:
        """Return the number of nested values, in which long texts count by their length."""
        ...

    def members(self) -> int:
        """Return the number of elements that a loop over this value visits."""
        ...

    def element(self) -> _Value:
        """Return the value that the variable of a loop over this value has."""
        ...

    def field(self, name: str) -> _Value:
        """Return the value of a field."""
        ...

    def items(self) -> _Value:
        """Return the value at any index or key."""
        ...


class _Input:
    """One of several possible values of the input."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._size = 0

    def size(self) -> int:
        self._size = self._size or max(map(_size, self._values), default=1)
        return self._size

    def members(self) -> int:
        return max((len([*_elements(each)]) for each in self._values), default=0)

    def element(self) -> _Value:
        return _Input([one for each in self._values for one in _elements(each)])

    def field(self, name: str) -> _Value:
        maps = (cast("dict[str, Any]", each) for each in self._values if isinstance(each, dict))
        return _Input([each[name] for each in maps if name in each])

    def items(self) -> _Value:
        maps = (cast("dict[str, Any]", each) for each in self._values if isinstance(each, dict))
        lists = (cast("list[Any]", each) for each in self._values if isinstance(each, list))
        return _Input([one for each in (*lists, *(each.values() for each in maps)) for one in each])


class _Made:
    """A value that the expression builds; ``within``: the value of any of its members or fields."""

    def __init__(self, size: int, members: int = 0, within: Sequence[_Value] = ()) -> None:
        self._size = size
        self._members = members
        self._within = within

    def size(self) -> int:
        return self._size

    def members(self) -> int:
        return self._members

    def element(self) -> _Value:
        return _one_of(self._within)

    def field(self, name: str) -> _Value:
        del name
        return _one_of(self._within)

    def items(self) -> _Value:
        return _one_of(self._within)


class _OneOf:
    """One of several values: as large as the largest, with as many members as the longest."""

    def __init__(self, values: Sequence[_Value]) -> None:
        self._values = values

    def size(self) -> int:
        return max(each.size() for each in self._values)

    def members(self) -> int:
        return max(each.members() for each in self._values)

    def element(self) -> _Value:
        return _one_of([each.element() for each in self._values])

    def field(self, name: str) -> _Value:
        return _one_of([each.field(name) for each in self._values])

    def items(self) -> _Value:
        return _one_of([each.items() for each in self._values])


def _one_of(values: Sequence[_Value]) -> _Value:
    return _OneOf(values) if values else _Made(1)


class Cost:
    """Counts the values that an expression copies; ``copies`` is the result."""

    def __init__(self, tree: Node, variables: Mapping[str, Any]) -> None:
        self.copies = 0
        self._use(tree, {name: _Input([each]) for name, each in variables.items()})

    def _use(self, node: Node, known: Mapping[str, _Value]) -> _Value:
        """Count a part of the expression, and the copy of its result."""
        value = self._value(node, known)
        self.copies += value.size()
        return value

    def _value(self, node: Node, known: Mapping[str, _Value]) -> _Value:
        match node.kind:
            case "Literal":
                return _Made(1 + len(node.name) // _CHARACTERS)
            case "Name":
                return known.get(node.name.removeprefix(".")) or _Made(1)
            case "Field":
                return self._value(node.parts[0], known).field(node.name)
            case "Index":
                whole = self._value(node.parts[0], known)
                self._use(node.parts[1], known)
                return whole.items()
            case "Choice":
                condition, yes, no = node.parts
                self._use(condition, known)
                return _one_of((self._value(yes, known), self._value(no, known)))
            case "Loop":
                return self._loop(node, known)
            case "Call" if node.name in _SCALARS:
                self._used(node.parts, known)
                return _Made(1)
            case "Scalar":
                self._used(node.parts, known)
                return _Made(1)
            case "Call" if node.name in _ITSELF:
                return _one_of(self._used(node.parts, known))
            case "Call" | "Sum" | "List" | "Map":
                used = self._used(node.parts, known)
                size = 1 + sum(each.size() for each in used)
                if node.kind in ("Sum", "Call"):
                    members = sum(each.members() for each in used)
                    return _Made(size, members, [each.element() for each in used])
                return _Made(size, len(used), used)

    def _used(self, nodes: Iterable[Node], known: Mapping[str, _Value]) -> list[_Value]:
        return [self._use(each, known) for each in nodes]

    def _loop(self, node: Node, known: Mapping[str, _Value]) -> _Value:
        whole, *body = node.parts
        through = self._use(whole, known)
        count, element = through.members(), through.element()
        before = self.copies
        made = self._used(body, {**known, node.variable: element})
        self.copies = before + count * (1 + self.copies - before)
        if node.name not in LISTING_LOOPS:
            return _Made(1)
        result = element if node.name == "filter" or not made else made[-1]
        self.copies += count * count // 2 * result.size()
        return _Made(1 + count * result.size(), count, (result,))


def _elements(value: Any) -> Iterable[Any]:
    return cast("Iterable[Any]", value) if isinstance(value, list | dict) else ()


def _size(value: Any) -> int:
    """Return the number of values in JSON, plus one for each ``_CHARACTERS`` of a text."""
    count, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        count += 1
        if isinstance(each, str):
            count += len(each) // _CHARACTERS
        elif isinstance(each, dict):
            of_map = cast("dict[str, Any]", each)
            count += len(of_map)
            waiting.extend(of_map.values())
        elif isinstance(each, list):
            waiting.extend(cast("list[Any]", each))
    return count
