"""An HTTPS proxy for an HTTP API: it terminates TLS and forwards the bytes."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self


class TlsProxy:
    """Listens with TLS on 127.0.0.1."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.connections = 0
        self.url = ""
        self._target = port
        self._context = context
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1  # counted after the handshake
        to_api = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(_pipe(reader, to_api[1]), _pipe(to_api[0], writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()
    except (OSError, ssl.SSLError):
        pass  # either side has disconnected
    finally:
        writer.close()
