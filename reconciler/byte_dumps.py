"""Find bytes that text represents as numbers, such as a dumped request or a printed buffer."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

MAX_CHARACTERS_PER_BYTE: Final = 16
"""Maximum length of a number and its separator, such as a comma, a line break and spaces."""


_MIN_BYTES: Final = 6
"""Fewer numbers in a row are not decoded, because shorter secrets are not searched for."""


def _classes(digits: bytes) -> bytes:
    """Return a table that maps each byte to its class: a digit, an ``x``, a letter or a gap."""
    classes = bytearray(b"." * 256)
    for byte in range(256):
        if chr(byte).isascii() and chr(byte).isalnum():
            classes[byte] = ord("d" if byte in digits else "x" if byte in b"xX" else "a")
    return bytes(classes)


_DIGIT: Final = ord("d")
_HEXADECIMAL: Final = _classes(b"0123456789abcdefABCDEF")
_DECIMAL: Final = _classes(b"0123456789")
# These match classes, because a search for constant letters is ten times as fast.
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
"""A line of ``hexdump -C``, ``xxd`` or ``od -t x1``: an offset, bytes, and the bytes as text."""

_PAIR: Final = re.compile(rb"(?:[0-9a-f]x)?([0-9a-f]{2})", re.IGNORECASE)
_NUMBER: Final = re.compile(rb"([0-9]{1,3})")
_MAX_BYTE: Final = 255
_BYTE_BY_NUMBER: Final = {
    f"{number:0{digits}}".encode(): number if number <= _MAX_BYTE else 0
    for digits in (1, 2, 3)
    for number in range(10**digits)
}
_PREFIX: Final = re.compile(rb"[0-9a-f]x", re.IGNORECASE)
_NON_DIGITS: Final = bytes(each for each in range(256) if each not in b"0123456789abcdefABCDEF")
_GAPS: Final = bytes(each if each in b"0123456789" else ord(" ") for each in range(256))
_UUID_CHARACTERS: Final = 36

_NUMBER_COST: Final = 8  # in bytes of plain text, see ``secrecy.Search``
_OFFSET: Final = b"dddd"  # an offset has at least four digits
_RUN_COST: Final = 96
_LINE_COST: Final = 192
_COST_PER_STEP: Final = 128 * 1024
_LINES_PER_STEP: Final = 2048
_NUMBERS_PER_STEP: Final = 4096


_Line = tuple[int, int, int, int]
"""Offset at the start of a dump line, the start and end of its bytes, and its own end."""


class _Part(NamedTuple):
    """Start and end of some numbers, how many of them are decoded, and the end of their line."""

    start: int
    stop: int
    size: int
    line_end: int = 0


@dataclass(frozen=True, slots=True)
class ByteDump:
    """Decoded bytes without zeros, because a character's number may have more digits than a byte.

    ``content`` has a line break between parts that do not follow one another.
    """

    content: bytes
    _text: bytes
    _parts: Sequence[_Part]
    is_decimal: bool = False
    are_lines: bool = False

    def spans(self) -> Generator[int, None, list[tuple[int, int]]]:
        """Return the span of each byte. In a line that ends with text, it extends to the end."""
        number, base = (_NUMBER, 10) if self.is_decimal else (_PAIR, 16)
        spans: list[tuple[int, int]] = []
        for part in self._parts:
            if spans and not self.are_lines:
                spans.append(spans[-1])
            rest = islice(number.finditer(self._text, part.start, part.stop), part.size)
            while chunk := list(islice(rest, _NUMBERS_PER_STEP)):
                spans += [
                    (found.start(), max(found.end(), part.line_end))
                    for found in chunk
                    if 0 < int(found[1], base) <= _MAX_BYTE
                ]
                yield _RUN_COST // 2 * len(chunk)
        return spans


def dumps_in(text: bytes) -> Generator[int, None, list[ByteDump]]:
    """Return the bytes that text represents as several consecutive numbers.

    There are at most three dumps, because searching them is cheaper than searching each run of
    numbers. Yields the cost of each step in bytes of plain text.
    """
    runs, lines = yield from _hexadecimal_runs(text)
    dumps: list[ByteDump] = []
    if runs:
        numbers = _join(text, runs, b" 0a ")
        content = bytes.fromhex(_PREFIX.sub(b"", numbers).translate(None, _NON_DIGITS).decode())
        dumps.append(ByteDump(_without_zeros(content), text, runs))
        yield _NUMBER_COST * len(content)
    if lines:
        dumps.append((yield from _dump_of_lines(text, lines)))
    if runs := (yield from _decimal_runs(text)):
        decimals = _join(text, runs, b" 10 ").translate(_GAPS).split()
        yield len(text)
        content = bytes(map(_BYTE_BY_NUMBER.__getitem__, decimals))
        dumps.append(ByteDump(_without_zeros(content), text, runs, is_decimal=True))
        yield _NUMBER_COST * len(decimals)
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
        if cost > _COST_PER_STEP:
            yield cost
            cost = 0
        if classes.count(b"d", start, stop) < 2 * _MIN_BYTES or _is_uuid(text, start, stop):
            continue  # usually a date, a time or an id
        runs.append(_Part(start, stop, stop))
        at = max(first, at)
        while line := _line_in(text, classes, at, stop):
            at = line.end()
            lines.append((int(line[1] or line[2], 16), *line.span(3), at))
            cost += _LINE_COST
            if cost > _COST_PER_STEP:
                yield cost
                cost = 0
    yield cost
    return runs, lines


def _dump_of_lines(text: bytes, lines: Sequence[_Line]) -> Generator[int, None, ByteDump]:
    """Decode each line up to the offset of the next one, because text may look like bytes."""
    digits: list[bytes] = []
    parts: list[_Part] = []
    for (offset, start, stop, end), next_line in zip(lines, [*lines[1:], None], strict=True):
        count = 0 if next_line is None else next_line[0] - offset
        size = min(count, stop - start) if count > 0 else stop - start
        digits.append(text[start:stop].translate(None, _NON_DIGITS)[: 2 * size])
        parts.append(_Part(start, stop, size, end))
        if len(parts) % _LINES_PER_STEP == 0:
            yield _RUN_COST * _LINES_PER_STEP
    content = bytes.fromhex(b"".join(digits).decode())
    return ByteDump(_without_zeros(content), text, parts, are_lines=True)


def _decimal_runs(text: bytes) -> Generator[int, None, list[_Part]]:
    classes = text.translate(_DECIMAL)
    runs: list[_Part] = []
    for run in _DECIMAL_RUN.finditer(classes):
        start = max(_first_digit(classes, run.start()), run.start() - 2)  # at most three digits
        runs.append(_Part(start, run.end(), run.end()))
        if len(runs) % _LINES_PER_STEP == 0:
            yield _RUN_COST * _LINES_PER_STEP
    return runs


def _join(text: bytes, parts: Sequence[_Part], line_break: bytes) -> bytes:
    return line_break.join([text[part.start : part.stop] for part in parts])


def _without_zeros(content: bytes) -> bytes:
    return content.replace(b"\0", b"")


def _line_in(text: bytes, classes: bytes, at: int, stop: int) -> re.Match[bytes] | None:
    """Return the first dump line in a run, up to its end after the run."""
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
    is_as_long = _UUID_CHARACTERS <= stop - start <= _UUID_CHARACTERS + 1  # with a separator
    return is_as_long and text[start + 8 : start + 24 : 5] == b"----"


def _first_digit(classes: bytes, at: int) -> int:
    while at > 0 and classes[at - 1] == _DIGIT:
        at -= 1
    return at


def _with_prefix(classes: bytes, at: int) -> int:
    return at - 2 if classes[max(0, at - 2) : at] == b"dx" else at
