"""Endpoints and credentials of HTTP APIs: checks of configured values."""

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
            f"spec.endpoint: {_quote_endpoint(endpoint)} is not the path of a socket; use "
            "unix:///PATH/OF/THE.sock"
        )
    return path


def checked_endpoint(endpoint: str) -> str:
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
    """Quote a name for a path. An invalid one must not become another path, such as ..

    Raises ``RefusedError``: no object can have that name.
    """
    problem = name_problem(external_name)
    if problem is not None:
        raise RefusedError(f"invalid name {external_name!r}: {problem}")
    return quote(external_name, safe="")


def leads_elsewhere(text: str) -> bool:
    """Return whether a text would be another path in an API that decodes before it routes.

    Such an API takes an encoded slash for a separator, some take a backslash, and some decode
    twice. So ``..%2Fadmin`` would leave its collection, and ``a/`` or ``/`` would name a
    collection.
    """
    for _ in range(_MAX_DECODINGS):
        if any(segment in ("", ".", "..") for segment in _SEPARATOR.split(text)):
            return True
        text = unquote(text)
    return False


def authorization(secret: str | None, header: str | None = None) -> dict[str, str]:
    """Return the header of a secret, by default that of a bearer token; none without a secret.

    Raises ``ConfigurationError`` without showing the secret.
    """
    if secret is None:
        return {}
    token = secret.strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise ConfigurationError(
            f"spec.credentialsRef: the secret is invalid as {header or 'bearer token'}; it "
            "must be printable ASCII without spaces, and not empty"
        )
    if header is not None:
        return {header: token}
    return {"Authorization": f"Bearer {token}"}


def _quote_endpoint(endpoint: str) -> str:
    """Quote a wrong endpoint for a message, unless it may contain a password."""
    return "the value (not shown: it has an @)" if "@" in endpoint else repr(endpoint[:200])
