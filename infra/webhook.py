"""What a Git host calls when somebody pushes: it is checked, and leads to a look, nothing else.

GitHub, Gitea and Forgejo sign the body (``X-Hub-Signature-256``), GitLab sends the secret itself
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

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
MAX_BODIES: Final = 8
"""Bodies that are read at the same time: their sender is not verified yet."""

BODY_SECONDS: Final = 10.0
"""Time that a body may wait and take: Git hosts wait about as long for the response."""

_SIGNATURE: Final = "X-Hub-Signature-256"
_TOKEN: Final = "X-Gitlab-Token"  # noqa: S105 - the name of a header
_PLACES: Final = ("repository", "project")
_URLS: Final = ("clone_url", "ssh_url", "html_url", "git_http_url", "git_ssh_url", "web_url", "url")

OnPush = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""Given the URLs of a repository; returns the sources that will be looked at."""


def webhook(secret: str, on_push: OnPush) -> Starlette:
    """Make the application: one route, for POST."""
    bodies = asyncio.Semaphore(MAX_BODIES)

    async def pushed(request: Request) -> Response:
        if _SIGNATURE not in request.headers and not _has_token(request, secret):
            return _not_genuine()
        try:
            async with asyncio.timeout(BODY_SECONDS), bodies:
                body = await _body(request)
        except TimeoutError:
            return _refused(408, f"the body must arrive within {BODY_SECONDS:g} s")
        except ClientDisconnect:
            return _refused(400, "the connection was closed")
        if body is None:
            return _refused(413, f"the body must have at most {MAX_BODY_BYTES} bytes")
        if not _is_genuine(request, body, secret):
            return _not_genuine()
        urls = list(dict.fromkeys(_urls(body)))
        if not urls:
            return _refused(400, "the body must be JSON with a repository and its URLs")
        return JSONResponse({"lookedAt": list(await on_push(urls))}, 202)

    return Starlette(routes=[Route("/", pushed, methods=["POST"])])


def same_repository(url: str) -> str:
    """Return what two URLs of one repository have in common: the host and the path."""
    if "://" not in url:
        url = "ssh://" + url.replace(":", "/", 1)  # git@host:path
    try:
        parts = urlsplit(url)
    except ValueError:  # nobody's
        return ""
    return f"{(parts.hostname or '').lower()}/{parts.path.strip('/').removesuffix('.git')}"


async def _body(request: Request) -> bytes | None:
    """Read the body; None if it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _is_genuine(request: Request, body: bytes, secret: str) -> bool:
    signature = request.headers.get(_SIGNATURE)
    if signature is None:
        return _has_token(request, secret)
    made = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"sha256={made}".encode(), signature.encode())


def _has_token(request: Request, secret: str) -> bool:
    token = request.headers.get(_TOKEN)
    return token is not None and hmac.compare_digest(secret.encode(), token.encode())


def _urls(body: bytes) -> Iterator[str]:
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for place in _PLACES:
        found: Any = cast("dict[str, Any]", told).get(place) if isinstance(told, dict) else None
        if isinstance(found, dict):
            values = (cast("dict[str, Any]", found).get(name) for name in _URLS)
            yield from (each for each in values if isinstance(each, str))


def _not_genuine() -> Response:
    return _refused(401, f"neither {_SIGNATURE} nor {_TOKEN} is valid")


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)
