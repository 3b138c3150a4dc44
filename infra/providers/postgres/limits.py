"""Connections that read a limited number of bytes for each call, and results of limited size.

libpq keeps each message and each result completely, whatever their length. The system counts the
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
"""Of everything that a server sends for a call: 60,000 roles of 500 bytes each."""

MAX_RESULT_VALUES: Final = 2_000_000
"""Of a result, rows by columns: about 250 MiB in memory, although a NULL takes 4 bytes when sent.
"""

MAX_TEXT_BYTES: Final = 64 * 1024
"""Of a comment or a verifier, whose owner may make it 1 GiB long. A larger one is not read, because
reading even its end takes the server seconds."""

MAX_ROWS: Final = 200
"""Of a page with comments: together they stay below the limit of a result."""

_TCP_INFO_BYTES: Final = 192
_RECEIVED_AT: Final = 128
"""Offset of ``tcpi_bytes_received`` in ``struct tcp_info`` of Linux, which only grows at its end.
"""

_RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""libpq reads until the system has nothing more, so that must end early."""

_T = TypeVar("_T")


def bounded(column: LiteralString) -> sql.Composed:
    """Return the expression for a text that is NULL where it is too large, without reading it."""
    expression = sql.SQL("CASE WHEN octet_length({text}) <= {most} THEN {text} END")
    return expression.format(text=sql.SQL(column), most=MAX_TEXT_BYTES)


class ResultTooLargeError(Exception):
    """A result exceeds a limit; the message names the limit."""


class LimitedConnection(psycopg.AsyncConnection[DictRow]):
    """A connection that fails when a server sends too much for one call."""

    @classmethod
    def connecting(cls, conninfo: str) -> Generator[Any, Any, LimitedConnection]:
        """Connect, which reads what a server sends before its first result."""
        return _limit_received(cls._connect_gen(conninfo), _shrink_buffer, 0)

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for the end of a call. Raises ``ResultTooLargeError``."""
        file = self.pgconn.socket
        limited = _limit_received(gen, lambda _: file, received_bytes(file))
        return await super().wait(limited, *arguments, **options)


def check_values(rows: int, columns: int) -> None:
    """Raise ``ResultTooLargeError`` for a result of too many values, before it is decoded."""
    if rows * max(columns, 1) > MAX_RESULT_VALUES:
        raise ResultTooLargeError(f"the result has more than {MAX_RESULT_VALUES} values")


def received_bytes(file: int) -> int:
    """Return how much a connection has received; 0 where the system does not count it.

    That is the case for local sockets, and on systems other than Linux.
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
    return struct.unpack_from("Q", info, _RECEIVED_AT)[0]


def _shrink_buffer(waits: tuple[int, Any]) -> int:
    """Return the awaited connection, with a small buffer."""
    with _borrow_socket(waits[0]) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    return waits[0]


@contextmanager
def _borrow_socket(file: int) -> Generator[socket.socket]:
    """Use a socket of libpq, and leave it open."""
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
