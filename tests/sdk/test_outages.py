"""The SDK's errors while the bus or the decider is unavailable."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from nats.aio.client import Client as NatsClient
from structlog.testing import capture_logs

from infra.bus import client_bus
from infra.bus.client_bus import RetryLog
from infra.bus.rows import JetStreamRows
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect as connect_bus
from infra.jetstream.errors import BusUnavailableError
from infra.jetstream.reads import stream_state
from reconciler.sdk import BusError, ConfigurationError, WaitTimeoutError, client_on, connect
from reconciler.sdk.messages import withdrawal
from reconciler.wiring import initialize, open_connection, run_roles
from tests.sdk.conftest import shape


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """Run the test's own bus, without a decider."""
    server = EmbeddedServer()
    async with open_connection(await server.start(tmp_path / "nats")) as nc:
        await initialize(nc)
    yield server
    await server.stop()


async def test_without_a_decider_a_declaration_times_out(bus: EmbeddedServer) -> None:
    async with connect(bus.url, source="test") as client:
        with pytest.raises(
            WaitTimeoutError, match=r"default/Shape/foo.*sending them again is safe"
        ):
            await client.declare(shape("foo"), timeout_seconds=0.3)
        await client.publish([shape("bar")])
    async with open_connection(bus.url) as nc:
        assert (await stream_state(nc, "INTAKE")).messages == 2


async def test_messages_that_the_server_does_not_confirm_are_reported_before_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server whose disk is full no longer responds to a publish."""

    async def unconfirmed(_nc: object, messages: Sequence[object]) -> Sequence[BusError]:
        return [BusUnavailableError("no response")] * len(messages)

    monkeypatch.setattr(client_bus, "store_all", unconfirmed)
    nc = SimpleNamespace(is_closed=False, stats={"reconnects": 0}, new_inbox=lambda: "_INBOX.x")
    retries: list[int] = []
    bus = client_bus.JetStreamClientBus(cast("NatsClient", nc), "test", retries.append)
    message = withdrawal("default/Shape/foo")
    for send in (bus.request, bus.store):
        retries.clear()
        with pytest.raises(WaitTimeoutError, match=r"did not confirm 1 message within 0\.1 s"):
            await send([message], timeout_seconds=0.1)
        assert retries == [1]


async def test_a_lost_reply_is_requested_again(bus: EmbeddedServer) -> None:
    """The server stops after storing the request, and the decider starts even later."""
    async with connect(bus.url, source="test") as client:
        declaration = asyncio.ensure_future(client.declare(shape("foo"), timeout_seconds=30))
        async with asyncio.timeout(20):
            while await client.observation_time() == 0:  # noqa: ASYNC110 - polls a server
                await asyncio.sleep(0.01)
        port, folder = bus.port, bus.data_dir
        await bus.kill()
        await bus.start(folder, port=port)
        async with open_connection(bus.url) as nc, run_roles(nc, ["decider"]):
            reply = await declaration
        declared = [each for each in await client.history("default/Shape/foo") if each]

    assert reply.generation == 1
    assert [each.event.data.__class__.__name__ for each in declared].count("SpecDeclared") == 1


async def test_an_unreachable_bus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BusError, match="cannot reach"):
        async with connect("nats://127.0.0.1:1", source="test", timeout_seconds=0.3):
            pass


async def test_a_bus_without_a_reconciler_is_reported(tmp_path: Path) -> None:
    server = EmbeddedServer()
    url = await server.start(tmp_path / "nats")
    with pytest.raises(ConfigurationError, match="reconciler init"):
        async with connect(url, source="test"):
            pass
    nc = await connect_bus(url, name="test")
    await initialize(nc)
    async with client_on(nc, source="test") as client:
        assert (await client.fleet()).counts == ()
    assert nc.is_connected
    await nc.close()
    await server.stop()


async def test_reading_and_waiting_continue_through_a_restart(bus: EmbeddedServer) -> None:
    async with (
        open_connection(bus.url) as nc,
        connect(bus.url, source="test") as client,
        client.outcomes(name="foo") as stream,
    ):
        waiting = asyncio.ensure_future(client.wait_for("default/Shape/foo", generation=1))
        following = asyncio.ensure_future(anext(stream))
        port, folder = bus.port, bus.data_dir
        await bus.kill()
        reading = asyncio.ensure_future(client.history("default/Shape/foo"))
        await bus.start(folder, port=port)
        assert await reading == []
        async with run_roles(nc, ["decider"]):
            await client.declare(shape("foo", providerConfigRef={"name": "nowhere"}))
            outcome = await waiting
            assert (await following).event_id == outcome.event_id
    assert outcome.outcome == "Held"


async def test_rows_that_are_written_again_while_they_are_read_are_not_missed(
    bus: EmbeddedServer,
) -> None:
    """A row that is written again moves to the end of its stream."""
    names = [f"status.default.Shape.foo-{number}" for number in range(5_000)]

    async def rewrite_repeatedly(rows: JetStreamRows, revision: int) -> None:
        for count in itertools.count():
            some = random.sample(names, 300)
            changes = dict.fromkeys(some, b"%d" % count) | {"checkpoint": b"1"}
            revision = await rows.save(changes, revision)
            await asyncio.sleep(0.01)  # like the projector, which collects changes for longer

    async with open_connection(bus.url) as nc, open_connection(bus.url) as other_client:
        writer = JetStreamRows(nc)
        revision = 0
        for start in range(0, len(names), 500):
            rows = dict.fromkeys(names[start : start + 500], b"0")
            revision = await writer.save(rows | {"checkpoint": b"0"}, revision)
        writing = asyncio.ensure_future(rewrite_repeatedly(writer, revision))
        async with asyncio.timeout(30):
            for _ in range(15):
                found = await JetStreamRows(other_client).read_matching("status.>")
                assert sorted(found) == sorted(names)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def test_retries_of_many_messages_are_logged_once_per_second() -> None:
    log = RetryLog()
    with capture_logs() as logs:
        for _ in range(100):
            log(1)
    assert [each["count"] for each in logs] == [1]
