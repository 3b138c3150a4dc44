"""Errors as RFC 9457 problem documents (`application/problem+json`)."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

TYPE_PREFIX: Final = "urn:example-api:problem:"


class Problem(Exception):  # noqa: N818 - named as in the RFC
    """An error that the API returns as a problem document.

    `kind` distinguishes problems of the same status; it becomes the end of the document's `type`.
    """

    def __init__(
        self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The problem document as JSON."""
        title = self.kind.replace("-", " ").capitalize() or HTTPStatus(self.status).phrase
        kind = TYPE_PREFIX + self.kind if self.kind else "about:blank"
        document = {"type": kind, "title": title, "status": self.status, "detail": self.detail}
        return msgspec.json.encode(document)

    def response(self) -> Response:
        """Return the response with the problem document."""
        return Response(self.body, self.status, self.headers, "application/problem+json")


async def handle_problem(_request: Request, error: Exception) -> Response:
    """Return the response for a `Problem`."""
    assert isinstance(error, Problem)
    return error.response()


async def handle_framework_error(request: Request, error: Exception) -> Response:
    """Return the response for a framework error: an unknown route (404) or a wrong method (405)."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    return Problem(error.status_code, "", detail, error.headers).response()


async def handle_unexpected_error(_request: Request, _error: Exception) -> Response:
    """Return the response for a bug in the API; the traceback is in its log."""
    return Problem(500, "", "internal error; see the API's log").response()
