"""Errors as RFC 9457 problem documents (`application/problem+json`)."""

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from infra.shapes_api.replies import Headers, Reply

PROBLEM_HEADER: Final = ("content-type", "application/problem+json")
TYPE_PREFIX: Final = "urn:shapes-api:problem:"


class Problem(msgspec.Struct, frozen=True):
    """A problem document: the members that RFC 9457 defines."""

    type: str
    title: str
    status: int
    detail: str


class ProblemError(Exception):
    """A request that is answered with a problem document.

    `kind` tells apart problems of the same status; it becomes the end of the document's `type`.
    """

    def __init__(self, status: int, detail: str, *, kind: str = "", headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind
        self.headers = headers

    def reply(self) -> Reply:
        """Return the problem document as an answer."""
        problem = Problem(
            type=TYPE_PREFIX + self.kind if self.kind else "about:blank",
            title=self.kind.replace("-", " ").capitalize() if self.kind else _phrase(self.status),
            status=self.status,
            detail=self.detail,
        )
        return Reply(self.status, msgspec.json.encode(problem), (PROBLEM_HEADER, *self.headers))


async def answer_problem(_request: Request, error: Exception) -> Response:
    """Answer a `ProblemError`."""
    assert isinstance(error, ProblemError)
    return error.reply().response()


async def answer_framework_error(request: Request, error: Exception) -> Response:
    """Answer what the framework itself refuses: an unknown route (404), a wrong method (405)."""
    assert isinstance(error, HTTPException)
    headers = tuple((error.headers or {}).items())
    detail = f"{request.method} {request.url.path}: {error.detail}"
    return ProblemError(error.status_code, detail, headers=headers).reply().response()


async def answer_unexpected_error(_request: Request, _error: Exception) -> Response:
    """Answer a defect of the service; the traceback is in its log."""
    return ProblemError(500, "the service failed; its log says why").reply().response()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"Status {status}"
