"""Connections in memory, between a client and a server that run in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

MakeProtocol = Callable[[], asyncio.Protocol]

_LATENCY_SECONDS = 0.0005


class MemoryTransport(asyncio.Transport):
    """One end of a connection: written data arrives at the other end in order."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, context: Context
    ) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._loop = loop
        self._protocol: asyncio.BaseProtocol = protocol
        self._context = context
        self._is_closing = False
        self.other_end: MemoryTransport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self.other_end.later("data_received", bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.later("connection_lost", None)
            self.other_end.close_by_peer()

    def abort(self) -> None:
        self.close()

    def close_by_peer(self) -> None:
        """Close after all data in transit has arrived."""
        self._loop.call_later(_LATENCY_SECONDS, self.close, context=self._context)

    def later(self, callback: str, argument: Any) -> None:
        """Call the protocol, in the context of its own process."""
        self._loop.call_later(
            _LATENCY_SECONDS, self._call, callback, argument, context=self._context
        )

    def _call(self, callback: str, argument: Any) -> None:
        if callback != "data_received" or not self._is_closing:
            getattr(self._protocol, callback)(argument)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """Do nothing: memory is the only buffer."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there are no limits."""


def connect_in_memory(
    loop: asyncio.AbstractEventLoop, client: asyncio.Protocol, server: asyncio.Protocol
) -> tuple[asyncio.Transport, asyncio.Protocol]:
    """Connect two protocols; the server's callbacks run outside the client's process."""
    outside = Context()
    client_end = MemoryTransport(loop, client, copy_context())
    server_end = MemoryTransport(loop, server, outside)
    client_end.other_end, server_end.other_end = server_end, client_end
    outside.run(server.connection_made, server_end)
    client.connection_made(client_end)
    return client_end, client
