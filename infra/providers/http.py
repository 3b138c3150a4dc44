"""One external HTTP API: the client that providers share, which makes each call exactly once."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from http import HTTPStatus

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from events.manifest import Limits, ProviderConfigSpec
from infra.providers.answers import inconclusive, refusal
from infra.providers.endpoint import authorization, checked_endpoint
from reconciler.errors import ConfigurationError, ProviderError, TransientError

KEEP_ALIVE_SECONDS = 3.0
"""Less than the five seconds after which many servers close an idle connection: a call that meets
the closing has an unknown result."""

CONNECTING_SHARE = 0.5
"""How much of a call's time may pass until there is a connection: a call that fails so early is
known not to have been sent."""

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "reconciler"}

Query = Sequence[tuple[str, str]]

_NOTHING_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class _ConnectionCutError(aiohttp.ClientConnectionError):
    """The connection ended before the answer was there."""


class HttpApi:
    """A client of the API at a ``ProviderConfig``'s endpoint; opens no connection until it is used.

    It keeps at most ``limits.concurrency`` connections, and a call with its answer takes at most
    ``limits.request_timeout_seconds``. It never repeats a call and never follows a redirect.
    """

    def __init__(self, config: ProviderConfigSpec, *, secret: str | None) -> None:
        self.endpoint = checked_endpoint(config.endpoint)
        _check_limits(config.limits)
        self._headers = {**_HEADERS, **authorization(secret)}
        self._token = secret.strip().encode() if secret is not None else None
        self._timeout_seconds = config.limits.request_timeout_seconds
        self._extensions = {"timeout": _connecting(self._timeout_seconds)}
        self._transport = _transport(config.limits.concurrency)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> httpx.Response:
        """Make one call and give the whole answer, whatever its status.

        Raises ``TransientError`` if nothing was sent, or if a read was not answered; and
        ``UnknownResultError`` if a write was not answered.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._exchange(
                    httpx.Request(
                        method,
                        _url(self.endpoint + path),
                        params=list(query) or None,
                        headers={**self._headers, **(headers or {})},
                        content=body,
                        extensions=self._extensions,
                    )
                )
        except TimeoutError as error:
            why = f"no answer within {self._timeout_seconds:g} s"
            raise inconclusive(method)(f"{method} {self.endpoint}{path}: {why}") from error
        # ValueError: what the libraries raise for some answers that are not HTTP.
        except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError) as error:
            raise self._no_answer(method, path, error) from error
        return response if response.is_success else self._without_secret(response)

    async def find(self, path: str) -> httpx.Response | None:
        """Read one object; None if the API says that there is none. Other refusals are raised."""
        response = await self.call("GET", path)
        if response.status_code == HTTPStatus.NOT_FOUND:
            return None
        if response.status_code != HTTPStatus.OK:
            raise refusal(response)
        return response

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def _exchange(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read the whole answer.

        Straight through the transport: a client adds cookies, redirects and authentication schemes,
        none of them used here, and takes as much time as everything else.
        """
        response = await self._transport.handle_async_request(request)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response

    def _without_secret(self, response: httpx.Response) -> httpx.Response:
        """Hide the token in a refusal's text: it goes into messages, and some APIs repeat it."""
        if self._token is None or self._token not in response.content:
            return response
        # The headers about the content (its length, its encoding) would not be true any more.
        headers = [
            (name, value)
            for name, value in response.headers.multi_items()
            if not name.startswith("content-")
        ]
        return httpx.Response(
            response.status_code,
            headers=headers,
            content=response.content.replace(self._token, b"***"),
            request=response.request,
        )

    def _no_answer(self, method: str, path: str, error: Exception) -> ProviderError:
        # httpx's class says nothing here: its transport calls a cut connection a connect timeout.
        cause = error.__cause__ or error
        call = f"{method} {self.endpoint}{path}"
        if isinstance(cause, _NOTHING_SENT):
            return TransientError(f"{call}: not sent, no connection: {_words(cause)}")
        return inconclusive(method)(f"{call}: no usable answer: {_words(cause)}")


@lru_cache(maxsize=256)
def _url(text: str) -> httpx.URL:
    """Parse a URL once: collections are called again and again, and parsing costs 27 µs."""
    return httpx.URL(text)


def _check_limits(limits: Limits) -> None:
    if limits.concurrency < 1:
        raise ConfigurationError(
            f"spec.limits.concurrency: {limits.concurrency} is not allowed: give at least 1"
        )
    if not 0 < limits.request_timeout_seconds < math.inf:
        raise ConfigurationError(
            f"spec.limits.requestTimeoutSeconds: {limits.request_timeout_seconds} is not allowed:"
            " give more than 0"
        )


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _connecting(timeout_seconds: float) -> dict[str, float]:
    seconds = timeout_seconds * CONNECTING_SHARE
    return {"connect": seconds, "pool": seconds}


def _transport(concurrency: int) -> AiohttpTransport:
    context = httpx.create_ssl_context()
    return AiohttpTransport(verify=context, client=partial(_open_session, context, concurrency))


def _open_session(context: ssl.SSLContext, concurrency: int) -> aiohttp.ClientSession:
    """Open the pool; the transport asks for it at the first call, inside the event loop."""
    connector = aiohttp.TCPConnector(
        limit=concurrency, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=context
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), middlewares=(_call_once,)
    )


async def _call_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a GET, PUT or DELETE again when its connection is cut.

    It does so by itself for these two classes, and knows nothing of preconditions: the second PUT
    would be refused because of the first.
    """
    try:
        response = await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionCutError(_words(error)) from error
    # Nobody reads the phrase, and one that is not UTF-8 makes the transport lose the connection.
    response.reason = None
    return response
