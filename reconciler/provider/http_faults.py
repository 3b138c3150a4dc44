"""Faults between a client and an HTTP API, as test cases (see `reconciler.provider.contract`).

A proxy in front of the real API disrupts individual requests.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from events.provider_config import Scope
from reconciler.errors import (
    NotDoneError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.provider import Provider
from reconciler.provider.contract import (
    BAD_NAMES,
    Connect,
    ContractCase,
    expect,
    listing,
    raises,
    repeat,
    require_object,
)

SHORT_TIMEOUT_SECONDS: Final = 2.0
"""Timeout for responses that never arrive. Half of it must be enough to connect, even on a busy
machine."""

_CLASSES: Final = (
    "classify failures as HttpApi and refusal do: NotDoneError or RefusedError only if nothing was "
    "changed, otherwise UnknownResultError; never put a secret into a message"
)
_COMPLETE: Final = (
    "pages must list everything, or raise NotDoneError if any page fails; all_pages does this"
)
_ONE_CALL: Final = "make each request once; Reconciler retries"
_REPEATED: Final = (
    "a repeated action must recognize its earlier attempt by its key in written_by; NamedObjects "
    "does this"
)
_ABOUT: Final = "compare the name in a response with the requested one; decoded_about does this"
_NAME_FIRST: Final = "refuse an invalid name before any request; NamedObjects does this"
_SECRET: Final = (
    "send the credential, hide it in messages, and name spec.credentialsRef where it is refused; "
    "HttpApi and refusal do this"
)


class Fault(Enum):
    """A fault in one request. A plan may also contain bytes: a response that the API never sent."""

    NONE = auto()
    LOSE_REPLY = auto()  # the API executes it, then the connection is cut
    CUT_REPLY = auto()  # the API executes it, and half of its response arrives
    HOLD_REPLY = auto()  # the API executes it, and nothing arrives until the client gives up


def build_response(status: int, body: str = "", **headers: str) -> bytes:
    """Build an HTTP response."""
    lines = [f"HTTP/1.1 {status} Planned", f"Content-Length: {len(body.encode())}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "Connection: close", "", body]).encode()


@dataclass
class Proxy:
    """Forwards one request per connection to ``upstream``, unless a fault is planned for it.

    Requests with ``exempt_methods`` are always forwarded.
    """

    upstream: str
    exempt_methods: Collection[str] = ()
    plan: deque[Fault | bytes] = field(default_factory=deque[Fault | bytes])
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    heads: list[str] = field(default_factory=list[str])
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen on a port of loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        _class: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """URL of the proxy, with the path of the API behind it."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}{urlsplit(self.upstream).path.rstrip('/')}"

    def methods(self) -> list[str]:
        """Return the methods of all requests."""
        return [method for method, _ in self.requests]

    async def fetch(self, path: str) -> bytes:
        """Read a path of the API, as a response that can be planned."""
        return await self._forward(f"GET {path} HTTP/1.1\r\nHost: test", b"")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, body = await _read_request(reader)
            method, path, _ = head.split(" ", 2)
            self.requests.append((method, path))
            self.heads.append(head)
            await self._apply_fault(head, body, reader, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection, as some plans expect
        finally:
            writer.close()

    async def _apply_fault(
        self, head: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        is_exempt = head.split(" ", 1)[0] in self.exempt_methods
        fault = self.plan.popleft() if self.plan and not is_exempt else Fault.NONE
        if isinstance(fault, bytes):
            writer.write(fault)
            return
        reply = await self._forward(head, body)
        match fault:
            case Fault.NONE:
                writer.write(reply)
            case Fault.CUT_REPLY:
                writer.write(reply[: len(reply) - 5])
            case Fault.HOLD_REPLY:
                await reader.read()
            case Fault.LOSE_REPLY:
                pass

    async def _forward(self, head: str, body: bytes) -> bytes:
        upstream = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(upstream.hostname, upstream.port)
        # Some APIs respond only to requests for their own host name.
        request_line, *lines = _closing(head).split(b"\r\n")
        lines = [line for line in lines if not line.lower().startswith(b"host:")]
        request_head = b"\r\n".join([request_line, f"Host: {upstream.netloc}".encode(), *lines])
        writer.write(request_head + b"\r\n\r\n" + body)
        reply = await reader.read()
        writer.close()
        reply_head, _, reply_body = reply.partition(b"\r\n\r\n")
        return _closing(reply_head.decode("latin-1")) + b"\r\n\r\n" + reply_body


def _closing(head: str) -> bytes:
    """Make a head close its connection, so that no second request uses it."""
    lines = [line for line in head.split("\r\n") if not line.lower().startswith("connection:")]
    return "\r\n".join([*lines, "Connection: close"]).encode("latin-1")


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
    length = 0
    for line in head.split("\r\n"):
        if line.lower().startswith("content-length:"):
            length = int(line.split(":")[1])
    return head, await reader.readexactly(length)


class HttpFaultContract(ContractCase):
    """The contract of a provider when the connection to its HTTP API fails.

    ``secret_header`` is the form in which its requests carry the secret ``s3cr3t``, in lower case.
    """

    pytestmark = pytest.mark.asyncio
    secret_header = "authorization: bearer s3cr3t"

    @pytest_asyncio.fixture
    async def proxy(self, endpoint: str) -> AsyncIterator[Proxy]:
        """A proxy in front of the API."""
        async with Proxy(endpoint) as running:
            yield running

    @pytest.fixture
    def proxied(self, proxy: Proxy, connect: Connect) -> Provider:
        """The provider, connected to its API through the proxy."""
        return connect(proxy.url)

    @pytest.mark.parametrize(
        "fault", [build_response(503), Fault.LOSE_REPLY, Fault.CUT_REPLY, build_response(200, "{")]
    )
    async def test_a_listing_that_fails_before_its_end_raises(
        self, provider: Provider, proxied: Provider, proxy: Proxy, name: str, fault: Fault | bytes
    ) -> None:
        self.needs_listing()
        for number in range(4):
            await self.create_one(provider, f"{name}-{number}")
        scope = Scope(prefix=name)
        expect(len(await listing(proxied, scope, page_size=2)), 4, _COMPLETE)
        requests = len(proxy.requests)
        proxy.plan.extend([*[Fault.NONE] * (requests - 1), fault])

        with raises(NotDoneError, remedy=_COMPLETE):
            await listing(proxied, scope, page_size=2)
        expect(len(proxy.requests), 2 * requests, _ONE_CALL)

    async def test_nothing_is_changed_without_a_connection(
        self, endpoint: str, connect: Connect, name: str
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port = reserved.getsockname()[1]
        unreachable = connect(f"http://127.0.0.1:{port}{urlsplit(endpoint).path}")

        for call in (
            unreachable.create(self.action("Create", name, self.fields)),
            unreachable.update(self.action("Update", name, self.fields)),
            unreachable.delete(self.action("Delete", name)),
            unreachable.read(name),
            *([listing(unreachable, Scope())] if self.kind.lists else []),
        ):
            with raises(NotDoneError, remedy=_CLASSES):
                await call

    async def test_a_read_without_a_timely_response_changes_nothing(
        self, proxy: Proxy, connect: Connect, name: str
    ) -> None:
        impatient = connect(proxy.url, timeout_seconds=SHORT_TIMEOUT_SECONDS)
        proxy.plan.append(Fault.HOLD_REPLY)

        with raises(NotDoneError, remedy=_CLASSES):
            await impatient.read(name)

    async def test_a_write_without_a_timely_response_has_an_unknown_result(
        self, proxy: Proxy, connect: Connect, name: str
    ) -> None:
        impatient = connect(proxy.url, timeout_seconds=SHORT_TIMEOUT_SECONDS)
        proxy.exempt_methods = ("GET",)
        proxy.plan.append(Fault.HOLD_REPLY)

        with raises(UnknownResultError, remedy=_CLASSES):
            await impatient.create(self.action("Create", name, self.fields))

    @pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.CUT_REPLY])
    async def test_a_create_whose_response_was_lost_has_one_effect_when_repeated(
        self, proxied: Provider, proxy: Proxy, name: str, fault: Fault
    ) -> None:
        self.needs("idempotency_keys", "deterministic_names")
        create = self.action("Create", name, self.fields)
        proxy.exempt_methods = ("GET",)
        proxy.plan.append(fault)
        with raises(UnknownResultError, remedy=_CLASSES):
            await proxied.create(create)
        created = await proxied.read(name)

        created = require_object(created)
        second = require_object(await repeat(proxied.create(create)))
        if self.is_as_declared(created, self.fields):
            expect(second, created, _REPEATED)
        expect(second.uid, created.uid, _REPEATED)
        self.check_declared(second, self.fields)
        visible = await self.read_and_list(proxied, name)
        expect(visible, [second] * (1 + self.kind.lists), _REPEATED)

    async def test_an_update_whose_response_was_lost_has_one_effect_when_repeated(
        self, provider: Provider, proxied: Provider, proxy: Proxy, name: str
    ) -> None:
        created = await self.create_one(provider, name)
        update = self.action_on("Update", created, self.other_fields)
        proxy.exempt_methods = ("GET",)
        proxy.plan.append(Fault.LOSE_REPLY)
        with raises(UnknownResultError, remedy=_CLASSES):
            await proxied.update(update)
        updated = await provider.read(name)

        self.check_declared(await repeat(proxied.update(update)), self.other_fields)
        current = await provider.read(name)
        self.check_declared(current, self.other_fields)
        if self.can("idempotency_keys", "conditional_writes"):
            expect(current, updated, _REPEATED)

    async def test_a_deletion_whose_response_was_lost_succeeds_when_repeated(
        self, provider: Provider, proxied: Provider, proxy: Proxy, name: str
    ) -> None:
        delete = self.action_on("Delete", await self.create_one(provider, name))
        proxy.exempt_methods = ("GET",)
        proxy.plan.append(Fault.LOSE_REPLY)
        with raises(UnknownResultError, remedy=_CLASSES):
            await proxied.delete(delete)

        expect((await proxied.delete(delete)).object, None, _REPEATED)
        expect(await provider.read(name), None, _REPEATED)

    @pytest.mark.parametrize(
        ("planned", "error"),
        [
            (build_response(503, Retry_After="7"), UnknownResultError),
            (build_response(429, Retry_After="7"), ThrottledError),
            (build_response(500), UnknownResultError),
            (build_response(502), UnknownResultError),
            (build_response(200, "<html>"), UnknownResultError),
            (build_response(201, "{}"), UnknownResultError),
            (b"not http at all\r\n\r\n", UnknownResultError),
            (build_response(400, '{"detail": "no good"}'), RefusedError),
            (build_response(401), NotDoneError),
            (build_response(403), NotDoneError),
            (build_response(307, Location="http://elsewhere.example/"), UnknownResultError),
        ],
    )
    async def test_the_response_to_a_write_determines_its_error_class(
        self,
        proxied: Provider,
        proxy: Proxy,
        name: str,
        planned: bytes,
        error: type[ProviderError],
    ) -> None:
        proxy.exempt_methods = ("GET",)
        proxy.plan.append(planned)

        with raises(error, remedy=_CLASSES) as raised:
            await proxied.create(self.action("Create", name, self.fields))
        expect(type(raised.value), error, _CLASSES)
        expect(len([each for each in proxy.methods() if each != "GET"]), 1, _ONE_CALL)
        if b"Retry-After" in planned:
            expect(raised.value.retry_after_seconds, 7, _CLASSES)

    async def test_a_response_about_another_object_is_rejected(
        self, provider: Provider, proxied: Provider, proxy: Proxy, name: str
    ) -> None:
        created = await self.create_one(provider, name)
        await proxied.read(name, created.uid)
        requests = len(proxy.requests)
        other_response = await proxy.fetch(proxy.requests[-1][1])
        proxy.plan.extend([*[Fault.NONE] * (requests - 1), other_response])

        with raises(NotDoneError, remedy=_ABOUT):
            await proxied.read(f"{name}-2", created.uid)

    async def test_a_name_that_the_api_does_not_allow_is_never_sent(
        self, proxied: Provider, proxy: Proxy
    ) -> None:
        for name in BAD_NAMES:
            if self.kind.name_problem(name) is None:
                continue
            with raises(RefusedError, remedy=_NAME_FIRST):
                await proxied.delete(self.action("Delete", name))
            with raises(RefusedError, remedy=_NAME_FIRST):
                await proxied.create(self.action("Create", name, self.fields))
        expect(proxy.requests, [], _NAME_FIRST)

    async def test_the_secret_is_sent_but_does_not_appear_in_messages(
        self, proxy: Proxy, connect: Connect, name: str
    ) -> None:
        authorized = connect(proxy.url, secret="s3cr3t\n")
        proxy.plan.append(build_response(401, '{"detail": "the token s3cr3t is out of date"}'))

        with raises(NotDoneError, remedy=_CLASSES) as raised:
            await authorized.create(self.action("Create", name, self.fields))
        expect(self.secret_header in proxy.heads[0].lower(), True, _SECRET)
        expect("s3cr3t" in str(raised.value), False, _SECRET)
        expect("credentialsRef" in str(raised.value), True, _SECRET)
