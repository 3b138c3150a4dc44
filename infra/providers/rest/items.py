"""The items of a list in JSON, decoded one by one if the whole document cannot be decoded.

Any client of an API may store a lone surrogate, the number 1e400 or a thousand nested lists. The
decoder then rejects the whole response. So the text is split at the commas of the list, and only
that item is unreadable. The rest of the document must be valid JSON, and its brackets must match.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from infra.providers.answers import UNDECODABLE

_TURN_SECONDS: Final = 0.01
_TOKENS_OF_TURN: Final = 256
_READABLE_LEVELS: Final = 4
"""Nesting depth to which the name and id of an undecodable item are searched."""

_READABLE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of undecodable items per response that are searched for a name, at one second per MiB."""

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb'[^\s,:"\[\]{}]+')
_RUN: Final = rb'(?>(?:[^"\[\]{}]{1,4096}|"[^"\\]{0,4096}"){0,256})'
"""Text between brackets, up to a string that has escapes or is long."""

_LEVELS: Final = 4


def _shallow(levels: int) -> bytes:
    """Return the regular expression of an object or list of at most ``levels`` nested levels."""
    if not levels:
        return _RUN
    inner = _shallow(levels - 1)
    return rb"(?>(?:" + _RUN + rb"(?:\{" + inner + rb"\}|\[" + inner + rb"\])){0,64})" + _RUN


_INNER: Final = _shallow(_LEVELS - 1)
_SHALLOW: Final = re.compile(rb"\{" + _INNER + rb"\}|\[" + _INNER + rb'\]|"[^"\\]{0,4096}"')
"""Matches most values in one step: those with few levels and without escapes."""

_BETWEEN: Final = re.compile(_RUN)
_OF_STRING: Final = re.compile(rb'(?>(?:[^"\\]{1,4096}|\\.){0,256})', re.DOTALL)
_PARTNER: Final = {b"]": b"[", b"}": b"{"}
_OPENING: Final = frozenset(_PARTNER.values())

_decoder = msgspec.json.Decoder(Any)


class SplitError(ValueError):
    """A text is not JSON with a list at the given path."""


class UndecodableItem(NamedTuple):
    """An item that cannot be decoded, and the reason; ``readable``: its members that can."""

    content: bytes
    reason: str
    readable: dict[str, Any]


class Split(NamedTuple):
    """A document whose list is emptied, and the items of that list."""

    document: Any
    items: list[Any]


async def split(content: bytes, steps: Sequence[str]) -> Split:
    """Decode the items of the list at a path one by one; raises ``SplitError``.

    An item that cannot be decoded is returned as an ``UndecodableItem``.
    """
    scanner = _Scanner(content)
    start, end, places = await scanner.find_list(steps)
    try:
        document = _decoder.decode(content[:start] + b"[]" + content[end:])
    except UNDECODABLE as error:
        raise SplitError(str(error)) from error
    items: list[Any] = []
    for begin, stop in places:
        items.append(await scanner.decode(begin, stop))
        await scanner.give_way()
    return Split(document, items)


async def check_structure(content: bytes) -> None:
    """Raise ``SplitError`` for a text that is neither a JSON object nor a JSON list."""
    scanner = _Scanner(content)
    begin = scanner.skip_space(0)
    if content[begin : begin + 1] not in _OPENING:
        raise SplitError("it is neither an object nor a list")
    scanner.check_end(await scanner.value_end(begin))


class _Scanner:
    """Finds the bounds of values, and yields to the event loop after short intervals."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._tokens = 0
        self._readable_bytes = _READABLE_BYTES
        self._until = time.monotonic() + _TURN_SECONDS
        self._found: tuple[int, int, list[tuple[int, int]]] | None = None

    async def find_list(self, steps: Sequence[str]) -> tuple[int, int, list[tuple[int, int]]]:
        """Return the bounds of the list at a path and of its items; raises ``SplitError``."""
        self.check_end(await self._follow(self.skip_space(0), steps))
        if self._found is None:
            raise SplitError("it has no list at this path")
        return self._found

    async def decode(self, begin: int, end: int) -> Any:
        """Decode the value between two positions."""
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
                readable.pop(name, None)  # also drop an earlier member with this name
                if levels and (inner := await self._readable(start, stop, levels - 1)):
                    readable[name] = inner
            await self.give_way()
        return readable

    async def _follow(self, begin: int, steps: Sequence[str]) -> int:
        """Return the end of the value at ``begin``, and find the list at a path within it."""
        if not steps:
            places, end = await self._items(begin)
            if self._found is not None:
                raise SplitError("it has two lists at this path")
            self._found = begin, end, places
            return end
        members, end = await self._members(begin)
        for name, (start, _) in members:
            if name == steps[0]:
                await self._follow(start, steps[1:])
        return end

    async def _items(self, begin: int) -> tuple[list[tuple[int, int]], int]:
        """Return the bounds of a list's items, and the end of the list."""
        places: list[tuple[int, int]] = []
        at = self._first(begin, b"[")
        if self._is_at(at, b"]"):
            return places, at + 1
        while True:
            end = await self.value_end(at)
            places.append((at, end))
            await self.give_way()
            at, is_last = self._behind(end, b"]")
            if is_last:
                return places, at

    async def _members(self, begin: int) -> tuple[list[tuple[str, tuple[int, int]]], int]:
        """Return the names and bounds of an object's values, and the end of the object."""
        members: list[tuple[str, tuple[int, int]]] = []
        at = self._first(begin, b"{")
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
            with suppress(*UNDECODABLE):  # an undecodable name cannot be part of a path
                members.append((str(_decoder.decode(name)), (at, end)))
            await self.give_way()
            at, is_last = self._behind(end, b"}")
            if is_last:
                return members, at

    async def value_end(self, begin: int) -> int:
        """Return the end of a value, of which only strings and brackets are checked."""
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
        content, opened = self._content, [self._content[begin : begin + 1]]
        at = begin + 1
        while opened:
            between = _BETWEEN.match(content, at)
            assert between is not None
            at = between.end()
            token = content[at : at + 1]
            if not token:
                raise _truncated()
            if token == b'"':
                at = await self._string_end(at)
                continue
            if token in _OPENING:
                opened.append(token)
            elif token in _PARTNER and opened.pop() != _PARTNER[token]:
                raise SplitError(f"it has an unexpected bracket at byte {at}")
            at += 1
            self._tokens += 1
            if not self._tokens % _TOKENS_OF_TURN:
                await self.give_way()
        return at

    async def _string_end(self, begin: int) -> int:
        at = begin + 1
        while not self._is_at(at, b'"'):
            found = _OF_STRING.match(self._content, at)
            if found is None or found.end() == at:
                raise _truncated()
            at = found.end()
            await self.give_way()
        return at + 1

    def _first(self, begin: int, bracket: bytes) -> int:
        if not self._is_at(begin, bracket):
            raise SplitError(f"it has no {bracket.decode()} at byte {begin}")
        return self.skip_space(begin + 1)

    def _behind(self, end: int, bracket: bytes) -> tuple[int, bool]:
        """Return where the next value begins, or where the list or object ends, and which it is."""
        at = self.skip_space(end)
        if self._is_at(at, bracket):
            return at + 1, True
        if not self._is_at(at, b","):
            raise SplitError(f"it has neither a comma nor an end at byte {at}")
        return self.skip_space(at + 1), False

    def check_end(self, end: int) -> None:
        """Raise ``SplitError`` if any text follows."""
        if self.skip_space(end) != len(self._content):
            raise SplitError(f"it has more text at byte {end}")

    def skip_space(self, at: int) -> int:
        """Return the position of the next character that is not white space."""
        found = _SPACE.match(self._content, at)
        assert found is not None
        return found.end()

    def _is_at(self, at: int, character: bytes) -> bool:
        return self._content[at : at + 1] == character

    async def give_way(self) -> None:
        """Yield to other tasks if this one has run for a while."""
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + _TURN_SECONDS


def _truncated() -> SplitError:
    return SplitError("it is truncated")
