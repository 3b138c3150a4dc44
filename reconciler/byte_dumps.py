"""Bytes that a text shows as numbers, as programs dump a request or print a buffer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
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
    (?: (?P<long>[0-9a-f]{6,16}+) :? | (?P<short>[0-9a-f]{4,5}+) (?: : | (?=[ \t]{2}) ) ) [ \t]++
    (?P<bytes> (?:[0-9a-f]{2}){1,8}+ (?![0-9a-z])
      (?: (?: [ \t]-?[ \t]?+ | - ) (?:[0-9a-f]{2}){1,8}+ (?![0-9a-z]) )*+ )
    [^\r\n]*+
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""A line of ``hexdump -C``, ``xxd`` or ``od -t x1``: an offset, bytes, and the same as text."""

_PAIR: Final = re.compile(rb"(?:[0-9a-f]x)?([0-9a-f]{2})", re.IGNORECASE)
_NUMBER: Final = re.compile(rb"([0-9]{1,3})")
_MAX_BYTE: Final = 255
_UUID_CHARACTERS: Final = 36


class _Part(NamedTuple):
    """Where the numbers of some bytes are in a text, how many count, and where their line ends."""

    start: int
    stop: int
    size: int
    line_end: int = 0


@dataclass(frozen=True, slots=True)
class ByteDump:
    """Decoded bytes without zeros: the number of a character may have more digits than a byte."""

    content: bytes
    _text: bytes
    _parts: Sequence[_Part]
    _is_decimal: bool = False

    def places(self) -> list[tuple[int, int]]:
        """Return where the text shows each byte: a line that ends with text, until its end."""
        number, base = (_NUMBER, 10) if self._is_decimal else (_PAIR, 16)
        return [
            (found.start(), max(found.end(), part.line_end))
            for part in self._parts
            for found in islice(number.finditer(self._text, part.start, part.stop), part.size)
            if 0 < int(found[1], base) <= _MAX_BYTE
        ]


def dumps_in(text: bytes) -> Iterator[ByteDump]:
    """Yield the bytes that a text shows as numbers, where several follow one another."""
    lines: list[re.Match[bytes]] = []
    classes = text.translate(_HEXADECIMAL)
    for run in _HEXADECIMAL_RUN.finditer(classes):
        first = _first_digit(classes, run.start())
        start, stop = first + (run.start() - first) % 2, run.end()
        if classes.count(b"d", start, stop) < 2 * _MIN_BYTES or _is_uuid(text, start, stop):
            continue  # most often it is a date, a time or an id
        yield _hexadecimal(text, [_Part(start, stop, stop)])
        at = max(first, lines[-1].end() if lines else 0)
        while at < stop and (found := _LINE.search(text, at, stop)):
            # To the end of the line, behind the run, if a line matches there.
            line = _LINE.match(text, found.start()) or found
            lines.append(line)
            at = line.end()
    if lines:
        yield _hexadecimal(text, _parts(lines))
    classes = text.translate(_DECIMAL)
    for run in _DECIMAL_RUN.finditer(classes):
        start, stop = _first_digit(classes, run.start()), run.end()
        numbers = map(int, _NUMBER.findall(text, start, stop))
        content = bytes(each for each in numbers if 0 < each <= _MAX_BYTE)
        yield ByteDump(content, text, [_Part(start, stop, stop)], _is_decimal=True)


def _is_uuid(text: bytes, start: int, stop: int) -> bool:
    is_as_long = _UUID_CHARACTERS <= stop - start <= _UUID_CHARACTERS + 1  # with what follows it
    return is_as_long and text[start + 8 : start + 24 : 5] == b"----"


def _first_digit(classes: bytes, at: int) -> int:
    while at > 0 and classes[at - 1 : at] == b"d":
        at -= 1
    return at - 2 if classes[max(0, at - 2) : at] == b"dx" else at


def _parts(lines: Sequence[re.Match[bytes]]) -> list[_Part]:
    """Return the bytes of each line: no more than the next offset leaves, for text may look so."""
    offsets = [int(line["long"] or line["short"], 16) for line in lines]
    counts = [after - before for before, after in pairwise(offsets)]
    return [
        _Part(*line.span("bytes"), count if count > 0 else len(line["bytes"]), line.end())
        for line, count in zip(lines, [*counts, 0], strict=True)
    ]


def _hexadecimal(text: bytes, parts: Sequence[_Part]) -> ByteDump:
    pieces: list[bytes] = []
    for start, stop, size, _ in parts:
        pairs = _PAIR.findall(text, start, stop)
        pieces.append(bytes.fromhex(b"".join(pairs[:size]).decode()))
    return ByteDump(b"".join(pieces).replace(b"\0", b""), text, parts)
