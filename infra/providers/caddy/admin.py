"""The admin API of a Caddy server: its configuration as JSON, read and changed path by path.

Caddy reloads the whole configuration at each change, and restores the old one if that fails.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from infra.providers.answers import (
    Answer,
    decoded,
    explanation,
    inconclusive,
    is_read,
    problem_text,
    refusal,
    start_of,
    unusable,
)
from infra.providers.http import HttpApi
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
_OF_OTHERS: Final = re.compile(
    r"loading certificates: |: start: |listening on |no such file|permission denied|in use"
)
"""Refusals that depend on files, ports and other certificates, so a repeat may succeed."""

_NO_SUCH_PATH: Final = "invalid traversal path"
_MOVED_ON: Final = re.compile(rf"array index out of bounds|{_NO_SUCH_PATH}")
"""Another client has changed an element on the path. Nothing was done."""

# Caddy replaces its admin server at each change, and closes the connections that are idle then.
_HEADERS: Final = {"Connection": "close"}


class _Said(msgspec.Struct, frozen=True):
    """Caddy's explanation of a refusal."""

    error: str = ""


class _WithId(msgspec.Struct, frozen=True):
    id: Any = msgspec.field(name="@id", default=None)


_id_decoder = msgspec.json.Decoder(_WithId)
_upstreams_decoder = msgspec.json.Decoder(list[Fields])
_said_decoder = msgspec.json.Decoder(_Said)
_any_decoder = msgspec.json.Decoder(Any)
_encoder = msgspec.json.Encoder()


class Part(NamedTuple):
    """A part of the configuration: its current place, and the ETag that identifies its content."""

    path: str
    etag: str
    content: Any


class AdminApi:
    """Calls of one Caddy server, at ``unix:///PATH`` or at a URL."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._http = HttpApi(
            config,
            permit,
            secret=secrets.credential,
            secrecy=secrets.secrecy,
            takes_sockets=True,
        )

    async def get(self, path: str) -> Part:
        """Read a part of the configuration. The content of a missing part is None."""
        return _part(await self._read(path))

    async def find(self, object_id: str) -> Part | None:
        """Read the object with an id; None if Caddy itself reports that there is none.

        A 404 with another text comes from a wrong endpoint or a gateway.
        """
        answer = await self._http.call("GET", f"/id/{object_id}", headers=_HEADERS)
        is_absent = said(answer).startswith("unknown object ID")
        if answer.status_code == HTTPStatus.NOT_FOUND and is_absent:
            return None
        if answer.status_code != HTTPStatus.OK:
            raise caddy_refusal(answer)
        found = decoded(answer, _id_decoder).id
        if str(found) != object_id:
            raise unusable(answer, f"it describes {found!r}, not {object_id!r}")
        return _part(answer)

    async def etag(self, path: str) -> str:
        """Read only the ETag, which shows whether a part has changed."""
        return _part_etag(await self._read(path))

    async def upstreams(self) -> list[Fields]:
        """Read Caddy's counters of each backend."""
        return decoded(await self._read("/reverse_proxy/upstreams"), _upstreams_decoder)

    async def change(
        self, method: str, path: str, content: object = None, *, if_match: str | None = None
    ) -> Answer:
        """Change a part of the configuration. The status of the response is 200, 400 or 412.

        Any other is raised as a ``ProviderError``: only the caller knows what a 400 means.
        """
        headers = {**_HEADERS, "Content-Type": "application/json"}
        if if_match is not None:
            headers["If-Match"] = if_match
        body = None if method == "DELETE" else _encoder.encode(content)
        answer = await self._http.call(method, path, headers=headers, body=body)
        match answer.status_code:
            case HTTPStatus.OK:
                if answer.content.strip():
                    raise unusable(answer, "Caddy returns an empty body for a change")
                return answer
            case HTTPStatus.PRECONDITION_FAILED:
                return answer
            case HTTPStatus.BAD_REQUEST if said(answer):
                return answer
            case _:
                raise caddy_refusal(answer)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def _read(self, path: str) -> Answer:
        answer = await self._http.call("GET", path, headers=_HEADERS)
        if answer.status_code != HTTPStatus.OK:
            raise caddy_refusal(answer)
        return answer


def _part(answer: Answer) -> Part:
    etag = _part_etag(answer)
    found = _ETAG.fullmatch(etag)
    assert found is not None
    return Part(found[1], etag, decoded(answer, _any_decoder))


def _part_etag(answer: Answer) -> str:
    etag = answer.headers.get("ETag", "")
    if _ETAG.fullmatch(etag) is None:
        raise unusable(answer, "it has no ETag of Caddy's configuration")
    return etag


def said(answer: Answer) -> str:
    """Return the start of Caddy's explanation; empty if the response is not from Caddy."""
    found = explanation(answer, _said_decoder)
    return "" if found is None else start_of(found.error, answer)


def is_taken(answer: Answer) -> bool:
    """Return whether a change was refused because its id is in use."""
    return answer.status_code == HTTPStatus.BAD_REQUEST and "duplicate ID" in said(answer)


def caddy_refusal(answer: Answer) -> ProviderError:
    """Classify a response that is not a success and has no special meaning for the call."""
    words = " ".join(said(answer).split())
    if _NO_SUCH_PATH in words and is_read(answer.method):
        return NotDoneError(
            f"Caddy's configuration has no {answer.url.partition('/config/')[2]}; load a "
            "configuration with apps.http.servers",
            status=HTTPStatus.CONFLICT,
        )
    if not words or answer.status_code != HTTPStatus.INTERNAL_SERVER_ERROR:
        shown = _encoder.encode({"detail": words or problem_text(answer)})
        return refusal(msgspec.structs.replace(answer, content=shown))
    text = f"Caddy rejected the request: {words}"
    # Caddy is available, and explains the refusal. A 5xx status would count against its health.
    if _MOVED_ON.search(words):
        return NotDoneError(text, status=HTTPStatus.CONFLICT)
    if not _ROLLED_BACK.match(words):
        return inconclusive(answer.method)(text, status=answer.status_code)
    if _OF_OTHERS.search(words):
        return NotDoneError(text, status=HTTPStatus.CONFLICT)
    return RefusedError(text, status=HTTPStatus.BAD_REQUEST)


def partly_done(what: str, error: ProviderError) -> UnknownResultError:
    """Mark a failure as one of an action whose first call was executed."""
    return UnknownResultError(
        f"{what}: {error.message}",
        status=HTTPStatus.CONFLICT,
        retry_after_seconds=error.retry_after_seconds,
    )
