"""HTTP/1.1 connections to one API. Each carries one call at a time, and every call is sent once.

They expose what client libraries hide: whether any part of a call was sent. For a write, this
determines whether to repeat it or look up its result (ADR 0003, ADR 0004).

The size of a response is limited while it is received and decompressed (ADR 0057).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import msgspec
from aiohappyeyeballs import (
    start_connection,  # pyright: ignore[reportUnknownVariableType] - tuples of any length
)
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from infra.providers.host_guard import HostGuard

MAX_HEADER_BYTES = 64 * 1024
"""Limit on the headers of a response. Common servers send less than 16 KiB."""

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Limit on a response as sent and as decompressed: a page of 1,000 objects of 32 KiB each."""

MAX_HELD_BYTES = 4 * MAX_BODY_BYTES
"""Limit on the total size of an API's concurrent responses."""

MAX_PIECES = 250_000
"""Limit on the chunks in a body. Some servers send one per object. One-byte chunks would keep the
event loop busy for seconds before the body reached its size limit."""

_LINE_BYTES = 32
"""Overhead per header in addition to its characters, as in HTTP/2 (RFC 9113, 6.5.2)."""

_SMALL_BYTES = 4096
"""Smaller pieces of a body are joined on arrival, because each has an overhead of 40 bytes."""

_KEPT_BYTES = 256 * 1024
"""A smaller body is kept until the connection's next response. Freeing it earlier would return its
pages to the kernel, and allocating new ones costs half as much as the call."""

_SLICE_BYTES = 1024 * 1024
"""Bytes to decompress per turn of the event loop, which takes about a millisecond."""

_SECOND_ADDRESS_SECONDS = 0.25  # RFC 8305: fall back to IPv4 if IPv6 is unreachable
_ANY_WRAPPER = 47  # zlib or gzip
_GZIP_ENCODINGS = frozenset({"gzip", "x-gzip"})
_IDENTITY_ENCODINGS = frozenset({"", "identity"})
_QUOTED_CHARACTERS = 40
_FIRST_FINAL_STATUS = 200  # lower ones are interim responses


class NotSentError(Exception):
    """There was no connection, so no part of the call was sent."""


class IncompleteResponseError(Exception):
    """No complete response was received. ``status``: the received status, None without headers."""

    status: int | None = None


class ConnectionCutError(IncompleteResponseError, ConnectionError):
    """The connection ended before the response was complete."""


class ResponseTimeoutError(IncompleteResponseError, TimeoutError):
    """The response was not complete in time."""


class InvalidResponseError(IncompleteResponseError, ValueError):
    """The response is not HTTP, or exceeds a limit."""


class _ReceivedSize:
    """Total size of the responses that the connections to one API are receiving."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class Headers(Mapping[str, str]):
    """The headers of a response, regardless of case. Repeated ones are joined by commas.

    They are decoded on access, because most are never read.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        self._values = values  # by name in lower case

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower().encode()].decode(errors="replace")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode() in self._values

    def __iter__(self) -> Iterator[str]:
        return (name.decode(errors="replace") for name in self._values)

    def __len__(self) -> int:
        return len(self._values)


class Received(msgspec.Struct, frozen=True, gc=False):
    """A received response; ``exchange`` returns it with decompressed ``content``."""

    status: int
    headers: Headers
    content: bytes


class Connection(asyncio.Protocol):
    """A connection. Its parser's callbacks assemble the responses."""

    def __init__(self, received_size: _ReceivedSize) -> None:
        self.used_at = 0.0
        self.is_open = True
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._response: asyncio.Future[Received] | None = None
        self._status: int | None = None
        self._record_status: Callable[[int], None] = lambda _status: None
        self._headers: dict[bytes, bytes] = {}  # by name in lower case
        self._header_bytes = 0
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._pieces = 0
        self._has_headers = False
        self._received_size = received_size
        self._received_bytes = 0
        self._unread_bytes = 0

    async def exchange(
        self, request: bytes, deadline: float, record_status: Callable[[int], None]
    ) -> Received:
        """Send a request and wait for its complete response. A failed connection is closed.

        ``deadline`` is a time on the loop's clock. ``record_status`` is called once the headers are
        complete. Raises ``NotSentError``, ``ResponseTimeoutError``, ``ConnectionCutError`` or
        ``InvalidResponseError``.
        """
        loop = asyncio.get_running_loop()
        self._response = loop.create_future()
        self._status, self._record_status = None, record_status
        # cheaper than asyncio.timeout
        timer = loop.call_at(deadline, self._fail, ResponseTimeoutError())
        try:
            self._send(request)
            received = await self._response
            return (
                await self._decompress_body(received, deadline)
                if _is_compressed(received)
                else received
            )
        except BaseException as error:  # the next call must not receive this response
            self.close()
            if isinstance(error, IncompleteResponseError):
                error.status = self._status
            raise
        finally:
            timer.cancel()
            self._response = None
            self._release()

    def _send(self, request: bytes) -> None:
        assert self._transport is not None
        if not self.is_open or self._transport.is_closing():
            raise NotSentError("the connection was closed")
        try:
            self._transport.write(request)
        except RuntimeError as error:  # uvloop: the connection was lost without a callback
            raise NotSentError(str(error)) from error

    def close(self) -> None:
        """Close the connection immediately. A waiting call raises ``ConnectionCutError``."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports do not inherit from asyncio.Transport
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse part of a response. Close the connection if no request is waiting for one."""
        if self._response is None or self._response.done():
            self.close()
            return
        body_bytes = self._body_bytes
        try:
            self._count(len(data))
            self._parser.feed_data(data)
            if not self._response.done():
                self._check_progress(len(data), self._body_bytes - body_bytes)
        except InvalidResponseError as error:
            self._fail(error)
        except (HttpParserError, HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error.__context__, ValueError) else error
            self._fail(InvalidResponseError(str(cause)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark the connection as closed, which also ends a response without a length."""
        is_closed_by_server, self.is_open = self.is_open and exc is None, False
        if is_closed_by_server and self._has_headers and self._ends_with_connection():
            self.on_message_complete()
        self._fail(ConnectionCutError(str(exc) if exc else "the server closed the connection"))

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        """Discard an interim response, such as ``103 Early Hints``. Close on a second response."""
        if self._response is None or self._response.done():
            self.close()
        self._headers, self._header_bytes = {}, 0
        self._body, self._body_bytes, self._pieces = [], 0, 0
        self._has_headers = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self._header_bytes += len(name) + len(value) + _LINE_BYTES
        if self._header_bytes > MAX_HEADER_BYTES:
            raise _build_header_error()
        lower = name.lower()
        previous = self._headers.get(lower)
        self._headers[lower] = value if previous is None else b"%b, %b" % (previous, value)

    def on_headers_complete(self) -> None:
        """Record that the headers are complete."""
        self._has_headers = True
        status = self._parser.get_status_code()
        if status >= _FIRST_FINAL_STATUS:
            self._status = status
            self._record_status(status)

    def on_body(self, body: bytes) -> None:
        """Add a piece of the body."""
        size = len(body)
        self._body_bytes += size
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            raise InvalidResponseError(f"it has more than {MAX_PIECES} chunks")
        if size >= _SMALL_BYTES or not self._body:
            self._body.append(body)
        elif isinstance(last := self._body[-1], bytearray):
            last += body
        else:
            self._body.append(bytearray(body))

    def on_message_complete(self) -> None:
        """Complete the call with the response, unless it is an interim response."""
        status = self._parser.get_status_code()
        self._has_headers = False
        if status < _FIRST_FINAL_STATUS or self._response is None or self._response.done():
            return
        self.is_open = self.is_open and self._parser.should_keep_alive()
        content = b"".join(self._body)
        if self._body_bytes > _KEPT_BYTES:
            self._body = []
        self._response.set_result(Received(status, Headers(self._headers), content))

    # --- internals

    def _count(self, size: int) -> None:
        """Count received or decompressed bytes. Raises ``InvalidResponseError`` above a limit."""
        self._received_bytes += size
        self._received_size.size += size
        if self._received_bytes > MAX_BODY_BYTES:
            raise InvalidResponseError(f"it is longer than {_mebibytes(MAX_BODY_BYTES)}")
        if self._received_size.size > MAX_HELD_BYTES:
            raise InvalidResponseError(
                f"the concurrent responses of this API exceed {_mebibytes(MAX_HELD_BYTES)} in total"
            )

    def _release(self) -> None:
        self._received_size.size -= self._received_bytes
        self._received_bytes = self._unread_bytes = 0

    def _check_progress(self, size: int, body_size: int) -> None:
        """Raise for endless headers and trailers, which the parser would accumulate."""
        self._unread_bytes = 0 if body_size else self._unread_bytes + size
        if self._unread_bytes > MAX_HEADER_BYTES:
            raise _build_header_error()

    async def _decompress_body(self, received: Received, deadline: float) -> Received:
        """Decompress a body in slices.

        Raises ``ResponseTimeoutError`` and ``InvalidResponseError``.
        """
        loop = asyncio.get_running_loop()
        slices: list[bytes] = []
        compressed_bytes, self._received_bytes = self._received_bytes, 0  # limited separately
        try:
            for piece, is_last in _decompress(received.content):
                self._count(len(piece))
                slices.append(piece)
                if is_last:
                    content = slices[0] if len(slices) == 1 else b"".join(slices)
                    return Received(received.status, received.headers, content)
                await asyncio.sleep(0)
                if loop.time() > deadline:
                    raise ResponseTimeoutError
        except zlib.error as error:
            raise InvalidResponseError(f"decompressing its body failed: {error}") from None
        finally:
            self._received_bytes += compressed_bytes
        raise InvalidResponseError("decompressing its body failed: it is truncated")

    def _ends_with_connection(self) -> bool:
        return b"content-length" not in self._headers and b"transfer-encoding" not in self._headers

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)


def _is_compressed(received: Received) -> bool:
    """Return whether a body is compressed.

    Raises ``InvalidResponseError`` for an encoding that was not offered.
    """
    if not received.content or "content-encoding" not in received.headers:
        return False
    encoding = received.headers["content-encoding"].lower()
    if encoding in _IDENTITY_ENCODINGS:
        return False
    if encoding not in _GZIP_ENCODINGS:
        raise InvalidResponseError(
            f"its body is encoded as {encoding[:_QUOTED_CHARACTERS]!r}, but only a single gzip "
            "encoding is supported"
        )
    return True


def _decompress(compressed: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield each slice of a decompressed body, and whether it is the last one."""
    decompressor = zlib.decompressobj(_ANY_WRAPPER)
    for start in range(0, len(compressed), _SLICE_BYTES):
        rest = compressed[start : start + _SLICE_BYTES]
        is_full = True
        while rest or is_full:  # the decompressor keeps what does not fit into a full slice
            piece = decompressor.decompress(rest, _SLICE_BYTES)
            rest, is_full = decompressor.unconsumed_tail, len(piece) == _SLICE_BYTES
            yield piece, decompressor.eof


def _build_header_error() -> InvalidResponseError:
    return InvalidResponseError(f"its headers are longer than {MAX_HEADER_BYTES // 1024} KiB")


def _mebibytes(size: int) -> str:
    return f"{size // 1024**2} MiB"


class Connections:
    """A pool of connections to one host, which stay open for a while after a call.

    ``guard`` checks the host's addresses after each resolution.

    ``socket_path`` names a Unix socket to use instead of host and port. ``tls`` is None for
    plaintext. ``connecting_seconds`` limits the time to connect, and ``idle_seconds`` the time for
    which an idle connection may be reused.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        socket_path: str | None = None,
        tls: ssl.SSLContext | None,
        guard: HostGuard,
        max_connections: int,
        connecting_seconds: float,
        idle_seconds: float,
    ) -> None:
        self._host = host
        self._port = port
        self._socket_path = socket_path
        self._tls = tls
        self._guard = guard
        self._slots = asyncio.Semaphore(max_connections)
        self._connecting_seconds = connecting_seconds
        self._idle_seconds = idle_seconds
        self._received_size = _ReceivedSize()
        self._idle: deque[Connection] = deque()  # the newest last
        self._all: set[Connection] = set()
        self._is_closed = False

    async def exchange(
        self,
        request: bytes,
        seconds: float,
        record_status: Callable[[int], None] = lambda _status: None,
    ) -> Received:
        """Send a request, and wait up to ``seconds`` for its complete response.

        Raises the same errors as ``Connection.exchange``, and ``ssl.SSLCertVerificationError``,
        which also means that nothing was sent.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        connection = await self._acquire()
        try:
            return await connection.exchange(request, deadline, record_status)
        finally:
            if connection.is_open:
                connection.used_at = time.monotonic()
                self._idle.append(connection)
            else:
                self._discard(connection)
            self._slots.release()

    def close(self) -> None:
        """Close all connections permanently. Calls in progress raise ``ConnectionCutError``."""
        self._is_closed = True
        for each in self._all:
            each.close()
        self._all.clear()
        self._idle.clear()

    async def _acquire(self) -> Connection:
        if not self._slots.locked():
            # without a timeout, which would cost more than the rest of this method
            await self._slots.acquire()
            if (idle := self._take_idle()) is not None:
                return idle
            self._slots.release()
        try:
            async with asyncio.timeout(self._connecting_seconds):
                await self._slots.acquire()
                try:
                    return self._take_idle() or await self._connect()
                except BaseException:
                    self._slots.release()
                    raise
        except TimeoutError:
            raise NotSentError(f"not established within {self._connecting_seconds:g} s") from None

    def _take_idle(self) -> Connection | None:
        """Return the newest idle connection, and close those that are too old."""
        oldest = time.monotonic() - self._idle_seconds
        while self._idle and self._idle[0].used_at < oldest:
            self._discard(self._idle.popleft())
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._discard(connection)
        return None

    def _discard(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)

    async def _connect(self) -> Connection:
        try:
            connection = await self._open()
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:  # includes TLS errors
            raise NotSentError(str(error) or type(error).__name__) from error
        if self._is_closed:  # closed in the meantime
            connection.close()
            raise NotSentError("closed")
        self._all.add(connection)
        return connection

    def _new(self) -> Connection:
        return Connection(self._received_size)

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._socket_path is not None:
            _, connection = await loop.create_unix_connection(self._new, self._socket_path)
            return connection
        resolved = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = self._guard.filter_addresses(self._host, self._port, resolved)
        tcp_socket = await start_connection(
            addresses, happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS, interleave=1
        )
        name = None if self._tls is None else self._host
        _, connection = await loop.create_connection(
            self._new, sock=tcp_socket, ssl=self._tls, server_hostname=name
        )
        return connection
