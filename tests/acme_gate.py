"""A gate in front of a real ACME CA that counts requests, drops responses, and limits rates."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import trustme
from aiohttp import web

from infra.components.certificates import CA_FILE, Certificates

PATHS = {
    "/order-plz": "order",
    "/finalize-order": "finalize",
    "/revoke-cert": "revoke",
    "/certZ": "download",
}
LIMITED = {
    "type": "urn:ietf:params:acme:error:rateLimited",
    "detail": "too many certificates already issued",
    "status": 429,
}


class AcmeGate:
    """The gate's counts and faults; ``order_times`` are the times of orders."""

    def __init__(self, pebble: Certificates, folder: Path) -> None:
        self.pebble = pebble
        self.drop_responses: set[str] = set()
        self.order_times: list[float] = []
        self.directory = ""
        self._completed: list[str] = []
        self._folder = folder
        self._limited = ""

    def count(self, what: str) -> int:
        """Return the number of requests of a type that the CA has processed."""
        return self._completed.count(what)

    def limit_for(self, seconds: int) -> None:
        """Refuse orders with this Retry-After from now on; zero allows them again."""
        self._limited = str(seconds or "")

    def make_trusted_by(self, root: Path) -> None:
        """Make a root trust this gate."""
        (root / CA_FILE).write_bytes((self._folder / "ca.pem").read_bytes())

    async def forward(self, request: web.Request) -> web.Response:
        what = next((name for path, name in PATHS.items() if request.path.startswith(path)), "")
        if what == "order":
            self.order_times.append(time.time())
        if what == "order" and self._limited:
            refused = {"Retry-After": self._limited, "Replay-Nonce": "bm9uY2U"}
            return web.json_response(
                LIMITED, status=429, headers=refused, content_type="application/problem+json"
            )
        trusted = ssl.create_default_context(cafile=str(self.pebble.root / CA_FILE))
        # The CA builds all its URLs with the requested host, which is this gate's.
        forwarded = ("Host", "Content-Type", "User-Agent")
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session,
            session.request(
                request.method,
                self.pebble.directory.removesuffix("/dir") + request.path_qs,
                data=await request.read(),
                headers={
                    name: request.headers[name] for name in forwarded if name in request.headers
                },
            ) as upstream,
        ):
            response = web.Response(body=await upstream.read(), status=upstream.status)
            if upstream.ok:  # the CA refuses one in twenty nonces
                self._completed.append(what)
                if what in self.drop_responses:
                    assert request.transport is not None
                    request.transport.abort()
            for name, value in upstream.headers.items():
                if name in ("Content-Type", "Location", "Replay-Nonce", "Retry-After", "Link"):
                    response.headers.add(name, value)
            return response

    @asynccontextmanager
    async def web_server(self, folder: Path) -> AsyncGenerator[None]:
        """Serve a folder of challenge responses where the CA reads them."""
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        app = web.Application()
        app.router.add_static("/.well-known/acme-challenge/", folder)
        host, _, port = self.pebble.http01.rpartition(":")
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, host, int(port)).start()
        try:
            yield
        finally:
            await runner.cleanup()


@asynccontextmanager
async def acme_gate(pebble: Certificates, folder: Path) -> AsyncGenerator[AcmeGate]:
    """Open a gate with its own certificate."""
    await asyncio.to_thread(folder.mkdir)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    gate = AcmeGate(pebble, folder)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", gate.forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    gate.directory = f"https://127.0.0.1:{port}/dir"
    try:
        yield gate
    finally:
        await runner.cleanup()
