"""The syntax tree of a CEL expression, to which the limits apply.

The library compiles an expression but does not expose its tree. This parser may accept what the
library rejects. But it must either reject an expression or parse it like the library, including
comments, raw strings and brackets around a variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

MAX_BRACKETS: Final = 16
MAX_LEVELS: Final = 64

LISTING_LOOPS: Final = frozenset({"map", "filter"})
LOOPS: Final = frozenset({*LISTING_LOOPS, "all", "exists", "exists_one", "existsOne"})

_TOKEN: Final = re.compile(
    r"(?P<blank>[ \t\r\n\f]+|//[^\n]*)"
    r"|(?P<string>[bB]?[rR](?:\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''|\"[^\"\n\r]*\"|'[^'\n\r]*')"
    r"|[bB]?(?:\"\"\"(?s:\\.|[^\\])*?\"\"\"|'''(?s:\\.|[^\\])*?'''"
    r"|\"(?:\\.|[^\"\\\n\r])*\"|'(?:\\.|[^'\\\n\r])*'))"
    r"|(?P<number>0x[0-9a-fA-F]+[uU]?|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?[uU]?)"
    r"|(?P<name>[A-Za-z_]\w*|`[^`\n]+`)"
    r"|(?P<symbol>[<>=!]=|&&|\|\||[-+*/%<>!?:.,()\[\]{}])",
    re.ASCII,
)
_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_LEVELS: Final = (
    frozenset({"||"}),
    frozenset({"&&"}),
    frozenset({"<", "<=", ">", ">=", "==", "!=", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)

Kind = Literal[
    "Literal", "Name", "Field", "Index", "Call", "Loop", "List", "Map", "Sum", "Choice", "Scalar"
]


class ExpressionSyntaxError(ValueError):
    """An expression cannot be parsed, or has too many levels."""


class Token(NamedTuple):
    """A token of an expression, and its position."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the syntax tree.

    ``name`` is the name of a variable, field, function or loop, or the text of a literal. ``parts``
    are the operands: the object of a field or method comes first, and the list of a loop before its
    body. Only a loop has a ``variable``. ``at`` is the position of a loop's dot, or of the name of
    a function.
    """

    kind: Kind
    name: str = ""
    parts: tuple[Node, ...] = ()
    variable: str = ""
    at: int = 0
    levels: int = 1

    def walk(self) -> Iterator[Node]:
        """Yield this node and all its descendants."""
        yield self
        for each in self.parts:
            yield from each.walk()


def parse(text: str) -> Node:
    """Return the tree of an expression. Raises ``ExpressionSyntaxError``."""
    parser = _Parser(_tokenize(text))
    tree = parser.expression()
    parser.expect("")
    return tree


def loops_in(tree: Node, depth: int = 0) -> Iterator[tuple[Node, int]]:
    """Yield each loop with the number of loops that enclose it."""
    is_loop = tree.kind == "Loop"
    if is_loop:
        yield tree, depth
    for number, each in enumerate(tree.parts):
        yield from loops_in(each, depth + (is_loop and number > 0))


def _tokenize(text: str) -> list[Token]:
    """Split an expression into tokens, and check its nesting before any recursion."""
    tokens: list[Token] = []
    at = depth = max_depth = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionSyntaxError(f"syntax error at {text[at : at + 20]!r}")
        assert match.lastgroup is not None
        if match.lastgroup != "blank":
            tokens.append(Token(match.lastgroup, match[0], at))
        if match.lastgroup == "symbol":
            depth += (match[0] in _OPENING) - (match[0] in _OPENING.values())
            max_depth = max(max_depth, depth)
        at = match.end()
    if max_depth > MAX_BRACKETS:
        raise ExpressionSyntaxError(
            f"brackets are nested {max_depth} deep, but at most {MAX_BRACKETS} are allowed"
        )
    return tokens


class _Parser:
    """Parses the grammar of CEL. A sequence of operators with the same precedence is one node."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def expression(self, level: int = 0) -> Node:
        """Parse an expression, including the conditional operator."""
        condition = self._operators(level)
        if not self._accept("?"):
            return condition
        if_true = self.expression()
        self.expect(":")
        return _node("Choice", parts=(condition, if_true, self.expression()))

    def expect(self, symbol: str) -> None:
        """Consume a required token; an empty ``symbol`` requires the end."""
        if symbol and self._accept(symbol):
            return
        if symbol or self._at < len(self._tokens):
            token_text = (
                repr(self._tokens[self._at].text) if self._at < len(self._tokens) else "the end"
            )
            raise ExpressionSyntaxError(f"syntax error at {token_text}")

    def _operators(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        parts = [self._operators(level + 1)]
        is_sum = False
        while self._is_at("symbol", _LEVELS[level]) or self._is_at("name", _LEVELS[level]):
            is_sum |= self._next().text == "+"
            parts.append(self._operators(level + 1))
        if len(parts) == 1:
            return parts[0]
        return _node("Sum" if is_sum else "Scalar", parts=tuple(parts))

    def _unary(self) -> Node:
        is_plain = True
        while self._is_at("symbol", {"!", "-"}):
            self._next()
            is_plain = False
        member = self._member()
        return member if is_plain else _node("Scalar", parts=(member,))

    def _member(self) -> Node:
        operand = self._primary()
        while True:
            at = self._tokens[self._at].at if self._at < len(self._tokens) else 0
            if self._accept("."):
                name_at = self._tokens[self._at].at if self._at < len(self._tokens) else 0
                name = self._name()
                operand = (
                    self._parse_call(name, operand, at, name_at)
                    if self._accept("(")
                    else _node("Field", name, (operand,))
                )
            elif self._accept("["):
                operand = _node("Index", parts=(operand, self.expression()))
                self.expect("]")
            elif self._accept("{"):
                operand = _node("Map", parts=(operand, *self._pairs()))
            else:
                return operand

    def _parse_call(self, name: str, operand: Node, at: int, name_at: int) -> Node:
        arguments = self._list(")")
        if name not in LOOPS:
            return _node("Call", name, (operand, *arguments), at=name_at)
        if not arguments or arguments[0].kind != "Name":
            raise ExpressionSyntaxError(f".{name}(...): requires a variable, as in {name}(x, ...)")
        variable, *body = arguments
        return _node("Loop", name, (operand, *body), variable=variable.name, at=at)

    def _primary(self) -> Node:
        if self._at == len(self._tokens):
            raise ExpressionSyntaxError("unexpected end")
        token = self._next()
        if token.kind in ("string", "number"):
            return _node("Literal", token.text)
        if token.text == ".":
            token = Token("name", f".{self._name()}", token.at)
        if token.kind == "name":
            if self._accept("("):
                return _node("Call", token.text, self._list(")"), at=token.at)
            return _node("Name", token.text)
        match token.text:
            case "(":
                expression = self.expression()
                self.expect(")")
                return expression
            case "[":
                return _node("List", parts=self._list("]"))
            case "{":
                return _node("Map", parts=self._pairs())
            case _:
                raise ExpressionSyntaxError(f"syntax error at {token.text!r}")

    def _list(self, end_symbol: str) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while not self._accept(end_symbol):
            nodes.append(self.expression())
            if not self._accept(","):
                self.expect(end_symbol)
                break
        return tuple(nodes)

    def _pairs(self) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while not self._accept("}"):
            nodes.append(self.expression())
            self.expect(":")
            nodes.append(self.expression())
            if not self._accept(","):
                self.expect("}")
                break
        return tuple(nodes)

    def _name(self) -> str:
        if not self._is_at("name"):
            raise ExpressionSyntaxError("expected a name after the dot")
        return self._next().text

    def _is_at(self, kind: str, texts: frozenset[str] | set[str] | None = None) -> bool:
        if self._at == len(self._tokens):
            return False
        token = self._tokens[self._at]
        return token.kind == kind and (texts is None or token.text in texts)

    def _accept(self, symbol: str) -> bool:
        is_accepted = self._is_at("symbol", {symbol})
        self._at += is_accepted
        return is_accepted

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]


def _node(
    kind: Kind,
    name: str = "",
    parts: tuple[Node, ...] = (),
    *,
    variable: str = "",
    at: int = 0,
) -> Node:
    levels = 1 + max((each.levels for each in parts), default=0)
    if levels > MAX_LEVELS:
        raise ExpressionSyntaxError(f"it has more than {MAX_LEVELS} levels")
    return Node(kind, name, parts, variable, at, levels)
