"""DNS-like records by zone: writes with preconditions, cursors, and a change feed."""

import asyncio
import sqlite3
import uuid
from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shapes_api.database import transaction

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1000
MAX_WAIT_SECONDS: Final = 30.0  # maximum wait of a request for changes


class RecordContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields that clients may write. The order of `values` does not matter."""

    type: Literal["A", "AAAA", "CNAME", "MX", "TXT"]
    values: Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]
    ttl: Annotated[int, msgspec.Meta(ge=1, le=604_800)] = 300
    tags: Annotated[list[str], msgspec.Meta(max_length=64)] = []


class Record(msgspec.Struct, frozen=True):
    """A record as the API returns it; each creation has a new `id`, each change a new `etag`."""

    name: str
    id: str
    etag: str
    type: str
    ttl: int
    values: list[str]
    tags: list[str]


_content_decoder: Final = msgspec.json.Decoder(RecordContent)
_record_decoder: Final = msgspec.json.Decoder(Record)
_encoder: Final = msgspec.json.Encoder()


class Records:
    """Handles each request in one coroutine, which does not yield between a read and a write.

    Nor does it yield between reading a zone's last change and waiting for the next one.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._change_events: dict[str, asyncio.Event] = {}  # one per zone, set by its next change

    def routes(self) -> list[Route]:
        """Return the routes."""
        record_path = "/zones/{zone}/records/{name}"
        return [
            Route("/zones/{zone}/records", self._list, methods=["GET"]),
            Route("/zones/{zone}/changes", self._changes, methods=["GET"]),
            Route(record_path, self._get, methods=["GET"]),
            Route(record_path, self._put, methods=["PUT"]),
            Route(record_path, self._delete, methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        try:
            size = int(query.get("per_page", DEFAULT_PAGE_SIZE))
        except ValueError:
            size = 0
        if not 1 <= size <= MAX_PAGE_SIZE:
            return _error(400, "bad_page_size", f"per_page must be 1 to {MAX_PAGE_SIZE}")
        rows = self._database.execute(
            "SELECT body FROM records WHERE zone = ? AND name > ? ORDER BY name LIMIT ?",
            (request.path_params["zone"], query.get("cursor", ""), size + 1),
        )
        matches = [_record_decoder.decode(row[0]) for row in rows]
        tags = set(query.getlist("tag"))
        records = [record for record in matches[:size] if tags <= set(record.tags)]
        cursor = matches[size - 1].name if len(matches) > size else None
        return _json_response(200, {"records": records, "next_cursor": cursor})

    async def _get(self, request: Request) -> Response:
        record = self._find(request)
        return _not_found() if record is None else _record_response(200, record)

    async def _put(self, request: Request) -> Response:
        try:
            content = _content_decoder.decode(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _error(400, "bad_record", str(error))
        stored = self._find(request)
        problem = _precondition_problem(request, stored)
        if problem is not None:
            return problem
        zone, name = request.path_params["zone"], request.path_params["name"]
        record = Record(
            name=name,
            id=stored.id if stored is not None else f"rec-{uuid.uuid4().hex}",
            etag=uuid.uuid4().hex,
            type=content.type,
            ttl=content.ttl,
            # The API has its own order: clients must not rely on theirs.
            values=sorted(set(content.values), reverse=True),
            tags=sorted(set(content.tags)),
        )
        row = (zone, name, _encoder.encode(record))
        self._write(zone, "INSERT OR REPLACE INTO records VALUES (?, ?, ?)", row)
        return _record_response(201 if stored is None else 200, record)

    async def _delete(self, request: Request) -> Response:
        stored = self._find(request)
        if stored is None:
            return _not_found()
        problem = _precondition_problem(request, stored)
        if problem is not None:
            return problem
        zone, name = request.path_params["zone"], request.path_params["name"]
        self._write(zone, "DELETE FROM records WHERE zone = ? AND name = ?", (zone, name))
        return Response(status_code=204)

    async def _changes(self, request: Request) -> Response:
        """Return the number of the last change; with `after`, wait until it differs."""
        zone, query = request.path_params["zone"], request.query_params
        try:
            after, wait = int(query.get("after", -1)), float(query.get("wait", 0))
        except ValueError:
            return _error(
                400, "bad_number", "after must be a whole number, and wait must be a number"
            )
        if not 0 <= wait <= MAX_WAIT_SECONDS:
            return _error(400, "bad_wait", f"wait must be 0 to {MAX_WAIT_SECONDS:g} seconds")
        if self._last_change(zone) == after:
            change_event = self._change_events.setdefault(zone, asyncio.Event())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await change_event.wait()
        return _json_response(200, {"last": self._last_change(zone)})

    def _find(self, request: Request) -> Record | None:
        row = self._database.execute(
            "SELECT body FROM records WHERE zone = ? AND name = ?",
            (request.path_params["zone"], request.path_params["name"]),
        ).fetchone()
        return None if row is None else _record_decoder.decode(row[0])

    def _last_change(self, zone: str) -> int:
        query = "SELECT last FROM record_changes WHERE zone = ?"
        row = self._database.execute(query, (zone,)).fetchone()
        return 0 if row is None else row[0]

    def _write(self, zone: str, statement: str, row: tuple[object, ...]) -> None:
        """Change a record and count the change in one transaction."""
        with transaction(self._database):
            self._database.execute(statement, row)
            self._database.execute(
                "INSERT INTO record_changes VALUES (?, 1)"
                " ON CONFLICT (zone) DO UPDATE SET last = last + 1",
                (zone,),
            )
        change_event = self._change_events.pop(zone, None)
        if change_event is not None:
            change_event.set()


def _precondition_problem(request: Request, stored: Record | None) -> Response | None:
    """Check `If-None-Match: *` and `If-Match`; one of them is required for every write."""
    if request.headers.get("If-None-Match") == "*":
        return (
            None
            if stored is None
            else _error(412, "exists", "a record with that name already exists")
        )
    expected = request.headers.get("If-Match")
    if expected is None:
        return _error(428, "precondition_required", "send If-Match, or If-None-Match: *")
    if stored is None or expected not in {"*", _etag(stored)}:
        return _error(412, "changed", "the record does not match If-Match")
    return None


def _etag(record: Record) -> str:
    return f'"{record.etag}"'


def _record_response(status: int, record: Record) -> Response:
    response = _json_response(status, record)
    response.headers["ETag"] = _etag(record)
    return response


def _not_found() -> Response:
    return _error(404, "not_found", "no record has that name")


def _error(status: int, code: str, message: str) -> Response:
    return _json_response(status, {"error": {"code": code, "message": message}})


def _json_response(status: int, content: object) -> Response:
    return Response(_encoder.encode(content), status, media_type="application/json")
