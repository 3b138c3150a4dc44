"""Direct clients of a Caddy server's admin API, and backends and visitors of its routes."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
import httpx
import trustme

from events.manifest import Fields
from infra.components.caddy import Caddy
from infra.providers.endpoint import socket_path

SERVERS = "/config/apps/http/servers"
MAX_ATTEMPTS = 3


class CaddyAdmin:
    """A client that changes the configuration without the reconciler."""

    def __init__(self, server: Caddy) -> None:
        path = socket_path(server.endpoint)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=path),
            base_url=server.endpoint if path is None else "http://localhost",
            headers={"Connection": "close"},
        )

    async def find(self, name: str) -> dict[str, Any] | None:
        response = await self._request("GET", f"/id/{name}")
        return None if response.status_code == 404 else response.raise_for_status().json()

    async def get(self, path: str) -> Any:
        return (await self._request("GET", path)).raise_for_status().json()

    async def send(self, method: str, path: str, content: object = None) -> None:
        response = await self._request(method, path, content)
        assert response.is_success, response.text

    async def names(self, server: str = "http") -> list[str | None]:
        return [each.get("@id") for each in await self.get(f"{SERVERS}/{server}/routes")]

    async def close(self) -> None:
        await self._http.aclose()

    async def _request(self, method: str, path: str, content: object = None) -> httpx.Response:
        """Send a request, with retries, because Caddy replaces its admin server at each change."""
        for _ in range(MAX_ATTEMPTS - 1):
            with suppress(httpx.RemoteProtocolError, httpx.ReadError):
                return await self._http.request(method, path, json=content)
        return await self._http.request(method, path, json=content)


class Backend:
    """A small HTTP server that responds with its name, and can pause during a response."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.response_count = 0
        self.may_end = asyncio.Event()
        self.is_held = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """Accept no new connections; requests in progress are completed."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"Upgrade: websocket" in head:
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
                        b"Upgrade: websocket\r\n\r\n"
                    )
                    while received := await reader.read(100):
                        writer.write(received)
                    return
                if b" /slow " in head:
                    self.is_held.set()
                    await self.may_end.wait()
                body = self.name.encode()
                assert self._server is not None
                last = b"" if self._server.is_serving() else b"Connection: close\r\n"
                lines = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n".encode()
                writer.write(lines + last + b"\r\n" + body)
                await writer.drain()
                self.response_count += 1
                if last:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # no client is waiting for the response any longer
        finally:
            writer.close()


class Visitors:
    """Clients that send requests continuously over persistent connections."""

    def __init__(self, url: str, host: str, tls: ssl.SSLContext | None = None) -> None:
        self.url, self.host, self.tls = url, host, tls
        self.responses = Counter[str]()
        self.repeated = 0
        self.failed: list[str] = []
        self._is_over = False

    @asynccontextmanager
    async def send_requests(self, clients: int = 3) -> AsyncGenerator[Self]:
        connector = aiohttp.TCPConnector(ssl=self.tls or True)
        async with aiohttp.ClientSession(connector=connector) as session:
            tasks = [asyncio.create_task(self._send_continuously(session)) for _ in range(clients)]
            try:
                yield self
            finally:
                self._is_over = True
                await asyncio.gather(*tasks)

    async def _send_continuously(self, session: aiohttp.ClientSession) -> None:
        while not self._is_over:
            for attempt in range(MAX_ATTEMPTS):
                try:
                    await self._request(session)
                    break
                except aiohttp.ClientConnectionError as error:
                    # Closed before the first byte of a response, so a client may repeat the request
                    # (RFC 9110, 9.2.2).
                    self.repeated += 1
                    if attempt == MAX_ATTEMPTS - 1:
                        self.failed.append(repr(error))

    async def _request(self, session: aiohttp.ClientSession) -> None:
        headers = {"Host": self.host}
        async with session.get(self.url, headers=headers, server_hostname=self.host) as response:
            text = await response.text()
            if response.status == 200:
                self.responses[text] += 1
            else:
                self.failed.append(f"{response.status}: {text}")


def read_file(path: str) -> bytes:
    """Read a file."""
    return Path(path).read_bytes()


def put(path: str, content: bytes | None) -> None:
    """Write a file, or delete it if there is no content."""
    if content is None:
        Path(path).unlink()
    else:
        Path(path).write_bytes(content)


def write_certificate(folder: Path, certificate: trustme.LeafCert) -> Fields:
    """Write a certificate and its key; return their paths as fields of ``tls``."""
    folder.mkdir(exist_ok=True)
    chain, key = folder / "tls.crt", folder / "tls.key"
    key.write_bytes(certificate.private_key_pem.bytes())
    chain.write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    return {"certificateFile": str(chain), "keyFile": str(key)}
