import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import uvloop
from nats.aio.client import Client, ServerVersion

from infra.embedded import EmbeddedServer
from infra.jetstream import connection
from infra.jetstream.connection import api_request, connect, leave_server, require_jetstream
from infra.jetstream.errors import (
    BusAccessError,
    BusUnavailableError,
    IncompatibleServerError,
    NotFoundOnBusError,
)
from infra.jetstream.parser import Incoming
from infra.jetstream.publish import publish
from infra.jetstream.topology import ensure_stream
from infra.jetstream.wire import (
    ApiError,
    BusErrors,
    LossTolerantTransport,
    request,
    subscribe,
    to_bus_error,
    write,
)
from tests.faults.tcp_proxy import proxied
from tests.jetstream.conftest import Connect
from tests.jetstream.helpers import until


async def test_an_unreachable_server_is_an_error() -> None:
    with pytest.raises(BusUnavailableError, match=r"cannot reach nats://127.0.0.1:1: .*running"):
        await connect("nats://127.0.0.1:1", name="test", timeout_seconds=0.3)


@pytest.fixture
async def silent_url() -> AsyncIterator[str]:
    """Run a server that accepts connections and never responds; yield its URL."""

    async def never_respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never_respond, "127.0.0.1", 0) as listening:
        yield f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_each_server_gets_its_share_of_the_time_before_the_first_connection(
    nats_server: EmbeddedServer, silent_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_order(_servers: object) -> None: ...

    monkeypatch.setattr("nats.aio.client.shuffle", keep_order)
    nc = await connect(
        f"{silent_url},{silent_url},{nats_server.url}", name="test", timeout_seconds=1.5
    )
    await nc.close()


async def test_each_of_several_servers_is_named_with_its_problem(silent_url: str) -> None:
    with pytest.raises(BusUnavailableError) as caught:
        await connect(f"{silent_url},nats://127.0.0.1:1", name="test", timeout_seconds=1.0)
    text = str(caught.value)
    assert text.startswith("cannot reach any server in the cluster: ")
    assert f"{silent_url.removeprefix('nats://')} (no response)" in text
    assert "127.0.0.1:1 (Connection refused)" in text
    assert text.endswith("; check that the servers are running")


async def test_a_server_at_its_connection_limit_is_named_in_the_error(tmp_path: Path) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path, extra_config="max_connections: 1")
    nc = await connect(server.url, name="first")
    for url in (server.url, f"{server.url},nats://127.0.0.1:1"):
        with pytest.raises(BusUnavailableError, match="maximum connections exceeded") as caught:
            await connect(url, name="test", timeout_seconds=1.0)
        assert "raise the server's max_connections" in str(caught.value)
        assert "check that" not in str(caught.value)
    await nc.close()
    await server.stop()


async def test_a_dropped_connection_does_not_hide_the_servers_error() -> None:
    lines = [b"-ERR 'maximum connections exceeded'\r\n"]

    async def refuse_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {}\r\n" + (lines.pop() if lines else b""))
        await reader.readline()
        writer.transport.abort()

    async with await asyncio.start_server(refuse_once, "127.0.0.1", 0) as listening:
        url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        with pytest.raises(BusUnavailableError, match="raise the server's max_connections"):
            await connect(url, name="test", timeout_seconds=1.0)


async def test_the_first_connection_waits_for_the_server(tmp_path: Path) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path)
    await server.stop()
    await server.start(tmp_path, port=server.port)
    nc = await connect(server.url, name="test")
    await nc.close()
    await server.stop()


async def test_wrong_credentials_fail_immediately(tmp_path: Path) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path, extra_config="authorization { user: u, password: p }")
    try:
        with pytest.raises(BusAccessError, match="Authorization"):
            await connect(server.url, name="test", timeout_seconds=20)
        nc = await connect(server.url.replace("//", "//u:p@"), name="test")
        await nc.close()
    finally:
        await server.stop()


USERS = (
    "authorization { timeout: 60, users: [ { user: u, password: p }, { user: v, password: %s } ] }"
)


async def test_a_client_that_connects_during_a_reload_is_accepted(tmp_path: Path) -> None:
    """Until the server has read a client's identity, a reload treats the client as unknown."""
    server = EmbeddedServer()
    await server.start(tmp_path, extra_config=f"debug: true\n{USERS % 'old'}")
    connections = _logged(server, "Client connection created")
    async with proxied(server.port) as proxy:
        proxy.held = {"to server"}  # connected, but not authenticated yet
        connect_task = asyncio.ensure_future(
            connect(proxy.url.replace("//", "//u:p@"), name="test", timeout_seconds=60)
        )
        await _until_logged(server, "Client connection created", connections + 1)
        config = server.data_dir / "nats.conf"
        config.write_text(config.read_text().replace(USERS % "old", USERS % "new"))
        os.kill(server.pid, signal.SIGHUP)
        await _until_logged(server, "authentication error", 1)
        proxy.heal()
        nc = await connect_task
        assert nc.is_connected
        await nc.close()
    await server.stop()


async def test_a_client_that_authenticates_too_slowly_retries(tmp_path: Path) -> None:
    """On a busy machine, the server's timeout does not mean that the key is wrong."""
    server = EmbeddedServer()
    users = (USERS % "p").replace("60", "0.1")
    await server.start(tmp_path, extra_config=f"debug: true\n{users}")
    async with proxied(server.port) as proxy:
        proxy.held = {"to server"}
        connect_task = asyncio.ensure_future(
            connect(proxy.url.replace("//", "//u:p@"), name="test", timeout_seconds=60)
        )
        await _until_logged(server, "Authentication Timeout", 5)
        proxy.heal()
        nc = await connect_task
        assert nc.is_connected
        await nc.close()
    await server.stop()


def _logged(server: EmbeddedServer, text: str) -> int:
    return (server.data_dir / "nats.log").read_text().count(text)


async def _until_logged(server: EmbeddedServer, text: str, times: int) -> None:
    async def is_logged() -> bool:
        return _logged(server, text) >= times

    await until(is_logged)


async def test_a_new_enough_server_is_accepted(nc: Client) -> None:
    version = await require_jetstream(nc)
    assert (version.major, version.minor) >= (2, 12)


async def test_an_old_server_is_refused(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    old_version = property(lambda _: ServerVersion("2.11.4"))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(Client, "connected_server_version", old_version)
    with pytest.raises(IncompatibleServerError, match=r"2\.11\.4.*2\.14"):
        await require_jetstream(nc)


async def test_a_server_that_accepts_only_short_messages_is_refused(
    nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and rows would not fit; their retries would delay those of all tenants."""
    limited_info = property(lambda _: 1024 * 1024 - 1)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(Client, "max_payload", limited_info)
    with pytest.raises(IncompatibleServerError, match=r"1048575 bytes.*max_payload"):
        await require_jetstream(nc)


async def test_the_error_for_a_silent_cluster_mentions_an_election(
    nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_response(*_: object) -> None:
        raise BusUnavailableError("request to $JS.API.INFO: no response before the timeout")

    monkeypatch.setattr(connection, "api_request", no_response)
    monkeypatch.setattr(connection, "is_clustered", bool)
    with pytest.raises(
        BusUnavailableError, match=r"takes about 10 seconds.*more than half"
    ) as raised:
        await require_jetstream(nc)
    assert str(raised.value).startswith("JetStream does not respond at 127.0.0.1:")


def test_the_error_without_a_leader_mentions_an_election_before_stopped_servers() -> None:
    error = to_bus_error(ApiError(503, 10008, "JetStream system temporarily unavailable"), "INFO")
    assert isinstance(error, BusUnavailableError)
    assert "retry in 10 seconds" in str(error)
    assert "more than half of its servers are running and can reach each other" in str(error)


@pytest.fixture
async def server_without_jetstream(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    await server.start(tmp_path / "off", extra_config="jetstream: false")
    yield server
    await server.stop()


async def test_a_server_without_jetstream_is_refused(
    server_without_jetstream: EmbeddedServer, connect_client: Connect
) -> None:
    with pytest.raises(IncompatibleServerError, match="-js"):
        await require_jetstream(await connect_client(server_without_jetstream))


async def test_an_unknown_stream_is_a_not_found_error(nc: Client, unique: str) -> None:
    with pytest.raises(NotFoundOnBusError, match="stream not found"):
        await api_request(nc, f"STREAM.INFO.{unique}", None)


async def test_a_connection_outlives_its_server(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    nc = await connect_client(own_server)
    await ensure_stream(nc, {"name": "S", "subjects": ["s.>"]})
    await own_server.kill()

    async def fails() -> bool:
        try:
            await publish(nc, "s.a", b"", timeout=0.2)
        except BusUnavailableError:
            return True
        return False

    await until(fails)
    await own_server.start(own_server.data_dir, port=own_server.port)

    async def is_working() -> bool:
        return not await fails()

    await until(is_working)


def _never_respond(message: Incoming) -> None:
    """Subscribe, so that the request is not refused for lack of responders."""


async def test_a_lost_connection_ends_pending_requests(tmp_path: Path) -> None:
    server = EmbeddedServer()
    url = await server.start(tmp_path)
    client = await connect(url, name="waiting")
    await subscribe(client, "silent", _never_respond)
    pending = asyncio.ensure_future(request(client, "silent", b"", timeout=60))
    await client.flush()
    await server.kill()
    with pytest.raises(BusUnavailableError, match="reconnecting"):
        await asyncio.wait_for(pending, 50)
    await client.close()


async def test_a_connection_that_receives_nothing_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As if a reload of the server had removed the subscriptions of this connection."""
    caplog.set_level(logging.WARNING)
    server = EmbeddedServer()
    url = await server.start(tmp_path)
    client = await connect(url, name="deaf")
    await api_request(client, "INFO", None)
    all_sids = range(1, 10)
    await write(client, [f"UNSUB {sid}\r\n".encode() for sid in all_sids], "forget")
    with pytest.raises(BusUnavailableError, match="no response before the timeout"):
        await api_request(client, "INFO", None, timeout=0.3)

    await until(lambda: is_responding(client))
    warning = f"no response, but a second connection to 127.0.0.1:{server.port} works; reconnecting"
    assert warning in caplog.text
    assert client.stats["reconnects"] == 1
    await client.close()
    await server.stop()


async def test_a_second_connection_goes_to_another_server(nats_server: EmbeddedServer) -> None:
    client = await connect(nats_server.url, name="test")
    own_url = f"nats://127.0.0.1:{nats_server.port}"
    others = ["tls://user:secret@b:4222", "c:4222"]
    assert connection.other_servers([own_url], client) == own_url
    assert connection.other_servers([own_url, *others], client) == ",".join(others)
    await client.close()


async def test_a_paused_server_does_not_cause_reconnections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(connection, "_CHECK_SECONDS", 0.5)  # three unanswered pings take 15 s
    server = EmbeddedServer()
    url = await server.start(tmp_path)
    client = await connect(url, name="patient")
    server.pause()

    async def has_checked() -> bool:
        with contextlib.suppress(BusUnavailableError):
            await api_request(client, "INFO", None, timeout=0.1)
        return "no response, and another connection could not be opened" in caplog.text

    await until(has_checked)
    server.resume()
    await api_request(client, "INFO", None, timeout=60)
    assert client.stats["reconnects"] == 0
    assert caplog.text.count("no response, and") == 1  # the next check follows some seconds later
    await client.close()
    await server.stop()


async def test_a_reconnection_that_fails_unexpectedly_is_retried(
    own_server: EmbeddedServer, connect_client: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    nc = await connect_client(own_server)
    failures = [RuntimeError("another coroutine is already waiting for incoming data")]
    readline = LossTolerantTransport.readline

    async def fail_once(self: LossTolerantTransport) -> bytes:
        if failures:
            raise failures.pop()
        return await readline(self)

    monkeypatch.setattr(LossTolerantTransport, "readline", fail_once)
    await nc.force_reconnect()
    await until(lambda: is_responding(nc))
    assert not failures


async def test_a_connection_is_usable_as_soon_as_it_has_left_its_server(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    nc = await connect_client(own_server)
    await leave_server(nc)
    assert nc.stats["reconnects"] == 1
    await require_jetstream(nc)


async def test_a_reconnection_that_fails_late_does_not_leave_a_reader_behind(
    own_server: EmbeddedServer, connect_client: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two readers of a socket, one fails or takes the other's response."""
    nc = await connect_client(own_server)
    failures = [nats.errors.FlushTimeoutError()]
    flush = Client.flush

    async def fail_once(self: Client) -> None:
        if failures:
            raise failures.pop()
        await flush(self)

    monkeypatch.setattr(Client, "flush", fail_once)
    await nc.force_reconnect()
    await until(lambda: is_responding(nc))
    assert not failures
    tasks = [str(task.get_coro()) for task in asyncio.all_tasks()]
    for each in ("_read_loop", "_ping_interval", "_flusher"):
        assert sum(f"Client.{each}" in task for task in tasks) == 1, each


async def test_a_connection_closes_after_another_wait_for_its_end_was_canceled(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    nc = await connect_client(own_server)
    transport: LossTolerantTransport = nc.__dict__["_transport"]
    pending_wait = asyncio.create_task(transport.wait_closed())
    await asyncio.sleep(0)
    pending_wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending_wait
    await nc.close()


def test_a_send_on_a_broken_connection_is_repeated_or_fails_with_our_error(
    tmp_path: Path,
) -> None:
    """uvloop raises `RuntimeError` where asyncio's own transport drops the bytes."""

    async def scenario() -> None:
        server = EmbeddedServer()
        await server.start(tmp_path)
        nc = await connect(server.url, name="test")
        for _ in range(5):
            abort_transport(nc)
            await asyncio.gather(*(flush_at_turn(nc, turn) for turn in range(10)))
            await until(lambda: is_responding(nc))
        await nc.close()
        await server.stop()

    uvloop.run(scenario())


async def flush_at_turn(nc: Client, turn: int) -> None:
    """Flush after ``turn`` turns of the event loop, in which the reader detects the loss."""
    for _ in range(turn):
        await asyncio.sleep(0)
    with contextlib.suppress(BusUnavailableError), BusErrors("flush"):
        await nc.flush(1)


def abort_transport(nc: Client) -> None:
    transport: LossTolerantTransport = nc.__dict__["_transport"]
    transport.__dict__["_io_writer"].transport.abort()


async def is_responding(nc: Client) -> bool:
    """Return whether JetStream responds within a second."""
    try:
        await api_request(nc, "INFO", None, timeout=1)
    except BusUnavailableError:
        return False
    return True


async def test_a_flush_covers_the_commands_sent_before_it(
    nc: Client, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[bytes] = []
    transport: Any = nc._transport  # pyright: ignore[reportPrivateUsage]
    original_write, original_write_lines = transport.write, transport.writelines

    def write(payload: bytes) -> None:
        frames.append(payload)
        original_write(payload)

    def write_lines(payload: list[bytes]) -> None:
        frames.extend(payload)
        original_write_lines(payload)

    monkeypatch.setattr(transport, "write", write)
    monkeypatch.setattr(transport, "writelines", write_lines)
    await nc.subscribe(unique)  # pyright: ignore[reportUnknownMemberType]
    await nc.flush()

    commands = b"".join(frames)
    assert commands.index(b"SUB " + unique.encode()) < commands.index(b"PING")


def test_a_server_without_space_for_a_stream_is_reported_with_the_reason() -> None:
    error = to_bus_error(ApiError(500, 10049, "error creating store for stream"), "CREATE")
    assert "the server's disk is full" in str(error)
