"""One call is one call, over as many connections as are allowed."""

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
    """Answers each request with the next of the planned answers; empty: the connection is cut."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.keeps_open = False
        self.requests = 0
        self.targets: list[bytes] = []
        self.connections = 0
        self.waiting = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.wanted_waiting = 1
        self._now_waiting = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                self.targets.append(head.split()[1])
                self._now_waiting += 1
                if self._now_waiting >= self.wanted_waiting:
                    self.waiting.set()
                await self.may_answer.wait()
                answer = self.answers.pop(0) if self.answers else OK
                writer.write(answer)
                if answer != OK and not self.keeps_open:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has disconnected
        finally:
            writer.close()


@asynccontextmanager
async def connected(
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


async def test_a_connection_is_used_again() -> None:
    server = Server()
    async with connected(server) as api:
        for _ in range(5):
            assert (await api.call("GET", "/x")).content == b"ok"
    assert (server.requests, server.connections) == (5, 1)


async def test_there_are_never_more_connections_than_allowed() -> None:
    server = Server()
    server.may_answer.clear()
    server.wanted_waiting = 3
    async with connected(server, concurrency=3) as api:
        calls = [asyncio.create_task(api.call("GET", "/x")) for _ in range(12)]
        await server.waiting.wait()
        server.may_answer.set()
        await asyncio.gather(*calls)
    assert (server.requests, server.connections) == (12, 3)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("first", [[], [OK]], ids=["new connection", "used connection"])
async def test_a_cut_connection_is_reported_and_the_call_not_repeated(
    method: str, first: list[bytes]
) -> None:
    server = Server()
    server.answers = [*first, b""]
    async with connected(server) as api:
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
async def test_what_is_not_http_has_an_unknown_result(garbage: bytes) -> None:
    server = Server()
    server.answers = [garbage, garbage]
    async with connected(server) as api:
        with pytest.raises(UnknownResultError):
            await api.call("PUT", "/x", body=None)
        with pytest.raises(NotDoneError):
            await api.call("GET", "/x")


async def test_the_reason_phrase_has_no_meaning() -> None:
    server = Server()
    server.answers = [b"HTTP/1.1 200 \xff\xfe\r\nContent-Length: 2\r\n\r\nok"]
    async with connected(server) as api:
        assert (await api.call("GET", "/x")).content == b"ok"


async def test_a_name_that_cannot_be_resolved_was_not_called() -> None:
    api = HttpApi(
        ProviderConfigSpec(provider="test", endpoint="http://nowhere.invalid"),
        CallPermit(),
        secret=None,
    )
    with pytest.raises(NotDoneError, match="not sent"):
        await api.call("PUT", "/x")
    await api.close()


async def test_a_call_that_waits_in_vain_for_a_connection_was_not_sent() -> None:
    server = Server()
    server.may_answer.clear()
    async with connected(server, concurrency=1, timeout_seconds=2) as api:
        first = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        with pytest.raises(NotDoneError, match="not sent"):
            await api.call("PUT", "/x")
        with pytest.raises(UnknownResultError):
            await first
        server.may_answer.set()
    assert server.requests == 1


async def test_an_answer_that_drips_is_too_late_as_a_whole() -> None:
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
    async with connected(server, timeout_seconds=2) as api:
        with pytest.raises(UnknownResultError, match="within 2 s"):
            await api.call("PUT", "/x")


@pytest.mark.parametrize(
    "limits",
    [Limits(concurrency=0), Limits(request_timeout_seconds=0)],
)
def test_limits_that_let_nothing_through_are_refused(limits: Limits) -> None:
    config = ProviderConfigSpec(provider="test", endpoint="http://api.example", limits=limits)
    with pytest.raises(ConfigurationError, match=r"spec\.limits"):
        HttpApi(config, CallPermit(), secret=None)


async def test_a_client_can_be_closed_before_it_was_used() -> None:
    async with connected(Server()):
        pass


async def test_a_call_queued_at_close_is_not_made() -> None:
    server, permit = Server(), Permit()
    async with connected(server) as api:
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
    async with connected(server) as api:
        await api.call("GET", "/x", query=[("a", "b c&d")])
        await api.call("GET", "/a%2Fb")
    assert server.targets == [b"/base/x?a=b+c%26d", b"/base/a%2Fb"]


async def test_a_compressed_answer_is_read() -> None:
    packed = gzip.compress(b"ok" * 1000)
    server = Server()
    server.answers = [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        + packed
    ]
    async with connected(server) as api:
        assert (await api.call("GET", "/x")).content == b"ok" * 1000


ENOUGH = 60


def serving(*answers: bytes) -> Server:
    """A server that gives each request of a connection the next of these, and leaves it open."""
    server = Server()
    server.answers, server.keeps_open = list(answers), True
    return server


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    server = Server()
    server.answers = [b"HTTP/1.1 200 OK\r\n\r\nto the end"]
    async with connected(server) as api:
        assert (await api.call("GET", "/x")).content == b"to the end"


async def test_what_the_server_says_before_its_answer_is_none() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with connected(serving(hints + OK)) as api:
        answer = await api.call("GET", "/x")
    assert (answer.status_code, answer.content, "link" in answer.headers) == (200, b"ok", False)


async def test_a_header_is_found_in_upper_and_lower_case_and_joined() -> None:
    headers = b"ETag: a\r\nX-More: 1\r\nx-more: 2\r\n"
    async with connected(serving(OK.replace(b"\r\n\r\n", b"\r\n" + headers + b"\r\n"))) as api:
        answer = await api.call("GET", "/x")
    assert (answer.headers["etag"], answer.headers.get("X-More")) == ("a", "1, 2")


@pytest.mark.parametrize("more", [OK, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"])
async def test_a_second_answer_is_not_the_next_call_s(more: bytes) -> None:
    server = serving(OK + more, OK)
    async with connected(server) as api:
        for _ in range(2):
            assert (await api.call("GET", "/x")).status_code == 200
    assert server.connections == 2


async def test_a_connection_that_the_server_will_close_is_not_used_again() -> None:
    server = serving(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK)
    async with connected(server) as api:
        for _ in range(2):
            await api.call("PUT", "/x")
    assert server.connections == 2


async def test_an_old_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = serving(OK, OK, OK)
    async with connected(server) as api:
        await api.call("PUT", "/x")
        await api.call("PUT", "/x")
        assert server.connections == 1
    monkeypatch.setattr("infra.providers.http.KEEP_ALIVE_SECONDS", -1.0)
    server = serving(OK, OK)
    async with connected(server) as api:
        await api.call("PUT", "/x")
        await api.call("PUT", "/x")
    assert server.connections == 2


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/x", {"If-Match": '"1"\r\nX-Evil: 1'}), ("/x y", {}), ("/x\r\nX-Evil: 1", {}), ("/ä", {})],
)
async def test_what_would_be_another_request_is_not_sent(
    path: str, headers: dict[str, str]
) -> None:
    server = Server()
    async with connected(server) as api:
        with pytest.raises(RefusedError, match="not sent"):
            await api.call("PUT", path, headers=headers)
    assert server.connections == 0


async def test_a_call_under_way_when_it_is_closed_has_an_unknown_result() -> None:
    server = Server()
    server.may_answer.clear()
    async with connected(server) as api:
        calling = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        await api.close()
        with pytest.raises(UnknownResultError):
            await asyncio.wait_for(calling, ENOUGH)
        server.may_answer.set()


async def test_an_abandoned_call_s_answer_is_not_the_next_call_s() -> None:
    server = Server()
    server.may_answer.clear()
    async with connected(server) as api:
        calling = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        server.may_answer.set()
        server.answers = [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", OK]
        await api.call("GET", "/x")
    assert server.connections == 2


async def test_a_call_waiting_for_a_connection_at_close_is_not_made() -> None:
    server = Server()
    server.may_answer.clear()
    async with connected(server, concurrency=1) as api:
        first = asyncio.create_task(api.call("PUT", "/x"))
        await server.waiting.wait()
        second = asyncio.create_task(api.call("PUT", "/x"))
        await asyncio.sleep(0)
        await api.close()
        with pytest.raises(UnknownResultError):
            await first
        with pytest.raises(NotDoneError, match="not sent"):
            await second
        server.may_answer.set()
    assert server.requests == 1
