"""The syntax tree of a CEL expression, from which the limits are computed.

The library compiles an expression but does not return its tree. This parser may accept more than
the library. It must parse everything that the library compiles in the same way, or reject it. In
particular, comments, raw texts and brackets around a variable change no meaning.
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
    r"|(?P<text>[bB]?[rR](?:\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''|\"[^\"\n\r]*\"|'[^'\n\r]*')"
    r"|[bB]?(?:\"\"\"(?s:\\.|[^\\])*?\"\"\"|'''(?s:\\.|[^\\])*?'''"
    r"|\"(?:\\.|[^\"\\\n\r])*\"|'(?:\\.|[^'\\\n\r])*'))"
    r"|(?P<number>0x[0-9a-fA-F]+[uU]?|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?[uU]?)"
    r"|(?P<name>[A-Za-z_]\w*|`[^`\n]+`)"
    r"|(?P<sign>[<>=!]=|&&|\|\||[-+*/%<>!?:.,()\[\]{}])",
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
    """An expression has a syntax error or too many levels; the message contains the reason."""


class Token(NamedTuple):
    """A token of an expression, and its position."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression.

    ``name``: the name of a variable, field, function or loop, or a literal as written. ``parts``:
    the list and the body of a loop; the object of a field or a method, then its arguments. Only
    loops have a ``variable`` and ``at``, the position of the dot.
    """

    kind: Kind
    name: str = ""
    parts: tuple[Node, ...] = ()
    variable: str = ""
    at: int = 0
    levels: int = 1

    def walk(self) -> Iterator[Node]:
        """Yield this part and all nested parts."""
        yield self
        for each in self.parts:
            yield from each.walk()


def parsed(text: str) -> Node:
    """Return the tree of an expression; raises ``ExpressionSyntaxError``."""
    parser = _Parser(_checked(text))
    tree = parser.expression()
    parser.expect("")
    return tree


def loops_in(tree: Node, around: int = 0) -> Iterator[tuple[Node, int]]:
    """Yield each loop, and the number of loops around it."""
    is_loop = tree.kind == "Loop"
    if is_loop:
        yield tree, around
    for number, each in enumerate(tree.parts):
        yield from loops_in(each, around + (is_loop and number > 0))


def _checked(text: str) -> list[Token]:
    """Return the tokens of an expression, and limit nested brackets before the parser recurses."""
    tokens: list[Token] = []
    at = depth = most = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ExpressionSyntaxError(f"syntax error at {text[at : at + 20]!r}")
        assert found.lastgroup is not None
        if found.lastgroup != "blank":
            tokens.append(Token(found.lastgroup, found[0], at))
        if found.lastgroup == "sign":
            depth += (found[0] in _OPENING) - (found[0] in _OPENING.values())
            most = max(most, depth)
        at = found.end()
    if most > MAX_BRACKETS:
        raise ExpressionSyntaxError(
            f"brackets are nested {most} deep, but at most {MAX_BRACKETS} are allowed"
        )
    return tokens


class _Parser:
    """Parses the grammar of CEL; operators of the same level become one part of the tree."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def expression(self, level: int = 0) -> Node:
        """Parse an expression, including a conditional (``? :``)."""
        asked = self._operators(level)
        if not self._takes("?"):
            return asked
        yes = self.expression()
        self.expect(":")
        return _node("Choice", parts=(asked, yes, self.expression()))

    def expect(self, sign: str) -> None:
        """Consume the required token ``sign``; an empty one stands for the end."""
        if sign and self._takes(sign):
            return
        if sign or self._at < len(self._tokens):
            found = repr(self._tokens[self._at].text) if self._at < len(self._tokens) else "the end"
            raise ExpressionSyntaxError(f"syntax error at {found}")

    def _operators(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        parts = [self._operators(level + 1)]
        is_sum = False
        while self._is_at("sign", _LEVELS[level]) or self._is_at("name", _LEVELS[level]):
            is_sum |= self._next().text == "+"
            parts.append(self._operators(level + 1))
        if len(parts) == 1:
            return parts[0]
        return _node("Sum" if is_sum else "Scalar", parts=tuple(parts))

    def _unary(self) -> Node:
        is_plain = True
        while self._is_at("sign", {"!", "-"}):
            self._next()
            is_plain = False
        member = self._member()
        return member if is_plain else _node("Scalar", parts=(member,))

    def _member(self) -> Node:
        whole = self._primary()
        while True:
            at = self._tokens[self._at].at if self._at < len(self._tokens) else 0
            if self._takes("."):
                name = self._name()
                whole = (
                    self._called(name, whole, at)
                    if self._takes("(")
                    else _node("Field", name, (whole,))
                )
            elif self._takes("["):
                whole = _node("Index", parts=(whole, self.expression()))
                self.expect("]")
            elif self._takes("{"):
                whole = _node("Map", parts=(whole, *self._pairs()))
            else:
                return whole

    def _called(self, name: str, whole: Node, at: int) -> Node:
        arguments = self._list(")")
        if name not in LOOPS:
            return _node("Call", name, (whole, *arguments))
        if not arguments or arguments[0].kind != "Name":
            raise ExpressionSyntaxError(f".{name}(...): requires a variable, as in {name}(x, ...)")
        variable, *body = arguments
        return _node("Loop", name, (whole, *body), variable=variable.name, at=at)

    def _primary(self) -> Node:
        if self._at == len(self._tokens):
            raise ExpressionSyntaxError("unexpected end")
        token = self._next()
        if token.kind in ("text", "number"):
            return _node("Literal", token.text)
        if token.text == ".":
            token = Token("name", f".{self._name()}", token.at)
        if token.kind == "name":
            if self._takes("("):
                return _node("Call", token.text, self._list(")"))
            return _node("Name", token.text)
        match token.text:
            case "(":
                whole = self.expression()
                self.expect(")")
                return whole
            case "[":
                return _node("List", parts=self._list("]"))
            case "{":
                return _node("Map", parts=self._pairs())
            case _:
                raise ExpressionSyntaxError(f"syntax error at {token.text!r}")

    def _list(self, closing: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._takes(closing):
            found.append(self.expression())
            if not self._takes(","):
                self.expect(closing)
                break
        return tuple(found)

    def _pairs(self) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._takes("}"):
            found.append(self.expression())
            self.expect(":")
            found.append(self.expression())
            if not self._takes(","):
                self.expect("}")
                break
        return tuple(found)

    def _name(self) -> str:
        if not self._is_at("name"):
            raise ExpressionSyntaxError("a name is missing after a dot")
        return self._next().text

    def _is_at(self, kind: str, texts: frozenset[str] | set[str] | None = None) -> bool:
        if self._at == len(self._tokens):
            return False
        token = self._tokens[self._at]
        return token.kind == kind and (texts is None or token.text in texts)

    def _takes(self, sign: str) -> bool:
        is_there = self._is_at("sign", {sign})
        self._at += is_there
        return is_there

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
