"""The short way for messages: from the socket's bytes to who listens, without a queue between."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, ItemsView, Iterator, Mapping
from typing import Final, TypeVar, overload

import msgspec
from nats.aio.client import Client
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, Parser

STATUS: Final = "Status"  # nats-py's names for the parts of an inline status line
DESCRIPTION: Final = "Description"

_PLAIN_HEAD: Final = b"NATS/1.0\r\n"
_LINE_END: Final = b"\r\n"
_WORDS: Final = {b"MSG": (4, 5), b"HMSG": (5, 6)}
"""How many words a message's line has: without a subject to reply to, and with one."""


MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""The largest ``max_payload`` that nats-server takes; a message is kept until it is whole."""

MAX_LINE_BYTES: Final = 1024 * 1024
"""Of a line of the protocol. The longest is INFO, which names the servers of a cluster."""

_Other = TypeVar("_Other")


class MessageTooLongError(OSError):
    """A server sends more than a limit allows; the connection to it is not used any more."""


class Headers(Mapping[str, str]):
    """The headers of a message of content, read as they are looked at: most never are.

    A log's message has six lines of which one is wanted; to read them all takes five times as long.
    """

    __slots__ = ("_block",)

    def __init__(self, block: bytes) -> None:
        self._block = block

    def __getitem__(self, name: str) -> str:
        value = self._find(name)
        if value is None:
            raise KeyError(name)
        return value

    @overload
    def get(self, key: str, /) -> str | None: ...
    @overload
    def get(self, key: str, /, default: str | _Other) -> str | _Other: ...
    def get(self, key: str, /, default: str | _Other | None = None) -> str | _Other | None:
        """Return one, or the default: without the exception that a mapping's own costs."""
        value = self._find(key)
        return default if value is None else value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.parsed())

    def __len__(self) -> int:
        return len(self.parsed())

    def __bool__(self) -> bool:
        return True

    def items(self) -> ItemsView[str, str]:
        """Read all of them, once; of one that came twice, the last."""
        return self.parsed().items()

    def parsed(self) -> dict[str, str]:
        """Read all of them."""
        lines = self._block.decode("utf-8", "replace").split("\r\n")[1:]
        parts = (line.partition(":") for line in lines)
        return {name: value.strip() for name, colon, value in parts if colon and " " not in name}

    def _find(self, name: str) -> str | None:
        start, block = _start_of(name), self._block
        begin = block.rfind(start)
        if begin < 0:
            return None
        begin += len(start)
        return block[begin : block.find(_LINE_END, begin)].decode("utf-8", "replace").strip()


@functools.lru_cache(maxsize=256)
def _start_of(name: str) -> bytes:
    return b"\r\n%b:" % name.encode()


def read_headers(block: bytes) -> Mapping[str, str] | None:
    """Read a header block: the server says how a request went in its first line, or nothing."""
    if not block or block.startswith(_PLAIN_HEAD):
        return Headers(block) if block else None
    parsed, line = Headers(block).parsed(), block[: block.find(_LINE_END)]
    _, status, description = (*line.decode("utf-8", "replace").split(" ", 2), "", "")[:3]
    if status.isdecimal():
        parsed |= {STATUS: status, DESCRIPTION: description}
    return parsed


class Incoming(msgspec.Struct, gc=False):
    """A message that came for a listener."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] | None


Listener = Callable[[Incoming], None]
"""Takes one message at once: it does not wait, and what it raises is logged."""

Take = Callable[[int, bytes, bytes, bytes, bytes], Awaitable[None] | None]
"""Takes a message (number of the subscription, subject, reply, payload and header block), and
returns what is left to be awaited: nearly always nothing."""


class MessageParser(Parser):
    """nats-py's parser, which is passed by where a whole message is there.

    It needs two regular expressions and two rounds a message. Whatever is not a whole message of
    the usual form goes that way.
    """

    def __init__(self, client: Client, take: Take) -> None:
        super().__init__(client)  # pyright: ignore[reportUnknownMemberType]
        self._take = take

    async def parse(self, data: bytes = b"") -> None:
        """Take what the socket gave."""
        if self.state == AWAITING_MSG_PAYLOAD:
            missing = self.needed + CRLF_SIZE - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        rest = await self._take_messages(data)
        if rest:
            await super().parse(rest)
        self._check_size()

    def _check_size(self) -> None:
        """Raise ``MessageTooLongError`` for what is not whole, and too long to wait for."""
        if self.state == AWAITING_MSG_PAYLOAD:
            if self.needed > MAX_MESSAGE_BYTES:
                raise MessageTooLongError(
                    f"the server sends a message of {self.needed} bytes, more than the limit of "
                    f"{MAX_MESSAGE_BYTES // 1024**2} MiB"
                )
        elif len(self.buf) > MAX_LINE_BYTES:
            raise MessageTooLongError(
                f"the server sends a line of more than {MAX_LINE_BYTES // 1024} KiB"
            )

    async def _take_messages(self, data: bytes) -> bytes:
        """Process the messages that are there as a whole; return what comes behind them."""
        begin, size, take = 0, len(data), self._take
        while begin < size:
            line_end = data.find(_LINE_END, begin)
            words = data[begin : max(begin, line_end)].split(b" ")
            counts = _WORDS.get(words[0], (0, 0))
            if len(words) not in counts or b"" in words:
                break
            head = line_end + CRLF_SIZE
            try:
                number, end = int(words[2]), head + int(words[-1])
                body = head if words[0] == b"MSG" else head + int(words[-2])
            except ValueError:
                break
            if end + CRLF_SIZE > size:
                break
            begin = end + CRLF_SIZE
            reply = words[3] if len(words) == counts[1] else b""
            rest = take(number, words[1], reply, data[body:end], data[head:body])
            if rest is not None:
                await rest
        return data[begin:]
