"""One external HTTP API: the client that providers share, which makes each call exactly once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from events.manifest import Limits, ProviderConfigSpec
from infra.providers.answers import Answer, inconclusive, refusal
from infra.providers.endpoint import authorization, checked_endpoint
from infra.providers.trust import certificate_problem, trusting
from reconciler.call_permit import may_call
from reconciler.errors import ConfigurationError, TransientError, UntrustedApiError
from reconciler.secrecy import Secrecy

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
        self._secrecy = Secrecy(secret)
        self._timeout_seconds = config.limits.request_timeout_seconds
        self._connections = config.limits.concurrency
        needs_trust = config.tls is not None or self.endpoint.startswith("https:")
        self._ssl = trusting(config.tls) if needs_trust else True
        self._session: aiohttp.ClientSession | None = None
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
    ) -> Answer:
        """Make one call and give the whole answer, whatever its status.

        ``read_at``: when what it relies on was read, by ``time.monotonic``; see ``may_call``.

        Raises ``TransientError`` if nothing was sent, or if a read was not answered; and
        ``UnknownResultError`` if a write was not answered.
        """
        await may_call(read_at=read_at)
        url = self.endpoint + path
        if self._is_closed:
            raise TransientError(f"{method} {url}: not sent, its ProviderConfig was declared anew")
        target = f"{url}?{urlencode(query)}" if query else url
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._exchange(method, url, target, headers or {}, body)
        except aiohttp.ClientConnectorCertificateError as error:
            raise UntrustedApiError(
                f"{method} {url}: not sent, its certificate is not trusted: "
                f"{certificate_problem(error)}"
            ) from error
        except _NOTHING_SENT as error:
            raise TransientError(
                f"{method} {url}: not sent, no connection: {_words(error)}"
            ) from error
        except TimeoutError as error:
            why = f"no answer within {self._timeout_seconds:g} s"
            raise inconclusive(method)(f"{method} {url}: {why}") from error
        # ValueError: what the library raises for some answers that are not HTTP.
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise inconclusive(method)(
                f"{method} {url}: no usable answer: {_words(error)}"
            ) from error
        return self._without_secret(answer)

    async def find(self, path: str, *, confirm: Callable[[], Awaitable[object]]) -> Answer | None:
        """Read one object; None if the API says that there is none. Other refusals are raised.

        ``confirm`` asks for the collection, and raises if that is not there either: then 404 comes
        from a wrong endpoint or from a gateway, and says nothing about the object.
        """
        answer = await self.call("GET", path)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            await confirm()
            return None
        if answer.status_code != HTTPStatus.OK:
            raise refusal(answer)
        return answer

    async def close(self) -> None:
        """Close all connections; who still waits for his turn calls nothing any more."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    async def _exchange(
        self, method: str, url: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Send a request and read the whole answer."""
        async with self._opened().request(
            method,
            URL(target, encoded=True),
            headers={**self._headers, **headers},
            data=body,
            allow_redirects=False,
        ) as response:
            content = await response.read()
            return Answer(method, url, response.status, response.headers, content)

    def _opened(self) -> aiohttp.ClientSession:
        """Open the pool at the first call, inside the event loop."""
        if self._session is None:
            seconds = self._timeout_seconds * CONNECTING_SHARE
            connector = aiohttp.TCPConnector(
                limit=self._connections, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=self._ssl
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_call_once,),
                timeout=aiohttp.ClientTimeout(connect=seconds, sock_connect=seconds),
            )
        return self._session

    def _without_secret(self, answer: Answer) -> Answer:
        """Hide the secret in an answer: some APIs repeat it, and answers go into the log."""
        content = self._secrecy.hide_in_bytes(answer.content)
        return answer if content is answer.content else replace(answer, content=content)


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


async def _call_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a GET, PUT or DELETE again when its connection is cut.

    It does so by itself for these two classes, and knows nothing of preconditions: the second PUT
    would be refused because of the first.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionCutError(_words(error)) from error
