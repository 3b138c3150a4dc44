"""A shapes API that repeats every secret it received, in every encoding and every response."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.security.encodings import encode_in_every_way, escape_like_go


class CanaryApi:
    """Refuses the first write of each shape under each token.

    Shapes with even numbers are refused permanently. A listing shows a foreign shape whose labels
    contain everything. ``secrets``: secrets that the API received or a test added.
    ``newest``: secrets that it repeats to `doctor`, a new process.
    """

    def __init__(self) -> None:
        self.secrets: list[str] = []
        self.newest: tuple[str, ...] = ()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.listings: Counter[int] = Counter()  # by the number of secrets; the first one fails
        self.url = ""
        self._shapes: dict[str, dict[str, Any]] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/shapes", self._list)
        app.router.add_get("/shapes/{name}", self._read)
        app.router.add_post("/shapes", self._write)
        app.router.add_put("/shapes/{name}", self._write)
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

    def _record_token(self, request: web.Request) -> str:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if token not in self.secrets:
            self.secrets.append(token)
        return token

    async def _list(self, request: web.Request) -> web.Response:
        self._record_token(request)
        if request.query.get("limit") == "1":  # as `doctor` requests it
            encodings = [
                encoded
                for secret in self.newest
                for encoded in encode_in_every_way(secret).values()
            ]
            return _refuse(HTTPStatus.FORBIDDEN, encodings)
        self.listings[len(self.secrets)] += 1
        if self.listings[len(self.secrets)] == 1:
            encodings = [
                encoded
                for secret in self.secrets
                for encoded in encode_in_every_way(secret).values()
            ]
            return _refuse(HTTPStatus.INTERNAL_SERVER_ERROR, encodings[::-1])
        labels = {
            f"s{number}-{name} {encoded}": f"Bearer {encoded}"
            for number, secret in enumerate(self.secrets)
            for name, encoded in encode_in_every_way(secret).items()
        }
        unmanaged_shape = {
            "name": "stray",
            "type": "Square",
            "color": "Red",
            "labels": labels,
            "uid": "u",
        }
        return _respond(HTTPStatus.OK, {"items": [unmanaged_shape, *self._shapes.values()]})

    async def _read(self, request: web.Request) -> web.Response:
        self._record_token(request)
        shape = self._shapes.get(request.match_info["name"])
        if shape is None:
            return _refuse(HTTPStatus.NOT_FOUND, self.secrets)
        return _respond(HTTPStatus.OK, shape)

    async def _write(self, request: web.Request) -> web.Response:
        token, body = self._record_token(request), json.loads(await request.text())
        name = body["name"]
        number = int(name.removeprefix("s"))
        self.refused[token, name] += 1
        encodings = [list(encode_in_every_way(secret).values())[number] for secret in self.secrets]
        if number % 2 == 0:
            return _refuse(HTTPStatus.BAD_REQUEST, encodings)
        if self.refused[token, name] == 1:
            return _refuse(HTTPStatus.SERVICE_UNAVAILABLE, encodings)
        version = self._shapes.get(name, {}).get("version", 0) + 1
        self._shapes[name] = {**body, "uid": f"u-{name}", "version": version}
        return _respond(HTTPStatus.OK, self._shapes[name])


def _refuse(status: HTTPStatus, encodings: Sequence[str]) -> web.Response:
    return _respond(status, {"title": "no", "detail": f"you sent {' and '.join(encodings)}"})


def _respond(status: HTTPStatus, content: object) -> web.Response:
    """Write JSON as Go does."""
    return web.Response(status=status, text=_json(content), content_type="application/json")


def _json(content: object) -> str:
    match content:
        case dict():
            pairs = [f"{_json(key)}: {_json(value)}" for key, value in content.items()]  # pyright: ignore
            return f"{{{', '.join(pairs)}}}"
        case list():
            return f"[{', '.join(map(_json, content))}]"  # pyright: ignore
        case str():
            return f'"{escape_like_go(content)}"'
        case _:
            return json.dumps(content)
