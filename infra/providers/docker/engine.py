"""Client of a Docker Engine: makes each call once, and classifies the Engine's errors."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from events.log import Action
from events.provider_config import ProviderConfigSpec
from infra.providers.docker.names import name_problem
from infra.providers.endpoint import authorization, socket_path
from infra.providers.http import HttpApi, Query
from infra.providers.responses import (
    Response,
    build_refusal_error,
    decode_body,
    explanation,
    inconclusive_error_class,
    redact_start,
)
from infra.providers.trust import build_ssl_context
from reconciler.errors import (
    ConflictError,
    NotCalledError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets

if TYPE_CHECKING:
    import httpx

WRITTEN_BY: Final = "reconciler/written-by"
"""Label with the key of the action that created an object. Labels cannot be changed later."""

DECLARED: Final = "reconciler/declared"
"""Label that lists the declared fields of a container. All other fields come from the image."""

RESERVED_LABELS: Final = frozenset({WRITTEN_BY, DECLARED})
"""Labels that objects omit and manifests must not declare."""

API_VERSION: Final = (1, 41)
"""The version of Engine 20.10. Calls use a newer Engine's oldest version if that is higher."""

_VERSION: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}")
_MAX_QUOTED_CHARACTERS: Final = 40
_NO_SUCH_OBJECT: Final = re.compile(r"no such (container|volume)", re.IGNORECASE)
_UNSUPPORTED_VERSION: Final = "client version"
_PORT_IN_USE: Final = re.compile(r"port is already allocated|address already in use", re.IGNORECASE)
_MISSING_USER: Final = re.compile(r"unable to find (user|group) ", re.IGNORECASE)
_MISSING_BIND_SOURCE: Final = "bind source path does not exist"
_HEADERS_TOO_LONG: Final = "Receive buffer too long"
"""httpx's message for headers that exceed its parser's limit."""

_HEADER_BYTES: Final = 8

MAX_ERROR_BYTES: Final = 64 * 1024
"""Limit on the error body of a stream. The rest is not read."""

_T = TypeVar("_T")


class _ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    message: str = ""


class _Versions(msgspec.Struct, frozen=True):
    newest: str = msgspec.field(name="ApiVersion")
    oldest: str = msgspec.field(name="MinAPIVersion", default="1.0")


_error_decoder = msgspec.json.Decoder(_ErrorBody)
_versions_decoder = msgspec.json.Decoder(_Versions)
_encoder = msgspec.json.Encoder()


class EngineApi:
    """Client of one Engine, at ``unix:///PATH`` or at a URL."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._http = HttpApi(
            config,
            permit,
            secret=secrets.credential,
            secrecy=secrets.secrecy,
            accepts_sockets=True,
        )
        self._permit = permit
        self._config = config
        self._credential = secrets.credential
        self._version = ""
        self._streaming: httpx.AsyncClient | None = None
        self.timeout_seconds = config.limits.request_timeout_seconds

    async def get(self, path: str, decoder: msgspec.json.Decoder[_T], query: Query = ()) -> _T:
        """Read an object that must exist."""
        response = await self.call("GET", path, query=query)
        if response.status_code != HTTPStatus.OK:
            raise build_engine_error(response)
        return decode_body(response, decoder)

    async def find(self, path: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
        """Read one object; None if the Engine itself reports that it does not exist."""
        response = await self.find_response(path)
        return None if response is None else decode_body(response, decoder)

    async def find_response(self, path: str) -> Response | None:
        """Return the response for one object; None as in ``find``.

        A 404 with a different message comes from an incorrect endpoint or a gateway.
        """
        response = await self.call("GET", path)
        if response.status_code == HTTPStatus.NOT_FOUND and _NO_SUCH_OBJECT.search(
            read_error_message(response)
        ):
            return None
        if response.status_code != HTTPStatus.OK:
            raise build_engine_error(response)
        return response

    async def call(
        self, method: str, path: str, *, query: Query = (), body: object = None
    ) -> Response:
        """Make one call, using an API version that the Engine supports."""
        if not self._version:
            self._version = await self._negotiate_version()
        response = await self._http.call(
            method,
            f"/v{self._version}{path}",
            query=query,
            headers={} if body is None else {"Content-Type": "application/json"},
            body=None if body is None else _encoder.encode(body),
        )
        if response.status_code == HTTPStatus.BAD_REQUEST and read_error_message(
            response
        ).startswith(_UNSUPPORTED_VERSION):
            self._version = ""  # the Engine was replaced
            raise NotDoneError(
                f"the Engine was replaced with a different version: {read_error_message(response)}"
            )
        return response

    async def ping(self) -> Response:
        """Check that the Engine responds. This call does not need an API version."""
        response = await self._http.call("GET", "/_ping")
        if response.status_code != HTTPStatus.OK:
            raise build_engine_error(response)
        return response

    @asynccontextmanager
    async def stream(self, path: str, query: Query) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Read the chunks of a response as they arrive, on a separate connection.

        Raises ``NotDoneError``, even for an interrupted stream, because streams only read.
        """
        import httpx  # noqa: PLC0415 - 0.2 s of CPU, and only streams need it

        if not self._version:
            self._version = await self._negotiate_version()
        await self._permit.before_request()
        if self._streaming is None:
            self._streaming = self._streaming_client()
        url = f"/v{self._version}{path}"
        try:
            async with self._streaming.stream("GET", url, params=list(query)) as response:
                if response.status_code != HTTPStatus.OK:
                    content = await self._read_error_body(response)
                    raise build_engine_error(
                        Response("GET", path, response.status_code, {}, content)
                    )
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise NotDoneError(
                        f"GET {self._config.endpoint}{path}: invalid response: it is compressed"
                    )
                yield response.aiter_raw()
        except (httpx.HTTPError, httpx.StreamError) as error:
            reason = str(error) or type(error).__name__
            if reason == _HEADERS_TOO_LONG:
                reason = "invalid response: its headers are longer than 100 KiB"
            raise NotDoneError(f"GET {self._config.endpoint}{path}: {reason}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()
        if self._streaming is not None:
            await self._streaming.aclose()

    async def _read_error_body(self, response: httpx.Response) -> bytes:
        """Read the start of an error body, within the request timeout."""
        content = bytearray()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_seconds):
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MAX_ERROR_BYTES:
                        break
        return bytes(content[:MAX_ERROR_BYTES])

    def _streaming_client(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415 - as above

        endpoint, tls = self._config.endpoint, self._config.tls
        path = socket_path(endpoint)
        verifies_tls = tls is not None or endpoint.startswith("https:")
        verify = build_ssl_context(tls) if verifies_tls else True
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=path, verify=verify),
            base_url="http://localhost" if path is not None else endpoint,
            headers={**authorization(self._credential), "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(self.timeout_seconds, read=None),
            trust_env=False,
        )

    async def _negotiate_version(self) -> str:
        response = await self._http.call("GET", "/version")
        if response.status_code != HTTPStatus.OK:
            raise build_engine_error(response)
        versions = decode_body(response, _versions_decoder)
        oldest, newest = _parse_version(versions.oldest), _parse_version(versions.newest)
        if newest < API_VERSION:
            minimum = ".".join(map(str, API_VERSION))
            raise NotDoneError(
                f"{self._config.endpoint}: this Engine supports version {versions.newest} of the "
                f"API, but {minimum} is required; install Docker Engine 20.10 or newer"
            )
        return ".".join(map(str, max(API_VERSION, oldest)))


def _parse_version(version: str) -> tuple[int, ...]:
    if _VERSION.fullmatch(version) is None:
        start = version[:_MAX_QUOTED_CHARACTERS]
        raise NotDoneError(f"{start!r} is not an Engine API version")
    return tuple(map(int, version.split(".")))


# --- classification of responses


def read_error_message(response: Response) -> str:
    """Return the start of the Engine's error message; empty if the response has none."""
    body = explanation(response, _error_decoder)
    return "" if body is None else redact_start(body.message, response)


def build_engine_error(response: Response) -> ProviderError:
    """Classify an error response that the caller does not handle itself."""
    message = read_error_message(response)
    if not message:
        return build_refusal_error(response)
    message = " ".join(message.split())
    text, status = f"the Engine rejected the request: {message}", response.status_code
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        # A requirement (an image, a network, a plugin) is missing or in use, which may change.
        return NotDoneError(text, status=status)
    if _PORT_IN_USE.search(message) or _MISSING_BIND_SOURCE in message:
        return NotDoneError(text, status=HTTPStatus.CONFLICT)
    if _MISSING_USER.search(message):
        return RefusedError(text, status=HTTPStatus.CONFLICT)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # An Engine that explains its error is available, so only this object's action waits.
        return inconclusive_error_class(response.method)(text, status=HTTPStatus.CONFLICT)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return build_refusal_error(
            msgspec.structs.replace(response, content=_encoder.encode({"detail": message}))
        )
    return inconclusive_error_class(response.method)(text, status=status)


def is_port_in_use(message: str) -> bool:
    """Return whether the Engine refused a start because a port of the host is in use."""
    return _PORT_IN_USE.search(message) is not None


@contextmanager
def mark_partial_failure(description: str) -> Generator[None]:
    """Mark a failure as partial: part of the action was done, and a retry resumes it."""
    try:
        yield
    except UnknownResultError:
        raise
    except ProviderError as error:
        raise build_partial_failure(description, error) from error


def build_partial_failure(description: str, error: ProviderError) -> UnknownResultError:
    """Return the error for an action that failed after part of it was done."""
    # Without a status, a call that was not sent would count against the Engine's health.
    status = HTTPStatus.CONFLICT if isinstance(error, NotCalledError) else error.status
    wait = error.retry_after_seconds
    return UnknownResultError(
        f"{description}: {error.message}",
        status=status,
        retry_after_seconds=wait,
        obstacle=error.obstacle,
    )


def build_not_found_error(action: Action) -> NotFoundError:
    """Return the error for an action on an object that was deleted."""
    return NotFoundError(f"{action.external_name!r} does not exist")


# --- names and labels


def checked_name(external_name: str) -> str:
    """Return a name quoted for a URL path. Raises ``RefusedError`` if it is invalid."""
    problem = name_problem(external_name)
    if problem is not None:
        raise RefusedError(f"invalid name {external_name!r}: {problem}")
    return quote(external_name, safe="")


def labels_to_write(action: Action) -> dict[str, str]:
    """Return an action's labels and its key. Raises ``RefusedError`` for a reserved label."""
    reserved = RESERVED_LABELS & action.labels.keys()
    if reserved:
        raise RefusedError(f"label {min(reserved)!r} is reserved for Reconciler; remove it")
    return {**action.labels, WRITTEN_BY: action.idempotency_key}


def unreserved_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return an object's labels without the reserved ones."""
    return {name: value for name, value in (labels or {}).items() if name not in RESERVED_LABELS}


def filters(**values: list[str]) -> tuple[str, str]:
    """Encode the filters of a listing or an event stream."""
    return "filters", _encoder.encode(
        {name: each for name, each in values.items() if each}
    ).decode()


def label_filter(labels: Mapping[str, str]) -> list[str]:
    """Build a filter for these labels."""
    return [f"{name}={value}" for name, value in sorted(labels.items())]


def build_name_conflict(action: Action, obstacle: Any) -> ConflictError:
    """Return the error for a creation whose name is in use."""
    return ConflictError(f"{action.external_name!r} already exists", obstacle=obstacle)


async def gather_limited(coroutines: list[Any], limit: int) -> list[Any]:
    """Run coroutines, at most ``limit`` at a time, and return their results."""
    slots = asyncio.Semaphore(limit)

    async def run_one(coroutine: Any) -> Any:
        async with slots:
            return await coroutine

    return await asyncio.gather(*map(run_one, coroutines))


async def strip_headers(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield a container's output without the 8-byte header of each frame.

    A header contains the frame's stream and length. Chunks may end anywhere.
    """
    buffer = b""
    remaining = 0
    async for chunk in chunks:
        buffer += chunk
        while buffer:
            if not remaining:
                if len(buffer) < _HEADER_BYTES:
                    break
                remaining = int.from_bytes(buffer[_HEADER_BYTES // 2 : _HEADER_BYTES])
                buffer = buffer[_HEADER_BYTES:]
                continue
            payload, buffer = buffer[:remaining], buffer[remaining:]
            remaining -= len(payload)
            yield payload
