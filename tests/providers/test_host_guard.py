"""The connection guard checks resolved addresses, and connects only to those addresses."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import urllib3
from urllib3.exceptions import HTTPError

from events.allow import NOTHING, Allow
from events.provider_config import Limits, ProviderConfigSpec
from infra.providers.guarded_urllib3 import guard_pools
from infra.providers.host_guard import HostAddressError, HostGuard
from infra.providers.http import HttpApi
from reconciler.errors import NotDoneError
from reconciler.provider.call_permit import CallPermit

LOOPBACK_IN_DISGUISE = "127.1"
"""Not a canonical address, so it is resolved like a name, to 127.0.0.1."""

OUTSIDE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 80))
INSIDE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))
INSIDE_6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::ffff:127.0.0.1", 80, 0, 0))


@asynccontextmanager
async def counting_server() -> AsyncGenerator[tuple[int, list[int]]]:
    """Serve HTTP on a port of 127.0.0.1, and count the connections."""
    connection_marks: list[int] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection_marks.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], connection_marks


async def call_host(host: str, port: int, allow: Allow = NOTHING) -> bytes:
    config = ProviderConfigSpec(
        "test",
        f"http://{host}:{port}",
        limits=Limits(request_timeout_seconds=5),
        allow=allow,
    )
    api = HttpApi(config, CallPermit(), secret=None)
    try:
        return (await api.call("GET", "/")).content
    finally:
        await api.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_operator_may_configure_the_hosts_address_literally(host: str) -> None:
    async with counting_server() as (port, _):
        assert await call_host(host, port) == b"ok"


async def test_no_endpoint_name_may_resolve_to_the_host() -> None:
    async with counting_server() as (port, accepted_connections):
        with pytest.raises(NotDoneError) as raised:
            await call_host(LOOPBACK_IN_DISGUISE, port)
        assert accepted_connections == []
        assert f"127.1:{port} resolves to 127.0.0.1, an address of the host" in str(raised.value)
        assert "spec.allow.addresses" in str(raised.value)
        for permitted in (f"127.1:{port}", f"127.0.0.1:{port}", "127.1:*"):
            assert (
                await call_host(LOOPBACK_IN_DISGUISE, port, Allow(addresses=(permitted,))) == b"ok"
            )


def test_only_permitted_addresses_of_a_name_are_used() -> None:
    guard = HostGuard(NOTHING)
    assert guard.filter_addresses("rebound.test", 80, [INSIDE, OUTSIDE, INSIDE_6]) == [OUTSIDE]
    assert guard.filter_addresses("empty.test", 80, []) == []
    for addresses in ([INSIDE], [INSIDE_6], [INSIDE, INSIDE_6]):
        with pytest.raises(HostAddressError):
            guard.filter_addresses("rebound.test", 80, addresses)
        with pytest.raises(HostAddressError):
            HostGuard(NOTHING, is_configured=True).filter_addresses("rebound.test", 80, addresses)


def test_a_declaration_may_not_contain_the_hosts_address_literally() -> None:
    for host in ("127.0.0.1", "localhost", "[::1]"):
        with pytest.raises(HostAddressError, match="is an address of the host itself"):
            HostGuard(NOTHING).filter_addresses(host, 80, [INSIDE])
        assert HostGuard(NOTHING, is_configured=True).filter_addresses(host, 80, [INSIDE]) == [
            INSIDE
        ]


def test_a_connection_is_made_to_the_checked_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name is not resolved again, because the name server might return another address."""
    results = iter([[OUTSIDE], [INSIDE]])

    def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return next(results)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    connected_addresses: list[object] = []

    class Socket:
        def __init__(self, *_: object) -> None:
            pass

        def settimeout(self, _seconds: float | None) -> None:
            pass

        def setsockopt(self, *_: object) -> None:
            pass

        def connect(self, address: object) -> None:
            connected_addresses.append(address)

    monkeypatch.setattr(socket, "socket", Socket)
    HostGuard(NOTHING).connect("rebound.test", 80, 1)
    assert connected_addresses == [("192.0.2.7", 80)]


@contextmanager
def redirecting(to: str) -> Generator[int]:
    """Run a server that redirects every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _get(url: str, allow: Allow) -> int:
    with urllib3.PoolManager(retries=urllib3.Retry(connect=0, redirect=2)) as manager:
        guard_pools(manager, HostGuard(allow))
        return manager.request("GET", url).status


@pytest.mark.parametrize("host", ["127.0.0.1", LOOPBACK_IN_DISGUISE, "localhost", "[::1]", "0"])
async def test_redirects_to_the_host_are_not_followed(host: str) -> None:
    async with counting_server() as (port, accepted_connections):
        with redirecting(f"http://{host}:{port}/") as first:
            url = f"http://127.0.0.1:{first}/"
            only_first = Allow(addresses=(f"127.0.0.1:{first}",))
            with pytest.raises(HTTPError):
                await asyncio.to_thread(_get, url, only_first)
            assert accepted_connections == []
            if host == "127.0.0.1":
                both = Allow(addresses=("127.0.0.1:*",))
                assert await asyncio.to_thread(_get, url, both) == 200
