"""Interpret HTTP responses: classify refusals, and decode the bodies of successes.

The method shows whether a call was a write. A 4xx proves that a write was not executed, unless a
gateway may have sent it or it concerns another call. After any other refusal, the result of a write
is unknown. The result of a read is never unknown (ADR 0070).
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
"""Characters at the start of a refusal's body to search for secrets before quoting it. Longer
secrets require more."""

MAX_EXPLANATION_BYTES = 1024 * 1024
"""Longer refusals are quoted without decoding, because decoding 30 MiB takes 0.1 s."""

_MAX_UTF8_BYTES = 4  # per character


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_T = TypeVar("_T")
_N = TypeVar("_N", bound=_Named)
_READS = frozenset({"GET", "HEAD"})
_INCONCLUSIVE_STATUSES = frozenset({404, 408, 409, 425})
"""Client errors that a gateway may send after the API has received a write, or that concern an
earlier request with the same key. 429 is also one, but has its own error class."""

_CONFIGURATION_REMEDIES = {
    401: "check the secret of spec.credentialsRef",
    403: "check the secret of spec.credentialsRef and its permissions",
    404: "nothing exists at this path; check spec.endpoint",
}
"""Refusals that changing the manifest would not avoid, so they are retried until an operator
acts."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised by a decoder for text that is not JSON, does not match its type, or is nested too
deeply."""

_REDIRECTED = 300
_CLIENT_ERROR = 400
_SERVER_ERROR = 500
_TRANSIENT_STATUSES = frozenset({408, 425})


class Response(msgspec.Struct, frozen=True, gc=False):
    """A call and its complete response.

    ``url`` omits the query, which may be long. ``headers`` ignores case, and ``content`` is
    decompressed.
    ``secrecy`` hides secrets when the response is quoted.
    """

    method: str
    url: str
    status_code: int
    headers: Mapping[str, str] = {}
    content: bytes = b""
    secrecy: Secrecy = msgspec.field(default_factory=Secrecy)


class _Problem(msgspec.Struct, frozen=True, gc=False):
    """The human-readable members of an RFC 9457 problem."""

    type: str = ""
    title: str = ""
    detail: str = ""


_problem_decoder = msgspec.json.Decoder(_Problem)


def is_read(method: str) -> bool:
    """Return whether a method only reads."""
    return method in _READS


def inconclusive_error_class(method: str) -> type[NotDoneError | UnknownResultError]:
    """Return the error class for a call that was sent but got no conclusive response."""
    return NotDoneError if is_read(method) else UnknownResultError


def build_refusal_error(response: Response) -> ProviderError:
    """Return the error for a refusal that the provider does not handle itself.

    A 404 is assumed to concern the collection: providers detect a missing object themselves.
    """
    status, is_from_read = response.status_code, is_read(response.method)
    text = f"{_call(response)} returned {status}: {describe_problem(response)}"
    wait = retry_after_seconds(response)
    if _REDIRECTED <= status < _CLIENT_ERROR:
        text += " (redirects are not followed; correct spec.endpoint)"
    elif status in _CONFIGURATION_REMEDIES:
        text += f" ({_CONFIGURATION_REMEDIES[status]})"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(text, status=status, retry_after_seconds=wait)
    is_client_error = _CLIENT_ERROR <= status < _SERVER_ERROR
    if not is_client_error or (status in _INCONCLUSIVE_STATUSES and not is_from_read):
        return inconclusive_error_class(response.method)(
            text, status=status, retry_after_seconds=wait
        )
    may_succeed = (
        status in _CONFIGURATION_REMEDIES or status in _TRANSIENT_STATUSES or wait is not None
    )
    if may_succeed or (status == HTTPStatus.GONE and is_from_read):
        return NotDoneError(text, status=status, retry_after_seconds=wait)
    return RefusedError(text, status=status)


@contextmanager
def keep_unknown_result(response: Response) -> Generator[None]:
    """Keep the result of a write unknown if the read that must determine it fails.

    By itself, a 404 response to a write proves nothing, because any gateway can send one.
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
    """Decode the body of a success. If that fails, the result of a write is unknown."""
    try:
        return decoder.decode(response.content)
    except UNDECODABLE as error:
        raise build_undecodable_error(response, error) from error


def decode_object(external_name: str, response: Response, decoder: msgspec.json.Decoder[_N]) -> _N:
    """Decode the body of a success, which must describe the requested object."""
    body = decode_body(response, decoder)
    if body.name != external_name:
        raise build_unusable_error(
            response, f"it describes {quote(body.name)}, not {external_name!r}"
        )
    return body


def build_undecodable_error(response: Response, error: Exception) -> ProviderError:
    """Return the error for a success whose body cannot be decoded."""
    is_deep = isinstance(error, RecursionError)
    return build_unusable_error(
        response, "its JSON is nested too deeply" if is_deep else str(error)
    )


def build_unusable_error(response: Response, reason: str) -> ProviderError:
    """Return the error for a success with an invalid body."""
    return inconclusive_error_class(response.method)(
        f"{_call(response)} returned {response.status_code} with an invalid body: {reason}",
        status=response.status_code,
    )


def describe_problem(response: Response) -> str:
    """Return the API's explanation: the text of an RFC 9457 problem, or the start of the body."""
    problem = explanation(response, _problem_decoder) or _Problem()
    text = problem.detail or problem.title
    if not text:
        text = decode_start(
            response.content, MIN_SEARCHED_CHARACTERS + response.secrecy.reach_bytes
        )
    text = redact_start(text, response)
    return " ".join(text[:MAX_DETAIL_CHARACTERS].split()) or "no explanation"


def explanation(response: Response, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    """Decode the body of a refusal; None if it has a different structure or is too long."""
    if len(response.content) > MAX_EXPLANATION_BYTES:
        return None
    try:
        return decoder.decode(response.content)
    except UNDECODABLE:
        return None


def decode_start(content: bytes, characters: int) -> str:
    """Decode at least the first characters of a body of any length."""
    return content[: (characters + 1) * _MAX_UTF8_BYTES].decode(errors="replace")


def redact_start(text: str, response: Response) -> str:
    """Return the start of an API's text without secrets. The text may be megabytes long."""
    # Hide secrets before truncating, because the start of a truncated secret is not recognized.
    return response.secrecy.hide_start(text, MIN_SEARCHED_CHARACTERS)


def retry_after_seconds(response: Response) -> float | None:
    """Return the seconds that ``Retry-After`` requests, even as a date on the API's clock."""
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
