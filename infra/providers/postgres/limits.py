"""Connections that limit the bytes read per call, and the size of results.

libpq buffers each message and each result completely, whatever its size. The kernel counts the
bytes that a connection has received, so the limit applies while libpq reads (ADR 0057).
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import DictRow

MAX_RESULT_BYTES: Final = 32 * 1024 * 1024
"""Limit on the bytes that a server sends for one call: 60,000 roles of 500 bytes each."""

MAX_RESULT_VALUES: Final = 2_000_000
"""Limit on a result's values (rows times columns): about 250 MiB in memory, although a NULL is sent
as 4 bytes."""

MAX_TEXT_BYTES: Final = 64 * 1024
"""Limit on a comment or a verifier, which its owner may make 1 GiB long. A larger one is not read,
because reading even its end takes the server seconds."""

MAX_ROWS: Final = 200
"""Number of rows in a page with comments, so that the page stays below the limit on a result."""

_TCP_INFO_BYTES: Final = 192
_BYTES_RECEIVED_OFFSET: Final = 128
"""Offset of ``tcpi_bytes_received`` in Linux's ``struct tcp_info``, which only grows at its end.
"""

_RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Small, because libpq reads until the receive buffer is empty."""

_T = TypeVar("_T")


def select_bounded(column: LiteralString) -> sql.Composed:
    """Return an expression for a text column that is NULL where the value is too large to read."""
    expression = sql.SQL("CASE WHEN octet_length({text}) <= {limit} THEN {text} END")
    return expression.format(text=sql.SQL(column), limit=MAX_TEXT_BYTES)


class ResultTooLargeError(Exception):
    """A result exceeds a limit; the message names the limit."""


class LimitedConnection(psycopg.AsyncConnection[DictRow]):
    """A connection that fails when a server sends too much for one call."""

    @classmethod
    def connecting(cls, conninfo: str) -> Generator[Any, Any, LimitedConnection]:
        """Connect, and limit what the server sends before its first result."""
        return _limit_received(cls._connect_gen(conninfo), _shrink_buffer, 0)

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for a call to finish. Raises ``ResultTooLargeError``."""
        file = self.pgconn.socket
        limited = _limit_received(gen, lambda _: file, received_bytes(file))
        return await super().wait(limited, *arguments, **options)


def check_values(rows: int, columns: int) -> None:
    """Raise ``ResultTooLargeError`` for a result with too many values, before it is decoded."""
    if rows * max(columns, 1) > MAX_RESULT_VALUES:
        raise ResultTooLargeError(f"the result has more than {MAX_RESULT_VALUES} values")


def received_bytes(file: int) -> int:
    """Return how many bytes a connection has received; 0 if the system does not count them.

    Linux counts them for TCP sockets. Other systems do not.
    """
    if sys.platform != "linux":
        return 0
    try:
        with _borrow_socket(file) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0
    if len(info) < _TCP_INFO_BYTES:
        return 0
    return struct.unpack_from("Q", info, _BYTES_RECEIVED_OFFSET)[0]


def _shrink_buffer(waits: tuple[int, Any]) -> int:
    """Shrink the receive buffer of the awaited connection, and return its file descriptor."""
    with _borrow_socket(waits[0]) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    return waits[0]


@contextmanager
def _borrow_socket(file: int) -> Generator[socket.socket]:
    """Use libpq's socket without closing it."""
    connection = socket.socket(fileno=file)
    try:
        yield connection
    finally:
        connection.detach()


def _limit_received(
    steps: Generator[Any, Any, _T], file_of: Callable[[Any], int], initial_bytes: int
) -> Generator[Any, Any, _T]:
    try:
        waits = next(steps)
        while True:
            file = file_of(waits)
            ready: Any = yield waits
            _check(received_bytes(file) - initial_bytes)
            waits = steps.send(ready)
    except StopIteration as end:
        return end.value


def _check(size: int) -> None:
    if size > MAX_RESULT_BYTES:
        raise ResultTooLargeError(
            f"the server sent more than {MAX_RESULT_BYTES // 1024**2} MiB for one call"
        )
