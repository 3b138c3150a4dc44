"""A Git server over HTTP with a password, which runs Git's own CGI program."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


class GitServer:
    """Serves the repositories in a folder; ``requests`` counts the requests."""

    def __init__(self, folder: Path, password: str) -> None:
        self._folder = folder
        self._expected = "Basic " + base64.b64encode(f"git:{password}".encode()).decode()
        self.requests = 0
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[GitServer]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._respond)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _respond(self, request: web.Request) -> web.Response:
        self.requests += 1
        if request.headers.get("Authorization") != self._expected:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                "PATH": "/usr/bin:/bin",
                "GIT_PROJECT_ROOT": str(self._folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": request.method,
                "PATH_INFO": request.path,
                "QUERY_STRING": request.query_string,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
                "REMOTE_USER": "git",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            },
        )
        output, _ = await process.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(status=status, headers=headers, body=content)
