"""HTTP/1.1 connections to one API: each carries one call at a time, and every call is sent once.

They know what a client library hides: whether anything of a call was sent. Of a write that is the
difference between doing it again and asking what became of it (ADR 0003, ADR 0004).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import cast

import msgspec
from aiohappyeyeballs import (
    start_connection,  # pyright: ignore[reportUnknownVariableType] - tuples of any length
)
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEADER_BYTES = 65_536
_SECOND_ADDRESS_SECONDS = 0.25  # RFC 8305: an API that is dead over IPv6 answers over IPv4
_ANY_WRAPPER = 47  # zlib or gzip


class NotSentError(Exception):
    """There was no connection: nothing of the call was sent."""


class ConnectionCutError(ConnectionError):
    """The connection ended before the answer was there."""


class UnusableAnswerError(ValueError):
    """What came is no HTTP answer."""


class Headers(Mapping[str, str]):
    """An answer's headers, in upper or lower case; one that was repeated is joined by commas."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def add(self, name: str, value: str) -> None:
        """Take in one line."""
        lower = name.lower()
        before = self._values.get(lower)
        self._values[lower] = value if before is None else f"{before}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Received(msgspec.Struct, frozen=True, gc=False):
    """An answer as it came; ``content`` is unpacked."""

    status: int
    headers: Headers
    content: bytes


class Connection(asyncio.Protocol):
    """One connection; its answers are read by the parser's callbacks."""

    def __init__(self) -> None:
        self.used_at = 0.0
        self.is_open = True
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Received] | None = None
        self._headers = Headers()
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._has_headers = False

    async def exchange(self, request: bytes, deadline: float) -> Received:
        """Send a request and wait for its whole answer; a connection that fails is closed.

        ``deadline``: by the loop's clock. Raises ``NotSentError``, ``TimeoutError``,
        ``ConnectionCutError`` or ``UnusableAnswerError``.
        """
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        timer = loop.call_at(deadline, self._fail, TimeoutError())  # cheaper than asyncio.timeout
        try:
            self._send(request)
            return await self._answer
        except BaseException:  # given up: its answer must not become the next call's
            self.close()
            raise
        finally:
            timer.cancel()
            self._answer = None

    def _send(self, request: bytes) -> None:
        assert self._transport is not None
        if not self.is_open or self._transport.is_closing():
            raise NotSentError("the connection was closed")
        try:
            self._transport.write(request)
        except RuntimeError as error:  # uvloop: it was lost, and nobody has heard of it
            raise NotSentError(str(error)) from error

    def close(self) -> None:
        """Close it at once; who waits for an answer hears that it was cut."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no such class

    def data_received(self, data: bytes) -> None:
        """Read on in an answer; what nobody asked for ends the connection."""
        if self._answer is None or self._answer.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error.__context__, ValueError) else error
            self._fail(UnusableAnswerError(str(cause)))

    def connection_lost(self, exc: Exception | None) -> None:
        """End; an answer without a length ends with its connection."""
        is_theirs, self.is_open = self.is_open and exc is None, False
        if is_theirs and self._has_headers and self._ends_with_connection():
            self.on_message_complete()
        self._fail(ConnectionCutError(str(exc) if exc else "the server closed the connection"))

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        """Forget what came before, such as ``103 Early Hints``; one answer is enough."""
        if self._answer is None or self._answer.done():
            self.close()
        self._headers, self._header_bytes, self._body = Headers(), 0, []
        self._has_headers = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise UnusableAnswerError(f"its headers have more than {MAX_HEADER_BYTES} bytes")
        self._headers.add(name.decode(errors="replace"), value.decode(errors="replace"))

    def on_headers_complete(self) -> None:
        """Know that a body follows."""
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        """Take in a piece of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Return the answer, unless the server only says that it goes on."""
        status = self._parser.get_status_code()
        self._has_headers = False
        if status < HTTPStatus.OK or self._answer is None or self._answer.done():
            return
        self.is_open = self.is_open and self._parser.should_keep_alive()
        try:
            content = _unpacked(b"".join(self._body), self._headers)
        except (zlib.error, ValueError) as error:
            self._fail(UnusableAnswerError(f"decompressing its body failed: {error}"))
            return
        self._answer.set_result(Received(status, self._headers, content))

    # --- within

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _unpacked(content: bytes, headers: Headers) -> bytes:
    if not content or headers.get("content-encoding", "").lower() != "gzip":
        return content
    unpacker = zlib.decompressobj(_ANY_WRAPPER)
    unpacked = unpacker.decompress(content) + unpacker.flush()
    if not unpacker.eof:
        raise ValueError("it is truncated")
    return unpacked


class Connections:
    """At most so many connections to one host, kept for a while after a call.

    ``socket_path``: of a local socket, in the place of host and port. ``tls`` is None for a plain
    connection; ``connecting_seconds`` is how long a call may wait for one, ``kept_seconds`` how
    long an idle one is used again.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        socket_path: str | None = None,
        tls: ssl.SSLContext | None,
        most: int,
        connecting_seconds: float,
        kept_seconds: float,
    ) -> None:
        self._host = host
        self._port = port
        self._socket_path = socket_path
        self._tls = tls
        self._slots = asyncio.Semaphore(most)
        self._connecting_seconds = connecting_seconds
        self._kept_seconds = kept_seconds
        self._idle: deque[Connection] = deque()  # the newest last
        self._all: set[Connection] = set()
        self._is_closed = False

    async def exchange(self, request: bytes, seconds: float) -> Received:
        """Send a request over one of them, and wait for its whole answer, so long in all.

        Raises as a connection's ``exchange``, and ``ssl.SSLCertVerificationError``: nothing was
        sent then either.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        connection = await self._taken()
        try:
            return await connection.exchange(request, deadline)
        finally:
            if connection.is_open:
                connection.used_at = time.monotonic()
                self._idle.append(connection)
            else:
                self._forget(connection)
            self._slots.release()

    def close(self) -> None:
        """Close all of them, for good; calls under way hear that they were cut."""
        self._is_closed = True
        for each in self._all:
            each.close()
        self._all.clear()
        self._idle.clear()

    async def _taken(self) -> Connection:
        if not self._slots.locked():
            await self._slots.acquire()  # at once: a limit of time costs more than all else here
            if (kept := self._kept()) is not None:
                return kept
            self._slots.release()
        try:
            async with asyncio.timeout(self._connecting_seconds):
                await self._slots.acquire()
                try:
                    return self._kept() or await self._made()
                except BaseException:
                    self._slots.release()
                    raise
        except TimeoutError:
            raise NotSentError(f"not established within {self._connecting_seconds:g} s") from None

    def _kept(self) -> Connection | None:
        """Take the newest idle one; those that are too old are closed."""
        oldest = time.monotonic() - self._kept_seconds
        while self._idle and self._idle[0].used_at < oldest:
            self._forget(self._idle.popleft())
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._forget(connection)
        return None

    def _forget(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)

    async def _made(self) -> Connection:
        try:
            connection = await self._opened()
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:  # of TLS, too
            raise NotSentError(str(error) or type(error).__name__) from error
        if self._is_closed:  # while it was made
            connection.close()
            raise NotSentError("closed")
        self._all.add(connection)
        return connection

    async def _opened(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._socket_path is not None:
            _, connection = await loop.create_unix_connection(Connection, self._socket_path)
            return connection
        addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        connected = await start_connection(
            addresses, happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS, interleave=1
        )
        name = None if self._tls is None else self._host
        _, connection = await loop.create_connection(
            Connection, sock=connected, ssl=self._tls, server_hostname=name
        )
        return connection
