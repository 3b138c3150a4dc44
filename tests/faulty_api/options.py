"""Peculiarities of real APIs: options of the shapes API, selected by a path prefix.

`/as/OPTIONS/shapes…` is the application's `/shapes…` with these options, joined by `+`:

    ids        the server assigns ids, and several objects may share a name: `POST` ignores the
               second half of the name, and the object is addressed as `NAME--ID`
    fixed      `type` cannot be changed: a `PUT` that changes it is refused with 422
    expires    objects expire an hour after their last write, and have a label `expires`
    unlisted   there is no listing: 405
    white      new objects must be White, and a second request paints them: else 422

`PUT /_expired?name=NAME` expires an object until it is written again. The objects of all options
share a table and a journal, and have different names.
"""

import hashlib
import sqlite3
import time
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shapes_api.problems import Problem

PREFIX: Final = "/as/"
ID_MARK: Final = "--"
LIFETIME_SECONDS: Final = 3600.0
EXPIRES: Final = "expires"


class Options:
    """Wraps the application, and changes requests and responses."""

    def __init__(self, database: sqlite3.Connection, app: ASGIApp) -> None:
        self._database = database
        self._app = app
        self._expirations: dict[
            str, tuple[int, float]
        ] = {}  # version and expiry of objects that were expired

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request below the prefix."""
        _, _, options, rest = scope["path"].split("/", 3)
        chosen, path = options.split("+"), f"/{rest}"
        inner = {**scope, "path": path, "raw_path": path.encode()}
        body = b"" if scope["method"] in ("GET", "DELETE") else await Request(scope, receive).body()
        try:
            body = self._validated_body(chosen, inner, body)
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        if EXPIRES in chosen:
            await self._add_expiry(inner, _ReplayedBody(body, receive), send)
        else:
            await self._app(inner, _ReplayedBody(body, receive), send)

    async def expire_object(self, request: Request) -> Response:
        """Expire an object until it is written again."""
        name = request.query_params["name"]
        existing = self._find(name)
        if existing is None:
            raise Problem(404, "no-such-shape", f"no shape has the name {name}")
        self._expirations[name] = (existing["version"], time.time())
        return Response(status_code=204)

    def _validated_body(self, chosen: Collection[str], scope: Scope, body: bytes) -> bytes:
        """Return the body for the application; raises `Problem` if an option refuses it."""
        method, path = cast("str", scope["method"]), cast("str", scope["path"])
        if "unlisted" in chosen and (method, path) == ("GET", "/shapes"):
            raise Problem(405, "no-listing", "this API has no listing")
        if method not in ("POST", "PUT"):
            return body
        try:
            expected: dict[str, Any] = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return body  # the application reports the error
        if "ids" in chosen and method == "POST":
            expected["name"] = f"{expected['name']}{ID_MARK}{_assign_id(scope)}"
            return msgspec.json.encode(expected)
        if "white" in chosen and method == "POST" and expected.get("color") != "White":
            raise Problem(422, "not-valid", "a new shape must be White; paint it afterwards")
        if "fixed" in chosen and method == "PUT":
            existing = self._find(path.removeprefix("/shapes/"))
            if existing is not None and existing["type"] != expected.get("type"):
                raise Problem(422, "not-valid", "the type of a shape cannot be changed")
        return body

    async def _add_expiry(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []

        async def collect(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, collect)
        if not messages:
            return  # the connection is cut
        body = b"".join(message.get("body", b"") for message in messages)
        if 200 <= messages[0]["status"] < 300 and body and scope["path"].startswith("/shapes"):
            document: dict[str, Any] = msgspec.json.decode(body)
            for each in document.get("items", [document]):
                each["labels"] = {**each["labels"], EXPIRES: self._expiry_of(each)}
            body = msgspec.json.encode(document)
        headers = [each for each in messages[0]["headers"] if each[0] != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await send({**messages[0], "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body})

    def _expiry_of(self, document: dict[str, Any]) -> str:
        version, end = self._expirations.get(document["name"], (0, 0.0))
        if version != document["version"]:
            query = "SELECT max(time) FROM journal WHERE uid = ?"
            written_at: float = self._database.execute(query, (document["uid"],)).fetchone()[0]
            end = written_at + LIFETIME_SECONDS
        return datetime.fromtimestamp(end, UTC).isoformat(timespec="milliseconds")

    def _find(self, name: str) -> dict[str, Any] | None:
        query = "SELECT document FROM shapes WHERE name = ?"
        row = self._database.execute(query, (name,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0])


class _ReplayedBody:
    """Replays a body that was read, then receives further messages."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _assign_id(scope: Scope) -> str:
    """Return the same id for repeats of a key, because the application compares bodies."""
    headers = dict(cast("list[tuple[bytes, bytes]]", scope["headers"]))
    key = headers.get(b"idempotency-key") or uuid.uuid4().bytes
    return hashlib.blake2b(key, digest_size=4).hexdigest()
