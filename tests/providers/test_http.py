"""Each HTTP call is sent once, over a limited number of connections."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from events.provider_config import Limits, ProviderConfigSpec
from infra.providers.http import HttpApi
from reconciler.errors import (
    ConfigurationError,
    NotDoneError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from tests.providers.permit import Permit

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Sends the next planned response to each request; an empty one closes the connection."""

    def __init__(self) -> None:
        self.planned_responses: list[bytes] = []
        self.keeps_open = False
        self.requests = 0
        self.targets: list[bytes] = []
        self.connections = 0
        self.waiting = asyncio.Event()
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.min_waiting = 1
        self._waiting_count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                self.targets.append(head.split()[1])
                self._waiting_count += 1
                if self._waiting_count >= self.min_waiting:
                    self.waiting.set()
                await self.may_respond.wait()
                response = self.planned_responses.pop(0) if self.planned_responses else OK
                writer.write(response)
                if response != OK and not self.keeps_open:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has disconnected
        finally:
            writer.close()


@asynccontextmanager
async def open_api(
    server: Server, *, concurrency: int = 4, timeout_seconds: float = 10
) -> AsyncGenerator[HttpApi]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        limits = Limits(concurrency=concurrency, request_timeout_seconds=timeout_seconds)
        config = ProviderConfigSpec(
            provider="test", endpoint=f"http://127.0.0.1:{port}/base", limits=limits
        )
        api = HttpApi(config, CallPermit(), secret=None)
        try:
            yield api
        finally:
            await api.close()


async def test_a_connection_is_reused() -> None:
    server = Server()
    async with open_api(server) as api:
        for _ in range(5):
            assert (await api.call("GET", "/x")).content == b"ok"
    assert (server.requests, server.connections) == (5, 1)


async def test_there_are_never_more_connections_than_allowed() -> None:
    server = Server()
    server.may_respond.clear()
    server.min_waiting = 3
    async with open_api(server, concurrency=3) as api:
        calls = [asyncio.create_task(api.call("GET", "/x")) for _ in range(12)]
        await server.waiting.wait()
        server.may_respond.set()
        await asyncio.gather(*calls)
    assert (server.requests, server.connections) == (12, 3)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("first", [[], [OK]], ids=["new connection", "used connection"])
async def test_a_cut_connection_is_reported_and_the_call_is_not_repeated(
    method: str, first: list[bytes]
) -> None:
    server = Server()
    server.planned_responses = [*first, b""]
    async with open_api(server) as api:
        for _ in first:
            await api.call("GET", "/x")
        with pytest.raises(NotDoneError if method == "GET" else UnknownResultError):
            await api.call(method, "/x")
    assert server.requests == len(first) + 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\no",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    ],
)
async def test_a_write_whose_response_is_not_http_has_an_unknown_result(garbage: bytes) -> None:
    server = Server()
    server.planned_responses = [garbage, garbage]
    async with open_api(server) as api:
        with pytest.raises(UnknownResultError):
            await api.call("PUT", "/x", body=None)
        with pytest.raises(NotDoneError):
            await api.call("GET", "/x")


async def test_the_reason_phrase_is_ignored() -> None:
    server = Server()
    server.planned_responses = [b"HTTP/1.1 200 \xff\xfe\r\nContent-Length: 2\r\n\r\nok"]
    async with open_api(server) as api:
        assert (await api.call("GET", "/x")).content == b"ok"


async def test_a_call_to_an_unresolvable_name_was_not_sent() -> None:
    api = HttpApi(
        ProviderConfigSpec(provider="test", endpoint="http://nowhere.invalid"),
        CallPermit(),
        secret=None,
    )
    with pytest.raises(NotDoneError, match="not sent"):
        await api.call("PUT", "/x")
    await api.close()


async def test_a_call_that_times_out_waiting_for_a_connection_was_not_sent() -> None:
    server = Server()
    server.may_respond.clear()
    async with open_api(server, concurrency=1, timeout_seconds=2) as api:
        first = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        with pytest.raises(NotDoneError, match="not sent"):
            await api.call("PUT", "/x")
        with pytest.raises(UnknownResultError):
            await first
        server.may_respond.set()
    assert server.requests == 1


async def test_the_timeout_applies_to_a_slow_response_as_a_whole() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        try:
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = Server()
    server.serve = drip
    async with open_api(server, timeout_seconds=2) as api:
        with pytest.raises(UnknownResultError, match="within 2 s"):
            await api.call("PUT", "/x")


@pytest.mark.parametrize(
    "limits",
    [Limits(concurrency=0), Limits(request_timeout_seconds=0)],
)
def test_limits_that_allow_no_call_are_refused(limits: Limits) -> None:
    config = ProviderConfigSpec(provider="test", endpoint="http://api.example", limits=limits)
    with pytest.raises(ConfigurationError, match=r"spec\.limits"):
        HttpApi(config, CallPermit(), secret=None)


async def test_a_client_can_be_closed_before_it_is_used() -> None:
    async with open_api(Server()):
        pass


async def test_a_call_queued_at_close_is_not_sent() -> None:
    server, permit = Server(), Permit()
    async with open_api(server) as api:
        token = CALL_GATE.set(permit)
        waiting = asyncio.ensure_future(api.call("POST", "/x"))
        CALL_GATE.reset(token)
        await permit.is_requested.wait()
        await api.close()
        permit.is_granted.set()
        with pytest.raises(NotDoneError, match="declared again"):
            await waiting
    assert server.requests == 0


async def test_a_base_path_is_kept_and_the_query_quoted() -> None:
    server = Server()
    async with open_api(server) as api:
        await api.call("GET", "/x", query=[("a", "b c&d")])
        await api.call("GET", "/a%2Fb")
    assert server.targets == [b"/base/x?a=b+c%26d", b"/base/a%2Fb"]


async def test_a_compressed_response_is_read() -> None:
    packed = gzip.compress(b"ok" * 1000)
    server = Server()
    server.planned_responses = [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        + packed
    ]
    async with open_api(server) as api:
        assert (await api.call("GET", "/x")).content == b"ok" * 1000


TIMEOUT_SECONDS = 60


def build_server(*planned_responses: bytes) -> Server:
    """Return a server that sends these responses in order and keeps the connection open."""
    server = Server()
    server.planned_responses, server.keeps_open = list(planned_responses), True
    return server


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    server = Server()
    server.planned_responses = [b"HTTP/1.1 200 OK\r\n\r\nto the end"]
    async with open_api(server) as api:
        assert (await api.call("GET", "/x")).content == b"to the end"


async def test_an_informational_response_is_skipped() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with open_api(build_server(hints + OK)) as api:
        response = await api.call("GET", "/x")
    assert (response.status_code, response.content, "link" in response.headers) == (
        200,
        b"ok",
        False,
    )


async def test_headers_are_case_insensitive_and_repeated_values_are_joined() -> None:
    headers = b"ETag: a\r\nX-More: 1\r\nx-more: 2\r\n"
    async with open_api(build_server(OK.replace(b"\r\n\r\n", b"\r\n" + headers + b"\r\n"))) as api:
        response = await api.call("GET", "/x")
    assert (response.headers["etag"], response.headers.get("X-More")) == ("a", "1, 2")


@pytest.mark.parametrize("more", [OK, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"])
async def test_a_second_response_is_not_used_for_the_next_call(more: bytes) -> None:
    server = build_server(OK + more, OK)
    async with open_api(server) as api:
        for _ in range(2):
            assert (await api.call("GET", "/x")).status_code == 200
    assert server.connections == 2


async def test_a_connection_that_the_server_will_close_is_not_reused() -> None:
    server = build_server(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK)
    async with open_api(server) as api:
        for _ in range(2):
            await api.call("PUT", "/x")
    assert server.connections == 2


async def test_an_old_connection_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = build_server(OK, OK, OK)
    async with open_api(server) as api:
        await api.call("PUT", "/x")
        await api.call("PUT", "/x")
        assert server.connections == 1
    monkeypatch.setattr("infra.providers.http.KEEP_ALIVE_SECONDS", -1.0)
    server = build_server(OK, OK)
    async with open_api(server) as api:
        await api.call("PUT", "/x")
        await api.call("PUT", "/x")
    assert server.connections == 2


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/x", {"If-Match": '"1"\r\nX-Evil: 1'}), ("/x y", {}), ("/x\r\nX-Evil: 1", {}), ("/ä", {})],
)
async def test_a_path_or_header_that_would_forge_a_request_is_not_sent(
    path: str, headers: dict[str, str]
) -> None:
    server = Server()
    async with open_api(server) as api:
        with pytest.raises(RefusedError, match="not sent"):
            await api.call("PUT", path, headers=headers)
    assert server.connections == 0


async def test_a_call_in_flight_at_close_has_an_unknown_result() -> None:
    server = Server()
    server.may_respond.clear()
    async with open_api(server) as api:
        call = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        await api.close()
        with pytest.raises(UnknownResultError):
            await asyncio.wait_for(call, TIMEOUT_SECONDS)
        server.may_respond.set()


async def test_the_response_to_a_canceled_call_is_not_used_for_the_next_call() -> None:
    server = Server()
    server.may_respond.clear()
    async with open_api(server) as api:
        call = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        server.may_respond.set()
        server.planned_responses = [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", OK]
        await api.call("GET", "/x")
    assert server.connections == 2


async def test_a_call_waiting_for_a_connection_at_close_is_not_sent() -> None:
    server = Server()
    server.may_respond.clear()
    async with open_api(server, concurrency=1) as api:
        first = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        second = asyncio.create_task(api.call("PUT", "/x"))
        await asyncio.sleep(0)
        await api.close()
        with pytest.raises(UnknownResultError):
            await first
        with pytest.raises(NotDoneError, match="not sent"):
            await second
        server.may_respond.set()
    assert server.requests == 1
