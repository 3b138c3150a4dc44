"""Accept webhooks from Git hosts. A verified push only triggers a read of the repository.

GitHub, Gitea and Forgejo sign the body (``X-Hub-Signature-256``). GitLab sends the secret itself
(``X-Gitlab-Token``).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
MAX_UNVERIFIED_BYTES: Final = 8 * MAX_BODY_BYTES
"""Limit on the total bytes of bodies being read, because their senders are not yet verified."""

MAX_HEADER_BYTES: Final = 64 * 1024
"""Limit on the bytes of a request's head."""

BODY_SECONDS: Final = 10.0
"""Time limit for a body. Git hosts wait about as long for the response."""

MAX_CONNECTIONS: Final = 1_000
"""Limit on open connections. Above it, the oldest is closed, because a push takes milliseconds."""

HEAD_SECONDS: Final = 10.0
"""Interval between checks that close a connection without a request."""

_CHUNKED: Final = b"\r\ntransfer-encoding:"
_END_OF_HEAD: Final = b"\r\n\r\n"
_NO_LENGTH: Final = (
    b"HTTP/1.1 411 Length Required\r\nConnection: close\r\nContent-Type: application/json\r\n\r\n"
    b'{"error": "the request must have a Content-Length header, and no Transfer-Encoding"}\n'
)
_SIGNATURE: Final = "X-Hub-Signature-256"
_TOKEN: Final = "X-Gitlab-Token"  # noqa: S105 - the name of a header
_REPOSITORY_FIELDS: Final = ("repository", "project")
_URLS: Final = ("clone_url", "ssh_url", "html_url", "git_http_url", "git_ssh_url", "web_url", "url")

OnPush = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""Receives the URLs of a repository, and returns the sources that will be read."""


class _Bodies:
    """Reads the bodies of unverified senders in bounded memory.

    Above the limit, the oldest body is rejected. A push arrives within milliseconds, so slow
    senders cannot crowd it out.
    """

    def __init__(self) -> None:
        self._sizes: dict[asyncio.Timeout, int] = {}
        self._total = 0

    async def read(self, request: Request) -> bytes | None:
        """Return the body, or None if it is too long; raises ``TimeoutError`` if it is slow."""
        body = bytearray()
        async with asyncio.timeout(BODY_SECONDS) as limit:
            self._sizes[limit] = 0
            try:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        return None
                    self._add(limit, len(chunk))
            finally:
                self._total -= self._sizes.pop(limit, 0)
        return bytes(body)

    def _add(self, limit: asyncio.Timeout, size: int) -> None:
        if limit not in self._sizes:  # already rejected, but its task has not run yet
            return
        self._sizes[limit] += size
        self._total += size
        while self._total > MAX_UNVERIFIED_BYTES:
            oldest = next(iter(self._sizes))
            self._total -= self._sizes.pop(oldest)
            oldest.reschedule(0)


def webhook(secret: str, on_push: OnPush) -> Starlette:
    """Return the application, with one POST route."""
    bodies = _Bodies()

    async def handle_push(request: Request) -> Response:
        if _SIGNATURE not in request.headers and not _has_token(request, secret):
            return _build_unauthorized()
        try:
            body = await bodies.read(request)
        except TimeoutError:
            return _build_error(408, f"the body must arrive within {BODY_SECONDS:g} s")
        except ClientDisconnect:
            return _build_error(400, "the connection was closed")
        if body is None:
            return _build_error(413, f"the body must be at most {MAX_BODY_BYTES} bytes long")
        if not _is_authentic(request, body, secret):
            return _build_unauthorized()
        urls = list(dict.fromkeys(_parse_urls(body)))
        if not urls:
            return _build_error(
                400, "the body must be JSON that contains a repository and its URLs"
            )
        return JSONResponse({"lookedAt": list(await on_push(urls))}, 202)

    return Starlette(routes=[Route("/", handle_push, methods=["POST"])])


class BoundedProtocol(H11Protocol):
    """HTTP with a limited number of connections, which are closed if no complete request arrives.

    The parser is h11, because httptools buffers headers without a limit.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the oldest connection above the limit, and schedule the check for requests."""
        super().connection_made(transport)
        self.opened_at = self.loop.time()
        self._head = bytearray()
        self._is_head_complete = False
        if len(self.connections) > MAX_CONNECTIONS:
            connections = (each for each in self.connections if isinstance(each, BoundedProtocol))
            min(connections, key=_get_opened_at).transport.abort()
        self.loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def data_received(self, data: bytes) -> None:
        """Pass on requests whose bodies have a declared length.

        Otherwise, uvicorn would parse all chunks of a body, at 10 µs each, before the application
        can reject it.
        """
        if self._is_head_complete:
            super().data_received(data)
            return
        self._head += data
        end = self._head.find(_END_OF_HEAD)
        if end >= 0 and _CHUNKED in self._head[:end].lower():
            self.transport.write(_NO_LENGTH)
            self.transport.close()
        elif end >= 0 or len(self._head) > MAX_HEADER_BYTES:  # h11 rejects a long head
            self._is_head_complete = True
            super().data_received(bytes(self._head))

    def _close_if_silent(self) -> None:
        if self.transport.is_closing():
            return
        # uvicorn sets the cycle once the head of a request has arrived.
        if self.cycle is None or self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()
        else:
            self.loop.call_later(HEAD_SECONDS, self._close_if_silent)


def _get_opened_at(connection: BoundedProtocol) -> float:
    return connection.opened_at


def repository_key(url: str) -> str:
    """Return the host and path that all URLs of a repository share."""
    if "://" not in url:
        url = "ssh://" + url.replace(":", "/", 1)  # git@host:path
    try:
        parts = urlsplit(url)
    except ValueError:  # matches no repository
        return ""
    return f"{(parts.hostname or '').lower()}/{parts.path.strip('/').removesuffix('.git')}"


def _is_authentic(request: Request, body: bytes, secret: str) -> bool:
    signature = request.headers.get(_SIGNATURE)
    if signature is None:
        return _has_token(request, secret)
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"sha256={expected}".encode(), signature.encode())


def _has_token(request: Request, secret: str) -> bool:
    token = request.headers.get(_TOKEN)
    return token is not None and hmac.compare_digest(secret.encode(), token.encode())


def _parse_urls(body: bytes) -> Iterator[str]:
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for field in _REPOSITORY_FIELDS:
        entry: Any = (
            cast("dict[str, Any]", content).get(field) if isinstance(content, dict) else None
        )
        if isinstance(entry, dict):
            values = (cast("dict[str, Any]", entry).get(name) for name in _URLS)
            yield from (each for each in values if isinstance(each, str))


def _build_unauthorized() -> Response:
    return _build_error(401, f"neither {_SIGNATURE} nor {_TOKEN} is valid")


def _build_error(status: int, reason: str) -> Response:
    # Close the connection, to avoid reading the rest of the body.
    return JSONResponse({"error": reason}, status, headers={"Connection": "close"})
