"""Client for a Caddy server's admin API: reads and changes its JSON configuration path by path.

Caddy reloads the whole configuration on each change, and restores the old one if that fails.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from infra.providers.caddy.capacity import measure
from infra.providers.http import HttpApi
from infra.providers.responses import (
    Response,
    build_refusal_error,
    build_unusable_error,
    decode_body,
    describe_problem,
    explanation,
    inconclusive_error_class,
    is_read,
    redact_start,
)
from reconciler.errors import (
    NotDoneError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets

SERVERS: Final = "/config/apps/http/servers"
TLS: Final = "/config/apps/tls"

_ETAG: Final = re.compile(r'"(/config/\S+) [0-9a-f]+"')
_ROLLED_BACK: Final = re.compile(r"loading new config: |indexing config: ")
_EXTERNAL_CAUSES: Final = re.compile(
    r"loading certificates: |: start: |listening on |no such file|permission denied|in use"
)
"""Refusals that depend on files, ports or other certificates, so a retry may succeed."""

_NO_SUCH_PATH: Final = "invalid traversal path"
_CHANGED_PATH: Final = re.compile(rf"array index out of bounds|{_NO_SUCH_PATH}")
"""Another client has changed an element on the path. Nothing was done."""

# Caddy replaces its admin server on each change, and closes idle connections.
_HEADERS: Final = {"Connection": "close"}


class _ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: str = ""


_START_TIME: Final = re.compile(rb"^process_start_time_seconds ([0-9.e+]{1,30})$", re.MULTILINE)


class _IdOnly(msgspec.Struct, frozen=True):
    id: Any = msgspec.field(name="@id", default=None)


_id_decoder = msgspec.json.Decoder(_IdOnly)
_upstreams_decoder = msgspec.json.Decoder(list[Fields])
_error_decoder = msgspec.json.Decoder(_ErrorBody)
_any_decoder = msgspec.json.Decoder(Any)
_encoder = msgspec.json.Encoder()


class Part(NamedTuple):
    """Part of the configuration: its current path, and the ETag that identifies its content.

    ``size``: the size of the content, as ``capacity`` counts it.
    """

    path: str
    etag: str
    content: Any
    size: int


class AdminApi:
    """Client for one Caddy server, at ``unix:///PATH`` or at a URL."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._http = HttpApi(
            config,
            permit,
            secret=secrets.credential,
            secrecy=secrets.secrecy,
            accepts_sockets=True,
        )

    async def get(self, path: str) -> Part:
        """Read part of the configuration. The content of a missing part is None."""
        return _part(await self._read(path))

    async def find(self, object_id: str) -> Part | None:
        """Read the object with an id; None if Caddy itself reports that it does not exist.

        A 404 with a different message comes from a wrong endpoint or a gateway.
        """
        response = await self._http.call("GET", f"/id/{object_id}", headers=_HEADERS)
        is_absent = read_error_message(response).startswith("unknown object ID")
        if response.status_code == HTTPStatus.NOT_FOUND and is_absent:
            return None
        if response.status_code != HTTPStatus.OK:
            raise build_caddy_error(response)
        actual_id = decode_body(response, _id_decoder).id
        if str(actual_id) != object_id:
            raise build_unusable_error(response, f"it describes {actual_id!r}, not {object_id!r}")
        return _part(response)

    async def etag(self, path: str) -> str:
        """Read only the ETag, which shows whether a part has changed."""
        return _part_etag(await self._read(path))

    async def upstreams(self) -> list[Fields]:
        """Read Caddy's counters for each backend."""
        return decode_body(await self._read("/reverse_proxy/upstreams"), _upstreams_decoder)

    async def uptime_seconds(self) -> float | None:
        """Return the age of Caddy's process, by its own clock; None if its metrics lack it."""
        response, started_at = await self._read_start_time()
        try:
            now = parsedate_to_datetime(response.headers.get("Date", ""))
            return None if started_at is None else now.timestamp() - float(started_at)
        except ValueError:
            return None

    async def process_id(self) -> str | None:
        """Return an id of Caddy's process: its start, to 10 ms; None if its metrics lack it."""
        _, started_at = await self._read_start_time()
        return None if started_at is None else f"caddy started at {started_at}"

    async def _read_start_time(self) -> tuple[Response, str | None]:
        response = await self._http.call("GET", "/metrics", headers=_HEADERS)
        if response.status_code != HTTPStatus.OK:  # a build without metrics, for example
            return response, None
        started_at = _START_TIME.search(response.content)
        return response, None if started_at is None else started_at[1].decode()

    async def change(
        self, method: str, path: str, content: object = None, *, if_match: str | None = None
    ) -> Response:
        """Change part of the configuration. The status of the response is 200, 400 or 412.

        Other statuses raise a ``ProviderError``. Only the caller can interpret a 400.
        """
        headers = {**_HEADERS, "Content-Type": "application/json"}
        if if_match is not None:
            headers["If-Match"] = if_match
        body = None if method == "DELETE" else _encoder.encode(content)
        response = await self._http.call(method, path, headers=headers, body=body)
        match response.status_code:
            case HTTPStatus.OK:
                if response.content.strip():
                    raise build_unusable_error(response, "Caddy returns an empty body for a change")
                return response
            case HTTPStatus.PRECONDITION_FAILED:
                return response
            case HTTPStatus.BAD_REQUEST if read_error_message(response):
                return response
            case _:
                raise build_caddy_error(response)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def _read(self, path: str) -> Response:
        response = await self._http.call("GET", path, headers=_HEADERS)
        if response.status_code != HTTPStatus.OK:
            raise build_caddy_error(response)
        return response


def _part(response: Response) -> Part:
    etag = _part_etag(response)
    match = _ETAG.fullmatch(etag)
    assert match is not None
    return Part(match[1], etag, decode_body(response, _any_decoder), measure(response.content))


def _part_etag(response: Response) -> str:
    etag = response.headers.get("ETag", "")
    if _ETAG.fullmatch(etag) is None:
        raise build_unusable_error(response, "it has no ETag in Caddy's format")
    return etag


def read_error_message(response: Response) -> str:
    """Return the start of Caddy's error message; empty if the response has none."""
    body = explanation(response, _error_decoder)
    return "" if body is None else redact_start(body.error, response)


def is_id_in_use(response: Response) -> bool:
    """Return whether a change was refused because its id is in use."""
    return response.status_code == HTTPStatus.BAD_REQUEST and "duplicate ID" in read_error_message(
        response
    )


def build_missing_error(path: str) -> NotDoneError:
    """Return the error for a configuration without the parts that contain routes."""
    return NotDoneError(
        f"Caddy's configuration has no {path}; load a configuration with apps.http.servers",
        status=HTTPStatus.CONFLICT,
    )


def build_caddy_error(response: Response) -> ProviderError:
    """Classify an error response that the caller does not handle itself."""
    message = " ".join(read_error_message(response).split())
    if _NO_SUCH_PATH in message and is_read(response.method):
        return build_missing_error(response.url.partition("/config/")[2])
    if not message or response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR:
        content = _encoder.encode({"detail": message or describe_problem(response)})
        return build_refusal_error(msgspec.structs.replace(response, content=content))
    text = f"Caddy rejected the request: {message}"
    # Caddy is available, and explains the refusal. A 5xx status would count against its health.
    if _CHANGED_PATH.search(message):
        return NotDoneError(text, status=HTTPStatus.CONFLICT)
    if not _ROLLED_BACK.match(message):
        return inconclusive_error_class(response.method)(text, status=response.status_code)
    if _EXTERNAL_CAUSES.search(message):
        return NotDoneError(text, status=HTTPStatus.CONFLICT)
    return RefusedError(text, status=HTTPStatus.BAD_REQUEST)


def build_partial_failure(description: str, error: ProviderError) -> UnknownResultError:
    """Return the error for an action that failed after its first call."""
    return UnknownResultError(
        f"{description}: {error.message}",
        status=HTTPStatus.CONFLICT,
        retry_after_seconds=error.retry_after_seconds,
    )
