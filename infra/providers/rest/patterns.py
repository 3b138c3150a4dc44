r"""RE2 regular expressions for ``matches``, limited in the time that they take.

The library compiles a pattern on each call, and compiles its own Unicode classes: in the library,
``\w{63}`` takes 20 ms. As in RE2, ``\w``, ``\d`` and ``\s`` are ASCII (ADR 0057).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

import cel

MAX_PATTERN_CHARACTERS: Final = 1000
MAX_PATTERN_SIZE: Final = 2000
"""Size of the largest pattern, which takes about 2 ms to compile."""

_CALL_MICROSECONDS: Final = 40
_NANOSECONDS_PER_BYTE: Final = 15  # of text for each unit of size, without the library's cache
_CHARACTERS_PER_SIZE: Final = 8  # in an ASCII class
_UNICODE_SIZE: Final = 10  # for example, ``.``
_PROPERTY_SIZE: Final = 600  # for example, ``\pL``
_FOLDED_RANGE_SIZE: Final = 6000  # of a Unicode range with (?i), which maps each character

_ASCII_CLASSES: Final = {"w": "0-9A-Za-z_", "d": "0-9", "s": r"\t\n\f\r "}
_ESCAPE: Final = r"\\(?: x\{[^{}]*\} | [pP](?:\{[^{}]*\}|.) | . )"
_POSIX_CLASS: Final = r"\[:\^?[a-z]+:\]"
_TOKEN: Final = re.compile(
    rf"""
      (?P<flags> \( \? [imsU]* (?:-[imsU]+)? \) )
    | (?P<open> \( (?: \? (?: P?<\w+> | [imsU]*(?:-[imsU]+)?: ) )? (?!\?) )
    | (?P<close> \) )
    | (?P<repetition> \{{ (?P<min>[0-9]{{1,4}}) (?: ,(?P<max>[0-9]{{0,4}}) )? \}} )
    | (?P<quantifier> [*+?] )
    | (?P<class> \[ \^? \]? (?: {_POSIX_CLASS} | {_ESCAPE} | [^\\\[\]] )* \] )
    | (?P<atom> {_ESCAPE} | [^\\\[{{()*+?] )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASS_ITEM: Final = re.compile(rf"{_POSIX_CLASS} | {_ESCAPE} | [^\\]", re.VERBOSE | re.DOTALL)
_INVALID_RANGE: Final = re.compile(r"(?<!^)(?<!^\^)-\\[wdsWDS]|\\[wdsWDS]-(?!$)")

_MATCH: Final = cel.compile("text.matches(pattern)")


class PatternError(ValueError):
    """A pattern is invalid, or too large."""


class Pattern(NamedTuple):
    """A pattern for the library, and its size: the microseconds that it takes to compile."""

    text: str
    size: int

    def work(self, text: str) -> int:
        """Return the approximate maximum time to search text, in microseconds."""
        match_nanoseconds = len(text.encode("utf-8", "surrogatepass")) * self.size
        match_nanoseconds *= _NANOSECONDS_PER_BYTE
        return _CALL_MICROSECONDS + self.size + match_nanoseconds // 1000

    def is_in(self, text: str) -> bool:
        """Return whether text contains a match. Raises ``PatternError``."""
        try:
            return _MATCH.execute({"text": text, "pattern": self.text})
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()).rpartition("error: ")[2]
            raise PatternError(f"is not an RE2 regular expression: {reason}") from None


@lru_cache(maxsize=1024)
def read_pattern(text: str) -> Pattern:
    """Return a pattern with its size. Raises ``PatternError``."""
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise PatternError(
            f"has {len(text)} characters, but at most {MAX_PATTERN_CHARACTERS} are allowed"
        )
    is_folded = re.search(r"\(\?[A-Za-z]*i", text) is not None
    parts: list[str] = []
    groups, last, at = [0], 0, 0  # the size of each open group and of the last item
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token.lastgroup == "close" and len(groups) == 1):
            raise PatternError(
                "is not an RE2 regular expression (no backreferences, no lookaround): "
                f"at {text[at : at + 20]!r}"
            )
        part = token[0]
        match token.lastgroup:
            case "flags":
                last = 0
            case "open":
                groups.append(1)
            case "close":
                last = groups.pop()
                groups[-1] += last
            case "quantifier":
                last += 1
                groups[-1] += 1
            case "repetition":
                minimum, maximum = int(token["min"]), token["max"]
                times = max(1, minimum, minimum + 1 if maximum == "" else int(maximum or 0))
                groups[-1] += last * (times - 1)
                last *= times
            case "class":
                part, last = _read_class(part, is_folded=is_folded)
                groups[-1] += last
            case _:
                is_escape = part.startswith("\\")
                last = _item_size(part, is_folded=False) if is_escape else 1
                last = _UNICODE_SIZE if part == "." else last
                part = _with_ascii_class(part)
                groups[-1] += last
        parts.append(part)
        at = token.end()
    size = sum(groups)
    if size > MAX_PATTERN_SIZE:
        raise PatternError(
            f"has a size of {size} after its repetitions are expanded, but at most "
            f"{MAX_PATTERN_SIZE} is allowed; repeat fewer times, and use \\w instead of \\p"
        )
    return Pattern("".join(parts), size)


def _read_class(text: str, *, is_folded: bool) -> tuple[str, int]:
    """Return a class in brackets for the library, and its size."""
    content = text[1:-1]
    if _INVALID_RANGE.search(content):
        raise PatternError(f"is not an RE2 regular expression: invalid range in {text[:20]!r}")
    items = _CLASS_ITEM.findall(content)
    sizes = [_item_size(each, is_folded=is_folded) for each in items]
    size = 1 + len(items) // _CHARACTERS_PER_SIZE + sum(each for each in sizes if each > 1)
    size += _UNICODE_SIZE if content.startswith("^") else 0
    return f"[{''.join(map(_with_ascii_class, items))}]", size


def _item_size(item: str, *, is_folded: bool) -> int:
    if item[:2] in (r"\p", r"\P"):
        return _PROPERTY_SIZE
    if item in (r"\W", r"\D", r"\S") or item.startswith("[:^"):
        return _UNICODE_SIZE
    if item.isascii() and item[:2] not in (r"\x", r"\u", r"\U"):
        return 1
    return _FOLDED_RANGE_SIZE if is_folded else _UNICODE_SIZE


def _with_ascii_class(item: str) -> str:
    letter = item[1:]
    if item.startswith("\\") and (content := _ASCII_CLASSES.get(letter.lower())):
        return f"[{'^' if letter.isupper() else ''}{content}]"
    return item
