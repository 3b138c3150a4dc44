"""The parts of a request that need checking: body, key, query."""

from typing import Final

from starlette.requests import Request

from infra.shapes_api.listing import Filters
from infra.shapes_api.problems import ProblemError

MAX_BODY_BYTES: Final = 1024 * 1024
MAX_KEY_LENGTH: Final = 255
MAX_PAGE_SIZE: Final = 5000
MAX_SEQUENCE: Final = 2**63 - 1  # SQLite's largest integer


async def read_body(request: Request) -> bytes:
    """Return the body.

    Raises:
        ProblemError: 413, it is longer than `MAX_BODY_BYTES`.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        raise _too_large()
    body = b""
    async for chunk in request.stream():
        body = body + chunk if body else chunk
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
    return body


def idempotency_key(request: Request) -> str | None:
    """Return the request's Idempotency-Key, None when it has none or an empty one.

    Raises:
        ProblemError: 422, it is too long.
    """
    key = request.headers.get("idempotency-key") or None
    if key is not None and len(key) > MAX_KEY_LENGTH:
        detail = f"the Idempotency-Key is longer than {MAX_KEY_LENGTH} characters"
        raise ProblemError(422, detail, kind="not-valid")
    return key


def listing_filters(request: Request) -> Filters:
    """Return what the query says about which shapes to list.

    Raises:
        ProblemError: 400, a label is not `key=value`.
    """
    labels: list[tuple[str, str]] = []
    for text in request.query_params.getlist("label"):
        key, equals, value = text.partition("=")
        if not equals:
            raise _bad_query(f"label is {text!r}: write key=value")
        labels.append((key, value))
    return Filters(tuple(labels), request.query_params.get("prefix", ""))


def page_size(request: Request) -> int | None:
    """Return the query's `limit`, None when there is none.

    Raises:
        ProblemError: 400, it is not a whole number from 1 to `MAX_PAGE_SIZE`.
    """
    return whole_number(request, "limit", 1, MAX_PAGE_SIZE)


def whole_number(request: Request, name: str, least: int, most: int) -> int | None:
    """Return a number in the query, None when it is not there.

    Raises:
        ProblemError: 400, it is not a whole number from `least` to `most`.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SEQUENCE))
    if not is_number or not least <= int(text) <= most:
        raise _bad_query(f"{name} is {text[:40]!r}: give a whole number from {least} to {most}")
    return int(text)


def _bad_query(detail: str) -> ProblemError:
    return ProblemError(400, detail, kind="bad-query")


def _too_large() -> ProblemError:
    return ProblemError(413, f"the body is longer than {MAX_BODY_BYTES} bytes", kind="too-large")
