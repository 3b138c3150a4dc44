"""Check the configured endpoints and credentials of HTTP APIs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote

from yarl import URL

from reconciler.errors import ConfigurationError, RefusedError

_SOCKET = "unix://"
_SEPARATOR: Final = re.compile(r"[/\\]")
_MAX_DECODINGS: Final = 3


def socket_path(endpoint: str) -> str | None:
    """Return the path of a local socket (``unix:///run/api.sock``), or None for a URL.

    Raises ``ConfigurationError`` for a path that is not absolute.
    """
    if not endpoint.startswith(_SOCKET):
        return None
    path = endpoint.removeprefix(_SOCKET)
    if not path.startswith("/") or not path.isprintable():
        raise ConfigurationError(
            f"spec.endpoint: {_quote_endpoint(endpoint)} is not a socket path; use "
            "unix:///PATH/TO/API.sock"
        )
    return path


def check_endpoint(endpoint: str) -> str:
    """Return an endpoint's URL without a trailing slash. Raises ``ConfigurationError``."""
    try:
        url = URL(endpoint) if endpoint.isprintable() else None
    except ValueError:
        url = None
    if url is None:
        raise ConfigurationError(
            f"spec.endpoint: {_quote_endpoint(endpoint)} is not a URL; use http://HOST:PORT or https://HOST"
        )
    if url.user or url.password:
        raise ConfigurationError(
            f"spec.endpoint of {url.host}: the URL must not contain credentials, because the "
            "log keeps it; use spec.credentialsRef"
        )
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigurationError(
            f"spec.endpoint: {_quote_endpoint(endpoint)} is not an HTTP URL; use "
            "http://HOST:PORT or https://HOST"
        )
    if url.query_string or url.fragment:
        raise ConfigurationError(
            f"spec.endpoint of {url.host}: the URL must not have a query (?...) or a fragment "
            "(#...); remove it"
        )
    return str(url).rstrip("/")


def path_segment(external_name: str, name_problem: Callable[[str], str | None]) -> str:
    """Percent-encode a name for use in a path.

    Raises ``RefusedError`` for an invalid name, such as ``..``, which would be a different path.
    """
    problem = name_problem(external_name)
    if problem is not None:
        raise RefusedError(f"invalid name {external_name!r}: {problem}")
    return quote(external_name, safe="")


def changes_path(text: str) -> bool:
    """Return whether a segment would change the path in an API that decodes before it routes.

    Such an API treats an encoded slash as a separator, some also treat a backslash as one, and some
    decode twice. So ``..%2Fadmin`` would leave the collection, and ``a/`` or ``/`` would be a
    collection.
    """
    for _ in range(_MAX_DECODINGS):
        if any(segment in ("", ".", "..") for segment in _SEPARATOR.split(text)):
            return True
        text = unquote(text)
    return False


def authorization(secret: str | None, header: str | None = None) -> dict[str, str]:
    """Return the header for a secret, by default as a bearer token; empty if there is no secret.

    Raises ``ConfigurationError``, which does not quote the secret.
    """
    if secret is None:
        return {}
    token = secret.strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise ConfigurationError(
            f"spec.credentialsRef: the secret is not a valid {header or 'bearer token'}; it "
            "must be printable ASCII without spaces, and not empty"
        )
    if header is not None:
        return {header: token}
    return {"Authorization": f"Bearer {token}"}


def _quote_endpoint(endpoint: str) -> str:
    """Quote an invalid endpoint for a message, unless it may contain a password."""
    return "the value (not shown: it has an @)" if "@" in endpoint else repr(endpoint[:200])
