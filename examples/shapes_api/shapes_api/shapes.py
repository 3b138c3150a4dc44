"""The shapes API of `openapi.yaml`: `/shapes` and `/shapes/{name}`."""

import base64
import binascii
import hashlib
import hmac
import secrets
import sqlite3
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shapes_api.database import transaction
from shapes_api.problems import Problem

MAX_BODY_BYTES: Final = 1024 * 1024
MAX_KEY_CHARACTERS: Final = 255
MAX_PAGE_SIZE: Final = 5000
TOKEN_SECONDS: Final = 300.0
KEPT_SECONDS: Final = 25 * 3600.0  # the contract promises 24 hours

_SEAL_BYTES: Final = 16
_LAST_CHARACTER: Final = chr(0x10FFFF)

BeforeRequest = Callable[[Request, str | None], Awaitable[None]]
"""Called before each request is handled, with the shape's name, if any. May raise an exception."""

Name = Annotated[
    str,
    # `$` would accept a trailing newline.
    msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z"),
]
ShapeType = Literal["Square", "Circle", "Triangle", "Hexagon"]
Color = Literal["Red", "Green", "Blue", "Purple", "Yellow", "Black", "White"]
LabelValue = Annotated[str, msgspec.Meta(max_length=255)]


class DesiredShape(msgspec.Struct, frozen=True, rename="camel"):
    """A shape as a client sends it; the last three fields are read-only and ignored."""

    name: Name
    type: ShapeType
    color: Color
    labels: dict[str, LabelValue] = {}
    uid: str | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    created_at: str | msgspec.UnsetType = msgspec.UNSET


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """A shape as the API stores and returns it."""

    name: str
    type: ShapeType
    color: Color
    labels: dict[str, str]
    uid: str
    version: int
    created_at: str


class _StoredResponse(msgspec.Struct, frozen=True):
    """Status, body and headers, which are stored with an idempotency key and replayed."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = {}

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers)


class _Filters(msgspec.Struct, frozen=True):
    labels: tuple[tuple[str, str], ...] = ()
    prefix: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """Start of a page: after a name, in a listing with these filters."""

    after: str
    filters: str
    issued_at: float


class _Labeled(msgspec.Struct):
    labels: dict[str, str]


_desired_decoder: Final = msgspec.json.Decoder(DesiredShape)
_shape_decoder: Final = msgspec.json.Decoder(Shape)
_labels_decoder: Final = msgspec.json.Decoder(_Labeled)
_position_decoder: Final = msgspec.json.Decoder(_Position)
_stored_response_decoder: Final = msgspec.msgpack.Decoder(_StoredResponse)
_encoder: Final = msgspec.json.Encoder()


class Shapes:
    """Handles the contract's requests."""

    def __init__(self, database: sqlite3.Connection, before_request: BeforeRequest) -> None:
        self._database = database
        self._before_request = before_request
        self._running: set[str] = set()  # idempotency keys of running requests
        self._secret = secrets.token_bytes(32)
        cutoff = time.time() - KEPT_SECONDS
        database.execute("DELETE FROM stored_responses WHERE stored_at < ?", (cutoff,))

    def routes(self) -> list[Route]:
        """Return the contract's routes, each with all its methods."""
        return [
            Route("/shapes", self._collection, methods=["GET", "POST"]),
            Route("/shapes/{name}", self._shape, methods=["GET", "PUT", "DELETE"]),
        ]

    async def _collection(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._change(request, self._create)
        filters, limit = _filters(request), _page_size(request)
        await self._before_request(request, None)
        token = request.query_params.get("continue")
        after = self._open_token(token, filters).after if token else ""
        return self._page(filters, limit, after)

    async def _shape(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        match request.method:
            case "PUT":
                return await self._change(request, self._replace, name)
            case "DELETE":
                return await self._change(request, self._delete, name)
            case _:
                await self._before_request(request, name)
                return _shape_response(200, self._get_existing(name)).response()

    # --- changes

    async def _change(
        self,
        request: Request,
        change: Callable[[Request, bytes, str], _StoredResponse],
        name: str | None = None,
    ) -> Response:
        """Apply a change once per key, and store the response, even a refusal, with it."""
        body, key = await _body(request), _idempotency_key(request)
        parts = (request.method.encode(), request.url.path.encode(), body)
        digest = hashlib.sha256(b"\n".join(parts)).digest()
        async with self._claim_key(key):
            await self._before_request(request, name or _name_in(body))
            with transaction(self._database):
                if key is None:
                    return change(request, body, name or "").response()
                stored_response = self._find_response(key, digest)
                if stored_response is not None:
                    return Response(
                        stored_response.body,
                        stored_response.status,
                        {**stored_response.headers, "idempotent-replayed": "true"},
                    )
                result = self._build_response(change, request, body, name or "")
                row = (key, time.time(), digest, msgspec.msgpack.encode(result))
                self._database.execute("INSERT INTO stored_responses VALUES (?, ?, ?, ?)", row)
        return result.response()

    def _build_response(
        self,
        change: Callable[[Request, bytes, str], _StoredResponse],
        request: Request,
        body: bytes,
        name: str,
    ) -> _StoredResponse:
        try:
            return change(request, body, name)
        except Problem as problem:
            headers = {"content-type": "application/problem+json", **problem.headers}
            return _StoredResponse(problem.status, problem.body, headers)

    @asynccontextmanager
    async def _claim_key(self, key: str | None) -> AsyncGenerator[None]:
        if key is None:
            yield
            return
        if key in self._running:
            running = "a request with this Idempotency-Key is still running; retry later"
            raise Problem(409, "key-still-running", running, {"retry-after": "1"})
        self._running.add(key)
        try:
            yield
        finally:
            self._running.discard(key)

    def _find_response(self, key: str, digest: bytes) -> _StoredResponse | None:
        query = "SELECT request, response FROM stored_responses WHERE key = ?"
        row = self._database.execute(query, (key,)).fetchone()
        if row is None:
            return None
        if row[0] != digest:
            message = (
                "this Idempotency-Key was used with another method, path or body; use a new key"
            )
            raise Problem(422, "key-used-otherwise", message)
        return _stored_response_decoder.decode(row[1])

    def _create(self, _request: Request, body: bytes, _name: str) -> _StoredResponse:
        desired = _decode_desired(body)
        shape = Shape(
            name=desired.name,
            type=desired.type,
            color=desired.color,
            labels=desired.labels,
            uid=str(uuid.uuid4()),
            version=1,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        row = (shape.name, _encoder.encode(shape))
        try:
            self._database.execute("INSERT INTO shapes VALUES (?, ?)", row)
        except sqlite3.IntegrityError as error:
            raise Problem(409, "name-taken", f"{shape.name} already exists") from error
        return _shape_response(201, shape, location=f"/shapes/{shape.name}")

    def _replace(self, request: Request, body: bytes, name: str) -> _StoredResponse:
        desired = _decode_desired(body)
        if desired.name != name:
            detail = f"the body has the name {desired.name}, but the path has {name}"
            raise Problem(422, "not-valid", detail)
        current = self._get_existing(name)
        _require_match(request, current)
        shape = msgspec.structs.replace(
            current,
            type=desired.type,
            color=desired.color,
            labels=desired.labels,
            version=current.version + 1,
        )
        row = (_encoder.encode(shape), name)
        self._database.execute("UPDATE shapes SET document = ? WHERE name = ?", row)
        return _shape_response(200, shape)

    def _delete(self, request: Request, _body: bytes, name: str) -> _StoredResponse:
        _require_match(request, self._get_existing(name))
        self._database.execute("DELETE FROM shapes WHERE name = ?", (name,))
        return _StoredResponse(204)

    def _get_existing(self, name: str) -> Shape:
        query = "SELECT document FROM shapes WHERE name = ?"
        row = self._database.execute(query, (name,)).fetchone()
        if row is None:
            raise Problem(404, "no-such-shape", f"no shape has the name {name}")
        return _shape_decoder.decode(row[0])

    # --- listings

    def _page(self, filters: _Filters, limit: int | None, after: str) -> Response:
        rows: Iterable[tuple[str, bytes]] = self._database.execute(
            "SELECT name, document FROM shapes"
            " WHERE name > ? AND name >= ? AND name < ? ORDER BY name",
            (after, filters.prefix, filters.prefix + _LAST_CHARACTER),
        )
        if filters.labels:
            rows = (row for row in rows if _has_labels(row[1], filters.labels))
        shapes = list(rows) if limit is None else list(islice(rows, limit + 1))
        items, end = shapes[:limit], b"]}"
        if len(items) < len(shapes):
            token = self._seal_token(_Position(items[-1][0], filters.digest, time.time()))
            end = b'],"continue":' + msgspec.json.encode(token) + b"}"
        body = b'{"items":[' + b",".join([document for _, document in items]) + end
        return Response(body, media_type="application/json")

    def _seal_token(self, position: _Position) -> str:
        """Return the token of a position, which clients cannot forge."""
        content = msgspec.json.encode(position)
        return base64.urlsafe_b64encode(self._seal(content) + content).decode().rstrip("=")

    def _open_token(self, token: str, filters: _Filters) -> _Position:
        try:
            sealed = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            sealed = b""
        seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(content)):
            raise token_expired("was not issued by this API")
        position = _position_decoder.decode(content)
        if position.filters != filters.digest:
            raise token_expired("belongs to a listing with other filters")
        if time.time() - position.issued_at >= TOKEN_SECONDS:
            raise token_expired("is too old")
        return position

    def _seal(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, digest_size=_SEAL_BYTES).digest()


def token_expired(reason: str) -> Problem:
    """Return the problem for an unusable continue token (410)."""
    detail = f"the continue token {reason}; list again from the start"
    return Problem(410, "continue-token-expired", detail)


def _shape_response(status: int, shape: Shape, **headers: str) -> _StoredResponse:
    headers |= {"content-type": "application/json", "etag": f'"{shape.version}"'}
    return _StoredResponse(status, _encoder.encode(shape), headers)


def _require_match(request: Request, shape: Shape) -> None:
    """Refuse a change if its `If-Match` does not match (RFC 9110, 13.1.1)."""
    if_match, tag = request.headers.get("if-match"), f'"{shape.version}"'
    if if_match is None:
        return
    if not {"*", tag} & {each.strip() for each in if_match.split(",")}:
        detail = f"If-Match is {if_match}, but the shape's ETag is {tag}; read the shape again"
        raise Problem(412, "version-mismatch", detail)


def _has_labels(document: bytes, expected: tuple[tuple[str, str], ...]) -> bool:
    labels = _labels_decoder.decode(document).labels
    return all(labels.get(key) == value for key, value in expected)


# --- the parts of a request


async def _body(request: Request) -> bytes:
    content_length = request.headers.get("content-length", "0")
    body = b""
    if not content_length.isdecimal() or int(content_length) <= MAX_BODY_BYTES:
        async for chunk in request.stream():
            body = body + chunk if body else chunk
            if len(body) > MAX_BODY_BYTES:
                break
        else:
            return body
    raise Problem(413, "too-large", f"the body is longer than {MAX_BODY_BYTES} bytes")


def _decode_desired(body: bytes) -> DesiredShape:
    try:
        return _desired_decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Problem(422, "not-valid", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "malformed-json", f"the body is not JSON: {error}") from error


def _name_in(body: bytes) -> str | None:
    try:
        return _desired_decoder.decode(body).name
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key") or None
    if key is not None and len(key) > MAX_KEY_CHARACTERS:
        detail = f"the Idempotency-Key is longer than {MAX_KEY_CHARACTERS} characters"
        raise Problem(422, "not-valid", detail)
    return key


def _filters(request: Request) -> _Filters:
    labels: list[tuple[str, str]] = []
    for text in request.query_params.getlist("label"):
        key, equals, value = text.partition("=")
        if not equals:
            raise Problem(400, "bad-query", f"label {text!r}: must have the form key=value")
        labels.append((key, value))
    return _Filters(tuple(labels), request.query_params.get("prefix", ""))


def _page_size(request: Request) -> int | None:
    text = request.query_params.get("limit")
    if text is None:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_PAGE_SIZE))
    if not is_number or not 1 <= int(text) <= MAX_PAGE_SIZE:
        detail = f"limit {text[:40]!r}: must be a whole number from 1 to {MAX_PAGE_SIZE}"
        raise Problem(400, "bad-query", detail)
    return int(text)
