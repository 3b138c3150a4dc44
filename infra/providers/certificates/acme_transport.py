"""HTTP transport for the ACME library, with the usual connections and limits (ADR 0057).

``requests`` limits neither the size of a body nor the duration of a slow response, which would
occupy a thread of the provider.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse
from yarl import URL

from events.provider_config import Tls
from infra.providers.connections import (
    Connections,
    InvalidResponseError,
    NotSentError,
    Received,
)
from infra.providers.host_guard import HostGuard
from infra.providers.http import encode_request
from infra.providers.trust import build_ssl_context

MAX_RESPONSE_BYTES: Final = 1024 * 1024
"""Limit on a response. A certificate chain is less than 20 KiB long."""

MAX_REDIRECTS: Final = 5

_REPLACED_HEADERS: Final = frozenset({"connection", "accept-encoding", "content-length"})
_TRANSFER_HEADERS: Final = frozenset({"content-encoding", "transfer-encoding", "content-length"})


class ResponseLimitError(requests.RequestException):
    """A response exceeds a limit. The message names the limit."""


class LimitedAdapter(HTTPAdapter):
    """Sends one thread's requests, each on its own connection. Trusts the CAs in a file."""

    def __init__(self, ca_file: Path | None, timeout_seconds: float, guard: HostGuard) -> None:
        self._guard = guard
        self._tls = Tls(ca_file=None if ca_file is None else str(ca_file))
        self._timeout_seconds = timeout_seconds
        self._context: ssl.SSLContext | None = None  # building one takes longer than a request
        super().__init__()

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: object = None,
        verify: object = True,
        cert: object = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request, and read its response before the timeout. Raises ``RequestException``."""
        del stream, timeout, verify, cert, proxies
        try:
            received = asyncio.run(self._exchange(request))
        except ssl.SSLCertVerificationError as error:
            raise requests.exceptions.SSLError(error, request=request) from error
        except NotSentError as error:
            raise requests.ConnectTimeout(error, request=request) from error
        except TimeoutError as error:
            raise requests.ReadTimeout(error, request=request) from error
        except InvalidResponseError as error:
            raise ResponseLimitError(str(error), request=request) from error
        except OSError as error:
            raise requests.ConnectionError(error, request=request) from error
        if len(received.content) > MAX_RESPONSE_BYTES:
            raise ResponseLimitError(
                f"it is longer than {MAX_RESPONSE_BYTES // 1024} KiB", request=request
            )
        headers = {
            name: text for name, text in received.headers.items() if name not in _TRANSFER_HEADERS
        }
        response = HTTPResponse(
            io.BytesIO(received.content),
            headers,
            received.status,
            preload_content=False,
            decode_content=False,
        )
        return self.build_response(request, response)

    async def _exchange(self, request: requests.PreparedRequest) -> Received:
        url = URL(request.url or "")
        if url.raw_host is None or url.port is None or url.scheme not in ("https", "http"):
            raise NotSentError(f"{url} has no host")
        connections = Connections(
            url.raw_host,
            url.port,
            tls=self._build_ssl_context() if url.scheme == "https" else None,
            guard=self._guard,
            max_connections=1,
            connecting_seconds=self._timeout_seconds,
            idle_seconds=0,
        )
        request_headers = cast("Mapping[str, Any]", request.headers)
        headers = {
            name: str(text)
            for name, text in request_headers.items()
            if name.lower() not in _REPLACED_HEADERS
        }
        headers |= {"Host": url.raw_authority, "Accept-Encoding": "gzip", "Connection": "close"}
        body = request.body.encode() if isinstance(request.body, str) else request.body
        encoded_request = encode_request(
            request.method or "GET", url.raw_path_qs, headers, cast("bytes | None", body)
        )
        try:
            return await connections.exchange(encoded_request, self._timeout_seconds)
        finally:
            connections.close()

    def _build_ssl_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = build_ssl_context(self._tls)
        return self._context
