"""Servers that send too much, and measurements of the process that reads from them."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Responder = Callable[[socket.socket, bytes], None]
"""Writes a response to the request, whose head is the second argument."""

Serve = Callable[[socket.socket], None]
"""Serves a connection, in any protocol."""


@contextmanager
def hostile_server(respond: Responder) -> Generator[int]:
    """Serve HTTP on a local port."""
    with raw_server(lambda connection: _serve(connection, respond)) as port:
        yield port


@contextmanager
def raw_server(serve: Serve) -> Generator[int]:
    """Serve connections on a local port, each in a thread, which costs little memory."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # ends the accepting thread
        listener.close()


def _accept(listener: socket.socket, serve: Serve) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve_connection, args=(connection, serve), daemon=True).start()


def _serve_connection(connection: socket.socket, serve: Serve) -> None:
    with connection, suppress(OSError):  # a client that has read enough disconnects
        serve(connection)


def _serve(connection: socket.socket, respond: Responder) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = connection.recv(65_536)
        if not chunk:
            return
        head += chunk
    respond(connection, head)
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(10)
    while connection.recv(65_536):  # an unread body would reset the connection
        pass


def send(*chunks: bytes, repeat: bytes = b"", times: int = 0) -> Responder:
    """Return a response of these chunks; ``repeat`` is sent this many times at the end."""

    def respond(connection: socket.socket, _head: bytes) -> None:
        for chunk in chunks:
            connection.sendall(chunk)
        for _ in range(times):
            connection.sendall(repeat)

    return respond


def gzip_of_zeros(size: int) -> bytes:
    """Return compressed zeros, a thousandth of the size; the size is a multiple of 16 MiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush, a block does not refer to earlier data.
    return head + block * (size // (16 * MIB))


@dataclass
class Cost:
    """The cost of a block of code: its peak memory, and the longest block of the event loop."""

    peak_bytes: int = 0
    blocked_seconds: float = 0.0


@contextmanager
def measure_memory() -> Generator[Cost]:
    """Measure the peak memory that this process allocates."""
    cost = Cost()
    tracemalloc.start()
    try:
        yield cost
    finally:
        cost.peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


@contextmanager
def measure_resident_memory() -> Generator[Cost]:
    """Measure the growth of this process's resident memory, including that of C libraries."""
    cost, is_over = Cost(), threading.Event()
    memory_before = _resident_bytes()

    def follow() -> None:
        while not is_over.wait(0.005):
            cost.peak_bytes = max(cost.peak_bytes, _resident_bytes() - memory_before)

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    try:
        yield cost
    finally:
        is_over.set()
        following.join()


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


@asynccontextmanager
async def measure_event_loop() -> AsyncGenerator[Cost]:
    """Measure the longest turn of the event loop, in CPU seconds of its thread.

    Other processes do not count, and neither does collecting the garbage of earlier tests.
    """
    cost = Cost()
    gc.collect()
    gc.freeze()

    async def follow() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            cost.blocked_seconds = max(cost.blocked_seconds, now - last)
            last = now

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    try:
        yield cost
    finally:
        following.cancel()
        gc.unfreeze()
