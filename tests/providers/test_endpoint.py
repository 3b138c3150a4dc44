"""Endpoints and secrets that cannot work are refused before anything is called."""

from __future__ import annotations

import pytest

from infra.providers.endpoint import authorization, changes_path, check_endpoint
from reconciler.errors import ConfigurationError


@pytest.mark.parametrize(
    ("endpoint", "normalized"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("https://api.example/", "https://api.example"),
        ("https://api.example/v2/zones/a/", "https://api.example/v2/zones/a"),
        ("http://[::1]:80/x", "http://[::1]/x"),
    ],
)
def test_an_http_url_is_an_endpoint(endpoint: str, normalized: str) -> None:
    assert check_endpoint(endpoint) == normalized


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "api.example",
        "api.example:80",
        "ftp://api.example",
        "http://",
        "http://:80",
        "http://api.example:port",
        "https://api.example?x=1",
        "https://api.example/#there",
        "http://a\x00b",
    ],
)
def test_anything_else_is_a_configuration_error(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spec\.endpoint"):
        check_endpoint(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["https://me:s3cr3t@api.example", "ftp://me:s3cr3t@api.example", "http://a:s3cr3t@:x"],
)
def test_credentials_in_an_endpoint_are_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_endpoint(endpoint)
    assert "s3cr3t" not in str(caught.value)


def test_a_secret_becomes_a_bearer_token() -> None:
    assert authorization("abc\n") == {"Authorization": "Bearer abc"}
    assert authorization(None) == {}


@pytest.mark.parametrize("secret", ["", " \n", "s3c r3t", "s3c\r\nr3t: x", "s3cr3t-é", "\udcff"])
def test_a_secret_that_cannot_be_a_header_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        authorization(secret)
    assert "s3c" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "/",
        "a/",
        "../secrets/root",
        "..%2fsecrets",
        "%2e%2e%2Fsecrets",
        "%252e%252e",
        "..\\secrets\\root",
        "a%5C..%5Cb",
        "a//b",
    ],
)
def test_a_string_that_an_api_may_decode_to_another_path_is_detected(text: str) -> None:
    assert changes_path(text)


@pytest.mark.parametrize(
    "text", ["a", "a.b", "..a", "projects/x", "100%", "a%2Fb", "é", "...", "a\\b"]
)
def test_any_other_string_stays_one_segment(text: str) -> None:
    assert not changes_path(text)
