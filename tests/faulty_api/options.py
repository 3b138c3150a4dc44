"""Peculiarities of real APIs: options of the shapes API, each by a prefix of its paths.

`/as/OPTIONS/shapes…` is the application's `/shapes…` with these, joined by `+`:

    ids        the server makes the ids, and a name may be had by many: `POST` ignores the name's
               second half, and shows the object as `NAME--ID`, by which it is addressed
    fixed      `type` cannot be changed: a `PUT` that would is refused with 422
    expires    objects end an hour after their last write: they are shown with a label `expires`
    unlisted   there is no listing: 405
    white      what is created is White, and painted by a second request: else 422

`PUT /_expired?name=NAME` lets an object be at its end until it is written again. Objects of all
options are in one table, with one journal: they differ by their names.
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
    """Stands before the application, and changes what goes in and what comes out."""

    def __init__(self, database: sqlite3.Connection, app: ASGIApp) -> None:
        self._database = database
        self._app = app
        self._ended: dict[str, tuple[int, float]] = {}  # version and end of what was let expire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request beneath a prefix."""
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
            await self._with_ends(inner, _Once(body, receive), send)
        else:
            await self._app(inner, _Once(body, receive), send)

    async def let_expire(self, request: Request) -> Response:
        """Let an object be at its end, until it is written again."""
        name = request.query_params["name"]
        existing = self._find(name)
        if existing is None:
            raise Problem(404, "no-such-shape", f"no shape has the name {name}")
        self._ended[name] = (existing["version"], time.time())
        return Response(status_code=204)

    def _validated_body(self, chosen: Collection[str], scope: Scope, body: bytes) -> bytes:
        """Return what the application is asked; raises `Problem` for what an option refuses."""
        method, path = cast("str", scope["method"]), cast("str", scope["path"])
        if "unlisted" in chosen and (method, path) == ("GET", "/shapes"):
            raise Problem(405, "no-listing", "this API has no listing")
        if method not in ("POST", "PUT"):
            return body
        try:
            expected: dict[str, Any] = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return body  # the application says what is wrong with it
        if "ids" in chosen and method == "POST":
            expected["name"] = f"{expected['name']}{ID_MARK}{_id(scope)}"
            return msgspec.json.encode(expected)
        if "white" in chosen and method == "POST" and expected.get("color") != "White":
            raise Problem(422, "not-valid", "what is new is White: paint it afterwards")
        if "fixed" in chosen and method == "PUT":
            existing = self._find(path.removeprefix("/shapes/"))
            if existing is not None and existing["type"] != expected.get("type"):
                raise Problem(422, "not-valid", "the type of a shape cannot be changed")
        return body

    async def _with_ends(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []

        async def hear(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, hear)
        if not messages:
            return  # the connection is cut
        body = b"".join(message.get("body", b"") for message in messages)
        if 200 <= messages[0]["status"] < 300 and body and scope["path"].startswith("/shapes"):
            document: dict[str, Any] = msgspec.json.decode(body)
            for each in document.get("items", [document]):
                each["labels"] = {**each["labels"], EXPIRES: self._end_of(each)}
            body = msgspec.json.encode(document)
        headers = [each for each in messages[0]["headers"] if each[0] != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await send({**messages[0], "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body})

    def _end_of(self, document: dict[str, Any]) -> str:
        version, end = self._ended.get(document["name"], (0, 0.0))
        if version != document["version"]:
            query = "SELECT max(time) FROM journal WHERE uid = ?"
            written_at: float = self._database.execute(query, (document["uid"],)).fetchone()[0]
            end = written_at + LIFETIME_SECONDS
        return datetime.fromtimestamp(end, UTC).isoformat(timespec="milliseconds")

    def _find(self, name: str) -> dict[str, Any] | None:
        query = "SELECT document FROM shapes WHERE name = ?"
        row = self._database.execute(query, (name,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0])


class _Once:
    """Receives a body that was read, and then whatever comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _id(scope: Scope) -> str:
    """Make an id: the same for a repeat with the same key, as the application compares bodies."""
    headers = dict(cast("list[tuple[bytes, bytes]]", scope["headers"]))
    key = headers.get(b"idempotency-key") or uuid.uuid4().bytes
    return hashlib.blake2b(key, digest_size=4).hexdigest()
