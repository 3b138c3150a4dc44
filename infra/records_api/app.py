"""The HTTP side of the records API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.records_api.changes import MAX_WAIT_SECONDS, ChangeBell
from infra.records_api.store import Record, RecordContent, RecordStore

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

_encoder = msgspec.json.Encoder()
_content = msgspec.json.Decoder(RecordContent)


def build_app(store: RecordStore) -> Starlette:
    """Build the application over a store, which it closes at its end."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        yield
        store.close()

    handlers = _Handlers(store)
    one = "/zones/{zone}/records/{name}"
    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/zones/{zone}/records", handlers.list, methods=["GET"]),
            Route("/zones/{zone}/changes", handlers.changes, methods=["GET"]),
            Route(one, handlers.get, methods=["GET"]),
            Route(one, handlers.put, methods=["PUT"]),
            Route(one, handlers.delete, methods=["DELETE"]),
        ],
    )


class _Handlers:
    """One coroutine for each call; none waits between looking at a record and writing it.

    Nor does any wait between looking at a zone's newest change and listening for the next one.
    """

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._bell = ChangeBell()

    async def list(self, request: Request) -> Response:
        query = request.query_params
        try:
            size = int(query.get("per_page", DEFAULT_PAGE_SIZE))
        except ValueError:
            size = 0
        if not 1 <= size <= MAX_PAGE_SIZE:
            return _error(400, "bad_page_size", f"per_page must be 1 to {MAX_PAGE_SIZE}")
        records, more = self._store.page(
            request.path_params["zone"],
            after=query.get("cursor", ""),
            size=size,
            tags=query.getlist("tag"),
        )
        return _answer(200, {"records": records, "next_cursor": more})

    async def get(self, request: Request) -> Response:
        record = self._known(request)
        return _not_found() if record is None else _shown(200, record)

    async def put(self, request: Request) -> Response:
        try:
            content = _content.decode(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _error(400, "bad_record", str(error))
        known = self._known(request)
        refused = _precondition_problem(request, known)
        if refused is not None:
            return refused
        zone, name = request.path_params["zone"], request.path_params["name"]
        record = self._store.put(zone, name, content)
        self._bell.ring(zone)
        return _shown(201 if known is None else 200, record)

    async def delete(self, request: Request) -> Response:
        known = self._known(request)
        if known is None:
            return _not_found()
        refused = _precondition_problem(request, known)
        if refused is not None:
            return refused
        zone = request.path_params["zone"]
        self._store.delete(zone, request.path_params["name"])
        self._bell.ring(zone)
        return Response(status_code=204)

    async def changes(self, request: Request) -> Response:
        """Give the number of the newest change; with ``after``, wait until it is another one."""
        zone, query = request.path_params["zone"], request.query_params
        try:
            after, wait = int(query.get("after", -1)), float(query.get("wait", 0))
        except ValueError:
            return _error(400, "bad_number", "after must be a whole number, wait a number")
        if not 0 <= wait <= MAX_WAIT_SECONDS:
            return _error(400, "bad_wait", f"wait must be 0 to {MAX_WAIT_SECONDS:g} seconds")
        if self._store.last_change(zone) == after:
            await self._bell.wait(zone, wait)
        return _answer(200, {"last": self._store.last_change(zone)})

    def _known(self, request: Request) -> Record | None:
        return self._store.get(request.path_params["zone"], request.path_params["name"])


def _precondition_problem(request: Request, known: Record | None) -> Response | None:
    """Check ``If-None-Match: *`` and ``If-Match``; one of them is required for every write."""
    if request.headers.get("If-None-Match") == "*":
        return None if known is None else _error(412, "exists", "there is a record of that name")
    wanted = request.headers.get("If-Match")
    if wanted is None:
        return _error(428, "precondition_required", "send If-Match, or If-None-Match: *")
    if known is None or wanted not in {"*", _etag(known)}:
        return _error(412, "changed", "the record is not what If-Match says")
    return None


def _etag(record: Record) -> str:
    return f'"{record.etag}"'


def _shown(status: int, record: Record) -> Response:
    response = _answer(status, record)
    response.headers["ETag"] = _etag(record)
    return response


def _not_found() -> Response:
    return _error(404, "not_found", "there is no record of that name")


def _error(status: int, code: str, message: str) -> Response:
    return _answer(status, {"error": {"code": code, "message": message}})


def _answer(status: int, content: object) -> Response:
    return Response(_encoder.encode(content), status, media_type="application/json")
