"""A Docker Engine: each call made once, each failure classified and explained by the Engine."""

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
from infra.providers.answers import (
    Response,
    decode_body,
    explanation,
    inconclusive,
    refusal,
    start_of,
)
from infra.providers.docker.names import name_problem
from infra.providers.endpoint import authorization, socket_path
from infra.providers.http import HttpApi, Query
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
"""Label with the key of the action that created an object. No other action can write a label."""

DECLARED: Final = "reconciler/declared"
"""Label that lists the declared fields of a container. All other fields come from the image."""

OWN_LABELS: Final = frozenset({WRITTEN_BY, DECLARED})
"""Labels that are never shown, and that no manifest may declare."""

API_VERSION: Final = (1, 41)
"""Of Engine 20.10. A newer Engine that no longer supports it gets calls in its oldest version."""

_VERSION: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}")
_SHOWN_CHARACTERS: Final = 40
_ABSENT: Final = re.compile(r"no such (container|volume)", re.IGNORECASE)
_TOO_OLD: Final = "client version"
_PORT_TAKEN: Final = re.compile(r"port is already allocated|address already in use", re.IGNORECASE)
_NOT_IN_IMAGE: Final = re.compile(r"unable to find (user|group) ", re.IGNORECASE)
_NO_FOLDER: Final = "bind source path does not exist"
_HEADERS_TOO_LONG: Final = "Receive buffer too long"
"""The text of httpx above the limit of its parser."""

_HEADER_BYTES: Final = 8

MAX_REFUSAL_BYTES: Final = 64 * 1024
"""Of the refusal of a stream. The rest is not read."""

_T = TypeVar("_T")


class _ErrorBody(msgspec.Struct, frozen=True):
    """The Engine's explanation of a refusal."""

    message: str = ""


class _Versions(msgspec.Struct, frozen=True):
    newest: str = msgspec.field(name="ApiVersion")
    oldest: str = msgspec.field(name="MinAPIVersion", default="1.0")


_error_decoder = msgspec.json.Decoder(_ErrorBody)
_versions_decoder = msgspec.json.Decoder(_Versions)
_encoder = msgspec.json.Encoder()


class EngineApi:
    """Calls of one Engine, at ``unix:///PATH`` or at a URL."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._http = HttpApi(
            config,
            permit,
            secret=secrets.credential,
            secrecy=secrets.secrecy,
            takes_sockets=True,
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
            raise engine_refusal(response)
        return decode_body(response, decoder)

    async def find(self, path: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
        """Read one object; None if the Engine itself reports that there is none."""
        response = await self.find_response(path)
        return None if response is None else decode_body(response, decoder)

    async def find_response(self, path: str) -> Response | None:
        """Read the response about one object; None as in ``find``.

        A 404 with another text comes from a wrong endpoint or a gateway.
        """
        response = await self.call("GET", path)
        if response.status_code == HTTPStatus.NOT_FOUND and _ABSENT.search(
            read_error_message(response)
        ):
            return None
        if response.status_code != HTTPStatus.OK:
            raise engine_refusal(response)
        return response

    async def call(
        self, method: str, path: str, *, query: Query = (), body: object = None
    ) -> Response:
        """Make one call in a version of the API that both support."""
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
        ).startswith(_TOO_OLD):
            self._version = ""  # the Engine was replaced
            raise NotDoneError(
                f"the Engine was replaced by another version: {read_error_message(response)}"
            )
        return response

    async def ping(self) -> Response:
        """Check that the Engine responds, without a version of its API."""
        response = await self._http.call("GET", "/_ping")
        if response.status_code != HTTPStatus.OK:
            raise engine_refusal(response)
        return response

    @asynccontextmanager
    async def stream(self, path: str, query: Query) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Read the pieces of a response as they arrive, on a separate connection.

        Raises ``NotDoneError``, also for an interrupted stream, because a stream is only read.
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
                    content = await self._read_refusal(response)
                    raise engine_refusal(Response("GET", path, response.status_code, {}, content))
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

    async def _read_refusal(self, response: httpx.Response) -> bytes:
        """Read the start of a refusal, within the time of a call."""
        content = bytearray()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_seconds):
                async for piece in response.aiter_raw():
                    content += piece
                    if len(content) > MAX_REFUSAL_BYTES:
                        break
        return bytes(content[:MAX_REFUSAL_BYTES])

    def _streaming_client(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415 - as above

        endpoint, tls = self._config.endpoint, self._config.tls
        path = socket_path(endpoint)
        is_trusting = tls is not None or endpoint.startswith("https:")
        verify = build_ssl_context(tls) if is_trusting else True
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
            raise engine_refusal(response)
        versions = decode_body(response, _versions_decoder)
        oldest, newest = _numbers(versions.oldest), _numbers(versions.newest)
        if newest < API_VERSION:
            minimum = ".".join(map(str, API_VERSION))
            raise NotDoneError(
                f"{self._config.endpoint}: this Engine supports version {versions.newest} of the "
                f"API, but {minimum} is required; install Docker Engine 20.10 or newer"
            )
        return ".".join(map(str, max(API_VERSION, oldest)))


def _numbers(version: str) -> tuple[int, ...]:
    if _VERSION.fullmatch(version) is None:
        start = version[:_SHOWN_CHARACTERS]
        raise NotDoneError(f"{start!r} is not a version of the Engine's API")
    return tuple(map(int, version.split(".")))


# --- the meaning of responses


def read_error_message(response: Response) -> str:
    """Return the start of the Engine's explanation; empty if the response is not from an Engine."""
    body = explanation(response, _error_decoder)
    return "" if body is None else start_of(body.message, response)


def engine_refusal(response: Response) -> ProviderError:
    """Classify a response that is not a success and has no special meaning for the call."""
    message = read_error_message(response)
    if not message:
        return refusal(response)
    message = " ".join(message.split())
    text, status = f"the Engine rejected the request: {message}", response.status_code
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        # A requirement (an image, a network, a plugin) is missing or in use. Both may end.
        return NotDoneError(text, status=status)
    if _PORT_TAKEN.search(message) or _NO_FOLDER in message:
        return NotDoneError(text, status=HTTPStatus.CONFLICT)
    if _NOT_IN_IMAGE.search(message):
        return RefusedError(text, status=HTTPStatus.CONFLICT)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # An Engine with an explanation is available: the failure concerns one object, whose action
        # waits.
        return inconclusive(response.method)(text, status=HTTPStatus.CONFLICT)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return refusal(
            msgspec.structs.replace(response, content=_encoder.encode({"detail": message}))
        )
    return inconclusive(response.method)(text, status=status)


@contextmanager
def mark_partly_done(description: str) -> Generator[None]:
    """Mark a failure: a part of the action was done, and its repeat continues it."""
    try:
        yield
    except UnknownResultError:
        raise
    except ProviderError as error:
        raise build_partly_done_error(description, error) from error


def build_partly_done_error(description: str, error: ProviderError) -> UnknownResultError:
    """Mark a failure as one of an action of which a part was done."""
    # A call that was not sent shows nothing about the Engine's health, as it would without a
    # status.
    status = HTTPStatus.CONFLICT if isinstance(error, NotCalledError) else error.status
    wait = error.retry_after_seconds
    return UnknownResultError(
        f"{description}: {error.message}",
        status=status,
        retry_after_seconds=wait,
        obstacle=error.obstacle,
    )


def build_not_found_error(action: Action) -> NotFoundError:
    """Describe an update whose object was deleted."""
    return NotFoundError(f"{action.external_name!r} does not exist")


# --- names and labels


def checked_name(external_name: str) -> str:
    """Return a name as a part of a path. Raises ``RefusedError`` for an invalid one."""
    problem = name_problem(external_name)
    if problem is not None:
        raise RefusedError(f"invalid name {external_name!r}: {problem}")
    return quote(external_name, safe="")


def labels_to_write(action: Action) -> dict[str, str]:
    """Return an action's labels with its key. Raises ``RefusedError`` for a reserved one."""
    reserved = OWN_LABELS & action.labels.keys()
    if reserved:
        raise RefusedError(f"label {min(reserved)!r} is reserved for Reconciler; remove it")
    return {**action.labels, WRITTEN_BY: action.idempotency_key}


def unreserved_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return an object's labels without the reserved ones."""
    return {name: value for name, value in (labels or {}).items() if name not in OWN_LABELS}


def filters(**values: list[str]) -> tuple[str, str]:
    """Encode the filters of a listing or of the events."""
    return "filters", _encoder.encode(
        {name: each for name, each in values.items() if each}
    ).decode()


def label_filter(labels: Mapping[str, str]) -> list[str]:
    """Build a filter by labels."""
    return [f"{name}={value}" for name, value in sorted(labels.items())]


def build_name_conflict(action: Action, obstacle: Any) -> ConflictError:
    """Describe a creation whose name is in use; without an obstacle, the name is free again."""
    return ConflictError(f"{action.external_name!r} already exists", obstacle=obstacle)


async def gather_limited(coroutines: list[Any], limit: int) -> list[Any]:
    """Await some calls, with a limit on concurrent ones."""
    slots = asyncio.Semaphore(limit)

    async def run_one(coroutine: Any) -> Any:
        async with slots:
            return await coroutine

    return await asyncio.gather(*map(run_one, coroutines))


async def without_headers(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Return the output of a container without the eight bytes before each part.

    They contain the stream and the length of the part. Pieces may end anywhere.
    """
    buffer = b""
    remaining = 0
    async for piece in pieces:
        buffer += piece
        while buffer:
            if not remaining:
                if len(buffer) < _HEADER_BYTES:
                    break
                remaining = int.from_bytes(buffer[_HEADER_BYTES // 2 : _HEADER_BYTES])
                buffer = buffer[_HEADER_BYTES:]
                continue
            part, buffer = buffer[:remaining], buffer[remaining:]
            remaining -= len(part)
            yield part
