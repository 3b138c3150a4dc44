"""The HTTP client that providers share. It never repeats a call."""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlencode

from yarl import URL

from events.provider_config import Limits, ProviderConfigSpec
from infra.providers.connections import (
    Connections,
    IncompleteResponseError,
    InvalidResponseError,
    NotSentError,
    Received,
)
from infra.providers.endpoint import authorization, check_endpoint, socket_path
from infra.providers.host_guard import HostGuard
from infra.providers.responses import Response, build_refusal_error, is_read
from infra.providers.trust import build_ssl_context, certificate_problem
from reconciler.errors import (
    ConfigurationError,
    NotDoneError,
    RefusedError,
    UnknownResultError,
    UntrustedApiError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.response_budget import MemoryLimitError, take_memory
from reconciler.secrecy import Secrecy

KEEP_ALIVE_SECONDS = 3.0
"""Less than the five seconds after which many servers close an idle connection, because a call sent
while the server is closing the connection has an unknown result."""

CONNECTING_FRACTION = 0.5
"""Fraction of a call's timeout for connecting. A call that fails to connect was not sent."""

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "reconciler"}

MAX_TARGET_CHARACTERS = 64 * 1024
"""Limit on the path and query of a request, because encoding 30 MiB takes seconds."""

_SOCKET_URL = URL("http://localhost")

_REDIRECTED = 300
_METHODS_WITHOUT_BODY = frozenset({"GET", "DELETE"})

Query = Sequence[tuple[str, str]]


class HttpApi:
    """A client of the API at a ``ProviderConfig``'s endpoint. It connects on first use.

    It opens at most ``limits.concurrency`` connections. A call with its response takes at most
    ``limits.request_timeout_seconds``. It never repeats a call and never follows a redirect.
    ``accepts_sockets`` also allows an endpoint like ``unix:///PATH``. ``secret_header`` names the
    header for a secret that is not a bearer token. ``secrecy`` hides secrets in quoted responses.
    """

    def __init__(
        self,
        config: ProviderConfigSpec,
        permit: CallPermit,
        *,
        secret: str | None,
        secrecy: Secrecy | None = None,
        accepts_sockets: bool = False,
        secret_header: str | None = None,
    ) -> None:
        path = socket_path(config.endpoint) if accepts_sockets else None
        self.endpoint = check_endpoint(config.endpoint) if path is None else config.endpoint
        _check_limits(config.limits)
        url = URL(self.endpoint) if path is None else _SOCKET_URL
        assert url.raw_host is not None
        assert url.port is not None
        self._base_path = url.raw_path.rstrip("/")
        self._headers = {
            "Host": url.raw_authority,
            **_HEADERS,
            **authorization(secret, secret_header),
        }
        self._secrecy = secrecy or Secrecy(secret)
        self._timeout_seconds = config.limits.request_timeout_seconds
        needs_trust = config.tls is not None or url.scheme == "https"
        tls = build_ssl_context(config.tls) if needs_trust else None
        self._connections = Connections(
            url.raw_host,
            url.port,
            socket_path=path,
            tls=tls if url.scheme == "https" else None,
            guard=HostGuard(config.allow, is_configured=True),
            max_connections=config.limits.concurrency,
            connecting_seconds=self._timeout_seconds * CONNECTING_FRACTION,
            idle_seconds=KEEP_ALIVE_SECONDS,
        )
        self._permit = permit
        self._is_closed = False

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        read_at: float | None = None,
        writes: bool | None = None,
    ) -> Response:
        """Make one call and return the complete response, whatever its status.

        ``read_at``: time of the read on which the call relies, from ``time.monotonic`` (see
        ``CallPermit``). ``writes``: whether the call changes anything; by default, this depends on
        the method.

        Raises ``NotDoneError`` if nothing was sent or a read got no response, and
        ``UnknownResultError`` if a write got no response.
        """
        if writes is None:
            writes = not is_read(method)
        size = len(path)
        if query:
            size += sum(len(name) + len(value) for name, value in query)
        if size > MAX_TARGET_CHARACTERS:
            raise RefusedError(
                f"{method} {self.endpoint}: not sent, because its path and query have {size} "
                f"characters, but at most {MAX_TARGET_CHARACTERS} are allowed"
            )
        await self._permit.before_request(read_at=read_at)
        url = self.endpoint + path
        if self._is_closed:
            raise NotDoneError(
                f"{method} {url}: not sent, because its ProviderConfig was declared again"
            )
        request = encode_request(
            method, self._target(path, query), {**self._headers, **(headers or {})}, body
        )
        try:
            received = await self._connections.exchange(
                request, self._timeout_seconds, self._permit.record_status
            )
            _take_memory(received)
        except ssl.SSLCertVerificationError as error:
            raise UntrustedApiError(
                f"{method} {url}: not sent, because its certificate is not trusted: "
                f"{certificate_problem(error)}"
            ) from error
        except NotSentError as error:
            raise NotDoneError(
                f"{method} {url}: not sent, because there is no connection: {error}"
            ) from error
        except (OSError, IncompleteResponseError) as error:
            is_late = isinstance(error, TimeoutError)
            reason = (
                f"no response within {self._timeout_seconds:g} s"
                if is_late
                else f"invalid response: {error}"
            )
            status = error.status if isinstance(error, IncompleteResponseError) else None
            raise self._failure_class(writes=writes)(
                f"{method} {url}: {reason}", status=status
            ) from error
        if writes and received.status < _REDIRECTED:
            self._permit.record_write()
        return Response(
            method, url, received.status, received.headers, received.content, self._secrecy
        )

    async def find(self, path: str, *, confirm: Callable[[], Awaitable[object]]) -> Response | None:
        """Read one object; None if the API reports that it does not exist.

        Raises for any other refusal. ``confirm`` reads the collection, and raises if that does not
        exist either. In that case, the 404 comes from an incorrect endpoint or a gateway, and does
        not prove that the object is missing.
        """
        response = await self.call("GET", path)
        if response.status_code == HTTPStatus.NOT_FOUND:
            await confirm()
            return None
        if response.status_code != HTTPStatus.OK:
            raise build_refusal_error(response)
        return response

    async def close(self) -> None:
        """Close all connections. Calls that are still waiting for permission are not sent."""
        self._is_closed = True
        self._connections.close()

    def _failure_class(self, *, writes: bool) -> type[NotDoneError | UnknownResultError]:
        """Return the error class for a call that was sent but got no valid response."""
        if writes:
            self._permit.record_write()
        return UnknownResultError if writes else NotDoneError

    def _target(self, path: str, query: Query) -> str:
        target = f"{self._base_path}{path}" or "/"
        return f"{target}?{urlencode(query)}" if query else target


def _take_memory(received: Received) -> None:
    try:
        take_memory(received.content)
    except MemoryLimitError as error:
        invalid = InvalidResponseError(str(error))
        invalid.status = received.status
        raise invalid from None


def _check_limits(limits: Limits) -> None:
    if limits.concurrency < 1:
        raise ConfigurationError(
            f"spec.limits.concurrency: {limits.concurrency} must be at least 1"
        )
    if not 0 < limits.request_timeout_seconds < math.inf:
        raise ConfigurationError(
            f"spec.limits.requestTimeoutSeconds: {limits.request_timeout_seconds} must be "
            "greater than 0"
        )


def encode_request(
    method: str, target: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """Encode a request.

    Raises ``RefusedError`` for characters that would turn it into a different request.
    """
    if not (target.isascii() and target.isprintable()) or " " in target:
        raise RefusedError(
            f"{method} {target!r}: not sent, because its path is not percent-encoded"
        )
    if not "".join(headers.values()).isprintable():
        name = next(each for each, value in headers.items() if not value.isprintable())
        raise RefusedError(
            f"{method} {target}: not sent, because header {name} is not printable: "
            f"{headers[name]!r}"
        )
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None or method not in _METHODS_WITHOUT_BODY:
        lines.append(f"Content-Length: {len(body or b'')}")
    return "\r\n".join([*lines, "\r\n"]).encode() + (body or b"")
