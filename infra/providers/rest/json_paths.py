"""Locate values in JSON by path or expression, and build JSON from templates."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast

from events.manifest import Fields, InvalidManifestError
from infra.providers.rest.expressions import Expression, Inputs, MissingValueError

WHOLE_DOCUMENT: Final = "."
MAX_NODES: Final = 256
MAX_TEMPLATE_DEPTH: Final = 12

_PLAIN_REFERENCE: Final = re.compile(r"=\s*[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\s*")


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()
"""Result for a path that does not exist."""


def is_expression(text: str) -> bool:
    """Return whether a location or a template's string is a CEL expression."""
    return text.startswith("=")


def split_path(path: str, location: str) -> tuple[str, ...]:
    """Split a path into steps. Raises ``InvalidManifestError`` for an empty step."""
    if path == WHOLE_DOCUMENT:
        return ()
    steps = tuple(path.split("."))
    if not all(steps):
        raise InvalidManifestError(
            f"{location}: {path!r} has an empty step; use a form such as a.b, or a single ."
        )
    return steps


def value_at(root: Any, steps: Collection[str]) -> Any:
    """Return the value at a path, or ``MISSING``. A number is an index into a list."""
    value = root
    for step in steps:
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(step, MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit():
            values, index = cast("list[Any]", value), int(step[:9])
            value = values[index] if index < len(values) else MISSING
        else:
            return MISSING
    return value


def put_at(root: Fields, steps: Collection[str], value: Any) -> None:
    """Store a value at a path, and create missing objects along the way."""
    *parents, last = steps
    for step in parents:
        child = root.get(step)
        if not isinstance(child, dict):
            root[step] = child = {}
        root = cast("Fields", child)
    root[last] = value


class Finder:
    """Finds a value by path or expression, which refers to the document as ``variable``."""

    def __init__(self, text: str, location: str, variable: str, *variables: str) -> None:
        self.text = text
        self._variable = variable
        self._steps: tuple[str, ...] = ()
        self._expression: Expression | None = None
        if is_expression(text):
            self._expression = Expression(text[1:], location, (variable, *variables))
        else:
            self._steps = split_path(text, location)

    @property
    def steps(self) -> tuple[str, ...] | None:
        """Steps of the path; None for an expression."""
        return self._steps if self._expression is None else None

    def find(self, root: Any, **variables: Any) -> Any:
        """Return the value, or ``MISSING``. Raises ``ExpressionError``."""
        if self._expression is None:
            return value_at(root, self._steps)
        try:
            return self._expression.value({self._variable: root, **variables})
        except MissingValueError:
            return MISSING


class Template:
    """JSON that contains expressions.

    If an expression consists only of names and dots, and has no value, its member is omitted. If
    its first name is in ``required``, it fails instead.
    """

    def __init__(
        self, tree: Any, location: str, variables: Collection[str], required: Collection[str] = ()
    ) -> None:
        self._compiled: dict[str, Expression | tuple[str, ...]] = {}
        self._tree = tree
        self.expressions: dict[str, Expression] = {}
        for number, (node_location, depth, node) in enumerate(_nodes(tree, location, 1)):
            if number >= MAX_NODES or depth > MAX_TEMPLATE_DEPTH:
                raise InvalidManifestError(
                    f"{location}: exceeds the limit of {MAX_NODES} values or {MAX_TEMPLATE_DEPTH} "
                    "levels"
                )
            if isinstance(node, str) and is_expression(node):
                expression = self.expressions[node] = Expression(node[1:], node_location, variables)
                names = tuple(node[1:].strip().split("."))
                is_plain = _PLAIN_REFERENCE.fullmatch(node) is not None and names[0] not in required
                self._compiled[node] = names if is_plain else expression

    def build(self, variables: Mapping[str, Any] | Inputs) -> Any:
        """Return the JSON, or ``MISSING`` if it has no value. Raises ``ExpressionError``."""
        inputs = variables if isinstance(variables, Inputs) else Inputs(variables)
        return self._build_node(self._tree, inputs)

    def _build_node(self, node: Any, inputs: Inputs) -> Any:
        if isinstance(node, dict):
            mapping = cast("dict[str, Any]", node)
            members = {name: self._build_node(each, inputs) for name, each in mapping.items()}
            present = {name: each for name, each in members.items() if each is not MISSING}
            return present if present or not mapping else MISSING
        if isinstance(node, list):
            items = [self._build_node(each, inputs) for each in cast("list[Any]", node)]
            return [each for each in items if each is not MISSING]
        if not isinstance(node, str) or not is_expression(node):
            return node
        compiled = self._compiled[node]
        if isinstance(compiled, Expression):
            return compiled.evaluate(inputs)
        return value_at(inputs.variables, compiled)


def _nodes(tree: Any, location: str, depth: int) -> Iterator[tuple[str, int, Any]]:
    yield location, depth, tree
    if depth > MAX_TEMPLATE_DEPTH:
        return
    if isinstance(tree, dict):
        for name, each in cast("dict[str, Any]", tree).items():
            yield from _nodes(each, f"{location}.{name}", depth + 1)
    elif isinstance(tree, list):
        for number, each in enumerate(cast("list[Any]", tree)):
            yield from _nodes(each, f"{location}[{number}]", depth + 1)
