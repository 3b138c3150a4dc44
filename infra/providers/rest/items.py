"""Decode the items of a JSON list one by one if the whole response cannot be decoded.

Any client of an API may store a lone surrogate, the number 1e400 or a thousand nested lists, and
the decoder then rejects the whole response. If the response is split at the list's commas, only
that item is unreadable. The rest must be JSON, and its brackets must match.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from infra.providers.responses import UNDECODABLE

_TURN_SECONDS: Final = 0.01
_TOKENS_PER_TURN: Final = 256
_READABLE_LEVELS: Final = 4
"""Levels of an undecodable item to search for its name and id."""

_READABLE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a response's undecodable items to search for names, which takes a second per MiB."""

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb'[^\s,:"\[\]{}]+')
_UNNESTED: Final = rb'(?>(?:[^"\[\]{}]{1,4096}|"[^"\\]{0,4096}"){0,256})'
"""Text between brackets, up to a string that has escapes or is long."""

_LEVELS: Final = 4


def _shallow(levels: int) -> bytes:
    """Return the pattern for the contents of an object or list with at most this many levels."""
    if not levels:
        return _UNNESTED
    pattern = _shallow(levels - 1)
    return (
        rb"(?>(?:"
        + _UNNESTED
        + rb"(?:\{"
        + pattern
        + rb"\}|\["
        + pattern
        + rb"\])){0,64})"
        + _UNNESTED
    )


_INNER: Final = _shallow(_LEVELS - 1)
_SHALLOW: Final = re.compile(rb"\{" + _INNER + rb"\}|\[" + _INNER + rb'\]|"[^"\\]{0,4096}"')
"""Matches most values in one step: those with few levels and no escapes."""

_UNNESTED_TEXT: Final = re.compile(_UNNESTED)
_STRING_CONTENT: Final = re.compile(rb'(?>(?:[^"\\]{1,4096}|\\.){0,256})', re.DOTALL)
_BRACKET_PAIRS: Final = {b"]": b"[", b"}": b"{"}
_OPENING: Final = frozenset(_BRACKET_PAIRS.values())

_decoder = msgspec.json.Decoder(Any)


class SplitError(ValueError):
    """The text is not JSON with a list at the given path."""


class UndecodableItem(NamedTuple):
    """An item that cannot be decoded, with the reason. ``readable`` has its decodable members."""

    content: bytes
    reason: str
    readable: dict[str, Any]


class Split(NamedTuple):
    """A document whose list was emptied, and the items of that list."""

    document: Any
    items: list[Any]


async def split(content: bytes, steps: Sequence[str]) -> Split:
    """Decode the items of the list at a path one by one. Raises ``SplitError``.

    An item that cannot be decoded becomes an ``UndecodableItem``.
    """
    scanner = _Scanner(content)
    start, end, spans = await scanner.find_list(steps)
    try:
        document = _decoder.decode(content[:start] + b"[]" + content[end:])
    except UNDECODABLE as error:
        raise SplitError(str(error)) from error
    items: list[Any] = []
    for begin, stop in spans:
        items.append(await scanner.decode(begin, stop))
        await scanner.pause()
    return Split(document, items)


async def check_structure(content: bytes) -> None:
    """Raise ``SplitError`` for text that is neither a JSON object nor a JSON list."""
    scanner = _Scanner(content)
    begin = scanner.skip_space(0)
    if content[begin : begin + 1] not in _OPENING:
        raise SplitError("it is neither an object nor a list")
    scanner.check_end(await scanner.value_end(begin))


class _Scanner:
    """Finds the ends of values, and yields to the event loop regularly."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._tokens = 0
        self._readable_bytes = _READABLE_BYTES
        self._turn_end = time.monotonic() + _TURN_SECONDS
        self._list_span: tuple[int, int, list[tuple[int, int]]] | None = None

    async def find_list(self, steps: Sequence[str]) -> tuple[int, int, list[tuple[int, int]]]:
        """Return the start and end of a list and of each item. Raises ``SplitError``."""
        self.check_end(await self._locate_list(self.skip_space(0), steps))
        if self._list_span is None:
            raise SplitError("it has no list at this path")
        return self._list_span

    async def decode(self, begin: int, end: int) -> Any:
        """Decode a value."""
        content = self._content[begin:end]
        try:
            return _decoder.decode(content)
        except UNDECODABLE as error:
            readable = await self._readable(begin, end, _READABLE_LEVELS)
            return UndecodableItem(content, str(error), readable)

    async def _readable(self, begin: int, end: int, levels: int) -> dict[str, Any]:
        """Return the decodable members of an object."""
        readable: dict[str, Any] = {}
        if not self._is_at(begin, b"{") or end - begin > self._readable_bytes:
            return readable
        self._readable_bytes -= end - begin
        try:
            members, _ = await self._members(begin)
        except SplitError:
            return readable
        for name, (start, stop) in members:
            try:
                readable[name] = _decoder.decode(self._content[start:stop])
            except UNDECODABLE:
                readable.pop(name, None)  # an earlier member with this name
                if levels and (members_of_member := await self._readable(start, stop, levels - 1)):
                    readable[name] = members_of_member
            await self.pause()
        return readable

    async def _locate_list(self, begin: int, steps: Sequence[str]) -> int:
        """Locate the list at a path in a value, and return the end of the value."""
        if not steps:
            spans, end = await self._items(begin)
            if self._list_span is not None:
                raise SplitError("it has two lists at this path")
            self._list_span = begin, end, spans
            return end
        members, end = await self._members(begin)
        for name, (start, _) in members:
            if name == steps[0]:
                await self._locate_list(start, steps[1:])
        return end

    async def _items(self, begin: int) -> tuple[list[tuple[int, int]], int]:
        """Return the start and end of each item of a list, and the end of the list."""
        spans: list[tuple[int, int]] = []
        at = self._enter(begin, b"[")
        if self._is_at(at, b"]"):
            return spans, at + 1
        while True:
            end = await self.value_end(at)
            spans.append((at, end))
            await self.pause()
            at, is_last = self._next_position(end, b"]")
            if is_last:
                return spans, at

    async def _members(self, begin: int) -> tuple[list[tuple[str, tuple[int, int]]], int]:
        """Return each member's name, start and end, and the end of the object."""
        members: list[tuple[str, tuple[int, int]]] = []
        at = self._enter(begin, b"{")
        if self._is_at(at, b"}"):
            return members, at + 1
        while True:
            if not self._is_at(at, b'"'):
                raise SplitError(f"it has no name at byte {at}")
            end = await self._string_end(at)
            name = self._content[at:end]
            at = self.skip_space(end)
            if not self._is_at(at, b":"):
                raise SplitError(f"it has no value at byte {at}")
            at = self.skip_space(at + 1)
            end = await self.value_end(at)
            with suppress(*UNDECODABLE):  # no path contains such a name
                members.append((str(_decoder.decode(name)), (at, end)))
            await self.pause()
            at, is_last = self._next_position(end, b"}")
            if is_last:
                return members, at

    async def value_end(self, begin: int) -> int:
        """Return the end of a value, examining only its strings and brackets."""
        content = self._content
        if shallow := _SHALLOW.match(content, begin):
            return shallow.end()
        if self._is_at(begin, b'"'):
            return await self._string_end(begin)
        if content[begin : begin + 1] in _OPENING:
            return await self._nested_end(begin)
        scalar = _SCALAR.match(content, begin)
        if scalar is None:
            raise SplitError(f"it has no value at byte {begin}")
        return scalar.end()

    async def _nested_end(self, begin: int) -> int:
        content, brackets = self._content, [self._content[begin : begin + 1]]
        at = begin + 1
        while brackets:
            match = _UNNESTED_TEXT.match(content, at)
            assert match is not None
            at = match.end()
            token = content[at : at + 1]
            if not token:
                raise _build_truncated_error()
            if token == b'"':
                at = await self._string_end(at)
                continue
            if token in _OPENING:
                brackets.append(token)
            elif token in _BRACKET_PAIRS and brackets.pop() != _BRACKET_PAIRS[token]:
                raise SplitError(f"it has an unexpected bracket at byte {at}")
            at += 1
            self._tokens += 1
            if not self._tokens % _TOKENS_PER_TURN:
                await self.pause()
        return at

    async def _string_end(self, begin: int) -> int:
        at = begin + 1
        while not self._is_at(at, b'"'):
            match = _STRING_CONTENT.match(self._content, at)
            if match is None or match.end() == at:
                raise _build_truncated_error()
            at = match.end()
            await self.pause()
        return at + 1

    def _enter(self, begin: int, bracket: bytes) -> int:
        if not self._is_at(begin, bracket):
            raise SplitError(f"it has no {bracket.decode()} at byte {begin}")
        return self.skip_space(begin + 1)

    def _next_position(self, end: int, bracket: bytes) -> tuple[int, bool]:
        """Return the next value's start and False, or the end of the list or object and True."""
        at = self.skip_space(end)
        if self._is_at(at, bracket):
            return at + 1, True
        if not self._is_at(at, b","):
            raise SplitError(f"it has neither a comma nor {bracket.decode()} at byte {at}")
        return self.skip_space(at + 1), False

    def check_end(self, end: int) -> None:
        """Raise ``SplitError`` if more text follows."""
        if self.skip_space(end) != len(self._content):
            raise SplitError(f"it has more text at byte {end}")

    def skip_space(self, at: int) -> int:
        """Return the position of the next character that is not whitespace."""
        match = _SPACE.match(self._content, at)
        assert match is not None
        return match.end()

    def _is_at(self, at: int, character: bytes) -> bool:
        return self._content[at : at + 1] == character

    async def pause(self) -> None:
        """Yield to the event loop if the turn has lasted long enough."""
        if time.monotonic() >= self._turn_end:
            await asyncio.sleep(0)
            self._turn_end = time.monotonic() + _TURN_SECONDS


def _build_truncated_error() -> SplitError:
    return SplitError("it is truncated")
