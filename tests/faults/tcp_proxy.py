"""A TCP proxy on loopback that can delay, drop and cut, independently in each direction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal

Direction = Literal["to server", "to client"]
Filter = Callable[[bytes], bool]
"""Returns whether a NATS protocol frame may pass."""

_CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Forwards between clients and one server. All connections are treated alike.

    ``held``: directions in which bytes wait without an error, as in a network that loses packets.
    ``delay_seconds``: delay of everything that it forwards. ``is_open``: whether new connections
    are accepted. ``by_frames``: whether it parses the protocol, so that it can drop messages.
    """

    def __init__(self, target_port: int, *, by_frames: bool = False) -> None:
        self.port = 0
        self.held: set[Direction] = set()
        self.delay_seconds = 0.0
        self.is_open = True
        self.swallowed: list[bytes] = []
        self._target_port = target_port
        self._by_frames = by_frames
        self._filter: Filter | None = None
        self._released = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._handle_connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Close all connections, as if the server had exited."""
        for each in self._connections:
            each.cancel()

    def partition(self) -> None:
        """Pass nothing either way, accept no new connections, and close none."""
        self.held = {"to server", "to client"}
        self.is_open = False

    def heal(self) -> None:
        """Forward everything again, including the held bytes; dead connections stay dead."""
        self.held.clear()
        self.is_open = True
        self._released.set()
        self._released = asyncio.Event()

    def swallow_one(self, matches: Callable[[bytes], bool]) -> None:
        """Drop the next message to a client for which ``matches`` returns true."""

        def passes(frame: bytes) -> bool:
            if not matches(frame):
                return True
            self._filter = None
            self.swallowed.append(frame)
            return False

        self._filter = passes

    async def _handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while not self.is_open:
                await self._released.wait()
            await self._forward(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one end has disconnected, or the proxy cuts the connection
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
        pumps = [
            asyncio.create_task(self._pump("to server", reader, to_server[1])),
            asyncio.create_task(self._pump("to client", to_server[0], writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pumps:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            to_server[1].close()

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await self._read(direction, reader):
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            while direction in self.held:
                await self._released.wait()
            writer.write(chunk)
            await writer.drain()

    async def _read(self, direction: Direction, reader: asyncio.StreamReader) -> bytes:
        """Read the available bytes, or the next frame that is not dropped."""
        if direction == "to server" or not self._by_frames:
            return await reader.read(_CHUNK_BYTES)
        while frame := await _frame(reader):
            if self._filter is None or self._filter(frame):
                return frame
        return b""


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Read one NATS protocol operation, with its payload."""
    line = await reader.readline()
    if line.startswith((b"MSG ", b"HMSG ")):
        size = int(line.split()[-1])
        return line + await reader.readexactly(size + 2)
    return line


@asynccontextmanager
async def proxied(target_port: int, *, by_frames: bool = False) -> AsyncGenerator[TcpProxy]:
    """Run a proxy in front of a port."""
    proxy = TcpProxy(target_port, by_frames=by_frames)
    await proxy.start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            await proxy.stop()
