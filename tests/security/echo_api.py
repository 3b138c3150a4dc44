"""An API that refuses every call and repeats the credentials in its responses."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Self

from aiohttp import web


class EchoApi:
    """Responds to every call with a status, and the Authorization header in the body."""

    def __init__(self, status: int) -> None:
        self.received: list[str] = []
        self.url = ""
        self._status = status
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._respond)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _respond(self, request: web.Request) -> web.Response:
        header = request.headers.get("Authorization", "")
        self.received.append(header)
        if request.method == "GET" and request.path == "/shapes":
            # The listing shows the header as a label, which is recorded in the log.
            shape = {"name": "echo", "type": "Square", "color": "Red", "labels": {"seen": header}}
            return web.json_response({"items": [shape]})
        detail = f"you sent {header} and {json.dumps(header)}"
        return web.json_response({"title": "no", "detail": detail}, status=self._status)
