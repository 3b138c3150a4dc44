"""How API responses are classified and quoted, without any call."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from infra.providers.caddy.admin import build_caddy_error
from infra.providers.docker.engine import build_engine_error
from infra.providers.responses import (
    MAX_DETAIL_CHARACTERS,
    Response,
    build_refusal_error,
    decode_body,
    describe_problem,
    retry_after_seconds,
)
from reconciler.errors import (
    NotDoneError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.secrecy import HIDDEN, Secrecy
from tests.hostile_server import MIB, measure_memory


def build_api_response(
    status: int, body: bytes = b"", *, method: str = "PUT", headers: dict[str, str] | None = None
) -> Response:
    return Response(method, "https://api.example/shapes", status, headers or {}, body)


@pytest.mark.parametrize(
    ("status", "write_error", "read_error"),
    [
        (302, UnknownResultError, NotDoneError),
        (400, RefusedError, RefusedError),
        (401, NotDoneError, NotDoneError),
        (403, NotDoneError, NotDoneError),
        (404, UnknownResultError, NotDoneError),
        (405, RefusedError, RefusedError),
        (408, UnknownResultError, NotDoneError),
        (409, UnknownResultError, RefusedError),
        (410, RefusedError, NotDoneError),
        (412, RefusedError, RefusedError),
        (413, RefusedError, RefusedError),
        (422, RefusedError, RefusedError),
        (425, UnknownResultError, NotDoneError),
        (429, ThrottledError, ThrottledError),
        (500, UnknownResultError, NotDoneError),
        (502, UnknownResultError, NotDoneError),
        (503, UnknownResultError, NotDoneError),
        (504, UnknownResultError, NotDoneError),
        (207, UnknownResultError, NotDoneError),
    ],
)
def test_the_class_of_a_refusal_depends_on_its_status_and_on_read_or_write(
    status: int, write_error: type[ProviderError], read_error: type[ProviderError]
) -> None:
    headers = {"Location": "https://elsewhere.example"} if status == 302 else None
    for method in ("POST", "PUT", "DELETE"):
        error = build_refusal_error(build_api_response(status, method=method, headers=headers))
        assert type(error) is write_error
        assert error.status == status
    assert (
        type(build_refusal_error(build_api_response(status, method="GET", headers=headers)))
        is read_error
    )


def test_a_refusal_with_retry_after_is_retried_at_that_time() -> None:
    for status, expected in ((423, NotDoneError), (409, UnknownResultError)):
        error = build_refusal_error(build_api_response(status, headers={"Retry-After": "3"}))
        assert type(error) is expected
        assert error.retry_after_seconds == 3


def test_a_refusal_names_the_call_and_the_reason() -> None:
    error = build_refusal_error(
        build_api_response(422, b'{"type": "about:blank", "detail": "no such color"}')
    )
    assert str(error) == "PUT https://api.example/shapes returned 422: no such color"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"detail": "long  \\n story", "title": "Short"}', "long story"),
        (b'{"title": "Short"}', "Short"),
        (b'{"detail": 3}', '{"detail": 3}'),
        (b"plain words", "plain words"),
        (b"\xff", "�"),
        (b"[]", "[]"),
        (b"", "no explanation"),
    ],
)
def test_the_apis_error_text_is_extracted(body: bytes, text: str) -> None:
    assert describe_problem(build_api_response(400, body)) == text


def test_the_apis_error_text_is_truncated() -> None:
    assert len(describe_problem(build_api_response(500, b"x" * 1_000_000))) == MAX_DETAIL_CHARACTERS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("-1", None),
        ("soon", None),
        ("9" * 400, None),
        ("", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_apis_clock(
    text: str, seconds: float | None
) -> None:
    headers = {"Retry-After": text, "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert retry_after_seconds(build_api_response(429, headers=headers)) == seconds


def test_without_the_apis_clock_a_date_is_compared_with_ours() -> None:
    past = build_api_response(429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    future = build_api_response(429, headers={"Retry-After": "Wed, 21 Oct 2139 07:28:00 GMT"})
    assert retry_after_seconds(past) == 0.0
    assert (retry_after_seconds(future) or 0.0) > 1e6


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"n": "x"}', b'{"n": 1', b"\xff"])
def test_a_success_that_cannot_be_decoded_proves_nothing(body: bytes) -> None:
    decoder = msgspec.json.Decoder(dict[str, int])
    with pytest.raises(UnknownResultError):
        decode_body(build_api_response(200, body), decoder)
    with pytest.raises(NotDoneError):
        decode_body(build_api_response(200, body, method="GET"), decoder)


@pytest.mark.parametrize("is_json", [True, False])
def test_a_secret_is_hidden_before_a_refusal_is_truncated(is_json: bool) -> None:
    token = "planted&token<7f3a91c2>"
    for visible in range(1, len(token)):
        text = "x" * (MAX_DETAIL_CHARACTERS - visible) + token
        body = msgspec.json.encode({"detail": text}) if is_json else text.encode()
        quoted = describe_problem(
            Response("PUT", "https://api.example", 400, {}, body, Secrecy(token))
        )
        assert quoted == ("x" * (MAX_DETAIL_CHARACTERS - visible) + HIDDEN)[:MAX_DETAIL_CHARACTERS]


@pytest.mark.parametrize("form", ["{}", '{{"detail": "{}"}}'])
def test_a_secret_that_is_longer_than_the_searched_text_is_hidden(form: str) -> None:
    """An API may repeat the beginning of a Base64 keystore, which is still secret."""
    secret = "".join(f"{number:x}Zq" for number in range(20_000))
    response = build_api_response(422, form.format(secret).encode())
    text = describe_problem(msgspec.structs.replace(response, secrecy=Secrecy(secret)))
    assert text == HIDDEN


@pytest.mark.parametrize("form", ["{}", '{{"detail": "{}"}}', "          {}"])
def test_no_part_of_a_secret_that_is_repeated_often_is_quoted(form: str) -> None:
    """Hiding shortens the text, so its end moves into the part that is quoted."""
    secret = "".join(f"{number:x}Zq" for number in range(3_000))
    response = build_api_response(422, form.format(secret * 50).encode())
    text = describe_problem(msgspec.structs.replace(response, secrecy=Secrecy(secret)))
    assert secret[:20] not in text


@pytest.mark.parametrize(
    ("build_error", "field"), [(build_engine_error, "message"), (build_caddy_error, "error")]
)
@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_refusal_of_several_megabytes_uses_little_memory(
    build_error: Callable[[Response], ProviderError], field: str, status: int
) -> None:
    response = build_api_response(status, msgspec.json.encode({field: "ab " * MIB}))
    with measure_memory() as memory:
        error = build_error(response)
    assert "ab ab ab" in error.message
    assert len(error.message) < 20_000
    assert memory.peak_bytes < 16 * MIB
