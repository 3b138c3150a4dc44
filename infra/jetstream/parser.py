"""Parse messages from the socket, and pass them directly to listeners, without a queue."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, ItemsView, Iterator, Mapping
from typing import Final, TypeVar, overload

import msgspec
from nats.aio.client import Client
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, Parser

STATUS: Final = "Status"  # nats-py's header names for the parts of a status line
DESCRIPTION: Final = "Description"

_PLAIN_HEAD: Final = b"NATS/1.0\r\n"
_LINE_END: Final = b"\r\n"
_MESSAGE_WORDS: Final = {b"MSG": 4, b"HMSG": 5}
"""Number of words in the first line of a message. A reply subject is one more."""


MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest ``max_payload`` of nats-server. The parser buffers a message until it is complete."""

MAX_LINE_BYTES: Final = 1024 * 1024
"""Largest protocol line. The longest is INFO, which lists the servers of a cluster."""

_Default = TypeVar("_Default")


class MessageTooLongError(OSError):
    """A server exceeded a size limit. The connection to it must be closed."""


class Headers(Mapping[str, str]):
    """The headers of a message, parsed on access, because most are never read.

    A log message has six headers, of which only one is read. Parsing all of them takes five times
    as long.
    """

    __slots__ = ("_block",)

    def __init__(self, block: bytes) -> None:
        self._block = block

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    @overload
    def get(self, key: str, /) -> str | None: ...
    @overload
    def get(self, key: str, /, default: str | _Default) -> str | _Default: ...
    def get(self, key: str, /, default: str | _Default | None = None) -> str | _Default | None:
        """Return a header or the default, without the exception that `Mapping.get` handles."""
        # The last occurrence wins, as in `parse`.
        _, start, rest = self._block.rpartition(_line_start(key))
        if not start:
            return default
        return rest.partition(_LINE_END)[0].decode("utf-8", "replace").strip()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.parse())

    def __len__(self) -> int:
        return len(self.parse())

    def __bool__(self) -> bool:
        return True

    def items(self) -> ItemsView[str, str]:
        """Return all headers, parsed once. If a header is repeated, the last value wins."""
        return self.parse().items()

    def parse(self) -> dict[str, str]:
        """Parse all headers."""
        lines = self._block.decode("utf-8", "replace").split("\r\n")[1:]
        parts = (line.partition(":") for line in lines)
        return {name: value.strip() for name, colon, value in parts if colon and " " not in name}


@functools.lru_cache(maxsize=256)
def _line_start(name: str) -> bytes:
    return b"\r\n%b:" % name.encode()


def read_headers(block: bytes) -> Mapping[str, str] | None:
    """Parse a header block. A status line becomes the `Status` and `Description` headers."""
    if not block or block.startswith(_PLAIN_HEAD):
        return Headers(block) if block else None
    parsed, line = Headers(block).parse(), block[: block.find(_LINE_END)]
    _, status, description = (*line.decode("utf-8", "replace").split(" ", 2), "", "")[:3]
    if status.isdecimal():
        parsed |= {STATUS: status, DESCRIPTION: description}
    return parsed


class Incoming(msgspec.Struct, gc=False):
    """A message as passed to a listener."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] | None


Listener = Callable[[Incoming], None]
"""Processes one message synchronously. Exceptions are logged."""

Dispatch = Callable[[int, bytes, bytes, bytes, bytes], Awaitable[None] | None]
"""Processes a message (subscription id, subject, reply, payload and header block).

Returns an awaitable if work remains, which is rare.
"""


class MessageParser(Parser):
    """nats-py's parser with a shortcut for complete messages.

    nats-py's own parser, which needs two regular expressions and two passes per message, still
    processes everything except complete messages in the usual format.
    """

    def __init__(self, client: Client, dispatch: Dispatch) -> None:
        super().__init__(client)  # pyright: ignore[reportUnknownMemberType]
        self._dispatch = dispatch

    async def parse(self, data: bytes = b"") -> None:
        """Process bytes from the socket."""
        # nats-py's parser has started a message, so it must complete that first.
        if self.state == AWAITING_MSG_PAYLOAD:
            missing = self.needed + CRLF_SIZE - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        rest = await self._process_messages(data)
        if rest:
            await super().parse(rest)
        self._check_size()

    def _check_size(self) -> None:
        """Raise `MessageTooLongError` if an incomplete message or line exceeds its limit."""
        if self.state == AWAITING_MSG_PAYLOAD:
            if self.needed > MAX_MESSAGE_BYTES:
                raise MessageTooLongError(
                    f"the server is sending a message of {self.needed} bytes, more than the limit "
                    f"of {MAX_MESSAGE_BYTES // 1024**2} MiB"
                )
        elif len(self.buf) > MAX_LINE_BYTES:
            raise MessageTooLongError(
                f"the server is sending a line of more than {MAX_LINE_BYTES // 1024} KiB"
            )

    async def _process_messages(self, data: bytes) -> bytes:
        """Process the complete messages, and return the remaining bytes."""
        start, size, dispatch = 0, len(data), self._dispatch
        while start < size:
            line_end = data.find(_LINE_END, start)
            if line_end < 0:
                break
            words = data[start:line_end].split(b" ")
            # Not a message, or one in an unusual format: nats-py's parser processes it.
            if words[0] not in _MESSAGE_WORDS or b"" in words:
                break
            extra_words = len(words) - _MESSAGE_WORDS[words[0]]
            if extra_words not in (0, 1):
                break
            head = line_end + CRLF_SIZE
            try:
                number, end = int(words[2]), head + int(words[-1])
                body = head if words[0] == b"MSG" else head + int(words[-2])
            except ValueError:
                break
            # An incomplete message: nats-py's parser buffers it.
            if end + CRLF_SIZE > size:
                break
            start = end + CRLF_SIZE
            reply = words[3] if extra_words else b""
            rest = dispatch(number, words[1], reply, data[body:end], data[head:body])
            if rest is not None:
                await rest
        return data[start:]
