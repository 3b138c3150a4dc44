"""The meaning of an HTTP response: the class of a refusal, and the body of a success.

The method shows whether a call was a write. A 4xx proves that a write was not executed, except for
a few that a gateway sends by itself, or that concern another call. Any other refusal leaves the
result of a write unknown; a read has no result that could be unknown (ADR 0070).
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Protocol, TypeVar

import msgspec

from events.excerpt import quote
from reconciler.errors import (
    NotDoneError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.secrecy import Secrecy

MAX_DETAIL_CHARACTERS = 500
MIN_SEARCHED_CHARACTERS = 16_384
"""Of a refusal's body that is searched for secrets before its start is quoted; more for long
secrets."""

MAX_EXPLANATION_BYTES = 1024 * 1024
"""A longer refusal is quoted without decoding. Decoding of 30 MiB takes 0.1 s."""

_MAX_UTF8_BYTES = 4  # of one character


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_T = TypeVar("_T")
_N = TypeVar("_N", bound=_Named)
_READS = frozenset({"GET", "HEAD"})
_PROVES_NOTHING = frozenset({404, 408, 409, 425})
"""Client errors to a write that a gateway may send after the API got the request, or that concern
an earlier request with the same key. 429 also belongs here, and has its own class."""

_CONFIGURATION_AT_FAULT = {
    401: "check the secret of spec.credentialsRef",
    403: "check the secret of spec.credentialsRef and its permissions",
    404: "nothing exists at this path; check spec.endpoint",
}
"""Refusals that no other generation of an object would avoid. They are retried until people act."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised for text that is not JSON, has another form, or is nested more deeply than the decoder
allows."""

_REDIRECTED = 300
_CLIENT_ERROR = 400
_SERVER_ERROR = 500
_ENDS_BY_ITSELF = frozenset({408, 425})


class Response(msgspec.Struct, frozen=True, gc=False):
    """One call and its complete response.

    ``url`` has no query, which may be long. ``headers`` ignore case, and ``content`` is unpacked.
    ``secrecy`` hides secrets when the response is quoted.
    """

    method: str
    url: str
    status_code: int
    headers: Mapping[str, str] = {}
    content: bytes = b""
    secrecy: Secrecy = msgspec.field(default_factory=Secrecy)


class _Problem(msgspec.Struct, frozen=True, gc=False):
    """The members of an RFC 9457 problem that are meant for people."""

    type: str = ""
    title: str = ""
    detail: str = ""


_problem_decoder = msgspec.json.Decoder(_Problem)


def is_read(method: str) -> bool:
    """Return whether a call changes nothing."""
    return method in _READS


def inconclusive(method: str) -> type[NotDoneError | UnknownResultError]:
    """Return the class of a call that was sent and got no clear response."""
    return NotDoneError if is_read(method) else UnknownResultError


def refusal(response: Response) -> ProviderError:
    """Classify a response that is not a success and has no special meaning in this API.

    A 404 is that of the collection: providers recognize a missing object themselves.
    """
    status, is_of_read = response.status_code, is_read(response.method)
    text = f"{_call(response)} returned {status}: {problem_text(response)}"
    wait = retry_after_seconds(response)
    if _REDIRECTED <= status < _CLIENT_ERROR:
        text += " (redirects are not followed; correct spec.endpoint)"
    elif status in _CONFIGURATION_AT_FAULT:
        text += f" ({_CONFIGURATION_AT_FAULT[status]})"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(text, status=status, retry_after_seconds=wait)
    is_proof = _CLIENT_ERROR <= status < _SERVER_ERROR
    if not is_proof or (status in _PROVES_NOTHING and not is_of_read):
        return inconclusive(response.method)(text, status=status, retry_after_seconds=wait)
    may_succeed = status in _CONFIGURATION_AT_FAULT or status in _ENDS_BY_ITSELF or wait is not None
    if may_succeed or (status == HTTPStatus.GONE and is_of_read):
        return NotDoneError(text, status=status, retry_after_seconds=wait)
    return RefusedError(text, status=status)


@contextmanager
def in_doubt(response: Response) -> Generator[None]:
    """Keep the result of a write unknown if the read that must show it fails.

    A 404 to a write proves nothing by itself: any gateway can send one.
    """
    try:
        yield
    except ProviderError as error:
        raise UnknownResultError(
            f"{_call(response)} returned {response.status_code}, and a read failed: "
            f"{error.message}",
            status=error.status,
            retry_after_seconds=error.retry_after_seconds,
        ) from error


def decode_body(response: Response, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Decode the body of a success. An undecodable one leaves the result unknown."""
    try:
        return decoder.decode(response.content)
    except UNDECODABLE as error:
        raise build_undecodable_error(response, error) from error


def decode_object(external_name: str, response: Response, decoder: msgspec.json.Decoder[_N]) -> _N:
    """Decode the body of a success, which must be about the requested object."""
    body = decode_body(response, decoder)
    if body.name != external_name:
        raise build_unusable_error(
            response, f"it describes {quote(body.name)}, not {external_name!r}"
        )
    return body


def build_undecodable_error(response: Response, error: Exception) -> ProviderError:
    """Describe a success whose body the decoder refuses."""
    is_deep = isinstance(error, RecursionError)
    return build_unusable_error(
        response, "its JSON is nested too deeply" if is_deep else str(error)
    )


def build_unusable_error(response: Response, reason: str) -> ProviderError:
    """Describe a success whose body is not what the API promises."""
    return inconclusive(response.method)(
        f"{_call(response)} returned {response.status_code} with an invalid body: {reason}",
        status=response.status_code,
    )


def problem_text(response: Response) -> str:
    """Return the API's explanation: that of an RFC 9457 problem, or the start of the body."""
    problem = explanation(response, _problem_decoder) or _Problem()
    text = problem.detail or problem.title
    if not text:
        text = decode_start(
            response.content, MIN_SEARCHED_CHARACTERS + response.secrecy.reach_bytes
        )
    text = start_of(text, response)
    return " ".join(text[:MAX_DETAIL_CHARACTERS].split()) or "no explanation"


def explanation(response: Response, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    """Decode the body of a refusal; None if it has another form or is too long."""
    if len(response.content) > MAX_EXPLANATION_BYTES:
        return None
    try:
        return decoder.decode(response.content)
    except UNDECODABLE:
        return None


def decode_start(content: bytes, characters: int) -> str:
    """Decode at least the first characters of a body of any length."""
    return content[: (characters + 1) * _MAX_UTF8_BYTES].decode(errors="replace")


def start_of(text: str, response: Response) -> str:
    """Return the start of an API's text without secrets. The text may have megabytes."""
    # Before it is cut, because the start of a secret would not be found.
    return response.secrecy.hide_start(text, MIN_SEARCHED_CHARACTERS)


def retry_after_seconds(response: Response) -> float | None:
    """Parse ``Retry-After``: seconds, or a date by the API's own clock if it sends one."""
    text = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        seconds = float(text)
        return seconds if math.isfinite(seconds) else None
    at = _http_date(text)
    if at is None:
        return None
    now = _http_date(response.headers.get("Date", "")) or datetime.now(UTC)
    return max(0.0, (at - now).total_seconds())


def _http_date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _call(response: Response) -> str:
    return f"{response.method} {response.url}"
