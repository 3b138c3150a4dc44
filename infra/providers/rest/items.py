"""The items of a list in JSON, each decoded separately if the whole cannot be decoded.

Any client of an API may store a lone surrogate, the number 1e400 or a thousand nested lists. The
decoder then refuses the whole response. So its text is split at the commas of the list, and only
this item is unreadable. The rest must be JSON, and its brackets must match.
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
"""Levels of an undecodable item in which its name and id are searched."""

_READABLE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a response's items that are searched for a name. The search takes a second per MiB."""

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb'[^\s,:"\[\]{}]+')
_RUN: Final = rb'(?>(?:[^"\[\]{}]{1,4096}|"[^"\\]{0,4096}"){0,256})'
"""The text between brackets, up to a string that has escapes or is long."""

_LEVELS: Final = 4


def _shallow(levels: int) -> bytes:
    """Return the pattern of the contents of an object or a list with at most this many levels."""
    if not levels:
        return _RUN
    pattern = _shallow(levels - 1)
    return rb"(?>(?:" + _RUN + rb"(?:\{" + pattern + rb"\}|\[" + pattern + rb"\])){0,64})" + _RUN


_INNER: Final = _shallow(_LEVELS - 1)
_SHALLOW: Final = re.compile(rb"\{" + _INNER + rb"\}|\[" + _INNER + rb'\]|"[^"\\]{0,4096}"')
"""Matches most values in one step: those of few levels and without escapes."""

_BETWEEN: Final = re.compile(_RUN)
_OF_STRING: Final = re.compile(rb'(?>(?:[^"\\]{1,4096}|\\.){0,256})', re.DOTALL)
_PARTNER: Final = {b"]": b"[", b"}": b"{"}
_OPENING: Final = frozenset(_PARTNER.values())

_decoder = msgspec.json.Decoder(Any)


class SplitError(ValueError):
    """A text is not JSON with a list at the given place."""


class UndecodableItem(NamedTuple):
    """An item that cannot be decoded, and why. ``readable`` has the members that can be."""

    content: bytes
    reason: str
    readable: dict[str, Any]


class Split(NamedTuple):
    """A document with an empty list, and the items of this list."""

    document: Any
    items: list[Any]


async def split(content: bytes, steps: Sequence[str]) -> Split:
    """Decode the items of the list at a path one by one. Raises ``SplitError``.

    An item that cannot be decoded is an ``UndecodableItem``.
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
        await scanner.pause()
    return Split(document, items)


async def check_structure(content: bytes) -> None:
    """Raise ``SplitError`` for a text that is neither an object nor a list of JSON."""
    scanner = _Scanner(content)
    begin = scanner.skip_space(0)
    if content[begin : begin + 1] not in _OPENING:
        raise SplitError("it is neither an object nor a list")
    scanner.check_end(await scanner.value_end(begin))


class _Scanner:
    """Finds the ends of values, in short turns of the event loop."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._tokens = 0
        self._readable_bytes = _READABLE_BYTES
        self._turn_end = time.monotonic() + _TURN_SECONDS
        self._list_place: tuple[int, int, list[tuple[int, int]]] | None = None

    async def find_list(self, steps: Sequence[str]) -> tuple[int, int, list[tuple[int, int]]]:
        """Return the start and end of a list, and those of its items. Raises ``SplitError``."""
        self.check_end(await self._follow(self.skip_space(0), steps))
        if self._list_place is None:
            raise SplitError("it has no list at this path")
        return self._list_place

    async def decode(self, begin: int, end: int) -> Any:
        """Decode a value."""
        content = self._content[begin:end]
        try:
            return _decoder.decode(content)
        except UNDECODABLE as error:
            readable = await self._readable(begin, end, _READABLE_LEVELS)
            return UndecodableItem(content, str(error), readable)

    async def _readable(self, begin: int, end: int, levels: int) -> dict[str, Any]:
        """Decode the members of an object that can be decoded."""
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
                readable.pop(name, None)  # an earlier member of this name
                if levels and (members_of_member := await self._readable(start, stop, levels - 1)):
                    readable[name] = members_of_member
            await self.pause()
        return readable

    async def _follow(self, begin: int, steps: Sequence[str]) -> int:
        """Find the list at a path in a value, and return the end of the value."""
        if not steps:
            places, end = await self._items(begin)
            if self._list_place is not None:
                raise SplitError("it has two lists at this path")
            self._list_place = begin, end, places
            return end
        members, end = await self._members(begin)
        for name, (start, _) in members:
            if name == steps[0]:
                await self._follow(start, steps[1:])
        return end

    async def _items(self, begin: int) -> tuple[list[tuple[int, int]], int]:
        """Return the places of the items of a list, and the end of the list."""
        places: list[tuple[int, int]] = []
        at = self._first(begin, b"[")
        if self._is_at(at, b"]"):
            return places, at + 1
        while True:
            end = await self.value_end(at)
            places.append((at, end))
            await self.pause()
            at, is_last = self._next_place(end, b"]")
            if is_last:
                return places, at

    async def _members(self, begin: int) -> tuple[list[tuple[str, tuple[int, int]]], int]:
        """Return the names and values of an object, and the end of the object."""
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
            with suppress(*UNDECODABLE):  # no path contains such a name
                members.append((str(_decoder.decode(name)), (at, end)))
            await self.pause()
            at, is_last = self._next_place(end, b"}")
            if is_last:
                return members, at

    async def value_end(self, begin: int) -> int:
        """Return the end of a value. Only its strings and brackets are examined."""
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
            match = _BETWEEN.match(content, at)
            assert match is not None
            at = match.end()
            token = content[at : at + 1]
            if not token:
                raise _truncated()
            if token == b'"':
                at = await self._string_end(at)
                continue
            if token in _OPENING:
                brackets.append(token)
            elif token in _PARTNER and brackets.pop() != _PARTNER[token]:
                raise SplitError(f"it has an unexpected bracket at byte {at}")
            at += 1
            self._tokens += 1
            if not self._tokens % _TOKENS_OF_TURN:
                await self.pause()
        return at

    async def _string_end(self, begin: int) -> int:
        at = begin + 1
        while not self._is_at(at, b'"'):
            match = _OF_STRING.match(self._content, at)
            if match is None or match.end() == at:
                raise _truncated()
            at = match.end()
            await self.pause()
        return at + 1

    def _first(self, begin: int, bracket: bytes) -> int:
        if not self._is_at(begin, bracket):
            raise SplitError(f"it has no {bracket.decode()} at byte {begin}")
        return self.skip_space(begin + 1)

    def _next_place(self, end: int, bracket: bytes) -> tuple[int, bool]:
        """Return the start of the next value, or the end of the list or object, and which it is."""
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
        """Return the place of the next character that is not white space."""
        match = _SPACE.match(self._content, at)
        assert match is not None
        return match.end()

    def _is_at(self, at: int, character: bytes) -> bool:
        return self._content[at : at + 1] == character

    async def pause(self) -> None:
        """Yield to the event loop when the turn has lasted long enough."""
        if time.monotonic() >= self._turn_end:
            await asyncio.sleep(0)
            self._turn_end = time.monotonic() + _TURN_SECONDS


def _truncated() -> SplitError:
    return SplitError("it is truncated")
