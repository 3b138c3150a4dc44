"""A proxy between a provider and its API that does harm to single requests, as planned."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Harm(Enum):
    """What happens to a request; bytes in its place are an answer that the API never sees."""

    NONE = auto()
    LOSE_REPLY = auto()  # the API does it, then the connection is cut
    CUT_REPLY = auto()  # the API does it, and half of its answer arrives
    HOLD_REPLY = auto()  # the API does it, and nothing arrives until the client gives up


@dataclass
class Proxy:
    """Forwards one request a connection to ``upstream``, unless a harm is planned for it.

    With ``spared`` methods, those are forwarded in any case.
    """

    upstream: str
    spared: frozenset[str] = frozenset()
    plan: deque[Harm | bytes] = field(default_factory=deque[Harm | bytes])
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    heads: list[str] = field(default_factory=list[str])
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        _class: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def methods(self) -> list[str]:
        return [method for method, _ in self.requests]

    async def fetch(self, path: str) -> bytes:
        """Read a path of the API, as an answer that can be planned."""
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: test", b"")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, body = await _read_request(reader)
            method, path, _ = head.split(" ", 2)
            self.requests.append((method, path))
            self.heads.append(head)
            await self._treat(head, body, reader, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone: that is part of some plans
        finally:
            writer.close()

    async def _treat(
        self, head: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        is_spared = head.split(" ", 1)[0] in self.spared
        harm = self.plan.popleft() if self.plan and not is_spared else Harm.NONE
        if isinstance(harm, bytes):
            writer.write(harm)
            return
        reply = await self._ask(head, body)
        match harm:
            case Harm.NONE:
                writer.write(reply)
            case Harm.CUT_REPLY:
                writer.write(reply[: len(reply) - 5])
            case Harm.HOLD_REPLY:
                await reader.read()
            case Harm.LOSE_REPLY:
                pass

    async def _ask(self, head: str, body: bytes) -> bytes:
        to = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(to.hostname, to.port)
        lines = [line for line in head.split("\r\n") if not line.lower().startswith("connection:")]
        lines.append("Connection: close")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        reply = await reader.read()
        writer.close()
        return reply


def answer(status: int, body: str = "", **headers: str) -> bytes:
    """Write an HTTP answer."""
    lines = [f"HTTP/1.1 {status} Planned", f"Content-Length: {len(body.encode())}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "Connection: close", "", body]).encode()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
    length = 0
    for line in head.split("\r\n"):
        if line.lower().startswith("content-length:"):
            length = int(line.split(":")[1])
    return head, await reader.readexactly(length)
