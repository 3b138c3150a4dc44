"""Paths and templates: read a value from JSON, and build JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast

from events.manifest import Fields, InvalidManifestError
from infra.providers.rest.expressions import Expression, NothingThereError

WHOLE: Final = "."
MAX_NODES: Final = 256
MAX_TEMPLATE_DEPTH: Final = 12

_PLAIN: Final = re.compile(r"=\s*[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\s*")


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()
"""Result of a path that does not exist."""


def is_expression(text: str) -> bool:
    """Return whether a place or a text of a template is a CEL expression."""
    return text.startswith("=")


def steps_of(path: str, where: str) -> tuple[str, ...]:
    """Split a path into its steps; raises ``InvalidManifestError`` for an empty step."""
    if path == WHOLE:
        return ()
    steps = tuple(path.split("."))
    if not all(steps):
        raise InvalidManifestError(
            f"{where}: {path!r} has an empty step; use a form such as a.b, or a single ."
        )
    return steps


def found_at(root: Any, steps: Collection[str]) -> Any:
    """Return the value at a path, in which a number is a list index; ``MISSING`` without one."""
    value = root
    for step in steps:
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(step, MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit():
            of_list, index = cast("list[Any]", value), int(step[:9])
            value = of_list[index] if index < len(of_list) else MISSING
        else:
            return MISSING
    return value


def put_at(root: Fields, steps: Collection[str], value: Any) -> None:
    """Store a value in nested objects, which are created as needed."""
    *above, last = steps
    for step in above:
        inner = root.get(step)
        if not isinstance(inner, dict):
            root[step] = inner = {}
        root = cast("Fields", inner)
    root[last] = value


class Finder:
    """Returns the value at a path, or of an expression, whose variable ``about`` is the root."""

    def __init__(self, place: str, where: str, about: str, *more: str) -> None:
        self.text = place
        self._about = about
        self._steps: tuple[str, ...] = ()
        self._expression: Expression | None = None
        if is_expression(place):
            self._expression = Expression(place[1:], where, (about, *more))
        else:
            self._steps = steps_of(place, where)

    @property
    def steps(self) -> tuple[str, ...] | None:
        """The path, or None for an expression."""
        return self._steps if self._expression is None else None

    def find(self, root: Any, **more: Any) -> Any:
        """Return the value, or ``MISSING``; raises ``ExpressionError``."""
        if self._expression is None:
            return found_at(root, self._steps)
        try:
            return self._expression.value({self._about: root, **more})
        except NothingThereError:
            return MISSING


class Template:
    """A JSON document with embedded expressions.

    An expression that consists only of names and dots may have no value. Its place is then omitted,
    unless the first name is in ``needed``.
    """

    def __init__(
        self, tree: Any, where: str, variables: Collection[str], needed: Collection[str] = ()
    ) -> None:
        self._compiled: dict[str, Expression | tuple[str, ...]] = {}
        self._tree = tree
        self.expressions: dict[str, Expression] = {}
        for number, (place, depth, node) in enumerate(_nodes(tree, where, 1)):
            if number >= MAX_NODES or depth > MAX_TEMPLATE_DEPTH:
                raise InvalidManifestError(
                    f"{where}: exceeds the limit of {MAX_NODES} values or {MAX_TEMPLATE_DEPTH} "
                    "levels"
                )
            if isinstance(node, str) and is_expression(node):
                expression = self.expressions[node] = Expression(node[1:], place, variables)
                names = tuple(node[1:].strip().split("."))
                is_plain = _PLAIN.fullmatch(node) is not None and names[0] not in needed
                self._compiled[node] = names if is_plain else expression

    def made(self, variables: Mapping[str, Any]) -> Any:
        """Return the JSON, or ``MISSING`` if it is empty; raises ``ExpressionError``."""
        return self._made(self._tree, variables)

    def _made(self, node: Any, variables: Mapping[str, Any]) -> Any:
        if isinstance(node, dict):
            of_map = cast("dict[str, Any]", node)
            made = {name: self._made(each, variables) for name, each in of_map.items()}
            there = {name: each for name, each in made.items() if each is not MISSING}
            return there if there or not of_map else MISSING
        if isinstance(node, list):
            items = [self._made(each, variables) for each in cast("list[Any]", node)]
            return [each for each in items if each is not MISSING]
        if not isinstance(node, str) or not is_expression(node):
            return node
        compiled = self._compiled[node]
        if isinstance(compiled, Expression):
            return compiled.value(variables)
        return found_at(variables, compiled)


def _nodes(tree: Any, where: str, depth: int) -> Iterator[tuple[str, int, Any]]:
    yield where, depth, tree
    if depth > MAX_TEMPLATE_DEPTH:
        return
    if isinstance(tree, dict):
        for name, each in cast("dict[str, Any]", tree).items():
            yield from _nodes(each, f"{where}.{name}", depth + 1)
    elif isinstance(tree, list):
        for number, each in enumerate(cast("list[Any]", tree)):
            yield from _nodes(each, f"{where}[{number}]", depth + 1)
