"""The example API's application, wrapped by one that injects the requested faults."""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shapes_api.app import create_app
from shapes_api.problems import Problem, handle_problem
from shapes_api.shapes import token_expired
from tests.faulty_api.faults import NO_FAULTS, FaultInjector, Faults, Verdict
from tests.faulty_api.journal import Journal, key_of_request
from tests.faulty_api.options import PREFIX, Options

NO_RESPONSE: Final = "lost"
_CUT: Final = "cut_connection"
_ADDED_BY_APP: Final = (b"content-length",)


class Statistics(msgspec.Struct, frozen=True):
    """The document of `GET /_stats`: requests by method and status, and their effects."""

    requests: dict[str, dict[str, int]]
    shapes: int
    effective: dict[str, int]


class CuttingProtocol(HttpToolsProtocol):
    """Lets the application cut a connection instead of responding."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_CUT: self.transport.abort}  # type: ignore[dict-item]


def create_faulty_app(database: sqlite3.Connection, latency_seconds: float = 0.0) -> ASGIApp:
    """Return the application with faults, counters and the journal."""
    return _FaultyApp(database, latency_seconds)


class _FaultyApp:
    def __init__(self, database: sqlite3.Connection, latency_seconds: float) -> None:
        self._latency_seconds = latency_seconds
        self._journal = Journal(database)
        self._faults = FaultInjector()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._tokens: dict[str, tuple[int, float]] = {}  # page and time of a continue token
        self._api = create_app(database, self._apply_faults)
        self._options = Options(database, self)
        self._controls = Starlette(
            routes=[
                Route("/_expired", self._options.expire_object, methods=["PUT"]),
                Route("/_faults", self._control_faults, methods=["GET", "PUT", "DELETE"]),
                Route("/_stats", self._control_statistics, methods=["GET", "DELETE"]),
                Route("/_journal", self._show_journal),
            ],
            exception_handlers={Problem: handle_problem},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith("/_"):
            await self._controls(scope, receive, send)
        elif path.startswith(PREFIX):
            await self._options(scope, receive, send)
        elif path == "/shapes" or path.startswith("/shapes/"):
            await self._handle_shapes(scope, receive, send)
        else:
            await self._api(scope, receive, send)

    async def _handle_shapes(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(cast("list[tuple[bytes, bytes]]", scope["headers"]))
        key_of_request.set(headers.get(b"idempotency-key", b"").decode() or None)
        scope.setdefault("state", {})["verdict"] = Verdict()
        messages: list[Message] = []

        async def collect(message: Message) -> None:
            messages.append(message)

        status = NO_RESPONSE
        try:
            await self._api(scope, receive, collect)
            verdict: Verdict = scope["state"]["verdict"]
            if verdict.reply_is_lost:
                await _cut_connection(scope, receive)
                return
            if verdict.failure_after is not None:
                response = verdict.failure_after.response()
                status = str(response.status_code)
                await response(scope, receive, send)
                return
            if messages:
                status = str(messages[0]["status"])
                if scope["method"] == "GET" and scope["path"] == "/shapes" and status == "200":
                    messages = self._filter_listing(Request(scope), verdict, messages)
            for message in messages:
                await send(message)
        finally:
            self._requests[scope["method"], status] += 1

    # --- before a request is handled

    async def _apply_faults(self, request: Request, name: str | None) -> None:
        verdict = self._faults.judge(request.method, name)
        request.scope["state"]["verdict"] = verdict
        delay_seconds = self._latency_seconds + verdict.delay_seconds
        if delay_seconds:
            await asyncio.sleep(delay_seconds)
        if verdict.refusal is not None:
            raise verdict.refusal
        if request.url.path == "/shapes" and request.method != "POST":
            token = request.query_params.get("continue", "")
            page, issued_at = self._tokens.get(token, (0, 0.0))
            lifetime = self._faults.listing_token_seconds(verdict) if token else None
            if lifetime is not None and time.time() - issued_at >= lifetime:
                raise token_expired("is too old")
            self._faults.fail_listing(verdict, page)

    # --- after a listing

    def _filter_listing(
        self, request: Request, verdict: Verdict, messages: list[Message]
    ) -> list[Message]:
        body = b"".join(message.get("body", b"") for message in messages)
        listing: dict[str, Any] = msgspec.json.decode(body)
        token = listing.get("continue")
        if token:
            page, _ = self._tokens.get(request.query_params.get("continue", ""), (0, 0.0))
            self._tokens[token] = (page + 1, time.time())
        lag = self._faults.listing_lag_seconds(verdict)
        if lag:
            listing = {"items": self._items_as_of(request, time.time() - lag)}
        dropped = self._faults.drop_from_listing(
            verdict, [each["name"] for each in listing["items"]]
        )
        if not lag and not dropped:
            return messages
        listing["items"] = [each for each in listing["items"] if each["name"] not in dropped]
        changed = msgspec.json.encode(listing)
        length = (b"content-length", str(len(changed)).encode())
        headers = [each for each in messages[0]["headers"] if each[0] not in _ADDED_BY_APP]
        start = {**messages[0], "headers": [*headers, length]}
        return [start, {"type": "http.response.body", "body": changed}]

    def _items_as_of(self, request: Request, moment: float) -> list[dict[str, Any]]:
        query = request.query_params
        expected = dict(each.split("=", 1) for each in query.getlist("label"))
        items = [msgspec.json.decode(document) for _, document in self._journal.as_of(moment)]
        return [
            each
            for each in items
            if each["name"].startswith(query.get("prefix", ""))
            and expected.items() <= each["labels"].items()
        ]

    # --- controls

    async def _control_faults(self, request: Request) -> Response:
        if request.method == "DELETE":
            self._faults.replace(NO_FAULTS)
            return Response(status_code=204)
        if request.method == "PUT":
            try:
                faults = msgspec.json.decode(await request.body(), type=Faults)
            except msgspec.DecodeError as error:
                raise Problem(422, "not-valid", str(error)) from error
            self._faults.replace(faults)
        return _json(self._faults.faults)

    async def _control_statistics(self, request: Request) -> Response:
        if request.method == "DELETE":
            self._journal.reset_counts()
            self._requests.clear()
            return Response(status_code=204)
        requests: dict[str, dict[str, int]] = {}
        for (method, status), count in sorted(self._requests.items()):
            requests.setdefault(method, {})[status] = count
        journal = self._journal
        return _json(Statistics(requests, journal.count_shapes(), journal.count_effects()))

    async def _show_journal(self, request: Request) -> Response:
        after = int(request.query_params.get("after", 0))
        limit = request.query_params.get("limit")
        entries = self._journal.entries(after, None if limit is None else int(limit))
        return _json({"entries": entries})


async def _cut_connection(scope: Scope, receive: Receive) -> None:
    """Cut the connection, and wait until the server has detected it."""
    cut = cast("Callable[[], None]", scope["extensions"][_CUT])
    cut()
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
