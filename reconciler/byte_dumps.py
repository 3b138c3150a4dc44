"""Bytes that a text shows as numbers, as programs dump a request or print a buffer."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

MAX_CHARACTERS_OF_BYTE: Final = 16
"""A number and what separates it from the next one, such as a comma, a line break and spaces."""


_MIN_BYTES: Final = 6
"""Fewer numbers in a row are not decoded: no shorter secret is searched."""


def _classes(digits: bytes) -> bytes:
    """Return a table that turns each byte into its class: a digit, an ``x``, a letter, a gap."""
    classes = bytearray(b"." * 256)
    for each in range(256):
        if chr(each).isascii() and chr(each).isalnum():
            classes[each] = ord("d" if each in digits else "x" if each in b"xX" else "a")
    return bytes(classes)


_DIGIT: Final = ord("d")
_HEXADECIMAL: Final = _classes(b"0123456789abcdefABCDEF")
_DECIMAL: Final = _classes(b"0123456789")
# On classes, because a search for letters that do not vary is ten times as fast.
_HEXADECIMAL_RUN: Final = re.compile(
    rb"dd\.(?:\.{0,15}+(?:dx|x|a\.)?(?:dd)++(?![dax])(?:\.|\Z)){2,}+"
)
_DECIMAL_RUN: Final = re.compile(rb"d\.(?:\.{0,15}+d{1,3}+(?![dax])(?:\.|\Z)){5,}+")

_LINE: Final = re.compile(
    rb"""
    (?<![0-9a-z]) (?:0x)?
    (?: ([0-9a-f]{6,16}+) :? | ([0-9a-f]{4,5}+) (?: : | (?=[ \t]{2}) ) ) [ \t]++
    ( (?:[0-9a-f]{2}){1,8}+ (?![0-9a-z])
      (?: (?: [ \t]-?[ \t]?+ | - ) (?:[0-9a-f]{2}){1,8}+ (?![0-9a-z]) )*+ )
    [^\r\n]*+
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""A line of ``hexdump -C``, ``xxd`` or ``od -t x1``: an offset, bytes, and the same as text."""

_PAIR: Final = re.compile(rb"(?:[0-9a-f]x)?([0-9a-f]{2})", re.IGNORECASE)
_NUMBER: Final = re.compile(rb"([0-9]{1,3})")
_MAX_BYTE: Final = 255
_BYTES_OF_NUMBERS: Final = {
    f"{number:0{digits}}".encode(): number if number <= _MAX_BYTE else 0
    for digits in (1, 2, 3)
    for number in range(10**digits)
}
_PREFIX: Final = re.compile(rb"[0-9a-f]x", re.IGNORECASE)
_NO_DIGITS: Final = bytes(each for each in range(256) if each not in b"0123456789abcdefABCDEF")
_GAPS: Final = bytes(each if each in b"0123456789" else ord(" ") for each in range(256))
_UUID_CHARACTERS: Final = 36

_NUMBER_COST: Final = 8  # in bytes of plain text, see ``secrecy.Search``
_OFFSET: Final = b"dddd"  # it has four digits or more
_RUN_COST: Final = 96
_LINE_COST: Final = 192
_COST_AT_ONCE: Final = 128 * 1024
_LINES_AT_ONCE: Final = 2048
_NUMBERS_AT_ONCE: Final = 4096


_Line = tuple[int, int, int, int]
"""The offset that a line of a dump begins with, where its bytes are, and where it ends."""


class _Part(NamedTuple):
    """Where the numbers of some bytes are in a text, how many count, and where their line ends."""

    start: int
    stop: int
    size: int
    line_end: int = 0


@dataclass(frozen=True, slots=True)
class ByteDump:
    """Decoded bytes without zeros: the number of a character may have more digits than a byte.

    ``content`` has a line break between parts that do not follow one another.
    """

    content: bytes
    _text: bytes
    _parts: Sequence[_Part]
    is_decimal: bool = False
    are_lines: bool = False

    def places(self) -> Generator[int, None, list[tuple[int, int]]]:
        """Return where the text shows each byte: a line that ends with text, until its end."""
        number, base = (_NUMBER, 10) if self.is_decimal else (_PAIR, 16)
        places: list[tuple[int, int]] = []
        for part in self._parts:
            if places and not self.are_lines:
                places.append(places[-1])
            rest = islice(number.finditer(self._text, part.start, part.stop), part.size)
            while some := list(islice(rest, _NUMBERS_AT_ONCE)):
                places += [
                    (found.start(), max(found.end(), part.line_end))
                    for found in some
                    if 0 < int(found[1], base) <= _MAX_BYTE
                ]
                yield _RUN_COST // 2 * len(some)
        return places


def dumps_in(text: bytes) -> Generator[int, None, list[ByteDump]]:
    """Return the bytes that a text shows as numbers, where several follow one another.

    There are at most three dumps, whatever the text: one search of each is cheaper than one of each
    run of numbers. Yields after each piece of work how many bytes of plain text take as long.
    """
    runs, lines = yield from _hexadecimal_runs(text)
    dumps: list[ByteDump] = []
    if runs:
        shown = _joined(text, runs, b" 0a ")
        content = bytes.fromhex(_PREFIX.sub(b"", shown).translate(None, _NO_DIGITS).decode())
        dumps.append(ByteDump(_without_zeros(content), text, runs))
        yield _NUMBER_COST * len(content)
    if lines:
        dumps.append((yield from _dump_of_lines(text, lines)))
    if runs := (yield from _decimal_runs(text)):
        numbers = _joined(text, runs, b" 10 ").translate(_GAPS).split()
        yield len(text)
        content = bytes(map(_BYTES_OF_NUMBERS.__getitem__, numbers))
        dumps.append(ByteDump(_without_zeros(content), text, runs, is_decimal=True))
        yield _NUMBER_COST * len(numbers)
    return dumps


def _hexadecimal_runs(text: bytes) -> Generator[int, None, tuple[list[_Part], list[_Line]]]:
    """Return the runs of bytes, and the lines of dumps in them."""
    yield len(text)
    classes = text.translate(_HEXADECIMAL)
    runs: list[_Part] = []
    lines: list[_Line] = []
    at, cost = 0, 0
    for run in _HEXADECIMAL_RUN.finditer(classes):
        digit, stop = _first_digit(classes, run.start()), run.end()
        first = _with_prefix(classes, digit)
        start = first if (run.start() - digit) % 2 == 0 else digit + 1
        cost += _RUN_COST + stop - start
        if cost > _COST_AT_ONCE:
            yield cost
            cost = 0
        if classes.count(b"d", start, stop) < 2 * _MIN_BYTES or _is_uuid(text, start, stop):
            continue  # most often it is a date, a time or an id
        runs.append(_Part(start, stop, stop))
        at = max(first, at)
        while line := _line_in(text, classes, at, stop):
            at = line.end()
            lines.append((int(line[1] or line[2], 16), *line.span(3), at))
            cost += _LINE_COST
            if cost > _COST_AT_ONCE:
                yield cost
                cost = 0
    yield cost
    return runs, lines


def _dump_of_lines(text: bytes, lines: Sequence[_Line]) -> Generator[int, None, ByteDump]:
    """Decode each line: no more than the next offset leaves, for text may look like bytes."""
    digits: list[bytes] = []
    parts: list[_Part] = []
    for (offset, start, stop, end), after in zip(lines, [*lines[1:], None], strict=True):
        count = 0 if after is None else after[0] - offset
        size = min(count, stop - start) if count > 0 else stop - start
        digits.append(text[start:stop].translate(None, _NO_DIGITS)[: 2 * size])
        parts.append(_Part(start, stop, size, end))
        if len(parts) % _LINES_AT_ONCE == 0:
            yield _RUN_COST * _LINES_AT_ONCE
    content = bytes.fromhex(b"".join(digits).decode())
    return ByteDump(_without_zeros(content), text, parts, are_lines=True)


def _decimal_runs(text: bytes) -> Generator[int, None, list[_Part]]:
    classes = text.translate(_DECIMAL)
    runs: list[_Part] = []
    for run in _DECIMAL_RUN.finditer(classes):
        start = max(_first_digit(classes, run.start()), run.start() - 2)  # of three digits at most
        runs.append(_Part(start, run.end(), run.end()))
        if len(runs) % _LINES_AT_ONCE == 0:
            yield _RUN_COST * _LINES_AT_ONCE
    return runs


def _joined(text: bytes, parts: Sequence[_Part], line_break: bytes) -> bytes:
    return line_break.join([text[part.start : part.stop] for part in parts])


def _without_zeros(content: bytes) -> bytes:
    return content.replace(b"\0", b"")


def _line_in(text: bytes, classes: bytes, at: int, stop: int) -> re.Match[bytes] | None:
    """Return the first line of a dump within a run, to its end behind the run."""
    at = classes.find(_OFFSET, at, stop)
    if at < 0:
        return None
    at = _with_prefix(classes, at)
    if line := _LINE.match(text, at):
        return line
    found = _LINE.search(text, at, stop)
    if found is None or found.end() < stop:
        return found
    return _LINE.match(text, found.start()) or found


def _is_uuid(text: bytes, start: int, stop: int) -> bool:
    is_as_long = _UUID_CHARACTERS <= stop - start <= _UUID_CHARACTERS + 1  # with what follows it
    return is_as_long and text[start + 8 : start + 24 : 5] == b"----"


def _first_digit(classes: bytes, at: int) -> int:
    while at > 0 and classes[at - 1] == _DIGIT:
        at -= 1
    return at


def _with_prefix(classes: bytes, at: int) -> int:
    return at - 2 if classes[max(0, at - 2) : at] == b"dx" else at
