"""Remembers the secrets that this process has read, and hides them in text from other systems.

An API may repeat a secret in an error, a label or a listing, in any encoding (invariant 12). Text
is searched both unchanged and decoded, so that any mixture of escapes is found. The search covers
plain secrets, Base64, and dumps and lists of bytes. ADR 0058 has the reasons and the limits.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import unquote

from reconciler.byte_dumps import MAX_CHARACTERS_PER_BYTE, dumps_in

HIDDEN: Final = "***"

MIN_CHARACTERS: Final = 6
"""Shorter secrets are not searched for, because they would match ordinary words and numbers."""

MIN_LINE_CHARACTERS: Final = 12
"""Shorter lines of a secret are searched for only together with the lines around them."""

MIN_TRUNCATED_CHARACTERS: Final = 12
"""A truncated secret is hidden if this many characters remain, and at least half of it."""

MAX_REMEMBERED: Final = 10_000
"""Above this number, secrets that were last read over ``GRACE_SECONDS`` ago are dropped."""

GRACE_SECONDS: Final = 7 * 86_400.0

_LEVELS: Final = 4  # maximum nesting of escapes, such as a URL in JSON in a log line
_WINDOW: Final = 4  # bytes, because ``memoryview.cast("I")`` reads that many
_ALIGNMENTS: Final = 3  # of Base64: number of bytes before the secret, modulo three

_MARKS: Final = (b"%", b"\\", b"&", b"=", b"\n")  # each escape contains one of them
_ESCAPE: Final = re.compile(
    rb"""
    (  # each branch begins with a character, so that the search skips other text
      %  (?: H{2} | [Uu][Dd][89ABab]H{2}%[Uu][Dd][C-Fc-f]H{2} | [Uu](?![Dd][89A-Fa-f])H{4} )
    | &  (?: (?: \#[0-9]{1,7} | \#[Xx]0{0,7}H{1,6} | [A-Za-z]\w{1,31} );
           | (?i: amp | lt | gt | quot ) (?!=\r?\n) )
    | =  (?: H{2} | \r?\n )
    | \\ (?: [\ -/:-<>-@\[-`{-~] | =(?!\r?\n) | [bfnrt] | [0-3][0-7]{2} | xH{2} | U00H{6}
           | u[Dd][89ABab]H{2}\\u[Dd][C-Fc-f]H{2} | u(?![Dd][89A-Fa-f])H{4} | [ux]\{H{1,6}\} )
    | \n [ \t]*
    | \r \n[ \t]*
    )""".replace(b"H", b"[0-9A-Fa-f]"),
    re.VERBOSE,
)
"""The escapes of URLs, HTML, mail, JSON, Python, Git and shells, and indented line breaks.

Half of a surrogate pair, or an escape that ends at a soft line break in mail, stays unchanged,
because the next level may complete it.
"""

_QUOTES: Final = ((b"'", b"''"), (b'"', b'""'), (b"'", b"'\"'\"'"))  # SQL, CSV, shells
_CONTROLS: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_CODE_POINTS: Final = 0x110000

_IN_URL: Final = re.compile(r"://[^/\s:]*:([^/\s]+)@")
"""The password in a URL."""

_MAX_PARTS: Final = 64
"""Maximum number of passwords and lines of one secret to search for in each encoding.

If there are more lines, they are searched for only as plain and escaped text.
"""

_PEM_MARK: Final = "-----"  # starts the BEGIN and END lines, which every certificate has

_ESCAPES_PER_STEP: Final = 2048  # 0.5 ms, or 10 ms if all are different
_COST_PER_STEP: Final = 256 * 1024
_ESCAPE_COST: Final = 16  # in bytes of plain text
_MATCH_COST: Final = 64

_T = TypeVar("_T")
Search = Generator[int, None, _T]
"""A search in steps of a few milliseconds. It yields the cost of each in bytes of plain text.

A byte takes 20 ns. Slower work, such as an escape, counts as more bytes.
"""


class _WindowPosition(NamedTuple):
    """Offset of a window in a form, and the number of the form's bytes that must match."""

    offset: int
    needed: int


class Secrecy:
    """Hides every secret that was added, even after it was replaced.

    A search takes the same time for one secret as for a thousand. ``clock`` returns seconds.
    Without it, no secret is ever dropped.
    """

    def __init__(
        self, secret: str | None = None, *, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._clock = clock
        self._read_at: dict[str, float] = {}
        self._max = MAX_REMEMBERED
        self._windows: dict[int, tuple[_WindowPosition, ...]] = {}
        self._forms: dict[bytes, tuple[bytes, ...]] = {}  # by their required prefix
        self._starts = (0,)  # offsets of the first windows; a form of six bytes needs two
        self._longest = 0
        self.add(secret or "")

    def __repr__(self) -> str:
        return f"Secrecy({len(self._read_at)} secrets)"

    def add(self, secret: str) -> None:
        """Hide a secret in all later searches."""
        secret = secret.strip()
        if len(secret) < MIN_CHARACTERS:
            return
        is_new = self._read_at.pop(secret, None) is None
        self._read_at[secret] = self._clock()
        if is_new:
            self._index(secret)
        if len(self._read_at) > self._max:
            self._drop_old()

    @property
    def reach_bytes(self) -> int:
        """Number of bytes after a position that are needed to find a secret that begins there."""
        return self._longest * MAX_CHARACTERS_PER_BYTE

    def is_in(self, text: str) -> bool:
        """Return whether text contains a secret."""
        return complete(self.search(text))

    def search(self, text: str) -> Search[bool]:
        """Do the same as ``is_in``, in steps."""
        return bool(self._forms) and bool((yield from self._find(_encode(text))))

    def is_in_json(self, content: bytes) -> bool:
        """Return whether a string or number in JSON contains a secret."""
        return complete(self.search_json(content))

    def search_json(self, content: bytes) -> Search[bool]:
        """Do the same as ``is_in_json``, in steps."""
        if not self._forms:
            return False
        return bool((yield from self._find(content, levels=_LEVELS + 1)))

    def hide(self, text: str) -> str:
        """Return text with its secrets removed."""
        return complete(self._hide(text))

    def _hide(self, text: str) -> Search[str]:
        if not self._forms:
            return text
        content = _encode(text)
        found = yield from self._find(content)
        return _decode(_replace(content, found)) if found else text

    def hide_start(self, text: str, max_characters: int) -> str:
        """Return the first characters of text without its secrets, and search little more of it.

        Truncating it before the search would leave the beginning of a secret, which is not found.
        """
        content = _encode(text[: max_characters + self.reach_bytes])
        spans = complete(self._find(content)) if self._forms else []
        end = len(_encode(text[:max_characters]))
        end = max([end, *(stop for start, stop in spans if start < end)])
        # Later text must not move forward because a hidden secret is shorter.
        kept = [span for span in spans if span[0] < end]
        return _decode(_replace(content[:end], kept))[:max_characters]

    def hide_in(self, value: _T, known: AbstractSet[str] = frozenset()) -> _T:
        """Return JSON-like data without secrets, including its keys. ``known`` strings stay."""
        return complete(self.search_and_hide(value, known))

    def search_and_hide(self, value: _T, known: AbstractSet[str] = frozenset()) -> Search[_T]:
        """Do the same as ``hide_in``, in steps."""
        if not self._forms:
            return value
        return cast("_T", (yield from self._hide_value(value, known)))

    def _hide_value(self, value: Any, known: AbstractSet[str]) -> Search[Any]:
        match value:
            case str():
                return value if value in known else (yield from self._hide(value))
            case dict():
                hidden_items: dict[Any, Any] = {}
                for key, each in cast("dict[Any, Any]", value).items():
                    hidden_key = yield from self._hide_value(key, known)
                    hidden_items[hidden_key] = yield from self._hide_value(each, known)
                return hidden_items
            case list() | tuple():
                items = cast("list[Any]", value)
                if (yield from self._is_in_bytes(items)):
                    return [HIDDEN]
                hidden_list: list[Any] = []
                for each in items:
                    hidden_list.append((yield from self._hide_value(each, known)))  # noqa: PERF401
                return hidden_list
            case None | bool():
                return value
            case _:  # a PIN is often shown as a number
                text = repr(value)
                hidden = yield from self._hide(text)
                return value if hidden == text else hidden

    def _is_in_bytes(self, items: Sequence[Any]) -> Search[bool]:
        """Return whether a list of numbers is a buffer in JSON that contains a secret."""
        if len(items) < MIN_CHARACTERS or not all(type(each) is int for each in items):
            return False
        if min(items) < 0 or max(items) > 0xFF:  # noqa: PLR2004
            return False
        return bool((yield from self._find(bytes(items))))

    # --- the index

    def _index(self, secret: str) -> None:
        for form in _forms(secret):
            needed = min(len(form), max(MIN_TRUNCATED_CHARACTERS, (len(form) + 1) // 2))
            self._longest = max(self._longest, needed)
            self._forms[form[:needed]] = (*self._forms.get(form[:needed], ()), form)
            if needed < _WINDOW + _WINDOW - 1:
                self._starts = (0, 2)
            # The search reads one of four windows, wherever in the content the form begins. The
            # last windows differ most, because tokens and keys often have a common prefix.
            last = needed - _WINDOW
            for offset in range(max(0, last - _WINDOW + 1), last + 1):
                number = int.from_bytes(form[offset : offset + _WINDOW], sys.byteorder)
                position, positions = _WindowPosition(offset, needed), self._windows.get(number, ())
                if position not in positions:
                    self._windows[number] = (*positions, position)

    def _drop_old(self) -> None:
        oldest = self._clock() - GRACE_SECONDS
        self._read_at = {each: at for each, at in self._read_at.items() if at >= oldest}
        self._max = max(MAX_REMEMBERED, 2 * len(self._read_at))  # to avoid a scan for each secret
        self._windows, self._forms, self._starts = {}, {}, (0,)
        for secret in self._read_at:
            self._index(secret)

    # --- the search

    def _find(self, content: bytes, *, levels: int = _LEVELS) -> Search[list[tuple[int, int]]]:
        """Return the spans of secrets, in the content itself or in what it encodes."""
        found = yield from self._find_in_view(content)
        views = [content]
        while len(views) <= levels and any(mark in views[-1] for mark in _MARKS):
            view = yield from _unescape_all(views[-1])
            if view == views[-1]:
                break
            spans = yield from self._find_in_view(view)
            for outer in reversed(views) if spans else ():
                origins = yield from _origins(outer)
                spans = [(origins[start], origins[end]) for start, end in spans]
            found += spans
            views.append(view)
        return found

    def _find_in_view(self, content: bytes) -> Search[list[tuple[int, int]]]:
        """Return the spans of forms, as plain bytes or as numbers."""
        found = yield from self._find_forms(content)
        for dump in (yield from dumps_in(content)):
            spans = yield from self._find_forms(dump.content)
            if spans:
                byte_spans = yield from dump.spans()
                found += [(byte_spans[start][0], byte_spans[end - 1][1]) for start, end in spans]
        return found

    def _find_forms(self, content: bytes) -> Search[list[tuple[int, int]]]:
        yield len(content)
        found: list[tuple[int, int]] = []
        cost = 0
        for start in self._starts:
            windows = _windows(content, start)
            if self._windows.keys().isdisjoint(windows):
                continue
            for number, window in enumerate(windows):
                for position in self._windows.get(window, ()):
                    found += self._matches(
                        content, start + number * _WINDOW - position.offset, position
                    )
                    cost += _MATCH_COST + position.needed
                    if cost > _COST_PER_STEP:
                        yield cost
                        cost = 0
        return found

    def _matches(
        self, content: bytes, start: int, position: _WindowPosition
    ) -> Iterator[tuple[int, int]]:
        """Return the spans of forms that begin at a position, complete or truncated."""
        needed = content[start : start + position.needed] if start >= 0 else b""
        for form in self._forms.get(needed, ()):
            part = content[start : start + len(form)]
            end = start + _common_length(part, form)
            is_truncated = content[end - 1 : end] in _MARKS or not content[end : end + 1].isalnum()
            if part == form or is_truncated:  # otherwise, only the beginning is the same
                yield start, end


class SplitLogin(NamedTuple):
    """The parts of a secret ``USER:PASSWORD``."""

    user: str
    password: str


def split_login(secret: str) -> SplitLogin | None:
    """Split ``USER:PASSWORD`` at the first colon; None without a colon.

    Providers must use this function, because it determines which password is hidden.
    """
    user, colon, password = secret.partition(":")
    return SplitLogin(user, password) if colon else None


def complete(search: Search[_T]) -> _T:
    """Run a search to completion without pausing, and return its result."""
    while True:
        try:
            next(search)
        except StopIteration as done:
            return done.value


def strings_in(*values: object) -> frozenset[str]:
    """Return all strings in JSON-like data, including keys."""
    return frozenset(_strings_in(values))


def _strings_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, each in cast("dict[object, object]", value).items():
                yield from _strings_in(key)
                yield from _strings_in(each)
        case list() | tuple():
            for each in cast("list[object]", value):
                yield from _strings_in(each)
        case _:
            return


def _forms(secret: str) -> Iterable[bytes]:
    """Return the forms that a secret may have after escapes are decoded."""
    whole = {secret, *_passwords(secret)}
    lines = [each for each in map(str.strip, secret.splitlines()) if _is_secret_line(each)]
    changed = {
        each
        for value in whole
        if len(value) >= MIN_TRUNCATED_CHARACTERS  # a shorter one in capitals could be any word
        for each in (value.lower(), value.upper(), value.swapcase(), value[::-1])
    }
    plain = {_encode(each) for each in (*whole, *changed, *lines)}
    plain |= {b"".join(_latin(character) for character in each) for each in whole}
    forms: set[bytes] = set()
    for form in plain:  # a file may have thousands of lines, so each is processed separately
        variants = {form, *(form.replace(old, new) for old, new in _QUOTES)}
        variants |= {each.replace(b" ", b"+") for each in variants}  # as in HTML forms
        decoded = form
        for _ in range(_LEVELS):  # the search also decodes what looks like an escape in a secret
            decoded = complete(_unescape_all(decoded))
            variants.add(decoded)
        forms |= variants
    for value in whole:
        if len(value) >= MIN_TRUNCATED_CHARACTERS:
            content = _encode(value)
            forms.add(base64.b32encode(content)[: 8 * len(content) // 5])
    for value in whole.union(lines if len(lines) <= _MAX_PARTS else ()):
        content = _encode(value)
        forms |= {content.hex().encode(), content.hex().upper().encode()}
        for encoded in {content, _encode(json.dumps(value)[1:-1])}:
            for offset in range(_ALIGNMENTS):
                standard = _base64_core(encoded, offset)
                forms |= {standard, standard.translate(bytes.maketrans(b"+/", b"-_"))}
    return (each for each in forms if len(each) >= MIN_CHARACTERS)


def _passwords(secret: str) -> Iterator[str]:
    """Return the passwords in a secret, which must also be hidden on their own."""
    login = split_login(secret)
    found = [] if login is None else [login.password]
    for in_url in islice(_IN_URL.findall(secret), _MAX_PARTS):
        found += [in_url, in_url.partition("@")[0]]  # parsers disagree on which @ ends it
    for candidate in found:
        for password in (candidate, candidate.strip(), unquote(candidate)):
            if len(password) >= MIN_CHARACTERS:
                yield password


def _is_secret_line(line: str) -> bool:
    return len(line) >= MIN_LINE_CHARACTERS and not line.startswith(_PEM_MARK)


def _base64_core(content: bytes, offset: int) -> bytes:
    """Return the Base64 characters that depend only on content, after ``offset`` other bytes."""
    encoded = base64.b64encode(bytes(offset) + content)
    first = (8 * offset + 5) // 6
    return encoded[first : 8 * (offset + len(content)) // 6]


def _windows(content: bytes, start: int) -> memoryview:
    """Return content as numbers of ``_WINDOW`` bytes each, without the remainder."""
    whole = max(0, len(content) - start) // _WINDOW * _WINDOW
    return memoryview(content)[start : start + whole].cast("I")


def _unescape_all(content: bytes) -> Search[bytes]:
    """Decode one level of escapes."""
    yield len(content)
    pieces: list[bytes] = []
    # ``sub`` would call a function for each escape, which is slower than splitting.
    while len(parts := _ESCAPE.split(content, maxsplit=_ESCAPES_PER_STEP)) > 1:
        content = parts.pop()
        parts[1::2] = map(_unescape, parts[1::2])
        pieces += parts
        yield _ESCAPE_COST * (len(parts) // 2)
    return b"".join([*pieces, content])


def _common_length(part: bytes, form: bytes) -> int:
    """Return the length of the common prefix of two byte strings."""
    low, high = 0, len(part) if form.startswith(part) else len(part) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if form.startswith(part[:middle]) else (low, middle - 1)
    return low


@lru_cache(maxsize=4096)
def _unescape(text: bytes) -> bytes:
    """Decode one escape. A line break is removed."""
    kind = text[1:2]
    if text.endswith(b"\n") and text.startswith(b"="):
        return b""
    if text[:1] in (b"%", b"=") and kind not in (b"u", b"U"):
        return bytes.fromhex(text[1:].decode())
    if text.startswith(b"%") and len(text) == len("%u0000"):
        return chr(int(text[2:], 16)).encode()
    if text.startswith(b"%"):
        return _encode(json.loads(b'"' + re.sub(rb"%[uU]", rb"\\u", text) + b'"'))
    if text.startswith(b"&"):
        return _encode(html.unescape(text.decode()))
    if not text.startswith(b"\\"):
        return b""
    if kind == b"U" or text[2:3] == b"{":
        code = int(text[2:].strip(b"{}"), 16)
        return _encode(chr(code)) if code < _CODE_POINTS else b""
    if kind == b"x":
        return bytes.fromhex(text[2:].decode())
    if kind == b"u" and len(text) == len(r"\u0000"):
        return chr(int(text[2:], 16)).encode()
    if kind == b"u":
        return _encode(json.loads(b'"' + text + b'"'))
    if len(text) == len(r"\000"):
        return bytes([int(text[1:], 8)])
    return _CONTROLS.get(kind, kind)


def _origins(content: bytes) -> Search[list[int]]:
    """Return the offset in ``content`` of each byte of the unescaped content, and of its end."""
    origins: list[int] = []
    done = cost = 0
    for found in _ESCAPE.finditer(content):
        cost += _MATCH_COST
        if cost > _COST_PER_STEP:
            yield cost
            cost = 0
        origins += range(done, found.start())
        origins += [found.start()] * len(_unescape(found[0]))
        done = found.end()
    origins += range(done, len(content) + 1)
    yield cost + len(content)
    return origins


def _replace(content: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    parts: list[bytes] = []
    done = 0
    for start, end in sorted(spans):
        if start > done or not parts:
            parts += [content[done:start], HIDDEN.encode()]
        done = max(done, end)
    return b"".join([*parts, content[done:]])


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _latin(character: str) -> bytes:
    r"""Encode as Python's ``\xdf`` escape and old forms' ``%DF`` do."""
    return character.encode("latin-1") if ord(character) < 0x100 else _encode(character)  # noqa: PLR2004


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")
